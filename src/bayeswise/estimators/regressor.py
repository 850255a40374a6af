"""Regression in scikit-learn's manner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from torch import Tensor

from bayeswise.estimators.network import BayesianNetwork, checked_targets
from bayeswise.estimators.scaling import Array, Scaling
from bayeswise.likelihoods import Gaussian, Likelihood
from bayeswise.methods.evidence import in_units
from bayeswise.posterior import Posterior
from bayeswise.predictive import Predictive
from bayeswise.problem import Units

LARGEST_TARGET = 1e140  # squares of targets and of their spread must be numbers too


class BayesianRegressor(RegressorMixin, BayesianNetwork):
    """Regression with uncertainty: a Bayesian network for numbers, one column of y or several.

    Args:
        hidden: widths of the hidden layers.
        activation: "relu", "leaky_relu", "tanh", "gelu", "silu", "softplus" or "sigmoid".
        method: how the posterior is found; None means `BALI()`. `Laplace()` trains by `MAP()` first.
        draws: networks that answer a prediction; they are fixed by `fit`.
        batch_size: rows of a training step; None means all up to 1,024, or as the method says.
        random_state: None is the seed 0, so that two fits agree; global generators are not touched.
        verbose: 1 shows a progress bar.
        device: where the network computes.

    The network computes, and answers, in float32 where X is float32 at `fit`, else in float64.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean of every row; with `return_std` or `return_cov` a pair.

        The standard deviation has the shape of the mean. The covariance is that between rows (B, B), for y
        with columns (B, B, O), in float64; its diagonal is the squared standard deviation.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other; the covariance holds both")
        dist = self.predict_dist(X)
        mean = self._shaped(dist.mean)
        if return_std:
            return mean, self._shaped(dist.std)
        return (mean, self._covariance(X, dist)) if return_cov else mean

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper bounds of the central interval that holds `level` of the probability."""
        low, high = self.predict_dist(X).interval(level)
        return self._shaped(low), self._shaped(high)

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draw targets, (B, n_samples) or (B, O, n_samples); without `random_state` the same ones again."""
        samples = self._sample(X, n_samples, random_state)  # (n, B, O)
        samples = samples[..., 0] if self.target_ndim_ == 1 else samples
        return self._array(samples.movedim(0, -1))

    def _shaped(self, values: Tensor) -> Array:
        """(B, O), or (B,) where y was one."""
        return self._array(values[..., 0] if self.target_ndim_ == 1 else values)

    def _covariance(self, X: ArrayLike, dist: Predictive) -> Array:
        noise = torch.diag_embed(dist.aleatoric.double().square().mT)  # (O, B, B)
        cov = (self._function_covariance(X, dist) + noise).movedim(0, -1)  # (B, B, O)
        return (cov[..., 0] if self.target_ndim_ == 1 else cov).cpu().numpy()

    def _function_covariance(self, X: ArrayLike, dist: Predictive) -> Tensor:
        """That of every output between the rows (O, B, B): exact of a linearised network, else of draws."""
        if self.posterior_.weights.tangent is None:
            f = dist.draws.double()
            d = (f - f.mean(0)).movedim(-1, 0)  # (O, S, B)
            return d.mT @ d / d.shape[-2]
        rows, outputs = dist.mean.shape
        joint = self.posterior_.function_covariance(
            self._scaled(self._checked_rows(X, reset=False), self._dtype())
        ).double()  # (B·O, B·O)
        return joint.reshape(rows, outputs, rows, outputs).diagonal(dim1=1, dim2=3).movedim(-1, 0)

    def _checked_targets(self, y: Any) -> Array:
        return checked_targets(y, "float64")

    def _seen_targets(self, y: Array, dtype: np.dtype) -> tuple[Array, int, Likelihood]:
        columns = y.reshape(len(y), -1)  # (N, O)
        scaling = Scaling.of(columns)
        _check_size(scaling, dtype)
        self.target_ndim_, self.target_scaling_ = y.ndim, scaling
        return scaling(columns).astype(dtype), columns.shape[1], Gaussian()

    def _in_user_units(self, posterior: Posterior) -> Posterior:
        units = self.target_scaling_.units()
        device = posterior.problem.network.device
        units = Units(units.shift.to(device), units.scale.to(device))
        problem, evidence = replace(posterior.problem, units=units), posterior.log_evidence
        if evidence is not None:
            evidence = in_units(evidence, units, problem.n, getattr(self.method, "temperature", 1.0))
        return replace(posterior, problem=problem, log_evidence=evidence)

    def _outputs(self) -> int:
        return len(self.target_scaling_.size)

    def _fitted_config(self) -> dict[str, Any]:
        own = {"target_scaling": self.target_scaling_.config(), "target_ndim": self.target_ndim_}
        return super()._fitted_config() | own

    def _restore_fitted(self, config: dict[str, Any], path: str | Path) -> None:
        self.target_scaling_ = Scaling.restore(config["target_scaling"])
        self.target_ndim_ = config["target_ndim"]
        super()._restore_fitted(config, path)


def _check_size(scaling: Scaling, dtype: np.dtype) -> None:
    """Refuse targets that cannot be predicted in this precision."""
    largest = min(LARGEST_TARGET, float(np.finfo(dtype).max) / 1e3)
    size, spread = float(scaling.size.max()), float((scaling.size * scaling.std).min())
    if size > largest or spread < 1 / largest:
        raise ValueError(
            f"y has values up to {size:.3g} and a spread of {spread:.3g}, too large or too small for "
            f"{np.dtype(dtype).name}; rescale y, or give X as float64"
        )
