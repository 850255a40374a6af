"""What BALI carries from step to step, and within one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats
from bayeswise.linalg import gram, safe_cholesky
from bayeswise.methods.forward import Weights
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.members import spread
from bayeswise.methods.protocol import Data
from bayeswise.methods.schedules import Schedule
from bayeswise.methods.updates import Shape, Update
from bayeswise.networks import LayerSignal, LayerView, LocalNoise, Signals, is_fed_by_data
from bayeswise.problem import Problem

WIDE = 200  # inputs from which a first layer moves by its mean, and its products are taken beforehand
SMALL = 50_000  # weights up to which a network is small
ENOUGH = 24  # rows for each input, which settle the mean of xxᵀ


@dataclass(frozen=True)
class LayerState:
    """The moving averages of one layer."""

    data: Any  # what the update keeps: Ψxx, Ψxy, Ψyy / b, or the same in another form
    gg: Tensor  # Ψgg / b (…, O)


@dataclass(frozen=True)
class BALIState:
    """The averages of all layers, and the weights of the first pass."""

    step: Tensor  # t
    bias: Tensor  # b_t
    layers: dict[str, LayerState]
    start: dict[str, Tensor]  # W (…, I, O) by layer, used before there is a posterior
    residual: RegressionStats | None  # of y - f, where no layer's output is the network's
    rescues: Tensor  # factorisations that needed jitter


@dataclass(frozen=True)
class Pass:
    """One pass forward and back: the weights and noise it was made with, and what it gave."""

    weights: Weights
    noise: dict[str, LocalNoise]
    signals: Signals
    y: Tensor
    rate: float | Tensor  # γ, or one for each member (E·S,)

    def layer(self, name: str) -> tuple[LayerSignal, Tensor, Tensor | None]:
        """A layer's signals, its weights W (…, I, O), and the noise ε (…, R, O) on its outputs, if any."""
        signal = self.signals.layers[name]
        return signal, self.weights[name], self.noise[name](signal.x) if name in self.noise else None


@dataclass(frozen=True)
class LayerSetting:
    """What does not change about a layer: view, prior, spread of the first weights, kind of targets."""

    view: LayerView
    prior: DiagonalPrior
    start_std: float
    regresses: bool  # on the true targets: it is the output of a regression

    @property
    def title(self) -> str:
        """What errors call it."""
        return f'layer "{self.view.name}"'


def drawn_start(
    settings: tuple[LayerSetting, ...], problem: Problem, bias_scale: float | Tensor, rng: Generator
) -> dict[str, Tensor]:
    """Starting weights W (…, I, O) of every layer; the first layer's biases so many times wider."""
    network, start = problem.network, {}
    for s in settings:
        shape = (*problem.lead, *s.view.groups, s.view.inputs, s.view.outputs)
        a = torch.randn(shape, generator=rng, dtype=network.dtype, device=network.device)
        start[s.view.name] = s.start_std * a
    first = settings[0].view
    if first.bias:
        start[first.name][..., -1, :].mul_(bias_scale)
    return start


def rates(
    schedule: Schedule, steps: int | tuple[int, ...], state: BALIState, problem: Problem
) -> tuple[Tensor, float | Tensor]:
    """b_t and γ; (E·S,) where members have lengths of their own: who is done stays as he is."""
    step = int(state.step)
    if not isinstance(steps, tuple):
        beta = schedule(step, steps)
        bias = beta + (1 - beta) * float(state.bias)
        return torch.full_like(state.bias, bias), beta / bias if bias > 0 else 0.0
    own = tuple(schedule(step, length) if step < length else 0.0 for length in steps)
    beta = spread(own, problem)  # (E·S,)
    bias = beta + (1 - beta) * state.bias
    return bias, beta / bias


def grouped(rate: float | Tensor, dims: int) -> float | Tensor:
    """A rate as it is, or those of members with so many dimensions more."""
    return rate.reshape(*rate.shape, *[1] * dims) if isinstance(rate, Tensor) else rate


def moved_(average: Tensor, new: Tensor, rate: float | Tensor) -> Tensor:
    """(1 - γ) average + γ new, in place."""
    if isinstance(rate, Tensor):
        return average.mul_(1 - rate).add_(rate * new)
    return average.mul_(1 - rate).add_(new, alpha=rate)


