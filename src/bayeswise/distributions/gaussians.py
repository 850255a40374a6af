r"""Zero-mean Gaussians over weights, given by curvature and prior precision: N(0, (G + δ)⁻¹).

Each knows its log-determinant, how to apply the root of its covariance to noise, how many directions the data
determine, γ = tr G (G + δ)⁻¹, and what it makes of a linear function of the weights. For one layer, W (I, O),
rows x and output gradients g, that function is Σ_t xᵀ g W; `features` are vectors φ with covariance φ φ'ᵀ.
The diagonal form also takes one-hot rows that are held as places, x (…, B, T, 1) (see `linalg/picks.py`).

| form | G | root times noise z |
|---|---|---|
| Kronecker | (Q_A ⊗ Q_B) diag(l) (Q_A ⊗ Q_B)ᵀ | Q_A (z / sqrt(l + δ)) Q_Bᵀ |
| Diagonal | diag(l) | z / sqrt(l + δ) |
| Dense | any, of all layers together | L⁻ᵀ z, L Lᵀ = G + diag(δ) |
| LowRank | V diag(l) Vᵀ, of all layers together | (z + V ((δ / (l + δ))^½ - 1) Vᵀ z) / sqrt(δ) |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from bayeswise.linalg import (
    factorise,
    first_alike,
    is_picks,
    logdet,
    merged,
    picked,
    scattered,
    solve_lower,
    solve_lower_t,
    symmetric_eigen,
)

Features = Callable[[Tensor], Tensor]  # g (…, B, T, O) -> φ (…, B, F)


class LayerGaussian(Protocol):
    """N(0, (G + δ)⁻¹) over one layer's weights."""

    @property
    def eigenvalues(self) -> Tensor:
        """Those of G (…, I, O)."""
        ...

    @property
    def precision(self) -> Tensor:
        """The prior's δ, () or (…, 1, 1) or as the weights."""
        ...

    def log_det(self) -> Tensor:
        """Of G + δ, (…,)."""
        ...

    def determined(self) -> Tensor:
        """γ = tr G (G + δ)⁻¹, (…,)."""
        ...

    def root(self, noise: Tensor) -> Tensor:
        """Weights (n, …, I, O) from standard noise of that shape."""
        ...

    def features(self, x: Tensor) -> Features:
        """For one row of each example, x (…, B, 1, I), O numbers; else all I·O."""
        ...

    def joint_features(self, x: Tensor) -> Features:
        """All I·O numbers, whose products are also covariances between examples."""
        ...

    def at_output(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where z is the function itself, x (…, B, I): V (…, B, O) and Q with covariance Q diag(V) Qᵀ."""
        ...

    def with_precision(self, precision: Tensor) -> LayerGaussian:
        """The same curvature under another prior."""
        ...

    def tempered(self, scale: Tensor) -> LayerGaussian:
        """The curvature times a number (…, 1, 1)."""
        ...

    def cast(self, dtype: torch.dtype) -> LayerGaussian:
        """The same numbers in another precision."""
        ...


class _Spectral:
    """What follows from the eigenvalues l of G and an isotropic or matching δ."""

    eigenvalues: Tensor
    precision: Tensor

    @property
    def variance(self) -> Tensor:
        """1 / (l + δ) (…, I, O)."""
        return 1 / (self.eigenvalues + self.precision)

    def log_det(self) -> Tensor:
        """Of G + δ, (…,)."""
        return (self.eigenvalues + self.precision).log().sum((-2, -1))

    def determined(self) -> Tensor:
        """γ = Σ l / (l + δ), (…,)."""
        return (self.eigenvalues * self.variance).sum((-2, -1))


@dataclass(frozen=True)
class KroneckerGaussian(_Spectral):
    """G = (Q_A ⊗ Q_B) diag(l) (Q_A ⊗ Q_B)ᵀ."""

    left: Tensor  # Q_A (…, I, I)
    right: Tensor  # Q_B (…, O, O)
    eigenvalues: Tensor  # l (…, I, O)
    precision: Tensor  # δ, () or (…, 1, 1)

    @classmethod
    def of(cls, left: Tensor, right: Tensor, rows: Tensor, precision: Tensor) -> KroneckerGaussian:
        """From the factors Σ x xᵀ and Σ g gᵀ of so many rows."""
        (a, q_a), (b, q_b) = symmetric_eigen(left), symmetric_eigen(right)
        a, b = a.clamp_min(0), b.clamp_min(0)  # negative by rounding only: both are Gram matrices
        return cls(q_a, q_b, a[..., :, None] * b[..., None, :] / rows, precision)

    def root(self, noise: Tensor) -> Tensor:
        """Q_A (z / sqrt(l + δ)) Q_Bᵀ."""
        return self.left.to(noise) @ (noise * self.variance.sqrt().to(noise)) @ self.right.mT.to(noise)

    def features(self, x: Tensor) -> Features:
        """φ_j = sqrt(Σ_i (x Q_A)_i² / (l + δ)_ij) (g Q_B)_j."""
        if x.shape[-2] > 1:
            return self.joint_features(x)
        scale = self._spread(x.squeeze(-2)).sqrt()  # (…, B, O)
        right = self.right.to(x)
        return lambda g: scale * (g.squeeze(-2) @ right)

    def joint_features(self, x: Tensor) -> Features:
        """φ_ij = Σ_t (x Q_A)_i (g Q_B)_j / sqrt(l + δ)_ij."""
        rotated, right = x @ self.left.to(x)[..., None, :, :], self.right.to(x)[..., None, :, :]
        std = self.variance.sqrt().to(x)[..., None, :, :]
        return lambda g: (rotated.mT @ (g @ right) * std).flatten(-2)

    def at_output(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """V = (x Q_A)² / (l + δ), Q = Q_B."""
        return self._spread(x), self.right.to(x)

    def _spread(self, x: Tensor) -> Tensor:
        return (x @ self.left.to(x)).square() @ self.variance.to(x)  # (…, B, O)

    def with_precision(self, precision: Tensor) -> KroneckerGaussian:
        """The same curvature under another prior."""
        return replace(self, precision=precision)

    def tempered(self, scale: Tensor) -> KroneckerGaussian:
        """The curvature times a number (…, 1, 1)."""
        return replace(self, eigenvalues=self.eigenvalues * scale)

    def cast(self, dtype: torch.dtype) -> KroneckerGaussian:
        """The same numbers in another precision."""
        parts = (self.left, self.right, self.eigenvalues, self.precision)
        return KroneckerGaussian(*(part.to(dtype) for part in parts))


@dataclass(frozen=True)
class DiagonalGaussian(_Spectral):
    """G = diag(l)."""

    eigenvalues: Tensor  # l (…, I, O)
    precision: Tensor  # δ, () or (…, 1, 1) or (…, I, O)

    def root(self, noise: Tensor) -> Tensor:
        """z / sqrt(l + δ)."""
        return noise * self.variance.sqrt().to(noise)

    def features(self, x: Tensor) -> Features:
        """φ_j = sqrt(Σ_i x_i² / (l + δ)_ij) g_j; of places φ_tj = Σ g_j / sqrt(l + δ), each once."""
        if is_picks(x):
            first, own = first_alike(x), self._picked_std(x)
            return lambda g: (merged(first, g) * own.to(g)).flatten(-2)
        if x.shape[-2] > 1:
            return self.joint_features(x)
        scale = (x.squeeze(-2).square() @ self.variance.to(x)).sqrt()  # (…, B, O)
        return lambda g: scale * g.squeeze(-2)

    def joint_features(self, x: Tensor) -> Features:
        """φ_ij = Σ_t x_i g_j / sqrt(l + δ)_ij."""
        std = self.variance.sqrt()[..., None, :, :]
        if is_picks(x):
            return lambda g: (scattered(x, g, std.shape[-2]) * std.to(g)).flatten(-2)
        std = std.to(x)
        return lambda g: (x.mT @ g * std).flatten(-2)

    def _picked_std(self, x: Tensor) -> Tensor:
        """1 / sqrt(l + δ) of the places x (…, B, T, 1), (…, B, T, O)."""
        rows = x.flatten(-3, -2)
        return picked(self.variance.sqrt(), rows).unflatten(-2, x.shape[-3:-1])

    def at_output(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """V = x² / (l + δ), Q = 1."""
        eye = torch.eye(self.eigenvalues.shape[-1], dtype=x.dtype, device=x.device)
        return x.square() @ self.variance.to(x), eye

    def with_precision(self, precision: Tensor) -> DiagonalGaussian:
        """The same curvature under another prior."""
        return replace(self, precision=precision)

    def tempered(self, scale: Tensor) -> DiagonalGaussian:
        """The curvature times a number (…, 1, 1)."""
        return replace(self, eigenvalues=self.eigenvalues * scale)

    def cast(self, dtype: torch.dtype) -> DiagonalGaussian:
        """The same numbers in another precision."""
        return DiagonalGaussian(self.eigenvalues.to(dtype), self.precision.to(dtype))


@dataclass(frozen=True)
class DenseGaussian:
    """L Lᵀ = G + diag(δ) of all weights, one after another."""

    curvature: Tensor  # G (…, P, P)
    precision: Tensor  # δ (…, P)
    factor: Tensor  # L (…, P, P)

    @classmethod
    def of(cls, curvature: Tensor, precision: Tensor) -> DenseGaussian:
        """Factorise G + diag(δ)."""
        precision = precision.expand(curvature.shape[:-1])
        total = curvature + torch.diag_embed(precision)
        factor = factorise(total, "the curvature with the prior").lower.contiguous()
        return cls(curvature, precision, factor)

    def log_det(self) -> Tensor:
        """Of G + diag(δ), (…,)."""
        return logdet(self.factor)

    def determined(self) -> Tensor:
        """γ_p = 1 - δ_p ((G + δ)⁻¹)_pp of every weight, (…, P)."""
        eye = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        inverse = solve_lower(self.factor, eye).square().sum(-2)  # the diagonal of L⁻ᵀ L⁻¹
        return 1 - self.precision * inverse

    def root(self, noise: Tensor) -> Tensor:
        """L⁻ᵀ z for noise (n, …, P)."""
        return solve_lower_t(self.factor.to(noise), noise[..., None])[..., 0]

    def features(self, jacobian: Tensor) -> Tensor:
        """φ = L⁻¹ J for rows J (…, B, P)."""
        return solve_lower(self.factor.to(jacobian), jacobian.mT).mT

    def under(self, precision: Tensor, scale: Tensor) -> DenseGaussian:
        """The curvature times a number (…,), under another prior (…, P)."""
        return DenseGaussian.of(self.curvature * scale[..., None, None], precision)


@dataclass(frozen=True)
class LowRankGaussian:
    """G = V diag(l) Vᵀ of all weights, one after another, under one δ for all."""

    basis: Tensor  # V (…, P, r), orthonormal columns
    eigenvalues: Tensor  # l (…, r)
    precision: Tensor  # δ (…, P), the same for all

    def log_det(self) -> Tensor:
        """Σ log(l + δ) + (P - r) log δ, (…,)."""
        delta = self._delta()
        rest = self.basis.shape[-2] - self.basis.shape[-1]
        return (self.eigenvalues + delta).log().sum(-1) + rest * delta[..., 0].log()

    def determined(self) -> Tensor:
        """The diagonal of G (G + δ)⁻¹, of every weight (…, P)."""
        share = self.eigenvalues / (self.eigenvalues + self._delta())  # (…, r)
        return (self.basis.square() @ share[..., None])[..., 0]

    def root(self, noise: Tensor) -> Tensor:
        """The symmetric root of the covariance times noise (n, …, P)."""
        return self.features(noise[..., None, :])[..., 0, :]

    def features(self, jacobian: Tensor) -> Tensor:
        """J times the symmetric root, for rows J (…, B, P)."""
        basis, delta = self.basis.to(jacobian), self._delta()
        shrink = ((delta / (self.eigenvalues + delta)).sqrt() - 1).to(jacobian)  # (…, r)
        inside = (jacobian @ basis) * shrink[..., None, :]
        return (jacobian + inside @ basis.mT) / delta[..., None].sqrt().to(jacobian)

    def under(self, precision: Tensor, scale: Tensor) -> LowRankGaussian:
        """The curvature times a number (…,), under another prior (…, P)."""
        if not bool(torch.isclose(precision, precision[..., :1]).all()):
            raise ValueError(
                "a low rank has one prior precision for all layers: use precision=bw.Evidence(shared=True), "
                "or a number"
            )
        return LowRankGaussian(self.basis, self.eigenvalues * scale[..., None], precision)

    def _delta(self) -> Tensor:
        return self.precision[..., :1]
