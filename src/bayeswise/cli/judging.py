"""How good a model is on held-out rows, in numbers and as a report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import torch

from bayeswise import metrics
from bayeswise.estimators import BayesianClassifier, BayesianRegressor
from bayeswise.predictive import Predictive
from bayeswise.report import (
    ConvergenceDisplay,
    CoverageDisplay,
    Picture,
    PredictedDisplay,
    ReliabilityDisplay,
    Report,
    Section,
)
from bayeswise.report import Table as ReportTable
from bayeswise.tables import CategoryColumn, Encoder, NumberTarget, Target

LEVEL = 0.9
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
LABELS = {
    "nll": "negative log-likelihood",
    "rmse": "root mean squared error",
    "coverage_90": "share inside 90% intervals",
    "accuracy": "accuracy",
    "ece": "expected calibration error",
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Judgement:
    """Scores of the model and of a guess that knows no inputs, and the pictures that go with them."""

    metrics: dict[str, float]
    baseline: dict[str, float]
    pictures: tuple[Picture, ...]

    @property
    def doubt(self) -> str | None:
        """A warning where the probabilities are no better than the guess."""
        if self.metrics["nll"] < self.baseline["nll"]:
            return None
        return (
            "on the held-out rows a guess without inputs has the better likelihood; do not trust this model"
        )


def judge(
    estimator: BayesianRegressor | BayesianClassifier, target: Target, seen: Array, x: pd.DataFrame, y: Array
) -> Judgement:
    """Score the model on rows x (N, I) with targets y (N,); `seen` are the targets of training."""
    dist = estimator.predict_dist(x)
    if isinstance(target, NumberTarget):
        return _judge_numbers(dist, target.name, seen, y)
    return _judge_classes(dist, seen, y)


def _judge_numbers(dist: Predictive, name: str, seen: Array, y: Array) -> Judgement:
    bounds = [[_column(bound) for bound in dist.interval(level)] for level in LEVELS]
    low, high = (np.stack(edges) for edges in zip(*bounds, strict=True))  # (levels, N)
    mean, at = _column(dist.mean), LEVELS.index(LEVEL)
    scores = {
        "nll": float(metrics.nll(dist.log_prob(torch.from_numpy(y)))),
        "rmse": float(metrics.rmse(mean, y)),
        "coverage_90": float(metrics.coverage(low[at], high[at], y)),
    }
    pictures = (
        PredictedDisplay.from_predictions(y, mean, low[at], high[at], level=LEVEL, name=name),
        CoverageDisplay.from_predictions(y, low, high, np.array(LEVELS)),
    )
    return Judgement(scores, _guess_number(seen, y), tuple(Picture.of(picture) for picture in pictures))


def _guess_number(seen: Array, y: Array) -> dict[str, float]:
    """The scores of a normal distribution with mean and spread of the training targets."""
    mean, std = float(seen.mean()), float(seen.std())
    reach = NormalDist().inv_cdf(0.5 + LEVEL / 2) * std
    log_prob = -0.5 * ((y - mean) / std) ** 2 - math.log(std * metrics.SQRT_2PI)
    return {
        "nll": float(metrics.nll(log_prob)),
        "rmse": float(metrics.rmse(np.full_like(y, mean), y)),
        "coverage_90": float(
            metrics.coverage(np.full_like(y, mean - reach), np.full_like(y, mean + reach), y)
        ),
    }


def _judge_classes(dist: Predictive, seen: Array, y: Array) -> Judgement:
    probs = dist.mean.double().cpu()
    scores = _class_scores(probs, dist.log_prob(torch.from_numpy(y)), y)
    share = torch.from_numpy(seen).bincount(minlength=probs.shape[1]).double() / len(seen)
    guess = share.expand(len(y), -1)
    baseline = _class_scores(guess, share[torch.from_numpy(y)].log(), y)
    picture = ReliabilityDisplay.from_predictions(probs.numpy(), y)
    return Judgement(scores, baseline, (Picture.of(picture),))


def _class_scores(probs: torch.Tensor, log_prob: torch.Tensor, y: Array) -> dict[str, float]:
    return {
        "nll": float(metrics.nll(log_prob.cpu())),
        "accuracy": float(metrics.accuracy(probs, y)),
        "ece": float(metrics.ece(probs, y)),
    }


def _column(values: torch.Tensor) -> Array:
    return values[:, 0].double().cpu().numpy()


# ------------------------------------------------------------------------------------------------ the report


def page(result: dict[str, Any], encoder: Encoder, judged: Judgement | None, log_lik: Array) -> Report:
    """The report of a fit."""
    task, target, data = result["task"], result["target"], Path(result["data"]).name
    intro = (
        f"A Bayesian network that predicts {target} from {result['columns']} columns of {data}: "
        f"{task}, because {result['reason']}. It learnt from {result['rows']['training']:,} rows with the "
        f"method {result['method']} in {result['seconds']:.1f} seconds (seed {result['seed']})."
    )
    sections = [_quality(result, judged)] if judged else []
    return Report(f"Predicting {target}", intro, (*sections, _training(log_lik), _columns(result, encoder)))


def _quality(result: dict[str, Any], judged: Judgement) -> Section:
    rows = tuple((LABELS[name], value, judged.baseline[name]) for name, value in judged.metrics.items())
    table = ReportTable(("measure", "model", "without inputs"), rows)
    text = (
        f"Measured on {result['rows']['held_out']:,} rows that the model has not seen. The last column is a "
        "guess that knows only how often each value occurs: a useful model is clearly better."
    )
    return Section("How good are the predictions?", text, judged.pictures, table)


def _training(log_lik: Array) -> Section:
    steps = np.arange(1, len(log_lik) + 1)
    known = np.isfinite(log_lik)
    if not known.any():
        return Section("Training", "No finite log-likelihood was recorded.")
    curve = {"training rows": (steps[known], -log_lik[known])}
    return Section("Did training converge?", "", (Picture.of(ConvergenceDisplay.from_history(curve)),))


def _columns(result: dict[str, Any], encoder: Encoder) -> Section:
    rows = tuple(
        (
            column.name,
            f"{len(column.values)} texts" if isinstance(column, CategoryColumn) else "numbers",
            len(column.features),
            "yes" if column.flagged else "no",
        )
        for column in encoder.columns
    )
    table = ReportTable(("column", "holds", "inputs", "missing values filled in"), rows)
    return Section("What the model looks at", "\n\n".join(result["notes"]), (), table)
