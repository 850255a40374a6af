"""The problems of the demo: the three synthetic ones of the BALI paper's Figure 1, and two real tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.likelihoods import Bernoulli, Gaussian, Likelihood
from bayeswise.randomness import derived_seed

Range = tuple[float, float]
SKLEARN_SEEDS = 2**32  # scikit-learn takes no larger seed


@dataclass(frozen=True, eq=False)
class Example:
    """Rows to learn from and rows held out: x (N, I) and y (N, 1), or labels (N,)."""

    name: str
    x: Tensor
    y: Tensor
    held_x: Tensor
    held_y: Tensor
    likelihood: Likelihood


@dataclass(frozen=True, eq=False)
class Curve(Example):
    """A known function of one input, seen through noise."""

    truth: Callable[[Tensor], Tensor]
    noise: float  # standard deviation
    seen: tuple[Range, ...]  # where the data lie
    shown: Range  # what to look at

    def grid(self, points: int) -> Tensor:
        """Inputs (points, 1) over the range to look at."""
        return torch.linspace(*self.shown, points)[:, None]

    def inside(self, x: Tensor) -> Tensor:
        """Which of the inputs (B, 1) lie where there are data, (B,)."""
        return torch.stack([(low <= x[:, 0]) & (x[:, 0] <= high) for low, high in self.seen]).any(0)

    def span(self, x: Tensor) -> Tensor:
        """Which of the inputs (B, 1) lie between the first and the last data, gaps included, (B,)."""
        return (self.seen[0][0] <= x[:, 0]) & (x[:, 0] <= self.seen[-1][1])


@dataclass(frozen=True, eq=False)
class Plane(Example):
    """Two classes of points in the plane."""

    shown: tuple[Range, Range]  # of columns and of rows

    def grid(self, points: int) -> tuple[Tensor, Tensor, Tensor]:
        """Columns (W,), rows (H,), and the points (H·W, 2) where they cross."""
        columns, rows = (torch.linspace(*ends, points) for ends in self.shown)
        return columns, rows, torch.cartesian_prod(rows, columns).flip(-1)


def sinc(seed: int, held: int = 1000) -> Curve:
    """2 sin(20 x) / (20 x) - 1 at 256 places of [-1, 1], noise 0.1."""

    def truth(x: Tensor) -> Tensor:
        return 2 * torch.sinc(20 / math.pi * x) - 1

    return _curve("Sinc", truth, 0.1, ((-1.0, 1.0),), 256, held, seed)


def sines(seed: int, held: int = 1000) -> Curve:
    """0.3 sin(2πx) + 0.3 sin(4πx) + x at 32 places outside a gap around zero, noise 0.02."""

    def truth(x: Tensor) -> Tensor:
        return 0.3 * torch.sin(2 * math.pi * x) + 0.3 * torch.sin(4 * math.pi * x) + x

    return _curve("Sines with trend", truth, 0.02, ((-1.0, -0.25), (0.25, 1.0)), 32, held, seed)


def two_moons(seed: int, held: int = 1000) -> Plane:
    """Two interleaved half circles, 128 points, noise 0.2, shown in a box twice their size."""
    from sklearn.datasets import make_moons

    parts = [
        make_moons(n, noise=0.2, random_state=derived_seed(seed, part) % SKLEARN_SEEDS)
        for part, n in ((1, 128), (2, held))
    ]
    (x, y), (held_x, held_y) = ((_floats(x), torch.as_tensor(y)) for x, y in parts)
    middle, reach = (x.amax(0) + x.amin(0)) / 2, x.amax(0) - x.amin(0)  # (2,)
    ends = torch.stack([middle - reach, middle + reach], -1).tolist()
    shown = ((ends[0][0], ends[0][1]), (ends[1][0], ends[1][1]))
    return Plane("Two moons", x, y, held_x, held_y, Bernoulli(), shown)


def diabetes(seed: int) -> Example:
    """442 patients, 10 measurements, the progression of diabetes one year later; a quarter held out."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return _table("Diabetes progression", x, _floats(y)[:, None], 0.25, Gaussian(), seed)


def breast_cancer(seed: int) -> Example:
    """569 tumours, 30 measurements of their cells, malignant or benign; two fifths held out."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    return _table("Breast cancer", x, torch.as_tensor(y), 0.4, Bernoulli(), seed)


def _curve(
    name: str,
    truth: Callable[[Tensor], Tensor],
    noise: float,
    seen: tuple[Range, ...],
    n: int,
    held: int,
    seed: int,
) -> Curve:
    def rows(count: int, part: int) -> tuple[Tensor, Tensor]:
        rng = Generator().manual_seed(derived_seed(seed, n, part))
        x = _inputs(seen, count, rng)
        return x, truth(x) + noise * torch.randn(x.shape, generator=rng)

    x, y = rows(n, 0)
    held_x, held_y = rows(held, 1)
    return Curve(name, x, y, held_x, held_y, Gaussian(), truth, noise, seen, (-2.0, 2.0))


def _inputs(ranges: tuple[Range, ...], n: int, rng: Generator) -> Tensor:
    """Places (n, 1) drawn evenly from ranges of equal length."""
    low, high = torch.tensor(ranges).T  # (ranges,) each
    which = torch.randint(len(ranges), (n,), generator=rng)
    return (low[which] + (high - low)[which] * torch.rand(n, generator=rng))[:, None]


def _table(name: str, x: Any, y: Tensor, share: float, likelihood: Likelihood, seed: int) -> Example:
    """Rows held out at random; columns scaled by the mean and spread of the others."""
    order = torch.randperm(len(y), generator=Generator().manual_seed(derived_seed(seed, len(y))))
    held, kept = order.tensor_split([round(share * len(y))])
    x = _floats(x)
    mean, std = x[kept].mean(0), x[kept].std(0)  # (I,)
    x = (x - mean) / std
    return Example(name, x[kept], y[kept], x[held], y[held], likelihood)


def _floats(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
