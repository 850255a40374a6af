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
from bayeswise.weights.protocol import named, under

Part = MeanField | LowRank
PARTS: dict[str, type[MeanField] | type[LowRank]] = {"mean_field": MeanField, "low_rank": LowRank}


@dataclass(frozen=True)
class Mixture:
    """Gaussians of one kind in equal shares, each with its own noise: draw i is of part i % E."""

    parts: tuple[Part, ...]
    distinct = None
    tangent = None

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """Roots of the noise of the parts that n draws are of."""
        noises = [noise for part in self.parts if (noise := part.noise()) is not None]
        roots = [safe_cholesky(noise, "the noise of the parts").lower[None] for noise in noises]
        return self._dealt(roots, n) if roots else None

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Draws of the parts in turn, and the noise of each."""
        each = -(-n // len(self.parts))
        drawn = [part.sample(each, network, rng)[0] for part in self.parts]
        params = {name: self._dealt([values[name] for values in drawn], n) for name in drawn[0]}
        root = self.noise_factor(n, rng) if noise_factor is None else noise_factor
        return params, None if root is None else root @ root.mT

    def noise(self) -> Tensor | None:
        """None: each part has its own."""
        return None

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
