r"""Prior precision and noise from the evidence of a Gaussian approximation (MacKay's fixed point).

    log Z = Σ_n log p(y_n | f_n) / T + Σ_l (P_l log δ_l - δ_l |w_l|²) / 2 - ½ log |G / (s T) + δ|
    δ_l ← γ_l / |w_l|²,   γ_l = tr_l G (G + s T δ)⁻¹                  where ∂ log Z / ∂δ_l = 0
    s   ← Q / (N O - T γ),   Q = Σ_n r_nᵀ Σ₀⁻¹ r_n                    where ∂ log Z / ∂s = 0, for noise s Σ₀

G is the curvature at noise Σ₀, P_l the number of a layer's weights, γ the directions that the data determine.
Or one δ by the likelihood of rows that were not trained on: `Validation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bayeswise.distributions import DiagonalGaussian
from bayeswise.linalg import NumericalError, logdet, safe_cholesky
from bayeswise.linearised import Link
from bayeswise.methods.accounts import words
from bayeswise.methods.members import Each
from bayeswise.methods.protocol import Data
from bayeswise.methods.structures import Structure
from bayeswise.networks import Params
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem, Units
from bayeswise.weights import JointGaussian, LayerGaussians
from bayeswise.weights.curved import summed

Weights = LayerGaussians | JointGaussian
ROUNDS, TOLERANCE = 200, 1e-8
SMALLEST, LARGEST = 1e-10, 1e12  # δ stays between
CANDIDATES = tuple(10.0 ** (k / 3) for k in range(-12, 13))  # 1e-4 … 1e4
FREE = 0.01  # of N O stays undetermined at least: γ of an approximate curvature may exceed it
CROWDED = 0.5  # γ / (N O) from which precision and noise are doubtful (docs/methods/laplace.md has the data)
SPREAD = 0.1  # nats by which labels that were trained on may be less likely than under the weights alone
ASKED = 64  # such rows that are looked at, by as many draws
KNOWN = 0.7  # γ / P from which held-out rows hardly tell one precision from another


@dataclass(frozen=True)
class Evidence:
    """The prior precision that makes log Z largest: one for each layer, or one `shared` by all."""

    shared: bool = False


@dataclass(frozen=True, eq=False)
class Validation:
    """The prior precision, one for all layers, under which rows that were not trained on are most likely.

    With x and y these rows judge, in the user's units. Without them some of the training rows are held out
    before the run, which needs a method that trains (`first`).
    """

    x: Any = None
    y: Any = None
    candidates: tuple[float, ...] = CANDIDATES

    def __post_init__(self) -> None:
        """Refuse rows without targets, and candidates that are no precisions."""
        if (self.x is None) != (self.y is None):
            raise ValueError("Validation: x and y belong together: give both or none")
        if not self.candidates or not all(value > 0 for value in self.candidates):
            raise ValueError(f"Validation: candidates are positive numbers, not {self.candidates}")

    @property
    def has_rows(self) -> bool:
        """Whether the rows that judge are given."""
        return self.x is not None

    def log_lik(self, posterior: Posterior) -> Tensor:
        """The mean over the given rows, (…,)."""
        return posterior.predict(self.x).log_prob(self.y).double().mean(-1)


@dataclass(frozen=True, eq=False)
class Adjustable(Posterior):
    """A posterior that can be had under any other prior precision, without another look at the rows."""

    under: Callable[[Each], Posterior] | None = None


def judged(candidates: tuple[float, ...], log_lik: Callable[[float], Tensor], rows: int) -> tuple[Each, str]:
    """The candidate with the largest figure (…,), for each data split by itself; and why."""
    found = torch.stack([log_lik(value) for value in candidates])  # (C, …)
    if bool(found.isnan().any()):
        raise NumericalError(
            "the log-likelihood of the rows that judge is not a number; look at their targets"
        )
    best = [candidates[i] for i in found.argmax(0).reshape(-1).tolist()]
    chosen = best[0] if found.dim() == 1 else tuple(best)
    ends = ", ".join(f"{float(found[i].mean()):.3f} at {candidates[i]:.3g}" for i in (0, -1))
    edge = "; it is the last on its side: give others" if {candidates[0], candidates[-1]} & set(best) else ""
    why = (
        f"prior precision {words(chosen)} chosen of {len(candidates)} by the log-likelihood of {rows} rows "
        f"that were not trained on ({float(found.amax(0).mean()):.3f}; {ends}){edge}"
    )
    return chosen, why


@dataclass(frozen=True)
class Fixed:
    """Given precisions."""

    precision: Mapping[str, float | Tensor]  # by layer, one for all members or (…,)


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

    def gaussian(self, link: Link | None) -> Weights:
        """At noise Σ₀ and precision 1."""
        one = {name: torch.ones_like(self.log_lik) for name in self.means}
        return self.structure.gaussian(self.sums, self.means, one, link)

    def squares(self) -> dict[str, Tensor]:
        """The squared norm |w_l|² (…,)."""
        return {name: summed(m.square(), self.log_lik.dim()) for name, m in self.means.items()}

    def misfit(self) -> Tensor:
        """Q (…,)."""
        n, outputs = self.problem.n, self.problem.network.outputs
        volume = logdet(safe_cholesky(self.noise, "the noise of the residuals").lower)
        return -2 * self.log_lik - n * (volume + outputs * math.log(2 * math.pi))

    def log_lik_at(self, s: Tensor) -> Tensor:
        """Σ log p(y | f) (…,) at noise s Σ₀."""
        if not self.problem.infers_noise:
            return self.log_lik
        numbers = self.problem.n * self.problem.network.outputs
        return self.log_lik - 0.5 * (numbers * s.log() + self.misfit() * (1 / s - 1))


@dataclass(frozen=True)
class Tuned:
    """What the evidence chose."""

    weights: Weights
    noise: Tensor  # s Σ₀ (…, O, O)
    log_evidence: Tensor  # (…,)
    notes: tuple[str, ...]
    precision: Mapping[str, Tensor] = field(default_factory=dict)  # δ (…,) by layer, where it was chosen


def tuned(fit: Fit, base: Weights, prior: Evidence | Fixed) -> Tuned:
    """The Gaussian at the given precision, or at the one that makes log Z largest; `base` at any other."""
    start = prior.precision if isinstance(prior, Fixed) else dict.fromkeys(fit.means, 1.0)
    delta = {
        k: torch.as_tensor(start[k], dtype=torch.float64).to(fit.log_lik).expand_as(fit.log_lik)
        for k in fit.means
    }
    s, free = torch.ones_like(fit.log_lik), fit.problem.infers_noise
    weights = base.under(delta, 1 / (fit.temperature * s))
    for _ in range(ROUNDS if free or isinstance(prior, Evidence) else 0):
        old, gamma = [*delta.values(), s], weights.determined(s.dim())
        delta = delta if isinstance(prior, Fixed) else _moved(fit, gamma, prior.shared)
        s = noise_scale(fit, gamma) if free else s
        weights = base.under(delta, 1 / (fit.temperature * s))
        moves = [(a / b).log().abs().max() for a, b in zip([*delta.values(), s], old, strict=True)]
        if float(max(moves)) < TOLERANCE:
            break
    noise = fit.noise * s[..., None, None]
    about = (*doubts(fit, weights, prior), *notes(fit, weights, delta))
    return Tuned(weights, noise, _log_evidence(fit, weights, delta, s), about, delta)


def _moved(fit: Fit, gamma: Mapping[str, Tensor], shared: bool) -> dict[str, Tensor]:
    """δ_l = γ_l / |w_l|², or the ratio of the sums; weights that are all zero are told to stay so."""
    squares = fit.squares()
    if shared:
        one = _ratio(torch.as_tensor(sum(gamma.values())), torch.as_tensor(sum(squares.values())))
        return dict.fromkeys(gamma, one)
    return {name: _ratio(gamma[name], squares[name]) for name in gamma}


def _ratio(gamma: Tensor, squares: Tensor) -> Tensor:
    return torch.where(squares > 0, gamma / squares, LARGEST).clamp(SMALLEST, LARGEST)


def noise_scale(fit: Fit, gamma: Mapping[str, Tensor]) -> Tensor:
    """The scale s = Q / (N O - T γ)."""
    numbers = fit.problem.n * fit.problem.network.outputs
    taken = torch.as_tensor(fit.temperature * sum(gamma.values()))
    return fit.misfit() / (numbers - taken).clamp_min(FREE * numbers)


def _log_evidence(fit: Fit, weights: Weights, delta: Mapping[str, Tensor], s: Tensor) -> Tensor:
    squares = fit.squares()
    sizes = {name: m.shape[s.dim() :].numel() for name, m in fit.means.items()}
    prior = sum(sizes[k] * d.log() - d * squares[k] for k, d in delta.items())
    return fit.log_lik_at(s) / fit.temperature + 0.5 * (torch.as_tensor(prior) - weights.log_det(s.dim()))


def in_units(log_evidence: Tensor, units: Units, n: int, temperature: float) -> Tensor:
    """log Z (…,) of n targets as the user has them: p(y) = p(t) / scale, where t = (y - shift) / scale."""
    return log_evidence - n / temperature * units.scale.double().log().sum(-1)


def doubts(fit: Fit, weights: Weights, prior: Evidence | Fixed) -> tuple[str, ...]:
    """Where the evidence's choice may be far from that of held-out rows; of several splits the worst."""
    if isinstance(prior, Fixed):
        return ()
    gamma = float(torch.as_tensor(sum(weights.determined(fit.log_lik.dim()).values())).max())
    numbers = fit.problem.n * fit.problem.network.outputs
    size = sum(m.shape[fit.log_lik.dim() :].numel() for m in fit.means.values())
    if fit.problem.infers_noise and fit.temperature * gamma > CROWDED * numbers:
        return (
            f"caution: the data determine {gamma:.0f} directions with {numbers} numbers: precision and noise "
            "by the evidence may be far from those that held-out rows choose; compare with bw.Validation()",
        )
    if gamma > KNOWN * size:
        return (
            f"caution: the data determine {gamma:.0f} of {size} directions, so they hardly tell one prior "
            "precision from another: held-out rows may choose one that is far away, at little difference",
        )
    return ()


