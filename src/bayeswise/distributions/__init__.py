"""Frozen values: regression statistics and the distributions over weights that they determine."""

from bayeswise.distributions.gaussians import (
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
    LayerGaussian,
    LowRankGaussian,
)
from bayeswise.distributions.inverse_wishart import MatrixNormalInverseWishart
from bayeswise.distributions.matrix_normal import MatrixNormal
from bayeswise.distributions.regression import DiagonalPrior, RegressionStats
from bayeswise.distributions.student import MultivariateStudentT

__all__ = [
    "DenseGaussian",
    "DiagonalGaussian",
    "DiagonalPrior",
    "KroneckerGaussian",
    "LayerGaussian",
    "LowRankGaussian",
    "MatrixNormal",
    "MatrixNormalInverseWishart",
    "MultivariateStudentT",
    "RegressionStats",
]
