"""Classification in scikit-learn's manner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from bayeswise.estimators.network import BayesianNetwork, checked_targets, naming
from bayeswise.estimators.scaling import Array
from bayeswise.likelihoods import Categorical, Likelihood
from bayeswise.saving import SavedModelError

PLAIN = (bool, int, float, str)
KINDS = tuple("biufUO")  # of arrays of these


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
        samples = self._sample(X, n_samples, random_state)  # (n, B)
        return self.classes_[samples.T.cpu().numpy()]

    def _checked_targets(self, y: Any) -> Array:
        y = checked_targets(y, None)
        with naming("y"):
            y = column_or_1d(y, warn=True)
            check_classification_targets(y)
        return y

    def _seen_targets(self, y: Array, dtype: np.dtype) -> tuple[Array, int, Likelihood]:
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds 1 class, {self.classes_.tolist()[0]!r}; a classifier needs at least 2")
        return labels.astype(np.int64), len(self.classes_), Categorical()

    def _outputs(self) -> int:
        return len(self.classes_)

    def _fitted_config(self) -> dict[str, Any]:
        values = self.classes_.tolist()
        if self.classes_.dtype.kind not in KINDS or not all(isinstance(value, PLAIN) for value in values):
            kind = type(self.classes_[0]).__name__
            raise TypeError(f"labels of type {kind} cannot be saved; use strings or numbers")
        return super()._fitted_config() | {"classes": values, "labels": self.classes_.dtype.str}

    def _restore_fitted(self, config: dict[str, Any], path: str | Path) -> None:
        if config["labels"].lstrip("<>|=")[:1] not in KINDS:
            raise SavedModelError(f"{path}: labels of type {config['labels']!r} are unknown; save it again")
        self.classes_ = np.array(config["classes"], dtype=config["labels"])
        super()._restore_fitted(config, path)
