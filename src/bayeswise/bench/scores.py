"""The figures of one data set, from a prediction."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, cat, ones, zeros

from bayeswise import metrics
from bayeswise.predictive import Predictive

Metrics = dict[str, float]
SHARES = 101  # points of an ROC curve
ROUNDING = 1e-9  # a smaller mutual information is one of rounding: a single network has none


def regression(prediction: Predictive, y: Tensor) -> list[Metrics]:
    """RMSE, log-likelihoods, coverage and CRPS of each member's rows y (K, B, 1), or of the rows (B, 1)."""
    log_prob, gaussian, crps = prediction.log_prob(y), prediction.log_prob_gaussian(y), prediction.crps(y)
    found = (prediction.mean, log_prob, gaussian, *prediction.interval(0.9), crps, y)
    members = zip(*found, strict=True) if y.dim() == 3 else [found]
    return [_regression(*one) for one in members]


def _regression(
    mean: Tensor, log_prob: Tensor, gaussian: Tensor, low: Tensor, high: Tensor, crps: Tensor, y: Tensor
) -> Metrics:
    return {
        "rmse": float(metrics.rmse(mean, y)),
        "ll": float(log_prob.double().mean()),
        "ll_gaussian": float(gaussian.double().mean()),
        "coverage_90": float(metrics.coverage(low, high, y)),
        "crps": float(crps.double().mean()),
    }


def classification(probs: Tensor, log_prob: Tensor, labels: Tensor) -> Metrics:
    """Accuracy, NLL, ECE, Brier score and AUC of one member's rows: (B, C), (B,), (B,).

    Rows that are all of one class have no AUC.
    """
    found = {
        "acc": float(metrics.accuracy(probs, labels)),
        "nll": float(metrics.nll(log_prob)),
        "ece": float(metrics.ece(probs, labels)),
        "brier": float(metrics.brier(probs, labels)),
    }
    return found | ({"auc": _auc(probs, labels)} if len(labels.unique()) > 1 else {})


def _auc(probs: Tensor, labels: Tensor) -> float:
    """Of the second class where there are two; otherwise the mean over classes, each against the rest."""
    classes = range(probs.shape[-1]) if probs.shape[-1] > 2 else (1,)
    seen = [c for c in classes if bool((labels == c).any())]
    return sum(float(metrics.auroc(_log_odds(probs, c), labels == c)) for c in seen) / len(seen)


def _log_odds(probs: Tensor, c: int) -> Tensor:
    """log p_c / (1 - p_c) (B,): probabilities that round to 1 are told apart by what the others have."""
    others = cat([probs[:, :c], probs[:, c + 1 :]], 1).double().sum(1)
    return probs[:, c].double().log() - others.log()


def separation(inside: Predictive, outside: Predictive) -> Metrics:
    """How well known rows are told from foreign ones, by entropy and by mutual information.

    True positives are known rows taken for known, false positives foreign rows taken for known.
    """
    found: Metrics = {}
    for name, (a, b) in _doubts(inside, outside).items():
        score, known = -cat([a, b]), cat([ones(len(a)), zeros(len(b))])
        found[f"auroc_{name}"] = float(metrics.auroc(score, known))
        found[f"fpr95_{name}"] = float(metrics.fpr95(score, known))
    return found


def operating(inside: Predictive, outside: Predictive) -> dict[str, list[float]]:
    """The ROC curve: shares of `known` rows taken for known, and of the foreign ones then, by each score."""
    shares = np.linspace(0, 1, SHARES)
    curves = {name: np.interp(shares, *_taken(*pair)) for name, pair in _doubts(inside, outside).items()}
    return {"known": shares.tolist()} | {name: foreign.tolist() for name, foreign in curves.items()}


def _taken(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of a and of b that are at most as doubtful as each value; equal ones are taken together."""
    levels = cat([a, b]).unique()
    known, foreign = (
        torch.searchsorted(s.sort().values, levels, right=True).double() / len(s) for s in (a, b)
    )
    return cat([zeros(1), known]), cat([zeros(1), foreign])


def _doubts(inside: Predictive, outside: Predictive) -> dict[str, tuple[Tensor, Tensor]]:
    """Entropy and mutual information of known and of foreign rows."""

    def shared(prediction: Predictive) -> Tensor:
        doubt = prediction.mutual_information()
        return torch.where(doubt > ROUNDING, doubt, 0.0)

    return {
        "entropy": (inside.entropy(), outside.entropy()),
        "mutual_information": (shared(inside), shared(outside)),
    }
