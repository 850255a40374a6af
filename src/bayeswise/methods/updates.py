"""Two ways to move the statistics of a layer towards those of a batch, which agree (eq. 17, and 63 to 74)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats
from bayeswise.linalg import factorise, solve_lower, solve_lower_t


@dataclass(frozen=True)
class Targets:
    """The rows of one layer's regression in one batch: y = x W + Δ, Δ = ε + α g / sqrt(Ψgg) (eq. 63)."""

    x: Tensor  # (…, R, I)
    w: Tensor  # (…, I, O): the weights of the pass
    z: Tensor  # (…, R, O): x W
    delta: Tensor  # (…, R, O)
    name: str = "layer"  # for errors

    def around(self, e: Tensor) -> Targets:
        """The same targets where z = x W + ε was noisy: ε belongs to Δ."""
        return replace(self, z=self.z - e, delta=self.delta + e)

    def stats(self, dtype: torch.dtype) -> RegressionStats:
        """Those of x and y, in float64 by way of Δ: what is large in y and explained by x cancels exactly."""
        if dtype == torch.float64:
            return RegressionStats.of(self.x, self.delta).shifted(self.w)
        return RegressionStats.of(self.x, self.z + self.delta)


@dataclass(frozen=True)
class NaturalUpdate:
    """Average the statistics (eq. 17): the definition."""

    def __call__(
        self, prior: DiagonalPrior, data: RegressionStats, batch: Targets, rate: float, weight: float | Tensor
    ) -> RegressionStats:
        """(1 - γ) data + γ·weight·stats(x, y)."""
        return data.move_(rate, batch.stats(data.joint.dtype), weight)


@dataclass(frozen=True)
class MeanUpdate:
    """Move the mean itself (eq. 74, with γ in place of β): the same numbers by another way."""

    def __call__(
        self, prior: DiagonalPrior, data: RegressionStats, batch: Targets, rate: float, weight: float | Tensor
    ) -> RegressionStats:
        """M ← M + γ R (R0⁻¹(M0 - M) + weight·xᵀ(y - xM)), where R is already the new one and M0 = 0."""
        mean = torch.zeros_like(data.xy)
        if rate < 1:  # the first step forgets all that was before
            mean = MatrixNormalInverseWishart.from_stats(prior + data, batch.name).mean.to(mean)
        moved = data.move_(rate, batch.stats(data.joint.dtype), weight)  # its xy is not used
        total = prior + moved
        lower = factorise(total.xx, batch.name).lower.to(mean)
        off = batch.x.to(mean).mT @ (batch.z + batch.delta - batch.x @ mean.to(batch.x)).to(mean)
        off = torch.as_tensor(weight, dtype=mean.dtype, device=mean.device)[..., None, None] * off
        mean = mean + rate * solve_lower_t(lower, solve_lower(lower, off - mean / prior.variance))
        xy = total.xx @ mean
        moved.xy.copy_(xy)
        moved.yx.copy_(xy.mT)
        return moved


Update = NaturalUpdate | MeanUpdate
