r"""Prior precision and noise from the evidence of a Gaussian approximation (MacKay's fixed point).

    log Z = Σ_n log p(y_n | f_n) / T + Σ_l (P_l log δ_l - δ_l |w_l|²) / 2 - ½ log |G / (s T) + δ|
    δ_l ← γ_l / |w_l|²,   γ_l = tr_l G (G + s T δ)⁻¹                  where ∂ log Z / ∂δ_l = 0
    s   ← Q / (N O - T γ),   Q = Σ_n r_nᵀ Σ₀⁻¹ r_n                    where ∂ log Z / ∂s = 0, for noise s Σ₀

G is the curvature at noise Σ₀, P_l the number of a layer's weights, γ the directions that the data determine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayeswise.linalg import logdet, safe_cholesky
from bayeswise.linearised import Link
from bayeswise.methods.structures import Structure
from bayeswise.networks import Params
from bayeswise.problem import Problem
from bayeswise.weights import JointGaussian, LayerGaussians
from bayeswise.weights.curved import summed

Weights = LayerGaussians | JointGaussian
ROUNDS, TOLERANCE = 200, 1e-8
SMALLEST, LARGEST = 1e-10, 1e12  # δ stays between
FREE = 0.01  # of N O stays undetermined at least: γ of an approximate curvature may exceed it


@dataclass(frozen=True)
class Evidence:
    """The prior precision that makes log Z largest: one for each layer, or one `shared` by all."""

    shared: bool = False


@dataclass(frozen=True)
class Fixed:
    """Given precisions."""

    precision: Mapping[str, float]  # by layer


@dataclass(frozen=True)
class Fit:
    """A trained network with the curvature around it."""

    problem: Problem
    structure: Structure
    sums: Params  # the curvature at noise Σ₀
    means: dict[str, Tensor]  # M (…, I, O) by layer
    log_lik: Tensor  # (…,) at noise Σ₀
    noise: Tensor  # Σ₀ (…, O, O)
    temperature: float

    def squares(self) -> dict[str, Tensor]:
        """The squared norm |w_l|² (…,)."""
        return {name: summed(m.square(), self.log_lik.dim()) for name, m in self.means.items()}

    def misfit(self) -> Tensor:
        """Q (…,)."""
        n, outputs = self.problem.n, self.problem.network.outputs
        volume = logdet(safe_cholesky(self.noise, "the noise of the residuals").lower)
        return -2 * self.log_lik - n * (volume + outputs * math.log(2 * math.pi))


@dataclass(frozen=True)
class Tuned:
    """What the evidence chose."""

    weights: Weights
    noise: Tensor  # s Σ₀ (…, O, O)
    log_evidence: Tensor  # (…,)
    notes: tuple[str, ...]


def tuned(fit: Fit, prior: Evidence | Fixed, link: Link | None) -> Tuned:
    """The Gaussian at the given precision, or at the one that makes log Z largest."""
    start = prior.precision if isinstance(prior, Fixed) else dict.fromkeys(fit.means, 1.0)
    delta = {name: torch.full_like(fit.log_lik, start[name]) for name in fit.means}
    s, free = torch.ones_like(fit.log_lik), fit.problem.infers_noise
    base = fit.structure.gaussian(fit.sums, fit.means, delta, link)
    weights = base.under(delta, 1 / (fit.temperature * s))
    for _ in range(ROUNDS if free or isinstance(prior, Evidence) else 0):
        old, gamma = {**delta, "": s}, weights.determined(s.dim())
        delta = delta if isinstance(prior, Fixed) else _moved(fit, gamma, prior.shared)
        s = _noise_scale(fit, gamma) if free else s
        weights = base.under(delta, 1 / (fit.temperature * s))
        if all(bool(((new / old[k]).log().abs() < TOLERANCE).all()) for k, new in {**delta, "": s}.items()):
            break
    noise = fit.noise * s[..., None, None]
    return Tuned(weights, noise, _log_evidence(fit, weights, delta, s), _notes(fit, weights, delta))


def _moved(fit: Fit, gamma: Mapping[str, Tensor], shared: bool) -> dict[str, Tensor]:
    """δ_l = γ_l / |w_l|², or the ratio of the sums."""
    squares = fit.squares()
    if shared:
        one = sum(gamma.values()) / sum(squares.values())
        return {name: torch.as_tensor(one).clamp(SMALLEST, LARGEST) for name in gamma}
    return {name: (gamma[name] / squares[name]).clamp(SMALLEST, LARGEST) for name in gamma}


def _noise_scale(fit: Fit, gamma: Mapping[str, Tensor]) -> Tensor:
    """The scale s = Q / (N O - T γ)."""
    numbers = fit.problem.n * fit.problem.network.outputs
    taken = torch.as_tensor(fit.temperature * sum(gamma.values()))
    return fit.misfit() / (numbers - taken).clamp_min(FREE * numbers)


def _log_evidence(fit: Fit, weights: Weights, delta: Mapping[str, Tensor], s: Tensor) -> Tensor:
    log_lik = fit.log_lik
    if fit.problem.infers_noise:
        numbers = fit.problem.n * fit.problem.network.outputs
        log_lik = log_lik - 0.5 * (numbers * s.log() + fit.misfit() * (1 / s - 1))
    squares = fit.squares()
    sizes = {name: m.shape[s.dim() :].numel() for name, m in fit.means.items()}
    prior = sum(sizes[k] * d.log() - d * squares[k] for k, d in delta.items())
    return log_lik / fit.temperature + 0.5 * (torch.as_tensor(prior) - weights.log_det(s.dim()))


def _notes(fit: Fit, weights: Weights, delta: Mapping[str, Tensor]) -> tuple[str, ...]:
    lead = fit.log_lik.dim()
    gamma, lines = weights.determined(lead), []
    for name, m in fit.means.items():
        shape = " x ".join(map(str, m.shape[lead:]))
        lines.append(
            f'layer "{name}": {shape}, prior precision {float(delta[name].mean()):.3g}, '
            f"{float(gamma[name].mean()):.1f} of {m.shape[lead:].numel()} directions determined by the data"
        )
    return tuple(lines)
