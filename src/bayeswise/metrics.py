"""How good predictions are: pure functions of tensors or arrays, computed in float64.

Scores of single targets (`crps_*`, `pit_mixture`, `ranks`) are returned one by one; every other function
gives one number for one data set. Probabilities are (B, C), or (B,) or (B, 1) for P(y = 1); labels are (B,).
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayeswise.arrays import as_tensor
from bayeswise.quantiles import normal_cdf

Numbers: TypeAlias = Tensor | ArrayLike
SQRT_2PI = math.sqrt(2 * math.pi)


class CalibrationCurve(NamedTuple):
    """Mean confidence, accuracy and number of rows of every bin that is not empty."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor


def rmse(mean: Numbers, y: Numbers) -> Tensor:
    """Root of the mean squared error over all rows and outputs."""
    mean, y = _same_shape(mean, y)
    return (mean - y).square().mean().sqrt()


def nll(log_prob: Numbers) -> Tensor:
    """The negative mean of the rows' log-probabilities."""
    return -_numbers(log_prob).mean()


def accuracy(probs: Numbers, labels: Numbers) -> Tensor:
    """The share of rows whose most probable class is the label."""
    p, labels = _classes(probs, labels)
    return (p.argmax(-1) == labels).double().mean()


def brier(probs: Numbers, labels: Numbers) -> Tensor:
    """Mean over rows of Σ_c (p_c - [y = c])²; for two classes twice the squared error of P(y = 1)."""
    p, labels = _classes(probs, labels)
    return (p - torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)[labels]).square().sum(-1).mean()


def ece(probs: Numbers, labels: Numbers, bins: int = 15) -> Tensor:
    """Expected calibration error of the most probable class: Σ_bins share · |accuracy - confidence|."""
    curve = calibration_curve(probs, labels, bins)
    gap = (curve.accuracy - curve.confidence).abs()
    return (curve.count * gap).sum() / curve.count.sum()


def calibration_curve(probs: Numbers, labels: Numbers, bins: int = 15) -> CalibrationCurve:
    """Confidence against accuracy in equal bins ((k - 1) / bins, k / bins] of the largest probability."""
    p, labels = _classes(probs, labels)
    confidence, predicted = p.max(-1)  # (B,)
    edges = torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins
    members = torch.nn.functional.one_hot(torch.bucketize(confidence, edges), bins).double()  # (B, bins)
    count = members.sum(0)
    sums = torch.stack([confidence, (predicted == labels).double()]) @ members  # (2, bins)
    filled = count > 0
    mean_confidence, mean_hit = sums[:, filled] / count[filled]
    return CalibrationCurve(mean_confidence, mean_hit, count[filled].long())


def auroc(scores: Numbers, labels: Numbers) -> Tensor:
    """P(score of a positive > score of a negative) + P(equal) / 2, exactly, from the ranks."""
    scores, positive = _scores(scores, labels)
    _, value, count = scores.unique(return_inverse=True, return_counts=True)
    middle_rank = count.cumsum(0) - (count.double() - 1) / 2  # tied scores share the mean of their ranks
    n1, n0 = int(positive.sum()), int((~positive).sum())
    return (middle_rank[value][positive].sum() - n1 * (n1 + 1) / 2) / (n1 * n0)


def fpr95(scores: Numbers, labels: Numbers, tpr: float = 0.95) -> Tensor:
    """The share of negatives at or above the highest threshold that still finds `tpr` of the positives."""
    scores, positive = _scores(scores, labels)
    needed = math.ceil(tpr * int(positive.sum()) - 1e-9)
    threshold = scores[positive].sort(descending=True).values[max(needed, 1) - 1]
    return (scores[~positive] >= threshold).double().mean()


def coverage(low: Numbers, high: Numbers, y: Numbers) -> Tensor:
    """The share of targets inside [low, high]."""
    low, y = _same_shape(low, y)
    high, y = _same_shape(high, y)
    return ((low <= y) & (y <= high)).double().mean()


def coverage_curve(pit: Numbers, levels: Numbers) -> Tensor:
    """The share of targets inside the central interval of each level, from their PIT values."""
    distance = (2 * _numbers(pit) - 1).abs().flatten()
    return (distance <= _numbers(levels).unsqueeze(-1)).double().mean(-1)


def crps_gaussian(mean: Numbers, std: Numbers, y: Numbers) -> Tensor:
    """CRPS of N(mean, std²) at every target: E|X - y| - E|X - X'| / 2; std may be 0."""
    mean, y = _same_shape(*_scalars_expanded(_numbers(mean), _numbers(y)))
    std = _spread(std, mean)
    return _mean_abs_normal(y - mean, std) - std / math.sqrt(math.pi)


def crps_mixture(means: Numbers, stds: Numbers, y: Numbers) -> Tensor:
    """Exact CRPS of an equal mixture of normals at every target.

    Means are (S, ...), stds the same or anything that broadcasts to it, y is (...). Takes S² / 2 evaluations
    a target, and memory for S.
    """
    means, y = _draws(means, y)
    stds = _spread(stds, means)
    draws = len(means)
    to_target = _mean_abs_normal(y - means, stds).mean(0)
    between = _mean_abs_normal(torch.zeros_like(means), math.sqrt(2) * stds).sum(0)  # each with its own copy
    for s in range(draws - 1):
        rest = _mean_abs_normal(means[s + 1 :] - means[s], torch.hypot(stds[s + 1 :], stds[s]))
        between = between + 2 * rest.sum(0)
    return to_target - 0.5 * between / draws**2


