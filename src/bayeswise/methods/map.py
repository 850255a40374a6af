"""MAP, the most probable weights, by Adam: the yardstick for methods that know the weights' uncertainty.

    minimise  -mean_n log p(y_n | f(x_n; w)) + λ / (2 N) |w|²

λ `precision` of the Gaussian prior. All parameters of the module that require a gradient train, in train
mode, with buffers (BatchNorm's averages) of the state's own. The noise of a Gaussian likelihood is the
covariance of the residuals: a moving average during training, exact over all rows at the end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from bayeswise.linalg import NumericalError
from bayeswise.methods.protocol import Batch, Data, Info, Steps
from bayeswise.methods.schedules import Cosine, Schedule
from bayeswise.networks import Network, Params, in_mode
from bayeswise.networks.network import as_rows
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.randomness import global_rng
from bayeswise.weights import Point

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
NOISE_RATE = 0.02  # of the moving average of the residuals
NOISE_FLOOR = 1e-6  # of the noise variance, in standardised units


@dataclass(frozen=True)
class MAPState:
    """Weights, Adam's averages, buffers, and the noise so far."""

    step: Tensor
    params: Params
    first: Params  # average gradient
    second: Params  # average squared gradient
    buffers: Params  # and the parameters that do not train
    noise: Tensor  # (…, O, O)


