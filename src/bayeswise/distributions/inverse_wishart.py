"""The posterior of one layer: matrix-normal inverse-Wishart (eq. 13 to 16 and 21 to 22 of the BALI paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayeswise.distributions.regression import RegressionStats
from bayeswise.distributions.student import MultivariateStudentT, chi_square
from bayeswise.linalg import (
    factorise,
    logdet,
    multidigamma,
    multigammaln,
    solve_lower,
    solve_lower_right,
    solve_lower_t,
)

CERTAIN = 1e12  # degrees of freedom of a known noise covariance


@dataclass(frozen=True)
class MatrixNormalInverseWishart:
    """W | Σ ~ MN(M, R, Σ), Σ ~ IW(U, u), held as one Cholesky factor.

    The natural parameters of this family are the statistics of a regression, so that one factorisation
    gives everything: [[R⁻¹, R⁻¹M], [·, U + MᵀR⁻¹M]] = L Lᵀ has L11 = chol(R⁻¹), L21ᵀ = L11ᵀM and
    L22 = chol(U).
    """

    factor: Tensor  # L (…, I+O, I+O)
    dof: Tensor  # u (…,), float64 whatever the factor is: it multiplies large log-determinants
    inputs: int  # I
    jitter: Tensor  # (…,) what the factorisation had to add

    @classmethod
    def from_stats(cls, stats: RegressionStats, name: str = "layer") -> MatrixNormalInverseWishart:
        """The posterior whose natural parameters are these statistics: those of prior and data together."""
        factor = factorise(stats.joint, name)
        return cls(factor.lower, stats.n, stats.inputs, factor.jitter)

    def stats(self) -> RegressionStats:
        """The inverse of `from_stats`."""
        return RegressionStats(self.factor @ self.factor.mT, self.dof, self.inputs)

    @property
    def outputs(self) -> int:
        """O."""
        return self.factor.shape[-1] - self.inputs

    @property
    def precision_factor(self) -> Tensor:
        """The Cholesky factor of R⁻¹ (…, I, I)."""
        return self.factor[..., : self.inputs, : self.inputs]

    @property
    def cross_factor(self) -> Tensor:
        """L11ᵀM (…, I, O)."""
        return self.factor[..., self.inputs :, : self.inputs].mT

    @property
    def scale_factor(self) -> Tensor:
        """The Cholesky factor of U (…, O, O)."""
        return self.factor[..., self.inputs :, self.inputs :]

    @property
    def mean(self) -> Tensor:
        """M = (L21 L11⁻¹)ᵀ (…, I, O)."""
        lower, cross = self.factor[..., : self.inputs].tensor_split((self.inputs,), -2)  # L11, L21
        return solve_lower_right(lower, cross).mT

    @property
    def scale(self) -> Tensor:
        """U (…, O, O)."""
        return self.scale_factor @ self.scale_factor.mT

    @property
    def noise(self) -> Tensor:
        """Σ at its mode, U / (u + O + 1) (…, O, O)."""
        return self.scale / self._mode_divisor()[..., None, None]

    @property
    def noise_factor(self) -> Tensor:
        """The Cholesky factor of Σ at its mode (…, O, O)."""
        return self.scale_factor / self._mode_divisor().sqrt()[..., None, None]

    def draw_noise_factor(self, n: int, rng: Generator | None = None, name: str = "layer") -> Tensor:
        """A root F of Σ = F Fᵀ ~ IW(U, u), n draws (n, …, O, O), by Bartlett's decomposition."""
        self.require_dof("drawing the noise covariance", name)
        degrees = (self.dof[..., None] - self._steps()).to(self.factor)  # u, u-1, … (…, O)
        shape = (n, *self.factor.shape[:-2], self.outputs, self.outputs)
        normal = torch.randn(shape, generator=rng, dtype=self.factor.dtype, device=self.factor.device)
        diagonal = chi_square(degrees, n, rng).sqrt()
        bartlett = normal.tril(-1) + torch.diag_embed(diagonal)  # B Bᵀ ~ Wishart(I, u)
        return solve_lower(bartlett, self.scale_factor.mT.expand(shape)).mT

    def given(self, noise_factor: Tensor) -> MatrixNormalInverseWishart:
        """The same weights with a known Σ = F Fᵀ, F (…, O, O): degrees of freedom that make it certain."""
        factor, dof = self.factor.clone(), torch.full_like(self.dof, CERTAIN)
        scale = (dof + self.outputs + 1).sqrt()[..., None, None]
        factor[..., self.inputs :, self.inputs :] = noise_factor * scale
        return replace(self, factor=factor, dof=dof)

    def tempered(self, temperature: float | Tensor) -> MatrixNormalInverseWishart:
        """The same with `temperature`·Σ: means stay, and all spreads are multiplied by its root; (…,)."""
        factor = self.factor.clone()
        root = torch.as_tensor(temperature, device=factor.device).to(factor).sqrt()
        root = root.reshape(*root.shape, *[1] * (factor.dim() - root.dim()))  # members, then all else
        factor[..., self.inputs :, self.inputs :] *= root
        return replace(self, factor=factor)

    def draw(self, rng: Generator | None = None) -> Tensor:
        """W = L11⁻ᵀ (L11ᵀM + A Fᵀ), one draw (…, I, O) with Σ = F Fᵀ at its mode."""
        cross = self.cross_factor
        a = torch.randn(cross.shape, generator=rng, dtype=cross.dtype, device=cross.device)
        return solve_lower_right(self.precision_factor, cross.mT + self.noise_factor @ a.mT).mT

    def sample(
        self,
        n: int,
        rng: Generator | None = None,
        noise_factor: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """W = M + L11⁻ᵀ A Fᵀ, n draws (n, …, I, O); F is a root of Σ, by default at its mode.

        The mean is exact; `dtype` says in which precision the noise around it is computed.
        """
        dtype = dtype or self.factor.dtype
        factor = self.noise_factor if noise_factor is None else noise_factor
        shape = (n, *self.factor.shape[:-2], self.inputs, self.outputs)
        noise = torch.randn(shape, generator=rng, dtype=dtype, device=self.factor.device)  # A
        noise = noise @ factor.mT.to(dtype)  # one name, so that what is done with is not held
        noise = noise.movedim(0, -2).flatten(-2)  # (…, I, n·O): one solve for all draws
        noise = solve_lower_t(self.precision_factor.to(dtype), noise)
        return noise.unflatten(-1, (n, self.outputs)).movedim(-2, 0) + self.mean.to(dtype)

    def predictive(self, x: Tensor) -> MultivariateStudentT:
        """Y | x ~ t_{u-O+1}(xM, (1 + x R xᵀ) U / (u-O+1)) for each row of x (…, R, I)."""
        self.require_dof("the Student-t predictive")
        x = x.to(self.factor)  # the factorisation may have gone to float64
        spread = 1 + solve_lower(self.precision_factor, x.mT).square().sum(-2)  # (…, R)
        df = (self.dof - self.outputs + 1).to(self.factor)[..., None]  # (…, 1)
        factor = (spread / df).sqrt()[..., None, None] * self.scale_factor[..., None, :, :]
        return MultivariateStudentT(x @ self.mean, factor, df.expand(spread.shape))

    def log_evidence(self, prior: MatrixNormalInverseWishart, name: str = "layer") -> Tensor:
        """The log p(Y | X) of the data that turned `prior` into this posterior."""
        prior._require_proper("the evidence", name)
        return self._in_float64()._log_evidence(prior._in_float64())

    def _log_evidence(self, prior: MatrixNormalInverseWishart) -> Tensor:
        n, outputs = self.dof - prior.dof, self.outputs
        return (
            0.5 * outputs * (logdet(prior.precision_factor) - logdet(self.precision_factor))
            + 0.5 * (prior.dof * logdet(prior.scale_factor) - self.dof * logdet(self.scale_factor))
            + multigammaln(self.dof / 2, outputs)
            - multigammaln(prior.dof / 2, outputs)
            - 0.5 * n * outputs * math.log(math.pi)
        )

    def kl(self, prior: MatrixNormalInverseWishart, name: str = "layer") -> Tensor:
        """KL(self ‖ prior) over weights and noise covariance together."""
        prior._require_proper("the KL divergence to the prior", name)
        self.require_dof("the KL divergence", f'layer "{name}"')
        q, p = self._in_float64(), prior._in_float64()
        return q._kl_weights(p) + q._kl_noise(p)

    def _kl_weights(self, prior: MatrixNormalInverseWishart) -> Tensor:
        """E over Σ of KL(MN(M, R, Σ) ‖ MN(M0, R0, Σ)), with E Σ⁻¹ = u U⁻¹."""
        trace = solve_lower(self.precision_factor, prior.precision_factor).square().sum((-2, -1))
        shift = prior.precision_factor.mT @ (self.mean - prior.mean)  # (…, I, O)
        distance = self.dof * solve_lower(self.scale_factor, shift.mT).square().sum((-2, -1))
        volume = logdet(self.precision_factor) - logdet(prior.precision_factor)
        return 0.5 * (self.outputs * (trace - self.inputs + volume) + distance)

    def _kl_noise(self, prior: MatrixNormalInverseWishart) -> Tensor:
        """KL(IW(U, u) ‖ IW(U0, u0))."""
        u, u0, outputs = self.dof, prior.dof, self.outputs
        trace = solve_lower(self.scale_factor, prior.scale_factor).square().sum((-2, -1))
        return (
            0.5 * u0 * (logdet(self.scale_factor) - logdet(prior.scale_factor))
            + multigammaln(u0 / 2, outputs)
            - multigammaln(u / 2, outputs)
            + 0.5 * (u - u0) * multidigamma(u / 2, outputs)
            + 0.5 * u * (trace - outputs)
        )

    def _in_float64(self) -> MatrixNormalInverseWishart:
        return replace(self, factor=self.factor.double())

    def _mode_divisor(self) -> Tensor:
        return (self.dof + (self.outputs + 1)).to(self.factor)

    def _steps(self) -> Tensor:
        return torch.arange(self.outputs, dtype=self.dof.dtype, device=self.dof.device)

    def require_dof(self, what: str, name: str = "layer") -> None:
        """Refuse an inverse-Wishart that is no distribution, by the name of the layer."""
        u, outputs = float(self.dof.min()), self.outputs
        if not u > outputs - 1:
            raise ValueError(
                f"{name}: {what} needs u > O - 1 degrees of freedom; here u = {u:g} and O = {outputs}: use a "
                f"larger u0 (BALI's dof) by more than {outputs - 1 - u:g}, or more effective rows"
            )

    def _require_proper(self, what: str, name: str) -> None:
        if not (self.dof > self.outputs - 1).all():
            raise ValueError(
                f'layer "{name}": {what} needs a proper prior, u0 > O - 1; here u0 = '
                f"{float(self.dof.min()):g} and O = {self.outputs}: set u0 to at least {self.outputs}"
            )
