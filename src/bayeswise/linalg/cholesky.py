"""The one safe Cholesky factorisation.

It tries, then adds the smallest jitter that works to the failing matrices of a batch (and to no other),
counts them, and raises an error that names the matrix when nothing works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

CONDITION_LIMIT = 1e5  # a float32 factor worse than this is computed again in float64
JITTER_LIMIT = 1e-4  # of the trace: float32 products need up to 1e-7, more is not rounding


class NumericalError(ArithmeticError):
    """A matrix could not be factorised, or held NaN or infinite values."""


class NumericalWarning(UserWarning):
    """A factorisation needed jitter; the numbers are close, not exact."""


@dataclass(frozen=True)
class Factor:
    """A lower Cholesky factor, and what had to be added to the diagonal to obtain it."""

    lower: Tensor  # (…, n, n)
    jitter: Tensor  # (…,) absolute; 0 where the matrix was factorised as it is

    @property
    def rescued(self) -> Tensor:
        """How many matrices of the batch needed jitter."""
        return (self.jitter > 0).sum()


def safe_cholesky(matrix: Tensor, name: str = "matrix") -> Factor:
    """Factorise symmetric matrices (…, n, n), reading the lower triangle.

    Jitter is relative to the trace, eps·10^k for k = 0, 1, … up to 1e-4, so it has no unit and no scale.
    """
    return _safe_cholesky(matrix, name, torch.finfo(matrix.dtype).eps)


def factorise(matrix: Tensor, name: str = "matrix") -> Factor:
    """A safe factorisation that repeats itself in float64 where float32 is not enough."""
    if matrix.dtype == torch.float64:
        return safe_cholesky(matrix, name)
    lower, info = torch.linalg.cholesky_ex(matrix)
    if not info.any() and (condition(lower) <= CONDITION_LIMIT).all():
        return Factor(lower, matrix.new_zeros(matrix.shape[:-2]))
    return _safe_cholesky(matrix.double(), name, torch.finfo(matrix.dtype).eps)


def condition(lower: Tensor) -> Tensor:
    """An estimate of the condition number of L Lᵀ: (max diag L / min diag L)²."""
    diagonal = lower.diagonal(dim1=-2, dim2=-1)
    return (diagonal.amax(-1) / diagonal.amin(-1)).square()


def _safe_cholesky(matrix: Tensor, name: str, eps: float) -> Factor:
    """As `safe_cholesky`; eps is the rounding error of the entries, which may come from a narrower type."""
    lower, info = torch.linalg.cholesky_ex(matrix)
    # A NaN makes a pivot fail, infinity on the diagonal does not: it only shows in the factor.
    if not info.any() and isfinite(lower.sum()):
        return Factor(lower, matrix.new_zeros(matrix.shape[:-2]))
    _require_finite(matrix, name)
    return _rescue(matrix, lower, info != 0, name, eps)


def _rescue(matrix: Tensor, lower: Tensor, failed: Tensor, name: str, eps: float) -> Factor:
    jitter, shares = matrix.new_zeros(matrix.shape[:-2]), tuple(_shares(eps))
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)  # (…,)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for share in shares:
        amount = (share * trace)[failed]  # (F,)
        tried, info = torch.linalg.cholesky_ex(matrix[failed] + amount[:, None, None] * eye)
        solved = torch.zeros_like(failed)
        solved[failed] = info == 0
        lower[solved] = tried[info == 0]
        jitter[solved] = amount[info == 0]
        failed = failed & ~solved
        if not failed.any():
            return Factor(lower, jitter)
    raise NumericalError(
        f"{name}: {int(failed.sum())} of {failed.numel()} matrices of size {matrix.shape[-1]} are not "
        f"positive definite, even with {shares[-1]:.1g} of the trace added to the diagonal; "
        "scale the inputs to similar sizes, or use a tighter prior (a smaller prior variance), "
        "a larger noise floor, or float64"
    )


def _shares(eps: float) -> Iterator[float]:
    while eps <= JITTER_LIMIT:
        yield eps
        eps *= 10


def _require_finite(matrix: Tensor, name: str) -> None:
    bad = int((~torch.isfinite(matrix)).sum())
    if bad:
        raise NumericalError(
            f"{name}: {bad} of {matrix.numel()} entries are NaN or infinite; "
            "look for extreme values in the data, or lower the step size"
        )
