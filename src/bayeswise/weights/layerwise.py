"""Independent layers, each a matrix-normal inverse-Wishart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Generator, Tensor

from bayeswise.distributions import MatrixNormalInverseWishart
from bayeswise.networks import Network, Params

PARTS = ("factor", "dof", "jitter")


@dataclass(frozen=True)
class Layerwise:
    """Independent matrix-normal inverse-Wishart layers, with Σ at its mode."""

    layers: dict[str, MatrixNormalInverseWishart]
    noise_layer: str | None = None  # the layer whose Σ is the noise of the likelihood
    residual: MatrixNormalInverseWishart | None = None  # the noise by itself, where no layer has it
    distinct = None
    turn = 1
    tangent = None

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

    def tempered(self, temperature: float | Tensor) -> Layerwise:
        """The same with `temperature`·Σ where the noise comes from; without noise, in every layer."""
        if self.residual is not None:
            return replace(self, residual=self.residual.tempered(temperature))
        names = self.layers if self.noise_layer is None else (self.noise_layer,)
        return replace(self, layers=self.layers | {k: self.layers[k].tempered(temperature) for k in names})

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
