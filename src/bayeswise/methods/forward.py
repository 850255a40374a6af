"""How the uncertainty of layer posteriors enters a forward pass (App. F of the BALI paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from bayeswise.distributions import MatrixNormalInverseWishart
from bayeswise.networks import LocalNoise, Network, row_counts

Layers = dict[str, MatrixNormalInverseWishart]
Weights = dict[str, Tensor]  # W (…, I, O) by layer


class Forward(Protocol):
    """Weights for one forward pass, and noise on the layers' outputs."""

    def __call__(
        self, layers: Layers, network: Network, x: Tensor, rng: Generator
    ) -> tuple[Weights, dict[str, LocalNoise]]:
        """Weights in the network's precision, and noise for the batch x."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """W = M: the weights' uncertainty does not enter the pass (eq. 69)."""

    def __call__(
        self, layers: Layers, network: Network, x: Tensor, rng: Generator
    ) -> tuple[Weights, dict[str, LocalNoise]]:
        """The means."""
        return {name: q.mean.to(network.dtype) for name, q in layers.items()}, {}


@dataclass(frozen=True)
class WeightNoise:
    """W ~ MN(M, R, Σ): one network for the whole batch (eq. 66)."""

    def __call__(
        self, layers: Layers, network: Network, x: Tensor, rng: Generator
    ) -> tuple[Weights, dict[str, LocalNoise]]:
        """One draw of each layer."""
        return {name: q.draw(rng).to(network.dtype) for name, q in layers.items()}, {}


@dataclass(frozen=True)
class LocalReparametrisation:
    """z = xM + ε, ε ~ N(0, x R xᵀ Σ) for each row by itself (eq. 67 and 68)."""

    def __call__(
        self, layers: Layers, network: Network, x: Tensor, rng: Generator
    ) -> tuple[Weights, dict[str, LocalNoise]]:
        """The means, and noise for every row of every layer."""
        first = network.layers[0]
        lead = layers[first.name].factor.dim() - 2 - len(first.groups)  # members
        rows = row_counts(network, x, lead)
        noise = {name: _local_noise(q, rows[name], network.dtype, rng) for name, q in layers.items()}
        return {name: q.mean.to(network.dtype) for name, q in layers.items()}, noise


def _local_noise(q: MatrixNormalInverseWishart, rows: int, dtype: torch.dtype, rng: Generator) -> LocalNoise:
    shape = (*q.factor.shape[:-2], rows, q.outputs)
    a = torch.randn(shape, generator=rng, dtype=dtype, device=q.factor.device)
    return LocalNoise(q.precision_factor.to(dtype), a @ q.noise_factor.mT.to(dtype))
