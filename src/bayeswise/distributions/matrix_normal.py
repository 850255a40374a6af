"""Multivariate Bayesian linear regression with a known noise covariance (eq. 4 to 11 of the BALI paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal

from bayeswise.distributions.regression import RegressionStats
from bayeswise.linalg import factorise, logdet, safe_cholesky, solve_lower, solve_lower_t


@dataclass(frozen=True)
class MatrixNormal:
    """W ~ MN(M, R, Σ): Cov(vec W) = Σ ⊗ R, with Σ known."""

    mean: Tensor  # M (…, I, O)
    precision_factor: Tensor  # L (…, I, I), L Lᵀ = R⁻¹
    noise_factor: Tensor  # (…, O, O), its square is Σ

    @classmethod
    def from_stats(cls, stats: RegressionStats, noise: Tensor, name: str = "layer") -> MatrixNormal:
        """R⁻¹ = R0⁻¹ + XᵀX, M = R (R0⁻¹M0 + XᵀY), for the statistics of prior and data together."""
        lower = factorise(stats.xx, name).lower
        mean = solve_lower_t(lower, solve_lower(lower, stats.xy.to(lower)))
        return cls(mean, lower, safe_cholesky(noise.to(lower), f"{name}: noise covariance").lower)

    def sample(self, n: int, rng: Generator | None = None) -> Tensor:
        """W = M + L⁻ᵀ A L_Σᵀ, n draws (n, …, I, O)."""
        a = torch.randn(n, *self.mean.shape, generator=rng, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + solve_lower_t(self.precision_factor, a @ self.noise_factor.mT)

    def predictive(self, x: Tensor) -> MultivariateNormal:
        """Y | x ~ N(xM, (1 + x R xᵀ) Σ) for each row of x (…, R, I)."""
        x = x.to(self.mean)  # the factorisation may have gone to float64
        spread = 1 + solve_lower(self.precision_factor, x.mT).square().sum(-2)  # (…, R)
        factor = spread.sqrt()[..., None, None] * self.noise_factor[..., None, :, :]
        return MultivariateNormal(x @ self.mean, scale_tril=factor)

    def log_evidence(self, prior: RegressionStats, stats: RegressionStats) -> Tensor:
        """The log p(Y | X, Σ) of the rows by which `stats` exceeds `prior`."""
        n, outputs = stats.n - prior.n, stats.outputs
        before = MatrixNormal.from_stats(prior, self.noise_factor @ self.noise_factor.mT)
        volume = outputs * (logdet(before.precision_factor) - logdet(self.precision_factor))
        rest = (stats.yy - prior.yy) - self._explained() + before._explained()  # (…, O, O)
        noise = self.noise_factor.double()
        fit = solve_lower_t(noise, solve_lower(noise, rest.double())).diagonal(dim1=-2, dim2=-1).sum(-1)
        return 0.5 * (volume - fit - n * (logdet(noise) + outputs * math.log(2 * math.pi)))

    def _explained(self) -> Tensor:
        root = self.precision_factor.mT @ self.mean
        return root.mT @ root  # MᵀR⁻¹M (…, O, O)
