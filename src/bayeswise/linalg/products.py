"""Products, eigenvectors, triangular solves, log-determinants and the multivariate gamma function."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 120  # columns of a Gram matrix that are multiplied at once, about
REGISTER = 16  # columns that a product takes at once
WIDE = 192  # a narrower one is one product
WHOLE = 1_024  # of a sum of wider ones no whole product is held beside it


def gram(rows: Tensor) -> Tensor:
    """AᵀA for rows A (…, R, n), of wide ones one triangle by blocks.

    With one thread by numpy, which computes one triangle with its own BLAS: in 0.4 (many small matrices in
    float64) to 1.0 of the time of torch's products (measured on an AMD processor). With several threads those
    of numpy and torch would wait for one another: a step took three times as long.
    """
    n = rows.shape[-1]
    if _alone(rows):
        own = rows.contiguous()
        return torch.from_numpy(np.matmul(own.mT.numpy(), own.numpy()))
    if n < WIDE:
        return rows.mT @ rows
    out = rows.new_empty(*rows.shape[:-2], n, n)
    for block in _blocks(n):
        panel = rows[..., block].mT @ rows[..., : block.stop]  # (…, block, ≤ n)
        out[..., block, : block.stop] = panel
        out[..., : block.start, block] = panel[..., : block.start].mT
    return out


def cross(a: Tensor, b: Tensor) -> Tensor:
    """AᵀB for rows A (…, R, n) and B (…, R, m); of many small ones with one thread by numpy.

    With one column it takes a tenth of the time of torch's products, with many about as long.
    """
    if a.dim() > 2 and _alone(a) and _alone(b):
        return torch.from_numpy(np.matmul(a.mT.numpy(), b.numpy()))
    return a.mT @ b


def _alone(rows: Tensor) -> bool:
    """Whether numpy may multiply them: one thread, on a processor, nothing to differentiate."""
    plain = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
    return plain and not rows.requires_grad and torch.get_num_threads() == 1


def _blocks(n: int) -> list[slice]:
    """So many columns in parts of about the same size, whole registers of a processor where that can be."""
    parts = 1 if n < WIDE else -(-n // BLOCK)
    edges = [0, *(REGISTER * round(n * k / parts / REGISTER) for k in range(1, parts)), n]
    return [slice(*ends) for ends in zip(edges, edges[1:], strict=False)]


@dataclass(frozen=True)
class GramSum:
    """Σ AᵀA, one A (…, R, n) after another: one triangle in place, the other in the end."""

    lower: Tensor  # (…, n, n); above the blocks on its diagonal it need not be filled

    @classmethod
    def like(cls, rows: Tensor) -> GramSum:
        """Of no rows yet."""
        return cls(rows.new_zeros(*rows.shape[:-2], rows.shape[-1], rows.shape[-1]))

    def add_(self, rows: Tensor) -> None:
        """Add AᵀA; the sum may have a higher precision than the rows."""
        if _alone(rows) and rows.shape[-1] <= WHOLE:
            self.lower.add_(gram(rows))
            return
        alike = rows.dim() == 2 and rows.dtype == self.lower.dtype
        for block in _blocks(self.lower.shape[-1]):
            panel = self.lower[..., block, : block.stop]
            if alike:
                panel.addmm_(rows[:, block].mT, rows[:, : block.stop])
            else:
                panel.add_(rows[..., block].mT @ rows[..., : block.stop])

    def total(self) -> Tensor:
        """The sum so far, (…, n, n)."""
        for block in _blocks(self.lower.shape[-1]):
            self.lower[..., : block.start, block] = self.lower[..., block, : block.start].mT
        return self.lower


def symmetric_eigen(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (…, n), the smallest first, and vectors (…, n, n) of symmetric matrices: lower triangles.

    On a processor by numpy, whose LAPACK took 0.6 of the time of torch's for n = 785 in float64 (measured on
    an AMD processor; the numbers are as exact). What has to be differentiated stays with torch.
    """
    if a.requires_grad or a.device.type != "cpu":
        values, vectors = torch.linalg.eigh(a)
        return values, vectors.contiguous()
    values, vectors = np.linalg.eigh(a.numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors).contiguous()


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
