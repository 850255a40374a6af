"""Numbers with Gaussian noise, its covariance known or inferred."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor
from torch import distributions as td

from bayeswise.likelihoods.protocol import rows_of_outputs
from bayeswise.metrics import crps_mixture
from bayeswise.predictive import KeptDraws, Moments, Predictive, equal_mixture
from bayeswise.quantiles import mixture_quantile

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Gaussian:
    """Numbers with Gaussian noise: y = f + e, e ~ N(0, Σ).

    `noise` is always a covariance: a float is the variance of every output, a tensor is Σ (O, O), or
    (K, O, O) for members, or (S, K, O, O) with one for each draw. None leaves it to the method, which infers
    it and predicts with `given(Σ)`.
    """

    noise: float | Tensor | None = None
    event_dim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the noise as far as that is free of cost."""
        noise = self.noise
        if isinstance(noise, Tensor):
            if noise.ndim < 2 or noise.shape[-1] != noise.shape[-2]:
                raise ValueError(
                    f"Gaussian noise is a covariance (..., O, O), got shape {tuple(noise.shape)}; "
                    "use torch.diag(variances) for independent outputs"
                )
        elif noise is not None and not isinstance(noise, Real):
            raise TypeError(
                f"Gaussian noise is a {type(noise).__name__}; give a variance, or a covariance as a tensor: "
                "torch.as_tensor(noise)"
            )
        elif noise is not None and not (noise > 0 and math.isfinite(noise)):
            raise ValueError(f"Gaussian noise is a variance and must be positive and finite, got {noise}")

    def given(self, noise: Tensor) -> Gaussian:
        """A copy with this noise covariance."""
        return dataclasses.replace(self, noise=noise)

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """Targets as floats (..., B, O); (B,) is accepted for one output."""
        y = rows_of_outputs(torch.as_tensor(y), outputs, "Gaussian")
        y = y if y.is_floating_point() else y.double()  # float32 would round large whole numbers
        bad = y.numel() - int(y.isfinite().sum())
        if bad:
            raise ValueError(f"{bad} of {y.numel()} targets are NaN or infinite; remove those rows")
        return y

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log N(y; f, Σ) of every row, (..., B)."""
        noise, outputs = self._known(), f.shape[-1]
        if not isinstance(noise, Tensor):
            r = (y - f) / math.sqrt(noise)
            return -0.5 * (r * r).sum(-1) - 0.5 * outputs * (math.log(noise) + LOG_2PI)
        if outputs == 1:
            return _log_normal(y - f, noise.double().rsqrt().to(f.dtype))
        root = _inverse_root(noise)  # (..., O, O)
        log_root = root.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)  # (..., 1): -log det(Σ) / 2
        r = (y - f) @ root.mT.to(f.dtype)
        return -0.5 * (r * r).sum(-1) + (log_root - 0.5 * outputs * LOG_2PI).to(f.dtype)

    def _known(self) -> float | Tensor:
        if self.noise is None:
            raise ValueError(
                "Gaussian(noise=None) leaves the noise to the method; "
                "use likelihood.given(covariance) or Gaussian(variance)"
            )
        return self.noise

    def _covariance(self, f: Tensor) -> Tensor:
        """Σ in float64, (..., O, O)."""
        noise = self._known()
        if isinstance(noise, Tensor):
            return noise.double()
        return noise * torch.eye(f.shape[-1], dtype=torch.float64, device=f.device)

    def _precision_root(self, f: Tensor) -> Tensor:
        """P (..., O, O) with PᵀP = Σ⁻¹, in the dtype of f."""
        return _inverse_root(self._covariance(f)).to(f.dtype)

    def hessian_mul(self, f: Tensor, v: Tensor) -> Tensor:
        """Σ⁻¹ v for every row."""
        root = self._precision_root(f)
        return (v @ root.mT) @ root

    def hessian_root(self, f: Tensor, rng: torch.Generator | None = None) -> Iterator[Tensor]:
        """The columns of Pᵀ where PᵀP = Σ⁻¹; with `rng` the score of a sampled target, Pᵀ e."""
        root = self._precision_root(f)
        if rng is not None:
            yield torch.randn(f.shape, generator=rng, dtype=f.dtype, device=f.device) @ root
            return
        for row in root.unbind(-2):  # (..., O)
            yield row.unsqueeze(-2).expand(f.shape)

    def hessian_sum(self, f: Tensor) -> Tensor:
        """B Σ⁻¹."""
        root = self._precision_root(f)
        return (f.shape[-2] * root.mT @ root).expand(*f.shape[:-2], -1, -1)

    def conditional(self, f: Tensor) -> td.Distribution:
        """N(f, Σ)."""
        root = _cholesky(self._covariance(f)).to(f.dtype)
        return td.MultivariateNormal(f, scale_tril=root.unsqueeze(-3))

    def predictive(self, f: Tensor) -> Predictive:
        """The mixture of Gaussians over draws f (S, ..., B, O)."""
        return Predictive(self, KeptDraws(f))

    def _variance(self, f: Tensor) -> Tensor:
        """The noise variance of every draw and output, (S or 1, ..., 1, O)."""
        variance = _with_draws(self._covariance(f), f).diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
        if not bool((variance > 0).all()):
            raise ValueError(
                "Gaussian noise has a variance that is zero, negative or NaN; raise the noise floor"
            )
        return variance

    def moments(self, f: Tensor) -> Moments:
        """Mean of the draws, their spread, the mean noise, and both together."""
        mean = f.mean(0)  # (..., b, O)
        epistemic = (f - mean).square().mean(0).sqrt()
        aleatoric = self._variance(f).mean(0).sqrt().expand_as(mean)
        return Moments(mean, torch.hypot(epistemic, aleatoric), epistemic, aleatoric)

    def information(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy of the moment-matched Gaussian, and that minus the mean entropy of a draw."""
        entropy = self.moment_matched(f).entropy()  # (..., b)
        noise = _with_draws(_cholesky(self._covariance(f)), f)  # (S or 1, ..., O, O)
        log_det = 2 * noise.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (S or 1, ...)
        single = 0.5 * (log_det.mean(0) + f.shape[-1] * (1 + LOG_2PI))
        return entropy, (entropy - single.unsqueeze(-1)).clamp_min(0)  # >= 0 but for rounding

    def quantiles(self, f: Tensor, levels: tuple[float, ...]) -> Tensor:
        """Quantiles of each output's mixture of normals."""
        stds = self._variance(f).sqrt()
        return torch.stack([mixture_quantile(f, stds, level) for level in levels])

    def crps(self, f: Tensor, y: Tensor) -> Tensor:
        """That of each output's mixture of normals."""
        return crps_mixture(f, self._variance(f).sqrt(), y.expand_as(f[0]))

    def moment_matched(self, f: Tensor) -> td.MultivariateNormal:
        """The Gaussian with the mixture's mean and full covariance."""
        mean = f.mean(0)  # (..., b, O)
        d = (f - mean).movedim(0, -2)  # (..., b, S, O)
        noise = _with_draws(self._covariance(f), f).mean(0).unsqueeze(-3)  # (..., 1, O, O)
        return td.MultivariateNormal(mean, scale_tril=_cholesky(d.mT @ d / len(f) + noise))

    def mixture(self, f: Tensor) -> td.Distribution:
        """The mixture of the draws' Gaussians."""
        root = _with_draws(_cholesky(self._covariance(f)).to(f.dtype), f).unsqueeze(
            -3
        )  # (S or 1, ..., 1, O, O)
        roots = root.expand(*f.shape, f.shape[-1]).movedim(0, -3)  # (..., B, S, O, O)
        return equal_mixture(td.MultivariateNormal(f.movedim(0, -2), scale_tril=roots))

    def sample(self, f: Tensor, index: Tensor, rng: torch.Generator) -> Tensor:
        """The chosen outputs plus noise, each draw with its own covariance where it has one."""
        root = _with_draws(_cholesky(self._covariance(f)).to(f.dtype), f)  # (S or 1, ..., O, O)
        root = root if len(root) == 1 else root[index]
        return f + torch.randn(f.shape, generator=rng, dtype=f.dtype, device=f.device) @ root.mT


def _log_normal(r: Tensor, inverse_std: Tensor) -> Tensor:
    """Log-density of one output's residuals r (..., B, 1) in few operations: training lives on it."""
    r = r * inverse_std
    return torch.addcmul(inverse_std.log() - 0.5 * LOG_2PI, r, r, value=-0.5).squeeze(-1)


def _cholesky(covariance: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(covariance)
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        raise ValueError(
            "the Gaussian noise covariance is not positive definite; raise the noise floor"
        ) from error


def _inverse_root(covariance: Tensor) -> Tensor:
    """The inverse P of the Cholesky factor, in float64: PᵀP = Σ⁻¹."""
    root = _cholesky(covariance.double())
    identity = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False)


def _with_draws(matrices: Tensor, f: Tensor) -> Tensor:
    """Matrices (..., O, O) with as many axes as f (S, ..., B, O): the first is that of the draws, or 1."""
    return matrices.reshape((1,) * (f.ndim - matrices.ndim) + matrices.shape)
