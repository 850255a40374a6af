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
    Pull,
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

        def run(params: Params) -> tuple[Tensor, Tensor | float]:
            f = outputs(problem.network, params, state.buffers, x, lead, lead)
            return f, self._penalty(problem, params)

        return descend(self, problem, state, y, rng, run, self._decay(problem))

    def posterior(self, problem: Problem, state: Descent, data: Data) -> Posterior:
        """One network, with the covariance of its residuals over all rows as noise."""
        values, own = all_values(self, state), bare(problem)
        weights = Point(values, residual_covariance(self, own, state, data))
        return Posterior(own, weights, "MAP", training_notes(problem, state, "one network"))

    def towards(self, pull: Pull) -> MAP:
        """The same under another prior, with its start; parameters that it does not know stay as they are."""
        return PulledMAP(self.learning_rate, self.precision, self.steps, pull=pull)

    def _penalty(self, problem: Problem, params: Params) -> Tensor | float:
        return 0.0

    def _decay(self, problem: Problem) -> float:
        return self.precision / problem.n  # λ / N


@dataclass(frozen=True, eq=False)
class PulledMAP(MAP):
    """The most probable weights under any Gaussian prior."""

    pull: Pull = field(kw_only=True)

    def init(self, problem: Problem, data: Data, rng: Generator) -> Descent:
        """The values that the prior knows, all others at its own."""
        start = super().init(problem, data, rng)
        values = start.params | start.buffers
        values |= {name: value.to(values[name], copy=True) for name, value in self.pull.start().items()}
        trained = {name: values[name] for name in start.params if name in self.pull.names}
        others = {name: value for name, value in values.items() if name not in trained}
        return Descent.start(trained, others, problem.network, problem.lead)

    def _penalty(self, problem: Problem, params: Params) -> Tensor:
        return self.pull.penalty(params).sum() / problem.n

    def _decay(self, problem: Problem) -> float:
        return 0.0
