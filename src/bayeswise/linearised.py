"""Predictions from outputs that are Gaussian themselves: f ~ N(m, C) for every row.

A block carries m and the rows of C one after another along its first axis, (1 + O, …, b, O); where there are
many outputs, m and the variances alone, (2, …, b, O). For numbers all is exact; labels need the mean of a
softmax under a Gaussian, for which there are four ways.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Generator, Tensor
from torch import distributions as td
from torch.special import entr, ndtri

from bayeswise.linalg import safe_cholesky
from bayeswise.metrics import crps_gaussian
from bayeswise.predictive import Draws, Moments, Observation, Predictive, checked_rng, draw_count

MANY_OUTPUTS = 64  # from which on covariances between outputs are left out of predictions of labels


def packed(mean: Tensor, covariance: Tensor) -> Tensor:
    """M (…, B, O) and C (…, B, O, O), or the variances (…, B, O), as one block."""
    if covariance.dim() == mean.dim():
        return torch.stack([mean, covariance])
    return torch.cat([mean[None], covariance.movedim(-2, 0)])


def unpacked(f: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `packed`: C is (…, B, O, O), or (…, B, O) where only variances are known."""
    if len(f) == 1 + f.shape[-1]:
        return f[0], f[1:].movedim(0, -2)
    return f[0], f[1]


def variances(mean: Tensor, covariance: Tensor) -> Tensor:
    """The diagonal of C (…, B, O)."""
    if covariance.dim() == mean.dim():
        return covariance
    return covariance.diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class Noise:
    """N draws of standard noise, the same for all rows and at every call."""

    n: int = 256
    seed: int = 0

    def drawn(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """N draws (n, …, b, O) of N(m, C)."""
        rng = torch.Generator(mean.device).manual_seed(self.seed)
        shape = (self.n, *[1] * (mean.dim() - 1), mean.shape[-1])
        z = torch.randn(shape, generator=rng, dtype=mean.dtype, device=mean.device)
        if covariance.dim() == mean.dim():
            return mean + covariance.clamp_min(0).sqrt() * z
        root = safe_cholesky(covariance.double(), "the covariance of the outputs").lower.to(mean)
        return mean + (root @ z[..., None])[..., 0]


class Link(Protocol):
    """The mean probabilities of labels whose outputs are N(m, C)."""

    def __call__(self, likelihood: Any, mean: Tensor, covariance: Tensor, noise: Noise) -> Tensor:
        """States' probabilities (…, b, variables, states); `noise` is for those that draw."""
        ...


@dataclass(frozen=True)
class Probit:
    """p(m / sqrt(1 + π C / 8)), output by output (MacKay)."""

    def __call__(self, likelihood: Any, mean: Tensor, covariance: Tensor, noise: Noise) -> Tensor:
        """Outputs shrunk by their own variance."""
        return likelihood.states(mean / (1 + math.pi / 8 * variances(mean, covariance)).sqrt())


@dataclass(frozen=True)
class Pairwise:
    """p_k ∝ 1 / Σ_i exp((m_i - m_k) / sqrt(1 + π V_ki / 8)), V the variance of f_k - f_i (arXiv 2006.07584).

    It sees covariances between outputs; for two classes it is the probit of their difference.
    """

    def __call__(self, likelihood: Any, mean: Tensor, covariance: Tensor, noise: Noise) -> Tensor:
        """Yes/no outputs have no pairs: they are `Probit`."""
        if likelihood.event_dim:
            return Probit()(likelihood, mean, covariance, noise)
        variance = variances(mean, covariance)
        spread = variance[..., :, None] + variance[..., None, :]  # (…, b, O, O)
        spread = spread - 2 * (covariance if covariance.dim() > mean.dim() else torch.diag_embed(variance))
        gaps = (mean[..., None, :] - mean[..., :, None]) / (1 + math.pi / 8 * spread.clamp_min(0)).sqrt()
        return (-gaps.logsumexp(-1)).softmax(-1)[..., None, :]


@dataclass(frozen=True)
class Bridge:
    """The mean of the Dirichlet whose softmax basis has this Gaussian (arXiv 2003.01227)."""

    def __call__(self, likelihood: Any, mean: Tensor, covariance: Tensor, noise: Noise) -> Tensor:
        """For yes/no outputs each is a pair of outputs (f, 0)."""
        if likelihood.event_dim:  # Bernoulli: a softmax over (0, f), shared equally by both outputs
            variance = variances(mean, covariance)
            mean = torch.stack([-0.5 * mean, 0.5 * mean], -1)  # (…, b, O, 2)
            half = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=mean.dtype, device=mean.device) / 4
            return _dirichlet_mean(mean, variance[..., None, None] * half)
        return _dirichlet_mean(*_sum_zero(mean, covariance))[..., None, :]


