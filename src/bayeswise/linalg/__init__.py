"""Tensors only: the safe Cholesky factorisation, products and triangular solves."""

from bayeswise.linalg.cholesky import (
    Factor,
    NumericalError,
    NumericalWarning,
    condition,
    factorise,
    safe_cholesky,
)
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
    "gram",
    "logdet",
    "multidigamma",
    "multigammaln",
    "safe_cholesky",
    "solve_lower",
    "solve_lower_right",
    "solve_lower_t",
]