def shape_of(problem: Problem, groups: tuple[int, ...], inputs: int, outputs: int) -> Shape:
    """The regressions of a layer: one for each member and group."""
    network = problem.network
    return Shape((*problem.lead, *groups), inputs, outputs, network.dtype, network.device)


def empty(view: LayerView, problem: Problem, update: Update[Any]) -> LayerState:
    """A layer before its first step."""
    shape = shape_of(problem, view.groups, view.inputs, view.outputs)
    return LayerState(update.empty(shape), shape.zeros(view.outputs, dtype=torch.float64))


def informed(
    view: LayerView,
    problem: Problem,
    update: MeanUpdate,
    prior: DiagonalPrior,
    mean: Tensor | None,
    n_eff: float | Tensor,
) -> LayerState:
    """A layer before its first step; where the mean of its xxᵀ (…, I, I) is known, Ψxx is."""
    layer = empty(view, problem, update)
    if mean is None:
        return layer
    xx = grouped(n_eff, 2) * mean
    return LayerState(update.knowing(prior, layer.data, xx, f'layer "{view.name}"'), layer.gg)


def known_inputs(problem: Problem, starts: int, view: LayerView, data: Data) -> Tensor | None:
    """The mean of xxᵀ of a layer whose inputs are the data, else None; of many rows every k-th.

    It is computed once for each data split, (S, I, I), and repeated for every start, (E·S, I, I).
    """
    lead, device = len(problem.lead), problem.network.device
    if not is_fed_by_data(problem.network, view, data.example[0][(0,) * lead]):
        return None
    total, rows = torch.zeros((), dtype=torch.float64, device=device), 0
    k = max(1, data.n // (ENOUGH * view.inputs))
    for x, _ in data.ordered():
        some = x.flatten(lead + 1)[..., ::k, :].to(problem.network.dtype)  # (S, R, I) or (R, I)
        seen = view.rows(some, lead)
        total, rows = total + gram(seen).double(), rows + seen.shape[-2]
    mean = total / rows
    return mean if starts == 1 else mean.repeat(starts, 1, 1)


def residual_posterior(
    stats: RegressionStats, scale: float | Tensor, dof: float
) -> MatrixNormalInverseWishart:
    """Σ ~ IW(U0 + Σ r rᵀ, u0 + N_eff): a regression without inputs; U0 is `scale` I, u0 `dof`."""
    prior = DiagonalPrior(1.0, scale, dof, 0, stats.outputs)
    return MatrixNormalInverseWishart.from_stats(prior + stats, "observation noise")


def known_factor(problem: Problem) -> Tensor:
    """The root of a known noise covariance in the network's units (…, O, O)."""
    noise = problem.units.noise_to_network(problem.known_noise())
    return safe_cholesky(noise, "the known noise covariance").lower


def last_layer(problem: Problem) -> str:
    """The name of the layer whose output is the network's, or comes closest to it."""
    return problem.network.output_layer or problem.network.layers[-1].name


def of_best(states: Sequence[Any], best: Tensor) -> BALIState:
    """Of several states with E·S members each the best (S,) for every split."""
    if best.dim() == 0 or len(states) == 1:
        return states[int(best.max())]
    members = next(iter(states[0].start.values())).shape[0]
    own, place = best.repeat(members // best.numel()), torch.arange(members, device=best.device)  # (E·S,)

    def pick(*parts: Any) -> Any:
        first = parts[0]
        if isinstance(first, Tensor):
            return torch.stack(parts)[own, place] if first.dim() else first
        if isinstance(first, dict):
            return {name: pick(*(part[name] for part in parts)) for name in first}
        if is_dataclass(first) and not isinstance(first, type):
            names = [field.name for field in fields(first)]
            return replace(first, **{name: pick(*(getattr(part, name) for part in parts)) for name in names})
        return first

    return pick(*(replace(state, bias=state.bias.expand(members)) for state in states))


def resumed(state: BALIState, problem: Problem, own_lengths: bool) -> BALIState:
    """A state that goes on from its averages, at the first step of another run."""
    bias = state.bias.expand(problem.lead).clone() if own_lengths else state.bias
    return replace(state, step=torch.zeros_like(state.step), bias=bias)
