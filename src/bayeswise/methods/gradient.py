"""What methods have in common that follow gradients of weights: optimisers, train mode, noise by residuals.

    m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) g²                    Adam
    w ← w - η / (1 - β₁ᵗ) · m / (sqrt(v / (1 - β₂ᵗ)) + ε)

    m ← μ m + (1 - μ) g,  w ← w - η s / (1 - μ) · m                   SGD with momentum

m `first`, v `second`, η the method's learning rate, μ `momentum`, s `scale`. All parameters of the module
that require a gradient train, in train mode, with buffers (BatchNorm's averages) of the state's own.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayeswise.linalg import NumericalError
from bayeswise.methods.protocol import Data, Info, Steps
from bayeswise.methods.schedules import Schedule, require_schedule
from bayeswise.networks import Network, Params, in_mode
from bayeswise.networks.network import as_rows
from bayeswise.problem import Problem
from bayeswise.randomness import global_rng

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
NOISE_RATE = 0.02  # of the moving average of the residuals
NOISE_FLOOR = 1e-6  # of the noise variance, in standardised units

Marks = Callable[[Tensor], Params]
Pass = Callable[[Params], tuple[Tensor, Tensor | float]]  # outputs (…, B, O), and a penalty to be added


@dataclass(frozen=True)
class Averages:
    """What an optimiser remembers of the gradients, for parameters of any names."""

    step: Tensor  # t
    first: Params  # average gradient
    second: Params  # average squared gradient

    @classmethod
    def start(cls, params: Params, device: torch.device) -> Averages:
        """Zeros."""
        first, second = ({name: torch.zeros_like(v) for name, v in params.items()} for _ in range(2))
        return cls(torch.zeros((), dtype=torch.int64, device=device), first, second)


class Optimiser(Protocol):
    """How gradients move parameters."""

    def move_(self, averages: Averages, params: Params, grads: list[Tensor], rate: float) -> Averages:
        """One step of the parameters, in place, along gradients in their order."""
        ...


@dataclass(frozen=True)
class Adam:
    """Steps of about the same size for every parameter."""

    def move_(self, averages: Averages, params: Params, grads: list[Tensor], rate: float) -> Averages:
        """One step of the parameters, in place, along gradients in their order."""
        t = int(averages.step) + 1
        first, second = list(averages.first.values()), list(averages.second.values())
        torch._foreach_lerp_(first, grads, 1 - BETA1)
        torch._foreach_mul_(second, BETA2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - BETA2)
        scale = torch._foreach_div(second, 1 - BETA2**t)
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, EPSILON)
        torch._foreach_addcdiv_(list(params.values()), first, scale, value=-rate / (1 - BETA1**t))
        return replace(averages, step=averages.step + 1)


@dataclass(frozen=True, eq=False)
class SGD:
    """Steps along the gradient with momentum; m is kept as an average, as Adam's is."""

    momentum: float
    scale: Tensor  # (…), what the rate of each run is multiplied by

    def move_(self, averages: Averages, params: Params, grads: list[Tensor], rate: float) -> Averages:
        """One step of the parameters, in place, along gradients in their order."""
        torch._foreach_lerp_(list(averages.first.values()), grads, 1 - self.momentum)
        gain = self.scale * (rate / (1 - self.momentum))  # (…)
        for w, m in zip(params.values(), averages.first.values(), strict=True):
            w.sub_(gain.reshape(gain.shape + (1,) * (w.dim() - gain.dim())).to(w.dtype) * m)
        return replace(averages, step=averages.step + 1)


@dataclass(frozen=True)
class Descent:
    """The state of a method that follows gradients: what trains, what does not, and the noise so far."""

    averages: Averages
    params: Params  # (…) by name
    buffers: Params  # and the parameters that do not train
    noise: Tensor  # (…, O, O)

    @property
    def step(self) -> Tensor:
        """The steps done."""
        return self.averages.step

    @classmethod
    def start(cls, params: Params, buffers: Params, network: Network, lead: tuple[int, ...]) -> Descent:
        """Before the first step; the noise is that of standardised targets."""
        eye = torch.eye(network.outputs, dtype=torch.float64, device=network.device)
        return cls(Averages.start(params, network.device), params, buffers, _own(eye, lead))


class Descender(Protocol):
    """A method that follows gradients."""

    @property
    def learning_rate(self) -> Schedule:
        """η over the run."""
        ...

    @property
    def steps(self) -> int:
        """How many steps."""
        ...

    def rate_at(self, step: int) -> float:
        """The rate of this step."""
        ...

    def optimiser(self, problem: Problem, state: Descent) -> Optimiser:
        """What takes this step."""
        ...


