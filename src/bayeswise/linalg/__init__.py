"""Tensors only: the safe Cholesky factorisation, products and triangular solves."""

from bayeswise.linalg.cholesky import (
    Factor,
    NumericalError,
    NumericalWarning,
    condition,
    factorise,
    safe_cholesky,
)
from bayeswise.linalg.picks import first_alike, is_picks, merged, picked, scattered
from bayeswise.linalg.products import (
    gram,
    logdet,
    multidigamma,
    multigammaln,
    solve_lower,
    solve_lower_right,
    solve_lower_t,
)

__all__ = [
    "Factor",
    "NumericalError",
    "NumericalWarning",
    "condition",
    "factorise",
    "first_alike",
    "gram",
    "is_picks",
    "logdet",
    "merged",
    "multidigamma",
    "multigammaln",
    "picked",
    "safe_cholesky",
    "scattered",
    "solve_lower",
    "solve_lower_right",
    "solve_lower_t",
]
