"""Frozen values: regression statistics and the distributions over weights that they determine."""

from bayeswise.distributions.inverse_wishart import MatrixNormalInverseWishart
from bayeswise.distributions.matrix_normal import MatrixNormal
from bayeswise.distributions.regression import DiagonalPrior, RegressionStats
from bayeswise.distributions.student import MultivariateStudentT

__all__ = [
    "DiagonalPrior",
    "MatrixNormal",
    "MatrixNormalInverseWishart",
    "MultivariateStudentT",
    "RegressionStats",
]
