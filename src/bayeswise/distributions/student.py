"""The multivariate Student-t distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bayeswise.linalg import logdet, solve_lower


@dataclass(frozen=True)
class MultivariateStudentT:
    """t_ν(μ, S) for each row, with S = F Fᵀ the scale matrix (not the covariance)."""

    loc: Tensor  # μ (…, O)
    scale_factor: Tensor  # F (…, O, O), lower
    df: Tensor  # ν (…,)

    @property
    def covariance(self) -> Tensor:
        """ν / (ν - 2) S, infinite for ν ≤ 2 (…, O, O)."""
        nu = self.df[..., None, None]
        return torch.where(nu > 2, nu / (nu - 2) * (self.scale_factor @ self.scale_factor.mT), torch.inf)

    def log_prob(self, y: Tensor) -> Tensor:
        """The log density at y (…, O)."""
        outputs, nu = self.loc.shape[-1], self.df
        distance = solve_lower(self.scale_factor, (y - self.loc)[..., None]).square().sum((-2, -1))
        return (
            ((nu + outputs) / 2).lgamma()
            - (nu / 2).lgamma()
            - 0.5 * outputs * (nu * math.pi).log()
            - 0.5 * logdet(self.scale_factor)
            - 0.5 * (nu + outputs) * (distance / nu).log1p()
        )

    def sample(self, n: int, rng: Generator | None = None) -> Tensor:
        """So many draws (n, …, O)."""
        shape = (n, *self.loc.shape)
        z = torch.randn(shape, generator=rng, dtype=self.loc.dtype, device=self.loc.device)
        scaled = (self.scale_factor @ z[..., None])[..., 0]
        return self.loc + scaled * (self.df / chi_square(self.df, n, rng)).sqrt()[..., None]


def chi_square(df: Tensor, n: int, rng: Generator | None = None) -> Tensor:
    """N chi-square draws for each number of degrees of freedom (…,), (n, …)."""
    half = (df / 2).expand(n, *df.shape).contiguous()
    # torch.distributions.Gamma takes no generator, this function beneath it does.
    return 2 * torch._standard_gamma(half, generator=rng)  # pyright: ignore[reportPrivateImportUsage]
