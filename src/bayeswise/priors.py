"""How far the weights of a layer may be from zero before the data speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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


def _require_positive(prior: FanIn | Isotropic) -> None:
    if not 0 < prior.variance < float("inf"):
        raise ValueError(
            f"{type(prior).__name__}: the variance must be positive and finite, not {prior.variance}"
        )
