"""Gaussian distributions over parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.networks import Network, Params
from bayeswise.weights.protocol import named, noise_named, under


@dataclass(frozen=True)
class MeanField:
    """Independent Gaussian weights: what Bayes by Backprop finds."""

    mean: Params  # and all values that are not drawn (…)
    std: Params  # of those that are (…)
    covariance: Tensor | None  # (…, O, O)
    distinct = None

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """None: all draws share the noise."""
        return None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """μ + σ ε."""
        params = {name: value.expand(n, *value.shape) for name, value in self.mean.items()}
        for name, std in sorted(self.std.items()):  # the order of a saved file
            e = torch.randn((n, *std.shape), generator=rng, dtype=std.dtype, device=std.device)
            params[name] = torch.addcmul(self.mean[name], std, e)  # (n, …)
        return params, None

    def noise(self) -> Tensor | None:
        """The noise covariance."""
        return self.covariance

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
