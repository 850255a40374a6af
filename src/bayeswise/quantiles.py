"""Quantiles of mixtures of normals."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.special import ndtri


def normal_cdf(u: Tensor) -> Tensor:
    """Φ(u) with full relative accuracy in the lower tail, where torch.special.ndtr has none."""
    return 0.5 * torch.erfc(u * -math.sqrt(0.5))


def mixture_quantile(means: Tensor, stds: Tensor, level: float) -> Tensor:
    """The quantile of an equal mixture of normals N(m_s, σ_s²), to 1e-10 of its standard deviation.

    Means and stds are (S, ...). Newton steps inside a bracket, which is halved where they are too slow, solve
    mean_s Φ((x - m_s) / σ_s) = level. The upper half is solved by reflection, so that small tail
    probabilities keep their digits.
    """
    if level > 0.5:
        return -mixture_quantile(-means, stds, 1.0 - level)
    with torch.no_grad():
        centre = means.mean(0)
        m = means - centre  # (S, ...)
        scale = torch.hypot(m.square().mean(0).sqrt(), stds.square().mean(0).sqrt())  # (...)
        return centre + scale * _solve_quantile(m / scale, stds / scale, level)


def _solve_quantile(m: Tensor, s: Tensor, level: float) -> Tensor:
    """The quantile of a mixture with mean zero and variance one."""
    s = s.clamp_min(1e-11)  # below the accuracy promised; narrower spikes would stop Newton too early
    z = ndtri(torch.tensor(level, dtype=m.dtype, device=m.device))
    ends = m + z * s  # (S, ...): each component's own quantile; the mixture's lies between them
    low, high = ends.amin(0), ends.amax(0)
    x, step = z.expand_as(low).clamp(low, high), high - low
    for _ in range(200):
        u = (x - m) / s
        excess = normal_cdf(u).mean(0) - level
        density = (torch.exp(-0.5 * u.square()) / s).mean(0) / math.sqrt(2 * math.pi)
        low, high = torch.where(excess <= 0, x, low), torch.where(excess >= 0, x, high)
        newton = -excess / density
        fast = (x + newton >= low) & (x + newton <= high) & (newton.abs() <= 0.5 * step.abs())
        solved = step.abs() <= 1e-12  # rounding alone moves these now
        step = torch.where(solved, 0, torch.where(fast, newton, 0.5 * (low + high) - x))
        x = x + step
        if not bool((step.abs() > 1e-12).any()):
            break
    return x
