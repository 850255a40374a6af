"""Products, triangular solves, log-determinants and the multivariate gamma function."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 96  # a Gram matrix narrower than twice this is one product


def gram(rows: Tensor) -> Tensor:
    """AᵀA for rows A (…, R, n); wide matrices by the blocks of one triangle, which saves half."""
    n = rows.shape[-1]
    if n < 2 * BLOCK:
        return rows.mT @ rows
    out = rows.new_empty(*rows.shape[:-2], n, n)
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        panel = rows[..., block].mT @ rows[..., : block.stop]  # (…, block, ≤ n)
        out[..., block, : block.stop] = panel
        out[..., : block.start, block] = panel[..., : block.start].mT
    return out


def solve_lower(lower: Tensor, b: Tensor) -> Tensor:
    """L⁻¹ b."""
    return torch.linalg.solve_triangular(lower, b, upper=False)


def solve_lower_t(lower: Tensor, b: Tensor) -> Tensor:
    """L⁻ᵀ b."""
    return torch.linalg.solve_triangular(lower.mT, b, upper=True)


def solve_lower_right(lower: Tensor, b: Tensor) -> Tensor:
    """b L⁻¹: for one right-hand side twice as fast as L⁻ᵀ bᵀ, which copies the factor first."""
    return torch.linalg.solve_triangular(lower, b, upper=False, left=False)


def logdet(lower: Tensor) -> Tensor:
    """The logarithm of |L Lᵀ|."""
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def multigammaln(a: Tensor, dim: int) -> Tensor:
    """The multivariate log Γ_d(a) = d(d-1)/4 log π + Σ_j log Γ(a - j/2), j = 0 … d-1."""
    shifts = torch.arange(dim, dtype=a.dtype, device=a.device) / 2
    return dim * (dim - 1) / 4 * math.log(math.pi) + (a[..., None] - shifts).lgamma().sum(-1)


def multidigamma(a: Tensor, dim: int) -> Tensor:
    """The derivative of log Γ_d(a)."""
    shifts = torch.arange(dim, dtype=a.dtype, device=a.device) / 2
    return (a[..., None] - shifts).digamma().sum(-1)
