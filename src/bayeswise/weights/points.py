"""All mass on one value of the parameters, or on a few, or on one value behind random masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.linalg import safe_cholesky
from bayeswise.networks import Network, Params
from bayeswise.weights.protocol import OneNoise, named, noise_named, under


@dataclass(frozen=True)
class Point(OneNoise):
    """All mass on one value: what MAP finds."""

    params: Params  # and the buffers that belong to them (…)
    covariance: Tensor | None  # (…, O, O)
    tangent = None

    @property
    def distinct(self) -> int:
        """One."""
        return 1

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """The same parameters n times."""
        return {name: value.expand(n, *value.shape) for name, value in self.params.items()}, None

    def config(self) -> dict[str, Any]:
        """Nothing but the kind."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their own names."""
        return named("params/", self.params) | noise_named(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Point:
        """The inverse of `config` and `tensors`."""
        return cls(under("params/", tensors), tensors.get("noise"))


@dataclass(frozen=True)
class Particles(Point):
    """Mass on E values in equal shares: what an ensemble finds. Draws go through them in order."""

    # params are (E, …), and each one's own covariance (E, …, O, O)

    @property
    def distinct(self) -> int:
        """E."""
        return len(next(iter(self.params.values())))

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """Roots of the noise of the first n, which begin again after the last."""
        if self.covariance is None:
            return None
        return safe_cholesky(self._first(self.covariance, n), "the noise of the members").lower

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """The first n, which begin again after the last, and their noise."""
        params = {name: self._first(value, n) for name, value in self.params.items()}
        return params, None if self.covariance is None else self._first(self.covariance, n)

    def noise(self) -> Tensor | None:
        """None: each has its own."""
        return None

    def _first(self, values: Tensor, n: int) -> Tensor:
        return values[torch.arange(n, device=values.device) % self.distinct]


@dataclass(frozen=True)
class Dropped(OneNoise):
    """One value of all parameters, and random masks on inputs: what MC dropout finds.

    A draw is a network with one mask at every place, the same for all rows; masks are among its parameters.
    """

    params: Params  # and the buffers that belong to them (…)
    rates: dict[str, float]  # p by the keys of masks
    shapes: dict[str, tuple[int, ...]]  # of one draw's masks (…)
    covariance: Tensor | None  # (…, O, O)
    tangent = None

    @property
    def distinct(self) -> int | None:
        """One where nothing is masked."""
        return None if self.rates else 1

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """The same parameters n times, with masks of their own."""
        params = {name: value.expand(n, *value.shape) for name, value in self.params.items()}
        for key, rate in sorted(self.rates.items()):  # whatever the order in a file
            params[key] = draw_masks((n, *self.shapes[key]), rate, network, rng)
        return params, None

    def config(self) -> dict[str, Any]:
        """Rates and shapes of the masks."""
        return {"rates": self.rates, "shapes": {key: list(shape) for key, shape in self.shapes.items()}}

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their own names."""
        return named("params/", self.params) | noise_named(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Dropped:
        """The inverse of `config` and `tensors`."""
        shapes = {key: tuple(shape) for key, shape in config["shapes"].items()}
        return cls(under("params/", tensors), dict(config["rates"]), shapes, tensors.get("noise"))


def draw_masks(shape: tuple[int, ...], rate: float, network: Network, rng: Generator) -> Tensor:
    """Zeros with probability p, else 1 / (1 - p)."""
    u = torch.rand(shape, generator=rng, dtype=network.dtype, device=network.device)  # faster than bernoulli_
    return (u >= rate).to(network.dtype).div_(1 - rate)
