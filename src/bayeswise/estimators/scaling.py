"""Columns brought to mean 0 and spread 1, whatever their size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayeswise.problem import Units

Array = NDArray[Any]

CONSTANT = 1e-9  # a column whose spread is smaller than this share of its size is constant


@dataclass(frozen=True)
class Scaling:
    """Columns as numbers of mean 0 and spread 1: z = (x / size - mean) / std, in float64.

    Dividing by the largest value first keeps sums and squares from overflowing. A constant column has std 1:
    a new value counts by its distance in units of the column's own size.
    """

    size: Array  # (I,)
    mean: Array  # (I,)
    std: Array  # (I,)

    @classmethod
    def of(cls, x: Array) -> Scaling:
        """The scaling of the columns of x (N, I)."""
        x = x.astype(np.float64)
        size = np.abs(x).max(0)
        size = np.where(size > 0, size, 1.0)
        unit = x / size  # within [-1, 1]
        mean, std = unit.mean(0), unit.std(0)
        return cls(size, mean, np.where(std <= CONSTANT * np.abs(mean), 1.0, std))

    def __call__(self, x: Array) -> Array:
        """Scaled columns (N, I); infinite where they cannot be held."""
        with np.errstate(over="ignore"):
            return (x.astype(np.float64) / self.size - self.mean) / self.std

    def units(self) -> Units:
        """The same map for the targets of a posterior."""
        shift, scale = self.size * self.mean, self.size * self.std
        return Units(torch.from_numpy(shift), torch.from_numpy(scale))

    def config(self) -> dict[str, list[float]]:
        """As JSON."""
        return {name: value.tolist() for name, value in asdict(self).items()}

    @classmethod
    def restore(cls, config: dict[str, list[float]]) -> Scaling:
        """The inverse of `config`."""
        return cls(**{name: np.array(value, dtype=np.float64) for name, value in config.items()})
