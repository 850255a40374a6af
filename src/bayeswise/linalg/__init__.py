"""Tensors only: the safe Cholesky factorisation, triangular solves, Kronecker and other products."""

from bayeswise.linalg.cholesky import (
    Factor,
    NumericalError,
    NumericalWarning,
    condition,
    factorise,
    safe_cholesky,
)
from bayeswise.linalg.kronecker import Factors, NearestProduct, nearest_product
from bayeswise.linalg.picks import first_alike, is_picks, merged, picked, scattered
from bayeswise.linalg.products import (
    GramSum,
    cross,
    gram,
    logdet,
    multidigamma,
    multigammaln,
    solve_lower,
    solve_lower_right,
    solve_lower_t,
    symmetric_eigen,
)

__all__ = [
    "Factor",
    "Factors",
    "GramSum",
    "NearestProduct",
    "NumericalError",
    "NumericalWarning",
    "condition",
    "cross",
    "factorise",
    "first_alike",
    "gram",
    "is_picks",
    "logdet",
    "merged",
    "multidigamma",
    "multigammaln",
    "nearest_product",
    "picked",
    "safe_cholesky",
    "scattered",
    "solve_lower",
    "solve_lower_right",
    "solve_lower_t",
    "symmetric_eigen",
]