def crps_sample(samples: Numbers, y: Numbers) -> Tensor:
    """CRPS of the empirical distribution of samples (S, ...) at every target y (...)."""
    samples, y = _draws(samples, y)
    n = len(samples)
    weights = 2 * torch.arange(1, n + 1, dtype=samples.dtype, device=samples.device) - n - 1
    spread = torch.tensordot(weights, samples.sort(0).values, dims=1) / n**2  # E|X - X'| / 2
    return (samples - y).abs().mean(0) - spread


def pit_mixture(means: Numbers, stds: Numbers, y: Numbers) -> Tensor:
    """P(Y <= y) of an equal mixture of normals (S, ...) at every target; uniform when calibrated."""
    means, y = _draws(means, y)
    return normal_cdf((y - means) / _spread(stds, means)).mean(0)


def ranks(draws: Numbers, y: Numbers) -> Tensor:
    """How many of the draws (S, ...) lie below each target: uniform on 0 ... S when calibrated."""
    draws, y = _draws(draws, y)
    return (draws < y).sum(0)


def _mean_abs_normal(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, std²): mean (2Φ(z) - 1) + 2 std φ(z), z = mean / std."""
    z = mean / torch.where(std > 0, std, 1.0)
    spread = mean * torch.erf(z / math.sqrt(2)) + 2 * std * torch.exp(-0.5 * z.square()) / SQRT_2PI
    return torch.where(std > 0, spread, mean.abs())


def _numbers(x: Numbers) -> Tensor:
    return as_tensor(x, "an argument", torch.float64)


def _same_shape(a: Numbers, b: Numbers) -> tuple[Tensor, Tensor]:
    """Both in float64; (B,) and (B, 1) are the same, nothing else is broadcast."""
    a, b = _numbers(a), _numbers(b)
    if a.ndim != b.ndim and a.shape + (1,) * b.ndim == b.shape + (1,) * a.ndim:
        b = b.reshape(a.shape)
    if a.shape != b.shape:
        raise ValueError(
            f"predictions have shape {tuple(a.shape)}, targets {tuple(b.shape)}; they must agree"
        )
    return a, b


def _draws(draws: Numbers, y: Numbers) -> tuple[Tensor, Tensor]:
    """Draws (S, ...) and targets (...), which must agree as predictions and targets must."""
    draws, y = _numbers(draws), _numbers(y)
    if draws.ndim == 0 or not len(draws):
        raise ValueError(f"draws have shape {tuple(draws.shape)}; give (S, ...), one draw at least")
    return draws, _same_shape(draws[0], y.expand_as(draws[0]) if y.ndim == 0 else y)[1]


def _scalars_expanded(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A single number is that of all targets."""
    return (a.expand_as(b) if a.ndim == 0 else a), (b.expand_as(a) if b.ndim == 0 else b)


def _spread(std: Numbers, mean: Tensor) -> Tensor:
    """Standard deviations in the shape of the means; a single one is that of all."""
    std = _numbers(std)
    if std.ndim == mean.ndim - 1 and mean.shape == (*std.shape, 1):
        std = std.unsqueeze(-1)
    try:
        return std.expand_as(mean)
    except RuntimeError:
        shapes = f"means have shape {tuple(mean.shape)}, standard deviations {tuple(std.shape)}"
        raise ValueError(f"{shapes}; they must agree") from None


def _classes(probs: Numbers, labels: Numbers) -> tuple[Tensor, Tensor]:
    """Probabilities (B, C) and integer labels (B,)."""
    p, y = _numbers(probs), as_tensor(labels, "labels")
    y = y.squeeze(-1) if y.ndim == 2 else y  # (B, 1) as from a Bernoulli
    p = p.unsqueeze(-1) if p.ndim == 1 else p
    p = torch.cat([1 - p, p], -1) if p.shape[-1] == 1 else p
    if p.ndim != 2 or y.shape != p.shape[:1]:
        raise ValueError(
            f"probabilities {tuple(p.shape)} and labels {tuple(y.shape)} must be (B, C) and (B,)"
        )
    y = y.long()
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < p.shape[-1]:
        raise ValueError(f"labels {int(y.min())} ... {int(y.max())} do not fit {p.shape[-1]} classes")
    return p, y


def _scores(scores: Numbers, labels: Numbers) -> tuple[Tensor, Tensor]:
    """Scores (B,) and whether each row is positive; both kinds must be there."""
    scores, positive = _numbers(scores).flatten(), as_tensor(labels, "labels").flatten() == 1
    if scores.shape != positive.shape:
        raise ValueError(f"{len(scores)} scores, but {len(positive)} labels; they must agree")
    if bool(scores.isnan().any()):
        raise ValueError(f"{int(scores.isnan().sum())} of {len(scores)} scores are NaN; remove those rows")
    if not 0 < int(positive.sum()) < len(positive):
        raise ValueError("labels hold one class only; ranking needs positives (1) and negatives (0)")
    return scores, positive
