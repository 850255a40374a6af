"""The scikit-learn face: a network with hidden layers, scaled inside, that says how sure it is."""

from __future__ import annotations

from pathlib import Path

from bayeswise.estimators.classifier import BayesianClassifier
from bayeswise.estimators.regressor import BayesianRegressor
from bayeswise.storage import read_extra

__all__ = ["BayesianClassifier", "BayesianRegressor", "load_estimator"]


def load_estimator(path: str | Path) -> BayesianRegressor | BayesianClassifier:
    """Read a saved estimator, whichever it is."""
    kind = read_extra(path).get("estimator", {}).get("kind")
    return BayesianClassifier.load(path) if kind == "BayesianClassifier" else BayesianRegressor.load(path)
