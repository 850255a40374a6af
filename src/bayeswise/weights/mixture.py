"""Several distributions over the same parameters, in equal shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.linalg import safe_cholesky
from bayeswise.networks import Network, Params
from bayeswise.weights.gaussian import LowRank, MeanField
from bayeswise.weights.layerwise import Layerwise, LayerwiseDrawn
from bayeswise.weights.protocol import named, under

Part = MeanField | LowRank | Layerwise
PARTS: dict[str, type[MeanField] | type[LowRank] | type[Layerwise]] = {
    "mean_field": MeanField,
    "low_rank": LowRank,
    "layerwise": Layerwise,
    "layerwise_drawn": LayerwiseDrawn,
}


@dataclass(frozen=True)
class Mixture:
    """Distributions of one kind in equal shares, each with its own noise: draw i is of part i % E."""

    parts: tuple[Part, ...]
    distinct = None
    tangent = None

    @property
    def turn(self) -> int:
        """One draw of each part."""
        return len(self.parts)

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """Roots of the noise of the parts that n draws are of."""
        roots = [root for part in self.parts if (root := _noise_root(part, self._each(n), rng)) is not None]
        return self._dealt(roots, n) if roots else None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Draws of the parts in turn, and the noise of each."""
        root = self.noise_factor(n, rng) if noise_factor is None else noise_factor
        drawn = [self._drawn(e, n, network, rng, root) for e in range(len(self.parts))]
        params = {name: self._dealt([values[name] for values in drawn], n) for name in drawn[0]}
        return params, None if root is None else root @ root.mT

    def _drawn(self, e: int, n: int, network: Network, rng: Generator, root: Tensor | None) -> Params:
        """As many draws of a part as any part has; those beyond n are not dealt."""
        part, each = self.parts[e], self._each(n)
        if root is None or part.noise() is not None:
            return part.sample(each, network, rng)[0]
        own = root[e :: len(self.parts)]
        own = own if len(own) else root[:1]  # fewer draws than parts
        own = own[torch.arange(each, device=own.device).clamp_max(len(own) - 1)]
        return part.sample(each, network, rng, own)[0]

    def _each(self, n: int) -> int:
        return -(-n // len(self.parts))

    def noise(self) -> Tensor | None:
        """None: each part has its own."""
        return None

    def tempered(self, temperature: float | Tensor) -> Mixture:
        """Every part with this temperature."""
        return Mixture(
            tuple(part.tempered(temperature) for part in self.parts if isinstance(part, Layerwise))
        )

    def config(self) -> dict[str, Any]:
        """The kind of the parts, and what each needs."""
        kind = next(name for name, kind in PARTS.items() if type(self.parts[0]) is kind)
        return {"part": kind, "parts": [part.config() for part in self.parts]}

    def tensors(self) -> dict[str, Tensor]:
        """All numbers of a part under its place."""
        found: dict[str, Tensor] = {}
        for place, part in enumerate(self.parts):
            found |= named(f"{place}/", part.tensors())
        return found

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mixture:
        """The inverse of `config` and `tensors`."""
        kind, parts = PARTS[config["part"]], config["parts"]
        return cls(tuple(kind.restore(own, under(f"{place}/", tensors)) for place, own in enumerate(parts)))

    def _dealt(self, values: list[Tensor], n: int) -> Tensor:
        """The first n of the parts' values (each, …), one of each part in turn, and again from the first."""
        turns = torch.stack(values, 1).flatten(0, 1)  # (each · E, …)
        return turns[torch.arange(n, device=turns.device) % len(turns)]


def _noise_root(part: Part, n: int, rng: Generator) -> Tensor | None:
    """A root of the noise of each of n draws of a part (n, …), or one for all (1, …)."""
    noise = part.noise()
    if noise is None:
        return part.noise_factor(n, rng)
    return safe_cholesky(noise, "the noise of the parts").lower[None]
