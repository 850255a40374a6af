"""How a rate changes over the steps of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A rate for each step."""

    def __call__(self, step: int, steps: int) -> float:
        """The rate at this step (from 0) of so many."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same rate at every step."""

    rate: float

    def __call__(self, step: int, steps: int) -> float:
        """The rate."""
        return self.rate


@dataclass(frozen=True)
class Cosine:
    """From the rate down to zero along half a cosine."""

    rate: float

    def __call__(self, step: int, steps: int) -> float:
        """Rate · (1 + cos(π step / steps)) / 2."""
        return self.rate * 0.5 * (1 + math.cos(math.pi * step / steps))


@dataclass(frozen=True)
class StepDecay:
    """The paper's schedule: divided by `factor` at each of these shares of the run."""

    rate: float
    factor: float = 5.0
    at: tuple[float, ...] = (0.6, 0.8)

    def __call__(self, step: int, steps: int) -> float:
        """Rate / factor^k after k of the shares."""
        return self.rate / self.factor ** sum(step >= share * steps for share in self.at)
