"""Deep ensembles: E networks from independent starts, each the most probable one it finds (arXiv 1612.01474).

For e = 1 … E, all in one batched run,

    w_e ~ U(±1 / sqrt(fan-in))                                        the start of linear layers, convolutions
    minimise  -mean_n log p(y_n | f(x_n; w_e), Σ_e) + λ / (2 N) |w_e|²
    Σ_e = mean_n (y_n - f_e)(y_n - f_e)ᵀ                              of a Gaussian likelihood
    p(y | x) = mean_e p(y | f(x; w_e), Σ_e)

E `members`, λ `precision`. The networks differ in their starts alone: all see the same batches.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

from torch import Generator, Tensor

from bayeswise.methods.gradient import (
    Descent,
    GradientMethod,
    all_values,
    bare,
    check_settings,
    descend,
    fresh_,
    outputs,
    residual_covariance,
    starting_values,
    training_notes,
)
from bayeswise.methods.protocol import Batch, Data, Info
from bayeswise.methods.schedules import Cosine, Schedule
from bayeswise.networks import Params
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import Particles


@dataclass(frozen=True)
class Ensemble(GradientMethod):
    """Networks trained by Adam from independent starts, in one batched run.

    Every parameter that requires a gradient trains. Those of linear layers and convolutions start from fresh
    draws, all others from the module's present values.
    """

    members: int = 5
    learning_rate: Schedule = field(default=Cosine(0.005))
    precision: float = 1.0
    steps: int = 2000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        check_settings(self)
        object.__setattr__(self, "members", operator.index(self.members))
        if self.members < 1:
            raise ValueError(f"Ensemble: members must be at least 1, not {self.members}")

    @property
    def starts_from_model(self) -> bool:
        """The chosen layers start from fresh draws."""
        return False

    def init(self, problem: Problem, data: Data, rng: Generator) -> Descent:
        """Fresh weights for every member."""
        network, lead = problem.network, (self.members, *problem.lead)
        params, buffers = starting_values(self, network, lead)
        return Descent.start(fresh_(params, network, rng), buffers, network, lead)

    def step(self, problem: Problem, state: Descent, batch: Batch, rng: Generator) -> tuple[Descent, Info]:
        """One step of Adam of all members."""
        (x, y), lead = batch, len(problem.lead)

        def run(params: Params) -> tuple[Tensor, float]:
            return outputs(problem.network, params, state.buffers, x, lead + 1, lead), 0.0  # (E, …, B, O)

        return descend(self, problem, state, y, rng, run, self.precision / problem.n)  # λ / N

    def posterior(self, problem: Problem, state: Descent, data: Data) -> Posterior:
        """The members in equal shares, each with the covariance of its own residuals as noise."""
        values, own = all_values(self, state), bare(problem)
        weights = Particles(values, residual_covariance(self, own, state, data))
        return Posterior(own, weights, "Ensemble", training_notes(problem, state, self._what()))

    def _what(self) -> str:
        return "one network" if self.members == 1 else f"{self.members} networks, each"
