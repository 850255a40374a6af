"""What BALI carries from step to step, and within one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayeswise.distributions import DiagonalPrior, RegressionStats
from bayeswise.methods.forward import Weights
from bayeswise.networks import LayerSignal, LayerView, LocalNoise, Signals
from bayeswise.problem import Problem

FLOAT64_INPUTS = 512  # up to so many inputs a layer's averages and factors are float64, whatever the data


@dataclass(frozen=True)
class LayerState:
    """The moving averages of one layer."""

    data: RegressionStats  # Ψxx, Ψxy, Ψyy / b
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
    rate: float  # γ

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


def zero_stats(problem: Problem, groups: tuple[int, ...], inputs: int, outputs: int) -> RegressionStats:
    """No data yet."""
    lead, size = (*problem.lead, *groups), inputs + outputs
    dtype = torch.float64 if inputs <= FLOAT64_INPUTS else problem.network.dtype
    joint = torch.zeros(*lead, size, size, dtype=dtype, device=problem.network.device)
    return RegressionStats(joint, joint.new_zeros(lead, dtype=torch.float64), inputs)


def empty(view: LayerView, problem: Problem) -> LayerState:
    """A layer before its first step."""
    data = zero_stats(problem, view.groups, view.inputs, view.outputs)
    gg = torch.zeros(*data.n.shape, view.outputs, dtype=torch.float64, device=problem.network.device)
    return LayerState(data, gg)
