"""MAP, the most probable weights, by Adam: the yardstick for methods that know the weights' uncertainty.

    minimise  -mean_n log p(y_n | f(x_n; w)) + λ / (2 N) |w|²

λ `precision` of the Gaussian prior. The noise of a Gaussian likelihood is the covariance of the residuals: a
moving average during training, exact over all rows at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Generator, Tensor

from bayeswise.methods.gradient import (
    Descent,
    GradientMethod,
    all_values,
    bare,
    check_settings,
    descend,
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
from bayeswise.weights import Point


@dataclass(frozen=True)
class MAP(GradientMethod):
    """The most probable weights, found by Adam.

    It trains every parameter that requires a gradient, not only those of selected layers; the others stay as
    they are.
    """

    learning_rate: Schedule = field(default=Cosine(0.005))
    precision: float = 1.0
    steps: int = 2000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        check_settings(self)

    def init(self, problem: Problem, data: Data, rng: Generator) -> Descent:
        """The module's present weights."""
        params, buffers = starting_values(self, problem.network, problem.lead)
        return Descent.start(params, buffers, problem.network, problem.lead)

    def step(self, problem: Problem, state: Descent, batch: Batch, rng: Generator) -> tuple[Descent, Info]:
        """One step of Adam."""
        (x, y), lead = batch, len(problem.lead)

        def run(params: Params) -> tuple[Tensor, float]:
            return outputs(problem.network, params, state.buffers, x, lead, lead), 0.0

        return descend(self, problem, state, y, rng, run, self.precision / problem.n)  # λ / N

    def posterior(self, problem: Problem, state: Descent, data: Data) -> Posterior:
        """One network, with the covariance of its residuals over all rows as noise."""
        values, own = all_values(self, state), bare(problem)
        weights = Point(values, residual_covariance(self, own, state, data))
        return Posterior(own, weights, "MAP", training_notes(problem, state, "one network"))
