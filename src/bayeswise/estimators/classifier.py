"""Classification in scikit-learn's manner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from bayeswise.estimators.network import FLOATS, BayesianNetwork, naming, unmasked
from bayeswise.estimators.scaling import Array
from bayeswise.likelihoods import Categorical, Likelihood
from bayeswise.saving import SavedModelError

PLAIN = (bool, int, float, str)


class BayesianClassifier(ClassifierMixin, BayesianNetwork):
    """Classification with uncertainty: a Bayesian network for two or more classes with any labels.

    The settings are those of `BayesianRegressor`.
    """

    classes_: Array

    def predict(self, X: ArrayLike) -> Array:
        """The most probable label of every row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of every class (B, O), in the order of `classes_`."""
        return self._array(self.predict_dist(X).mean)

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Log-probabilities (B, O); finite also where the probability is too small for a number."""
        dist = self.predict_dist(X)
        rows = len(dist.mean)
        labels = [torch.full((rows,), k, device=dist.mean.device) for k in range(len(self.classes_))]
        return self._array(torch.stack([dist.log_prob(label) for label in labels], -1))

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draw labels (B, n_samples); without `random_state` the same ones again."""
        dist = self.predict_dist(X)
        samples = dist.sample(n_samples, self._rng(random_state))  # (n, B)
        return self.classes_[samples.T.cpu().numpy()]

    def _checked_data(self, X: Any, y: Any) -> tuple[Array, Array]:
        X, y = unmasked(X, "X"), unmasked(y, "y")
        with naming("X"):
            pair: Any = validate_data(self, X, y, dtype=FLOATS, ensure_min_samples=2)
        return pair

    def _checked_targets(self, y: Array, dtype: np.dtype) -> tuple[Array, int, Likelihood]:
        check_classification_targets(y)
        try:
            self.classes_, labels = np.unique(y, return_inverse=True)
        except TypeError as error:
            kinds = sorted({type(label).__name__ for label in y})
            raise TypeError(f"y mixes labels of type {' and '.join(kinds)}; give them one type") from error
        if len(self.classes_) < 2:
            raise ValueError(f"y holds 1 class, {self.classes_[0]!r}; a classifier needs at least 2")
        return labels.astype(np.int64), len(self.classes_), Categorical()

    def _outputs(self) -> int:
        return len(self.classes_)

    def _fitted_config(self) -> dict[str, Any]:
        values = self.classes_.tolist()
        if not all(isinstance(value, PLAIN) for value in values):
            raise TypeError(
                f"labels of type {type(values[0]).__name__} cannot be saved; use strings or numbers"
            )
        return super()._fitted_config() | {"classes": values, "labels": self.classes_.dtype.str}

    def _restore_fitted(self, config: dict[str, Any], path: str | Path) -> None:
        if config["labels"].lstrip("<>|=")[:1] not in tuple("biufUO"):
            raise SavedModelError(f"{path}: labels of type {config['labels']!r} are unknown; save it again")
        self.classes_ = np.array(config["classes"], dtype=config["labels"])
        super()._restore_fitted(config, path)
