r"""The Kronecker product that is nearest to a sum of two, in the Frobenius norm.

    A ⊗ B = argmin |A₁ ⊗ B₁ + A₂ ⊗ B₂ - A ⊗ B|

With every matrix written as a vector the sum is U Vᵀ, U = [vec A₁, vec A₂], V = [vec B₁, vec B₂], and the
best product its first singular pair: U c and V d, where (VᵀV)(UᵀU) c = σ² c and d = (UᵀU) c / (cᵀ UᵀU c).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]  # A (…, I, I) and B (…, O, O)


@dataclass(frozen=True)
class NearestProduct:
    """A ⊗ B, and how much of the sum it misses."""

    left: Tensor  # A (…, I, I)
    right: Tensor  # B (…, O, O)
    missed: Tensor  # |sum - A ⊗ B| / |sum| (…,); 0 where A₁ ∝ A₂ or B₁ ∝ B₂


def nearest_product(one: Factors, two: Factors) -> NearestProduct:
    """The best A ⊗ B for A₁ ⊗ B₁ + A₂ ⊗ B₂; of symmetric, positive semi-definite factors it has such factors.

    Traces of products of such matrices are not negative, nor then are c and d. Where the two terms are as
    large and share no direction, each of them is as near: the first is taken.
    """
    (a1, a2), lefts = _units(one[0], two[0])
    (b1, b2), rights = _units(one[1], two[1])
    w = lefts * rights  # (…, 2), the norms of the two terms
    rho, tau = (a1 * a2).sum((-2, -1)), (b1 * b2).sum((-2, -1))
    c, missed = _first_direction(w, rho, tau)
    d = c + rho[..., None] * c.flip(-1)  # UᵀU c
    d = d * w / (c * d).sum(-1, keepdim=True)
    return NearestProduct(_combined(c, a1, a2), _combined(d, b1, b2), missed)


def _units(one: Tensor, two: Tensor) -> tuple[Factors, Tensor]:
    """Both at norm 1, and their norms (…, 2)."""
    norms = torch.stack([m.square().sum((-2, -1)).clamp_min(_tiny(m)).sqrt() for m in (one, two)], -1)
    return (one / norms[..., 0, None, None], two / norms[..., 1, None, None]), norms


def _first_direction(w: Tensor, rho: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The first eigenvector c (…, 2) of (VᵀV)(UᵀU), entries m, with sum 1; and σ₂ / |sum|."""
    w1, w2 = w.unbind(-1)
    m11, m12 = w1 * (w1 + w2 * tau * rho), w1 * (w1 * rho + w2 * tau)
    m21, m22 = w2 * (w1 * tau + w2 * rho), w2 * (w1 * tau * rho + w2)
    half = (m11 - m22) / 2
    root = (half.square() + m12 * m21).clamp_min(_tiny(w)).sqrt()
    c = torch.where(  # of two forms the one that subtracts nothing
        (half >= 0)[..., None],
        torch.stack([half + root, m21], -1),
        torch.stack([m12, root - half], -1),
    )
    total = (m11 + m22).clamp_min(_tiny(w))  # σ₁² + σ₂², the square of the sum's norm
    apart = w.square() * torch.stack([1 - rho.square(), 1 - tau.square()], -1)  # their product is σ₁² σ₂²
    second = apart[..., 0] / (total / 2 + root) * (apart[..., 1] / total)  # σ₂² / (σ₁² + σ₂²)
    return c / c.sum(-1, keepdim=True), second.detach().clamp_min(0).sqrt()


def _combined(c: Tensor, one: Tensor, two: Tensor) -> Tensor:
    return c[..., 0, None, None] * one + c[..., 1, None, None] * two


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