def _sum_zero(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian given that its entries add to zero, which a softmax does not see."""
    covariance = torch.diag_embed(covariance) if covariance.dim() == mean.dim() else covariance
    row, total = covariance.sum(-1), covariance.sum((-2, -1))[..., None]  # C 1 and 1ᵀ C 1
    total = torch.where(total > 0, total, 1)
    mean = mean - row * mean.sum(-1, keepdim=True) / total
    return mean, covariance - row[..., :, None] * row[..., None, :] / total[..., None]


def _dirichlet_mean(mean: Tensor, covariance: Tensor) -> Tensor:
    k = mean.shape[-1]
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    variance = variance.clamp_min(torch.finfo(mean.dtype).tiny ** 0.5)
    rest = torch.as_tensor(1 - 2 / k, dtype=mean.dtype, device=mean.device).log()
    grown = mean - 2 * math.log(k) + (-mean).logsumexp(-1, keepdim=True)  # log of e^m / k² Σ e^-m
    return (torch.logaddexp(rest, grown) - variance.log()).softmax(-1)


@dataclass(frozen=True)
class MonteCarlo:
    """The mean over draws of the Gaussian, as many as `predict` is asked for."""

    def __call__(self, likelihood: Any, mean: Tensor, covariance: Tensor, noise: Noise) -> Tensor:
        """The same noise for all rows."""
        return likelihood.states(noise.drawn(mean, covariance)).mean(0)


LINKS: dict[str, type] = {"pairwise": Pairwise, "probit": Probit, "bridge": Bridge, "monte_carlo": MonteCarlo}


def link_config(link: Link | None) -> dict[str, Any] | None:
    """A link as JSON."""
    if link is None:
        return None
    return {"kind": next(k for k, v in LINKS.items() if type(link) is v), **dataclasses.asdict(link)}  # type: ignore[call-overload]


def link_of(config: dict[str, Any] | None) -> Link | None:
    """The inverse of `link_config`."""
    if config is None:
        return None
    own = {key: value for key, value in config.items() if key != "kind"}
    return LINKS[config["kind"]](**own)


@dataclass(frozen=True)
class GaussianNumbers:
    """Numbers y ~ N(m, C + Σ): exact."""

    likelihood: Any  # a Gaussian with known noise
    event_dim: ClassVar[int] = 1

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """As the likelihood's."""
        return self.likelihood.targets(y, outputs)

    def noise(self, f: Tensor) -> Tensor:
        """Σ (…, 1, O, O)."""
        return self.likelihood._covariance(f[0]).unsqueeze(-3)

    def moment_matched(self, f: Tensor) -> td.MultivariateNormal:
        """The distribution of y itself."""
        mean, covariance = unpacked(f)
        total = safe_cholesky(covariance + self.noise(f), "the predictive covariance").lower
        return td.MultivariateNormal(mean, scale_tril=total)

    def mixture(self, f: Tensor) -> td.Distribution:
        """The same."""
        return self.moment_matched(f)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Of every row (1, …, b)."""
        return self.moment_matched(f).log_prob(y)[None]

    def mean(self, f: Tensor) -> Tensor:
        """M."""
        return f[0]

    def moments(self, f: Tensor) -> Moments:
        """Mean, and the variances of function and noise."""
        mean, covariance = unpacked(f)
        epistemic = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        aleatoric = self.noise(f).diagonal(dim1=-2, dim2=-1).sqrt().expand_as(mean)
        return Moments(mean, torch.hypot(epistemic, aleatoric), epistemic, aleatoric)

    def information(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy of y, and what knowing the function would take away."""
        entropy = self.moment_matched(f).entropy()
        single = td.MultivariateNormal(torch.zeros_like(f[0]), self.noise(f)).entropy()
        return entropy, (entropy - single).clamp_min(0)

    def quantiles(self, f: Tensor, levels: tuple[float, ...]) -> Tensor:
        """M + std Φ⁻¹(level)."""
        moments = self.moments(f)
        z = ndtri(torch.tensor(levels, dtype=f.dtype, device=f.device))
        return torch.stack([moments.mean + moments.std * u for u in z])

    def crps(self, f: Tensor, y: Tensor) -> Tensor:
        """That of each output's normal."""
        moments = self.moments(f)
        return crps_gaussian(moments.mean, moments.std, y.expand_as(moments.mean))

    def sample(self, f: Tensor, index: Tensor, rng: Generator) -> Tensor:
        """Targets for functions f (n, …, B, O)."""
        return self.likelihood.sample(f, index, rng)


@dataclass(frozen=True)
class GaussianLabels:
    """Labels whose outputs are N(m, C): probabilities by the link, their split by draws."""

    likelihood: Any
    link: Link
    noise: Noise = Noise()

    @property
    def event_dim(self) -> int:
        """As the likelihood's."""
        return self.likelihood.event_dim

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """As the likelihood's."""
        return self.likelihood.targets(y, outputs)

    def states(self, f: Tensor) -> Tensor:
        """Mean probabilities (…, b, variables, states)."""
        return self.link(self.likelihood, *unpacked(f), self.noise)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log of the mean probability of the label (1, …, b); of several yes/no labels by draws (n, …, b)."""
        if self.event_dim and f.shape[-1] > 1:  # they depend on one another: no link sees that
            return self.likelihood.log_prob(self.noise.drawn(*unpacked(f)), y)
        p = self.states(f).clamp_min(torch.finfo(f.dtype).tiny).log()  # (…, b, variables, states)
        y = (y[..., None] if self.event_dim == 0 else y).long().expand(p.shape[:-1])
        return p.gather(-1, y[..., None])[..., 0].sum(-1)[None]

    def mean(self, f: Tensor) -> Tensor:
        """Mean probabilities by the link."""
        return self.likelihood.mean_target(self.states(f))

    def moments(self, f: Tensor) -> Moments:
        """Mean probabilities by the link, and their entropy in two parts."""
        mean = self.mean(f)
        entropy, mutual = self.information(f)
        return Moments(mean, (mean * (1 - mean)).clamp_min(0).sqrt(), mutual, entropy - mutual)

    def information(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy of the link's probabilities, and the mutual information that draws of the outputs have."""
        entropy = entr(self.states(f)).sum((-2, -1))
        _, mutual = self.likelihood.information(self.noise.drawn(*unpacked(f)))
        return entropy, torch.minimum(mutual, entropy)

    def quantiles(self, f: Tensor, levels: tuple[float, ...]) -> Tensor:
        """Labels have none."""
        return self.likelihood.quantiles(f, levels)

    def moment_matched(self, f: Tensor) -> td.Distribution:
        """Labels have none."""
        return self.likelihood.moment_matched(f)

    def mixture(self, f: Tensor) -> td.Distribution:
        """Labels with the mean probabilities; several yes/no labels of a row by draws, as in `log_prob`."""
        if self.event_dim and unpacked(f)[0].shape[-1] > 1:
            drawn = self.noise.drawn(*unpacked(f.double()))  # those that `log_prob` sees
            return self.likelihood.mixture(drawn.to(f.dtype))
        mean = self.mean(f)
        return td.Independent(td.Bernoulli(mean), 1) if self.event_dim else td.Categorical(probs=mean)

    def crps(self, f: Tensor, y: Tensor) -> Tensor:
        """Labels have none."""
        return self.likelihood.crps(f, y)

    def sample(self, f: Tensor, index: Tensor, rng: Generator) -> Tensor:
        """Labels for functions f (n, …, B, O)."""
        return self.likelihood.sample(f, index, rng)


class LinearisedPredictive(Predictive):
    """The predictive distribution where outputs are Gaussian."""

    def __init__(
        self, likelihood: Any, draws: Draws, link: Link, noise: Noise, functions: Callable[[Noise], Tensor]
    ) -> None:
        """A likelihood, where the Gaussians come from, and what is drawn where there is no closed form.

        `functions` gives the outputs (n, …, B, O) of coherent functions.
        """
        numbers = GaussianNumbers(likelihood) if hasattr(likelihood, "noise") else None
        self._gaussian = numbers or GaussianLabels(likelihood, link, noise)
        super().__init__(cast(Observation, self._gaussian), draws)
        self.noise, self._functions = noise, functions

    @cached_property
    def mean(self) -> Tensor:
        """The expected target (…, B, O), without the draws that other statistics of labels need."""
        return self._over_rows(self._gaussian.mean, row_axis=-2)

    @property
    def draws(self) -> Tensor:
        """The outputs (n, …, B, O) of linearised networks, computed at every call."""
        return self._functions(self.noise)

    @property
    def covariance(self) -> Tensor:
        """C (…, B, O, O) of the outputs of each row; the variances (…, B, O) where outputs are many."""
        return unpacked(torch.cat(list(self._blocks()), -2))[1]

    def sample(self, n: int, rng: Generator | None = None) -> Tensor:
        """Draw n targets for every row: coherent functions plus noise; without `rng` always the same."""
        n, rng = draw_count(n), checked_rng(rng)
        seed = 0 if rng is None else int(torch.randint(2**62, (), generator=rng, device=rng.device))
        f = self._functions(Noise(n, seed))
        rng = rng or torch.Generator(f.device).manual_seed(1)
        return self.likelihood.sample(f, torch.zeros(n, dtype=torch.int64, device=f.device), rng)

    def distribution(self) -> td.Distribution:
        """The predictive distribution as a `torch.distributions` object."""
        return self.likelihood.mixture(torch.cat(list(self._blocks()), -2))
