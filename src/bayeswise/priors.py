"""How far the weights of a layer may be from zero before the data speak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Prior(Protocol):
    """W | Σ ~ MN(0, variance·scale·I, Σ)."""

    @property
    def variance(self) -> float:
        """σ_r²."""
        ...

    def scale(self, inputs: int) -> float:
        """What the layer's number of inputs (the column of ones counted) does to the variance."""
        ...


@dataclass(frozen=True)
class FanIn:
    """R0 = variance / inputs · I: the same model as features divided by sqrt(inputs)."""

    variance: float

    def __post_init__(self) -> None:
        """Refuse what is no variance."""
        _require_positive(self)

    def scale(self, inputs: int) -> float:
        """One over the number of inputs."""
        return 1.0 / inputs


@dataclass(frozen=True)
class Isotropic:
    """R0 = variance · I, whatever the number of inputs: features as they are."""

    variance: float

    def __post_init__(self) -> None:
        """Refuse what is no variance."""
        _require_positive(self)

    def scale(self, inputs: int) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True)
class ScaleMixture:
    """w ~ share · N(0, wide) + (1 - share) · N(0, narrow), each weight by itself; both are variances."""

    share: float = 0.5
    wide: float = 1.0
    narrow: float = 0.0025

    def __post_init__(self) -> None:
        """Refuse what is no mixture."""
        if not 0 < self.share < 1:
            raise ValueError(f"ScaleMixture: the share must be between 0 and 1, not {self.share}")
        for name in ("wide", "narrow"):
            if not 0 < getattr(self, name) < float("inf"):
                value = getattr(self, name)
                raise ValueError(f"ScaleMixture: {name} is a variance, positive and finite, not {value}")

    def log_prob(self, w: Tensor) -> Tensor:
        """The log density of every weight."""
        parts = ((self.share, self.wide), (1 - self.share, self.narrow))
        first, second = (
            math.log(share) - 0.5 * math.log(2 * math.pi * variance) - w.square() / (2 * variance)
            for share, variance in parts
        )
        return torch.logaddexp(first, second)


def _require_positive(prior: FanIn | Isotropic) -> None:
    if not 0 < prior.variance < float("inf"):
        raise ValueError(
            f"{type(prior).__name__}: the variance must be positive and finite, not {prior.variance}"
        )
