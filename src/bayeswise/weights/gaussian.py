"""Gaussian distributions over parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.networks import Network, Params
from bayeswise.weights.protocol import OneNoise, named, noise_named, under


@dataclass(frozen=True)
class MeanField(OneNoise):
    """Independent Gaussian weights: what Bayes by Backprop finds."""

    mean: Params  # and all values that are not drawn (…)
    std: Params  # of those that are (…)
    covariance: Tensor | None  # (…, O, O)
    distinct = None
    tangent = None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """μ + σ ε."""
        params = {name: value.expand(n, *value.shape) for name, value in self.mean.items()}
        for name, std in sorted(self.std.items()):  # the order of a saved file
            e = torch.randn((n, *std.shape), generator=rng, dtype=std.dtype, device=std.device)
            params[name] = torch.addcmul(self.mean[name], std, e)  # (n, …)
        return params, None

    def config(self) -> dict[str, Any]:
        """Nothing but the kind."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Means and standard deviations under the parameters' names."""
        return named("mean/", self.mean) | named("std/", self.std) | noise_named(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> MeanField:
        """The inverse of `config` and `tensors`."""
        return cls(under("mean/", tensors), under("std/", tensors), tensors.get("noise"))


@dataclass(frozen=True)
class LowRank(OneNoise):
    """Gaussian weights with the covariance diag(σ²) + Σ_q f_q f_qᵀ, between layers as well as within them."""

    mean: Params  # and all values that are not drawn (…)
    std: Params  # σ of those that are (…)
    columns: Params  # f (Q, …) of the same, perhaps in a coarser precision
    covariance: Tensor | None  # (…, O, O)
    lead: tuple[int, ...] = ()  # which of the dimensions … are members
    distinct = None
    tangent = None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """μ + σ ε + Σ_q f_q z_q, with one z of a draw for all parameters."""
        params = {name: value.expand(n, *value.shape) for name, value in self.mean.items()}
        z = self._shared(n, rng)  # (n, M, Q)
        for name, std in sorted(self.std.items()):  # the order of a saved file
            e = torch.randn((n, *std.shape), generator=rng, dtype=std.dtype, device=std.device)
            params[name] = self._moved(name, z).addcmul_(std, e).add_(self.mean[name])  # (n, …)
        return params, None

    def config(self) -> dict[str, Any]:
        """The members."""
        return {"lead": list(self.lead)}

    def tensors(self) -> dict[str, Tensor]:
        """Means, standard deviations and columns under the parameters' names."""
        parts = named("mean/", self.mean) | named("std/", self.std) | named("columns/", self.columns)
        return parts | noise_named(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LowRank:
        """The inverse of `config` and `tensors`."""
        mean, std, columns = (under(part, tensors) for part in ("mean/", "std/", "columns/"))
        return cls(mean, std, columns, tensors.get("noise"), tuple(config["lead"]))

    def _shared(self, n: int, rng: Generator) -> Tensor:
        """What all parameters of a draw have in common: z (n, M, Q), M the number of members."""
        name = next(iter(self.columns))
        like, rank = self.mean[name], len(self.columns[name])
        shape = (n, math.prod(self.lead), rank)
        return torch.randn(shape, generator=rng, dtype=like.dtype, device=like.device)

    def _moved(self, name: str, z: Tensor) -> Tensor:
        """Σ_q f_q z_q (n, …)."""
        _, members, rank = z.shape
        f = self.columns[name].to(z.dtype).reshape(rank, members, -1)  # (Q, M, P)
        return torch.einsum("nmq,qmp->nmp", z, f).reshape(len(z), *self.mean[name].shape)
