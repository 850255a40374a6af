"""How a rate changes over the steps of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol


class Schedule(Protocol):
    """A rate for each step."""

    def __call__(self, step: int, steps: int) -> float:
        """The rate at this step (from 0) of so many."""
        ...


def require_schedule(where: str, value: Any) -> None:
    """Refuse what is no schedule: a bare number, a class, a name."""
    if isinstance(value, Real):
        raise TypeError(f"{where} is a schedule, not the number {value}; use bw.Constant({value})")
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{where} is a schedule, not {value!r}; use bw.Cosine(rate) or bw.Constant(rate)")


@dataclass(frozen=True)
class Constant:
    """The same rate at every step."""

    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no rate."""
        _require_positive(self, "rate")

    def __call__(self, step: int, steps: int) -> float:
        """The rate."""
        return self.rate


@dataclass(frozen=True)
class Cosine:
    """From the rate down to zero along half a cosine."""

    rate: float

    def __post_init__(self) -> None:
        """Refuse what is no rate."""
        _require_positive(self, "rate")

    def __call__(self, step: int, steps: int) -> float:
        """Rate · (1 + cos(π step / steps)) / 2."""
        return self.rate * 0.5 * (1 + math.cos(math.pi * step / steps))


@dataclass(frozen=True)
class StepDecay:
    """The paper's schedule: divided by `factor` at each of these shares of the run."""

    rate: float
    factor: float = 5.0
    at: tuple[float, ...] = (0.6, 0.8)

    def __post_init__(self) -> None:
        """Refuse what is no rate or no factor."""
        _require_positive(self, "rate", "factor")

    def __call__(self, step: int, steps: int) -> float:
        """Rate / factor^k after k of the shares."""
        return self.rate / self.factor ** sum(step >= share * steps for share in self.at)


@dataclass(frozen=True)
class Cyclic:
    """Again and again from the rate down to `low` along half a cosine, in so many cycles of equal length."""

    rate: float
    low: float
    cycles: int

    def __post_init__(self) -> None:
        """Refuse what is no rate or no number of cycles."""
        _require_positive(self, "rate", "low", "cycles")

    def __call__(self, step: int, steps: int) -> float:
        """Low + (rate - low) · (1 + cos(π p)) / 2, p the share of its cycle that is done."""
        done = step * self.cycles % steps / steps
        return self.low + (self.rate - self.low) * 0.5 * (1 + math.cos(math.pi * done))


def _require_positive(schedule: Schedule, *names: str) -> None:
    for name in names:
        value, where = getattr(schedule, name), f"{type(schedule).__name__}: {name}"
        if not isinstance(value, Real):
            raise TypeError(f"{where} must be a number, not {value!r}")
        if not 0 < float(value) < math.inf:
            raise ValueError(f"{where} must be positive and finite, not {value}")