@dataclass(frozen=True)
class MAP:
    """The most probable weights, found by Adam.

    It trains every parameter that requires a gradient, not only those of selected layers; the others stay as
    they are.
    """

    learning_rate: Schedule = field(default=Cosine(0.005))
    precision: float = 1.0
    steps: int = 2000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        if not callable(self.learning_rate):
            rate = self.learning_rate
            raise TypeError(
                f"MAP: learning_rate is a schedule, not the number {rate}; use bw.Constant({rate})"
            )
        object.__setattr__(self, "steps", operator.index(self.steps))  # numpy's integers are welcome
        if self.steps < 1 or not self.precision >= 0:
            raise ValueError(
                f"MAP: steps must be positive and precision not negative, not {self.steps}, {self.precision}"
            )

    @property
    def standardises(self) -> bool:
        """The module's weights are taken as a start, not as a trained model."""
        return True

    @property
    def infers_all(self) -> bool:
        """All parameters that require a gradient train, whatever layers were selected."""
        return True

    @property
    def starts_from_model(self) -> bool:
        """The module's weights are the first ones."""
        return True

    def plan(self, problem: Problem) -> Steps:
        """So many steps over reshuffled data."""
        return Steps(self.steps)

    def init(self, problem: Problem, data: Data, rng: Generator) -> MAPState:
        """The module's present weights."""
        network, lead = problem.network, problem.lead

        def own(value: Tensor) -> Tensor:
            return value.expand((*lead, *value.shape)).clone()

        trained = {name for name, p in network.module.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError(
                "MAP: no parameter of the model requires a gradient, so there is nothing to train"
            )
        values = network.layer_parameters() | network.constants
        params = {name: own(value) for name, value in values.items() if name in trained}
        buffers = {name: own(value) for name, value in values.items() if name not in trained}
        zeros = {name: torch.zeros_like(value) for name, value in params.items()}
        noise = own(torch.eye(network.outputs, dtype=torch.float64, device=network.device))
        step = torch.zeros((), dtype=torch.int64, device=network.device)
        return MAPState(step, params, zeros, {k: v.clone() for k, v in zeros.items()}, buffers, noise)

    def step(self, problem: Problem, state: MAPState, batch: Batch, rng: Generator) -> tuple[MAPState, Info]:
        """One step of Adam."""
        x, y = batch
        params = {name: value.requires_grad_() for name, value in state.params.items()}
        with torch.enable_grad(), _training(problem.network, rng):
            f = _outputs(problem.network, params, state.buffers, x, len(problem.lead))
            log_lik = problem.seen_likelihood(state.noise).log_prob(f, y)  # (…, B)
            penalty = sum((value * value).sum() for value in params.values())
            loss = -log_lik.mean(-1).sum() + 0.5 * self.precision / problem.n * penalty
            grads = torch.autograd.grad(
                loss, list(params.values()), allow_unused=True, materialize_grads=True
            )
        t = int(state.step)
        with torch.no_grad():
            rate = self.learning_rate(t, self.steps)
            for (name, value), gradient in zip(params.items(), grads, strict=True):
                _adam_(value.detach_(), state.first[name], state.second[name], gradient, rate, t + 1)
            noise = _moved(state.noise, y - f.detach(), t) if problem.infers_noise else state.noise
        if not math.isfinite(float(loss.detach()) + float(noise.sum())):
            raise _diverged("the loss is", t + 1)
        new = replace(state, step=state.step + 1, params=params, noise=noise)
        return new, Info(log_lik.detach().mean(-1))

    def posterior(self, problem: Problem, state: MAPState, data: Data) -> Posterior:
        """One network, with the covariance of its residuals over all rows as noise."""
        if not all(bool(value.isfinite().all()) for value in state.params.values()):
            raise _diverged("the weights are", int(state.step))
        network = replace(problem.network, constants={}, layers=())
        own = replace(problem, network=network)
        noise = _residual_covariance(own, state, data) if problem.infers_noise else None
        if noise is not None and not bool(noise.isfinite().all()):
            raise _diverged("the residuals are", int(state.step))
        params = {name: value.detach().clone() for name, value in state.params.items()}
        weights = Point(params | {name: value.clone() for name, value in state.buffers.items()}, noise)
        return Posterior(own, weights, "MAP", _notes(problem, state))


def _diverged(what: str, steps: int) -> NumericalError:
    return NumericalError(f"MAP: {what} not finite after {steps} steps; lower the learning rate")


def _notes(problem: Problem, state: MAPState) -> tuple[str, ...]:
    def count(values: Iterable[Tensor]) -> int:
        return sum(value.shape[len(problem.lead) :].numel() for value in values)

    own = {name for name, _ in problem.network.module.named_parameters()}
    fixed = [name for name in state.buffers if name in own]
    note = f"{int(state.step)} steps, one network of {count(state.params.values())} weights"
    if not fixed:
        return (note,)
    size = count(state.buffers[name] for name in fixed)
    return note, f"{size} weights require no gradient and stay as they are: {', '.join(fixed)}"


def _adam_(value: Tensor, first: Tensor, second: Tensor, gradient: Tensor, rate: float, t: int) -> None:
    first.lerp_(gradient, 1 - BETA1)
    second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    scale = second.div(1 - BETA2**t).sqrt_().add_(EPSILON)
    value.addcdiv_(first, scale, value=-rate / (1 - BETA1**t))


def _outputs(network: Network, params: Params, buffers: Params, x: Tensor, lead: int) -> Tensor:
    """The outputs (…, B, O) of each member with its own parameters and buffers."""
    if lead == 0:
        x = x.clone() if network.changes_input else x
        return as_rows(functional_call(network.module, (params, buffers), (x,)))
    if not buffers:
        return replace(network, constants={})(params, x, lead=1, x_lead=1)
    members = range(x.shape[0])
    return torch.stack([_outputs(network, _member(params, k), _member(buffers, k), x[k], 0) for k in members])


def _member(values: Params, k: int) -> Params:
    return {name: value[k] for name, value in values.items()}


@contextmanager
def _training(network: Network, rng: Generator) -> Iterator[None]:
    """Train mode; what draws from the global generator (dropout) draws from ours."""
    seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))
    with in_mode(network.module, True), global_rng(seed):
        yield


def _moved(noise: Tensor, residual: Tensor, t: int) -> Tensor:
    rate = max(NOISE_RATE, 1 / (t + 1))
    return torch.lerp(noise, _covariance(residual), rate)


def _covariance(residual: Tensor) -> Tensor:
    r = residual.double()
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    return r.mT @ r / r.shape[-2] + NOISE_FLOOR * eye  # (…, O, O)


def _residual_covariance(problem: Problem, state: MAPState, data: Data) -> Tensor:
    total, rows = torch.zeros_like(state.noise), 0
    with torch.no_grad(), in_mode(problem.network.module, False):
        for x, y in data.ordered():
            f = _outputs(problem.network, state.params, state.buffers, x, len(problem.lead))
            total, rows = total + _covariance(y - f) * f.shape[-2], rows + f.shape[-2]
    return total / rows
