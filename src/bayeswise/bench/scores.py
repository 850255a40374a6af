"""The figures of one data set, from a prediction."""

from __future__ import annotations

from torch import Tensor

from bayeswise import metrics
from bayeswise.likelihoods import Gaussian
from bayeswise.predictive import Predictive

Metrics = dict[str, float]


def regression(prediction: Predictive, y: Tensor) -> list[Metrics]:
    """RMSE, log-likelihoods, coverage and CRPS of each member's rows y (K, B, 1)."""
    low, high = prediction.interval(0.9)
    log_prob, gaussian = prediction.log_prob(y), prediction.log_prob_gaussian(y)  # (K, B)
    means, stds = prediction.draws.double(), _noise_std(prediction)
    return [
        {
            "rmse": float(metrics.rmse(prediction.mean[k], y[k])),
            "ll": float(log_prob[k].double().mean()),
            "ll_gaussian": float(gaussian[k].double().mean()),
            "coverage_90": float(metrics.coverage(low[k], high[k], y[k])),
            "crps": float(metrics.crps_mixture(means[:, k], stds[:, k].expand_as(means[:, k]), y[k]).mean()),
        }
        for k in range(len(y))
    ]


def _noise_std(prediction: Predictive) -> Tensor:
    """The standard deviation of the noise, as (S or 1, K or 1, 1, O)."""
    likelihood = prediction.likelihood
    assert isinstance(likelihood, Gaussian) and isinstance(likelihood.noise, Tensor)
    std = likelihood.noise.double().diagonal(dim1=-2, dim2=-1).sqrt()  # (S, K, O), (K, O) or (O,)
    return std.reshape((1,) * (3 - std.dim()) + tuple(std.shape))[:, :, None, :]


def classification(probs: Tensor, log_prob: Tensor, labels: Tensor) -> Metrics:
    """Accuracy, NLL, ECE, Brier score and AUC of one member's rows: (B, C), (B,), (B,)."""
    return {
        "acc": float(metrics.accuracy(probs, labels)),
        "nll": float(metrics.nll(log_prob)),
        "ece": float(metrics.ece(probs, labels)),
        "brier": float(metrics.brier(probs, labels)),
        "auc": _auc(probs, labels),
    }


def _auc(probs: Tensor, labels: Tensor) -> float:
    """Of the second class where there are two; otherwise the mean over classes, each against the rest."""
    if probs.shape[-1] == 2:
        return float(metrics.auroc(probs[:, 1], labels == 1))
    classes = [c for c in range(probs.shape[-1]) if bool((labels == c).any())]
    return sum(float(metrics.auroc(probs[:, c], labels == c)) for c in classes) / len(classes)


def separation(inside: Predictive, outside: Predictive) -> Metrics:
    """How well known rows are told from foreign ones, by entropy and by mutual information.

    True positives are known rows taken for known, false positives foreign rows taken for known.
    """
    from torch import cat, ones, zeros

    found: Metrics = {}
    for name, of in (("entropy", Predictive.entropy), ("mutual_information", Predictive.mutual_information)):
        a, b = of(inside), of(outside)
        score, known = -cat([a, b]), cat([ones(len(a)), zeros(len(b))])
        found[f"auroc_{name}"] = float(metrics.auroc(score, known))
        found[f"fpr95_{name}"] = float(metrics.fpr95(score, known))
    return found