def doubted(found: Posterior, prior: Any, fit: Fit, data: Data) -> Posterior:
    """With a caution where labels that were trained on are lost by the spread that the evidence chose."""
    if not isinstance(prior, Evidence) or fit.problem.is_regression:
        return found
    (x, y), some = data.example, (*[slice(None)] * fit.log_lik.dim(), slice(ASKED))
    told = found.predict(x[some], ASKED).log_prob(y[some]).double().mean(-1)  # (…,)
    lost = float((fit.log_lik / fit.problem.n - told).max())
    if lost <= SPREAD:
        return found
    why = f"caution: rows that were trained on are {lost:.2f} nats less likely than under the weights alone"
    what = "the evidence's precision is too small here; use bw.Validation(), or a larger number"
    return replace(found, notes=(f"{why}: {what}", *found.notes))


def notes(fit: Fit, weights: Weights, delta: Mapping[str, Tensor]) -> tuple[str, ...]:
    """What every layer gets, and how much of it the data determine."""
    lead = fit.log_lik.dim()
    gamma, lines = weights.determined(lead), []
    for name, m in fit.means.items():
        form = f"{_word(fit, weights, name)} {' x '.join(map(str, m.shape[lead:]))}"
        lines.append(
            f'layer "{name}": {form}, prior precision {float(delta[name].mean()):.3g}, '
            f"{float(gamma[name].mean()):.1f} of {m.shape[lead:].numel()} directions determined by the data"
        )
    return tuple(lines)


def _word(fit: Fit, weights: Weights, name: str) -> str:
    """What a layer's block is."""
    if isinstance(weights, LayerGaussians) and isinstance(weights.layers[name], DiagonalGaussian):
        return "diagonal"
    return fit.structure.word
