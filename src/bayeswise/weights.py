"""Distributions over the parameters of a network: what a posterior draws from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from bayeswise.distributions import MatrixNormalInverseWishart
from bayeswise.linalg import safe_cholesky
from bayeswise.networks import Network, Params


class WeightDistribution(Protocol):
    """A distribution over the chosen layers' parameters and the noise of a Gaussian likelihood."""

    @property
    def distinct(self) -> int | None:
        """How many different draws there are, after which they repeat; None where every draw is new."""
        ...

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """A root F of the noise F Fᵀ of each of n draws (n, …, O, O), None where it is not drawn."""
        ...

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Parameters (n, …) and, where it is drawn with them, the noise covariance (n, …, O, O).

        `noise_factor` is what the method of that name gave for these draws; without it they draw their own.
        """
        ...

    def noise(self) -> Tensor | None:
        """The noise covariance (…, O, O) of all draws, None where it is drawn or there is none."""
        ...

    def config(self) -> dict[str, Any]:
        """What `restore` needs beside the tensors, as JSON."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All numbers, by name."""
        ...


@dataclass(frozen=True)
class Point:
    """All mass on one value: what MAP finds."""

    params: Params  # and the buffers that belong to them (…)
    covariance: Tensor | None  # (…, O, O)

    @property
    def distinct(self) -> int:
        """One."""
        return 1

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """None: all draws share the noise."""
        return None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """The same parameters n times."""
        return {name: value.expand(n, *value.shape) for name, value in self.params.items()}, None

    def noise(self) -> Tensor | None:
        """The noise covariance."""
        return self.covariance

    def config(self) -> dict[str, Any]:
        """Nothing but the kind."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their own names."""
        return _named("params/", self.params) | _noise(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Point:
        """The inverse of `config` and `tensors`."""
        return cls(_under("params/", tensors), tensors.get("noise"))


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
        return _named("mean/", self.mean) | _named("std/", self.std) | _noise(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> MeanField:
        """The inverse of `config` and `tensors`."""
        return cls(_under("mean/", tensors), _under("std/", tensors), tensors.get("noise"))


@dataclass(frozen=True)
class Dropped:
    """One value of all parameters, and random masks on inputs: what MC dropout finds.

    A draw is a network with one mask at every place, the same for all rows; masks are among its parameters.
    """

    params: Params  # and the buffers that belong to them (…)
    rates: dict[str, float]  # p by the keys of masks
    shapes: dict[str, tuple[int, ...]]  # of one draw's masks (…)
    covariance: Tensor | None  # (…, O, O)

    @property
    def distinct(self) -> int | None:
        """One where nothing is masked."""
        return None if self.rates else 1

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """None: all draws share the noise."""
        return None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """The same parameters n times, with masks of their own."""
        params = {name: value.expand(n, *value.shape) for name, value in self.params.items()}
        for key, rate in sorted(self.rates.items()):  # whatever the order in a file
            params[key] = draw_masks((n, *self.shapes[key]), rate, network, rng)
        return params, None

    def noise(self) -> Tensor | None:
        """The noise covariance."""
        return self.covariance

    def config(self) -> dict[str, Any]:
        """Rates and shapes of the masks."""
        return {"rates": self.rates, "shapes": {key: list(shape) for key, shape in self.shapes.items()}}

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under their own names."""
        return _named("params/", self.params) | _noise(self.covariance)

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Dropped:
        """The inverse of `config` and `tensors`."""
        shapes = {key: tuple(shape) for key, shape in config["shapes"].items()}
        return cls(_under("params/", tensors), dict(config["rates"]), shapes, tensors.get("noise"))


def draw_masks(shape: tuple[int, ...], rate: float, network: Network, rng: Generator) -> Tensor:
    """Zeros with probability p, else 1 / (1 - p)."""
    u = torch.rand(shape, generator=rng, dtype=network.dtype, device=network.device)  # faster than bernoulli_
    return (u >= rate).to(network.dtype).div_(1 - rate)


@dataclass(frozen=True)
class Layerwise:
    """Independent matrix-normal inverse-Wishart layers, with Σ at its mode."""

    layers: dict[str, MatrixNormalInverseWishart]
    noise_layer: str | None = None  # the layer whose Σ is the noise of the likelihood
    residual: MatrixNormalInverseWishart | None = None  # the noise by itself, where no layer has it
    distinct = None

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """None: all draws share the noise."""
        return None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Parameters of n networks."""
        params: Params = {}
        for view in network.layers:
            params |= view.split(self.layers[view.name].sample(n, rng, dtype=network.dtype))
        return params, None

    def noise(self) -> Tensor | None:
        """Σ at its mode."""
        source = self._noise_source()
        return None if source is None else source.noise

    def config(self) -> dict[str, Any]:
        """The inputs of each layer, and where the noise comes from."""
        inputs = {name: layer.inputs for name, layer in self.layers.items()}
        return {"inputs": inputs, "noise_layer": self.noise_layer, "residual": self.residual is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Factors, degrees of freedom and jitter of every layer."""
        named = {f"layers/{name}": layer for name, layer in self.layers.items()}
        if self.residual is not None:
            named["residual"] = self.residual
        return {f"{name}/{part}": getattr(q, part) for name, q in named.items() for part in PARTS}

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Layerwise:
        """The inverse of `config` and `tensors`."""

        def layer(name: str, inputs: int) -> MatrixNormalInverseWishart:
            return MatrixNormalInverseWishart(inputs=inputs, **{p: tensors[f"{name}/{p}"] for p in PARTS})

        layers = {name: layer(f"layers/{name}", inputs) for name, inputs in config["inputs"].items()}
        return cls(layers, config["noise_layer"], layer("residual", 0) if config["residual"] else None)

    def _noise_source(self) -> MatrixNormalInverseWishart | None:
        return self.residual if self.noise_layer is None else self.layers[self.noise_layer]


@dataclass(frozen=True)
class LayerwiseDrawn(Layerwise):
    """The same with Σ drawn from its inverse-Wishart together with the weights."""

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """Roots of Σ ~ IW(U, u) of the layer, or the residual, that has the noise."""
        source = self._noise_source()
        name = "observation noise" if self.noise_layer is None else f'layer "{self.noise_layer}"'
        return None if source is None else source.draw_noise_factor(n, rng, name)

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Parameters of n networks, each with its own noise covariance (n, …, O, O)."""
        params: Params = {}
        root = self.noise_factor(n, rng) if noise_factor is None else noise_factor  # (n, …, O, O)
        for view in network.layers:
            layer, own = self.layers[view.name], root
            if view.name != self.noise_layer:
                own = layer.draw_noise_factor(n, rng, f'layer "{view.name}"')
            params |= view.split(layer.sample(n, rng, own, network.dtype))
        return params, None if root is None else root @ root.mT

    def noise(self) -> Tensor | None:
        """None: every draw has its own."""
        return None


def _named(prefix: str, values: Params) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _noise(covariance: Tensor | None) -> dict[str, Tensor]:
    return {} if covariance is None else {"noise": covariance}


PARTS = ("factor", "dof", "jitter")
Kind = type[Point] | type[Particles] | type[MeanField] | type[Dropped] | type[Layerwise]
KINDS: dict[str, Kind] = {
    "point": Point,
    "particles": Particles,
    "mean_field": MeanField,
    "dropped": Dropped,
    "layerwise": Layerwise,
    "layerwise_drawn": LayerwiseDrawn,
}
