"""Two ways to move the posterior of a layer towards a batch, which agree (eq. 17, and 63 to 74).

An update owns what it keeps of a layer, and says which posterior that is: `current` for the next pass, and
`exact` for the end of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats
from bayeswise.linalg import cross

FLOAT64_INPUTS = 512  # up to so many inputs a layer's averages and factors are float64, whatever the data


@dataclass(frozen=True)
class Targets:
    """The rows of one layer's regression in one batch: y = x W + Δ, Δ = ε + α g / sqrt(Ψgg) (eq. 63).

    Without ε it is Δ = g diag(s), and s can wait until the rows are summed up: they are passed over less.
    """

    x: Tensor  # (…, R, I)
    w: Tensor  # (…, I, O): the weights of the pass
    z: Tensor  # (…, R, O): x W
    g: Tensor  # (…, R, O): Δ but for its scale
    name: str = "layer"  # for errors
    scale: Tensor | None = None  # s (…, O); None is 1
    sums: RegressionStats | None = None  # of x and g, where they are found already

    @property
    def delta(self) -> Tensor:
        """Δ (…, R, O)."""
        return self.g if self.scale is None else self.g * self.scale.to(self.g.dtype)[..., None, :]

    def around(self, e: Tensor) -> Targets:
        """The same targets where z = x W + ε was noisy: ε belongs to Δ."""
        return Targets(self.x, self.w, self.z - e, self.delta + e, self.name)

    def stats(self, dtype: torch.dtype) -> RegressionStats:
        """Those of x and y, in float64 by way of Δ: what is large in y and explained by x cancels exactly."""
        if dtype == torch.float64:
            return (self.sums or RegressionStats.of(self.x, self.g)).shifted(self.w, self.scale)
        return RegressionStats.of(self.x, self.z + self.delta)

    def residual(self, mean: Tensor) -> Tensor:
        """The rest y - x M (…, R, O)."""
        if self.w is mean:
            return self.delta
        return self.delta + self.x @ (self.w - mean).to(self.x.dtype)

    def pull(self, mean: Tensor) -> Tensor:
        """The products xᵀ(y - x M) (…, I, O); where the pass was made with M, the rows wait for no scale."""
        if self.w is not mean:
            return cross(self.x, self.residual(mean))
        found = cross(self.x, self.g)
        return found if self.scale is None else found * self.scale.to(found.dtype)[..., None, :]


@dataclass(frozen=True)
class Shape:
    """How many regressions of which size: members and groups, I, O."""

    lead: tuple[int, ...]
    inputs: int
    outputs: int
    dtype: torch.dtype  # of the network
    device: torch.device

    @property
    def precision(self) -> torch.dtype:
        """That of averages and factors."""
        return torch.float64 if self.inputs <= FLOAT64_INPUTS else self.dtype

    def zeros(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Nothing yet, (…, *size)."""
        return torch.zeros((*self.lead, *size), dtype=dtype or self.precision, device=self.device)


D = TypeVar("D")


class Update(Protocol[D]):
    """How what is kept of a layer moves towards a batch."""

    def empty(self, shape: Shape) -> D:
        """What is kept before the first step."""
        ...

    def current(self, prior: DiagonalPrior, data: D, name: str) -> MatrixNormalInverseWishart:
        """The posterior for the next pass."""
        ...

    def exact(self, prior: DiagonalPrior, data: D, name: str) -> MatrixNormalInverseWishart:
        """The posterior at the end."""
        ...

    def sums(self, data: D, x: Tensor, g: Tensor) -> RegressionStats | None:
        """The statistics of x and g, where this step will need no more of the rows."""
        ...

    def __call__(
        self, prior: DiagonalPrior, data: D, batch: Targets, rate: float | Tensor, weight: float | Tensor
    ) -> D:
        """One step with rate γ, where a row of the batch counts `weight` times; it consumes `data`."""
        ...


@dataclass(frozen=True)
class NaturalUpdate:
    """Average the statistics (eq. 17): the definition."""

    def empty(self, shape: Shape) -> RegressionStats:
        """No data yet."""
        return empty_stats(shape)

    def current(self, prior: DiagonalPrior, data: RegressionStats, name: str) -> MatrixNormalInverseWishart:
        """That of prior and data (eq. 16)."""
        return MatrixNormalInverseWishart.from_stats(prior + data, name)

    exact = current

    def sums(self, data: RegressionStats, x: Tensor, g: Tensor) -> RegressionStats | None:
        """In float64 they are all that is needed of a batch."""
        return RegressionStats.of(x, g) if data.joint.dtype == torch.float64 else None

    def __call__(
        self,
        prior: DiagonalPrior,
        data: RegressionStats,
        batch: Targets,
        rate: float | Tensor,
        weight: float | Tensor,
    ) -> RegressionStats:
        """(1 - γ) data + γ·weight·stats(x, y)."""
        return data.move_(rate, batch.stats(data.joint.dtype), weight)


def mean_squares(g: Tensor, sums: RegressionStats | None) -> Tensor:
    """The mean of g² over the rows (…, O), from their statistics where there are any."""
    if sums is None:
        return g.square().mean(-2)
    return sums.joint.diagonal(dim1=-2, dim2=-1)[..., sums.inputs :] / g.shape[-2]


def step_scale(alpha: float | Tensor, gg: Tensor, dtype: torch.dtype) -> Tensor:
    """α / sqrt(Ψgg) (…, O), finite for a unit without a gradient, however long its Ψgg has decayed."""
    return alpha * gg.clamp_min(torch.finfo(dtype).tiny).rsqrt()


def empty_stats(shape: Shape) -> RegressionStats:
    """No data yet."""
    size = shape.inputs + shape.outputs
    return RegressionStats(shape.zeros(size, size), shape.zeros(dtype=torch.float64), shape.inputs)