class Pull(Protocol):
    """A Gaussian prior that training may have instead of one around zero."""

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it is of."""
        ...

    def start(self) -> Params:
        """Where training starts: parameters and buffers (…)."""
        ...

    def penalty(self, params: Params) -> Tensor:
        """-log of its density (…,), up to a number."""
        ...


class GradientMethod:
    """What all methods that follow gradients answer alike."""

    learning_rate: Schedule
    steps: int

    def rate_at(self, step: int) -> float:
        """The learning rate, one schedule for all steps."""
        return self.learning_rate(step, self.steps)

    def optimiser(self, problem: Problem, state: Descent) -> Optimiser:
        """Adam."""
        return Adam()

    @property
    def standardises(self) -> bool:
        """Weights are a start or drawn, not those of a model trained in units of its own."""
        return True

    @property
    def infers_all(self) -> bool:
        """All parameters that require a gradient are inferred, whatever layers were selected."""
        return True

    @property
    def starts_from_model(self) -> bool:
        """The module's weights are the first ones."""
        return True

    def plan(self, problem: Problem) -> Steps:
        """So many steps over reshuffled data."""
        return Steps(self.steps)


def check_settings(method: Descender) -> None:
    """Refuse a learning rate that is no schedule, and steps or a precision without meaning."""
    name = type(method).__name__
    require_schedule(f"{name}: learning_rate", method.learning_rate)
    object.__setattr__(method, "steps", operator.index(method.steps))  # numpy's integers are welcome
    precision = getattr(method, "precision", 0.0)
    if method.steps < 1 or not precision >= 0:
        given = f"{method.steps}, {precision}"
        raise ValueError(f"{name}: steps must be positive and precision not negative, not {given}")


# ------------------------------------------------------------------------------------------ where it starts


def starting_values(method: Descender, network: Network, lead: tuple[int, ...]) -> tuple[Params, Params]:
    """The module's present values with leading dimensions: what trains, and what does not."""
    trained = {key for key, p in network.module.named_parameters() if p.requires_grad}
    if not trained:
        name = type(method).__name__
        raise ValueError(
            f"{name}: no parameter of the model requires a gradient, so there is nothing to train"
        )
    values = network.layer_parameters() | network.constants
    params = {key: _own(value, lead) for key, value in values.items() if key in trained}
    buffers = {key: _own(value, lead) for key, value in values.items() if key not in trained}
    return params, buffers


def fresh_(params: Params, network: Network, rng: Generator) -> Params:
    """Weights and biases of linear layers and convolutions drawn anew, U(±1 / sqrt(fan-in)), in place."""
    inputs = fan_ins(network)
    for name, value in params.items():
        if name in inputs:
            value.uniform_(-(inputs[name] ** -0.5), inputs[name] ** -0.5, generator=rng)
    return params


def fan_ins(network: Network) -> dict[str, int]:
    """The number of inputs of each linear layer and convolution, by the names of their parameters."""
    found = {}
    for where, module in network.module.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            for name, _ in module.named_parameters(recurse=False):
                found[f"{where}.{name}" if where else name] = module.weight[0].numel()
    return found


def _own(value: Tensor, lead: tuple[int, ...]) -> Tensor:
    return value.expand((*lead, *value.shape)).clone()


# ------------------------------------------------------------------------------------------------- one step


def descend(
    method: Descender,
    problem: Problem,
    state: Descent,
    y: Tensor,
    rng: Generator,
    run: Pass,
    decay: float = 0.0,
) -> tuple[Descent, Info]:
    """One step of the method's optimiser on -mean log p(y | f) + penalty + decay / 2 |w|²."""
    params = {key: value.requires_grad_() for key, value in state.params.items()}
    with torch.enable_grad(), training(problem.network, rng):
        f, penalty = run(params)
        log_lik = problem.seen_likelihood(state.noise).log_prob(f, y)  # (…, B)
        loss = -log_lik.mean(-1).sum() + penalty
        found = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    t = int(state.step)
    with torch.no_grad():
        values, grads = [value.detach_() for value in params.values()], list(found)
        if decay:
            grads = list(torch._foreach_add(grads, torch._foreach_mul(values, decay)))
        averages = method.optimiser(problem, state).move_(state.averages, params, grads, method.rate_at(t))
        noise = _moved(state.noise, y - f.detach(), t) if problem.infers_noise else state.noise
    if not math.isfinite(float(loss.detach()) + float(noise.sum())):
        raise diverged(method, "the loss is", t + 1)
    new = replace(state, averages=averages, params=params, noise=noise)
    return new, Info(_batch_mean(log_lik.detach(), len(problem.lead)))


def outputs(
    network: Network, params: Params, buffers: Params, x: Tensor, lead: int = 0, x_lead: int = 0
) -> Tensor:
    """Outputs (…, B, O), each network with its own parameters and buffers, which a pass may move.

    Parameters and buffers have `lead` leading dimensions; the last `x_lead` of them are also those of x.
    """
    if lead == 0:
        x = x.clone() if network.changes_input else x
        return as_rows(network.run(params, buffers, x), len(x))
    if not buffers:
        return replace(network, constants={}, vectorised=network.vectorises_all)(params, x, lead, x_lead)
    shared = lead > x_lead
    return torch.stack(
        [
            outputs(network, _member(params, k), _member(buffers, k), rows, lead - 1, min(lead - 1, x_lead))
            for k, rows in enumerate([x] * len(next(iter(params.values()))) if shared else x)
        ]
    )


@contextmanager
def training(network: Network, rng: Generator) -> Iterator[None]:
    """Train mode; what draws from the global generator (dropout) draws from ours."""
    seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))
    with in_mode(network.module, True), global_rng(seed):
        yield


def _batch_mean(log_lik: Tensor, lead: int) -> Tensor:
    """The mean over the batch, and over all leading dimensions but the problem's."""
    mean = log_lik.mean(-1)  # (…,)
    return mean if mean.dim() == lead else mean.mean(0)


def _member(values: Params, k: int) -> Params:
    return {name: value[k] for name, value in values.items()}


# ------------------------------------------------------------------------------------------ noise, and words


def _moved(noise: Tensor, residual: Tensor, t: int) -> Tensor:
    rate = max(NOISE_RATE, 1 / (t + 1))
    return torch.lerp(noise, _covariance(residual), rate)


def _covariance(residual: Tensor) -> Tensor:
    r = residual.double()
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    return r.mT @ r / r.shape[-2] + NOISE_FLOOR * eye  # (…, O, O)


def residual_covariance(
    method: Descender,
    problem: Problem,
    state: Descent,
    data: Data,
    marks: Marks = lambda x: {},
    passes: int = 1,
) -> Tensor | None:
    """The noise (…, O, O) that the residuals of all rows show in eval mode; None where it is known.

    `marks` gives what else acts on the rows of a batch (masks), anew in each of so many passes.
    """
    if not problem.infers_noise:
        return None
    x_lead = len(problem.lead)
    lead = state.noise.dim() - 2
    total, rows = torch.zeros_like(state.noise), 0
    with torch.no_grad(), in_mode(problem.network.module, False):
        for x, y in (batch for _ in range(passes) for batch in data.ordered()):
            f = outputs(problem.network, state.params | marks(x), state.buffers, x, lead, x_lead)
            total, rows = total + _covariance(y - f) * f.shape[-2], rows + f.shape[-2]
    if not bool(total.isfinite().all()):
        raise diverged(method, "the residuals are", int(state.step))
    return total / rows


def all_values(method: Descender, state: Descent) -> Params:
    """Copies of all that trains and of the buffers, after a look that they are finite."""
    if not all(bool(value.isfinite().all()) for value in state.params.values()):
        raise diverged(method, "the weights are", int(state.step))
    values = state.params | state.buffers
    return {key: value.detach().clone() for key, value in values.items()}


def diverged(method: Descender, what: str, steps: int) -> NumericalError:
    """What to say of a run that is lost."""
    return NumericalError(
        f"{type(method).__name__}: {what} not finite after {steps} steps; lower the learning rate"
    )


def bare(problem: Problem) -> Problem:
    """The problem as its posterior sees it, with all values of the network in the weights' distribution."""
    return replace(problem, network=problem.network.bare())


def training_notes(problem: Problem, state: Descent, what: str) -> tuple[str, ...]:
    """Steps, what was trained, and what was not."""
    own = dict(problem.network.module.named_parameters())
    fixed = {name: own[name].numel() for name in state.buffers if name in own}
    trained = sum(p.numel() for p in own.values()) - sum(fixed.values())
    note = f"{int(state.step)} steps, {what} of {trained} weights"
    if not fixed:
        return (note,)
    size = sum(fixed.values())
    return note, f"{size} weights require no gradient and stay as they are: {', '.join(fixed)}"
