"""What a model says about new rows: the equal mixture of p(y | f) over draws of the network.

Draws f are (S, ..., B, O): S networks, then optional members K, rows and outputs. A `Predictive` asks its
likelihood for everything that depends on the task. It works block by block along the rows, in float64, and
returns the dtype of the draws.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily
from torch.special import entr

from bayeswise.arrays import as_tensor

BLOCK_NUMBERS = 2**18  # of one block of kept draws: 2 MB in float64, which the cache holds


class Draws(Protocol):
    """Where the network outputs come from."""

    @property
    def kept(self) -> bool:
        """Whether the outputs are in memory; otherwise every new statistic computes them again."""
        ...

    @property
    def count(self) -> int:
        """B, the rows of all blocks."""
        ...

    def blocks(self) -> Iterator[Tensor]:
        """The outputs (S, ..., b, O) in the order of the rows, split along the row axis -2."""
        ...


@dataclass(frozen=True, eq=False)
class KeptDraws:
    """Network outputs f (S, ..., B, O) held in memory."""

    f: Tensor
    kept = True

    @property
    def count(self) -> int:
        """B."""
        return self.f.shape[-2]

    def blocks(self) -> Iterator[Tensor]:
        """Views of a few rows each, so that temporaries stay small."""
        rows = self.f.shape[-2]
        per_row = max(1, self.f.numel() // max(1, rows))
        yield from self.f.split(max(1, BLOCK_NUMBERS // per_row), dim=-2)


class Moments(NamedTuple):
    """The summary of one block: mean and std (..., b, O), and the two parts of the uncertainty."""

    mean: Tensor
    std: Tensor
    epistemic: Tensor
    aleatoric: Tensor


class Observation(Protocol):
    """What a `Predictive` asks of a likelihood; f is always a block of draws (S, ..., b, O)."""

    event_dim: ClassVar[int]  # axes of one row of y: 1 for (..., B, O), 0 for labels (..., B)

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """The user's y, checked and shaped."""
        ...

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f) of every draw, (S, ..., b)."""
        ...

    def moments(self, f: Tensor) -> Moments:
        """Mean, std and the parts of the uncertainty."""
        ...

    def information(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy of the mixture and mutual information of y and the draw, (..., b)."""
        ...

    def quantiles(self, f: Tensor, levels: tuple[float, ...]) -> Tensor:
        """Marginal quantiles of the mixture, (levels, ..., b, O)."""
        ...

    def crps(self, f: Tensor, y: Tensor) -> Tensor:
        """Continuous ranked probability score of the mixture at every target, (..., b, O)."""
        ...

    def moment_matched(self, f: Tensor) -> Distribution:
        """The Gaussian with the mixture's mean and covariance."""
        ...

    def mixture(self, f: Tensor) -> Distribution:
        """The mixture over draws."""
        ...

    def sample(self, f: Tensor, index: Tensor, rng: torch.Generator) -> Tensor:
        """One y for each of the chosen draws f (n, ..., B, O); index (n,) says which draws these are."""
        ...


class Predictive:
    """The predictive distribution of some rows: mean, spread, intervals, probabilities, samples."""

    def __init__(self, likelihood: Observation, draws: Draws) -> None:
        """A likelihood and the source of the network outputs."""
        self.likelihood = likelihood
        self._source = draws

    def __repr__(self) -> str:
        """The likelihood, and whether the draws are in memory."""
        held = "kept" if self.kept else "computed again when needed"
        return f"Predictive({type(self.likelihood).__name__}, draws {held})"

    @property
    def kept(self) -> bool:
        """Whether the draws are in memory; otherwise each new statistic runs the networks again."""
        return self._source.kept

    @cached_property
    def _moments(self) -> Moments:
        parts: list[Moments] = []
        for f in self._blocks():
            parts.append(Moments(*(m.to(f.dtype) for m in self.likelihood.moments(f.double()))))
        mean, std, *split = zip(*parts, strict=True)
        row_axis = -2 if split[0][0].ndim == mean[0].ndim else -1  # labels have one number per row
        return Moments(
            torch.cat(mean, -2), torch.cat(std, -2), *(torch.cat(part, row_axis) for part in split)
        )

    @cached_property
    def _information(self) -> tuple[Tensor, Tensor]:
        entropy, mutual = self._over_rows(lambda f: torch.stack(self.likelihood.information(f)), row_axis=-1)
        return entropy, mutual

    @property
    def mean(self) -> Tensor:
        """The expected target (..., B, O); for labels the class probabilities, for Bernoulli P(y = 1)."""
        return self._moments.mean

    @property
    def std(self) -> Tensor:
        """Standard deviation (..., B, O) of the mixture; for labels of the indicator, sqrt(p (1 - p))."""
        return self._moments.std

    @property
    def variance(self) -> Tensor:
        """The square of `std`."""
        return self.std.square()

    @property
    def epistemic(self) -> Tensor:
        """What more data would remove.

        Regression: the standard deviation of the draws (..., B, O), and epistemic² + aleatoric² = std².
        Labels: mutual information of label and draw in nats (..., B), and epistemic + aleatoric = entropy.
        """
        return self._moments.epistemic

    @property
    def aleatoric(self) -> Tensor:
        """What more data would leave: the standard deviation of the noise, or the mean entropy of a draw."""
        return self._moments.aleatoric

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds `level` of the probability, for each output by itself."""
        if not 0 < level < 1:
            raise ValueError(f"interval level must lie between 0 and 1, got {level}; 0.9 means 90 %")
        high_level = min(0.5 + level / 2, math.nextafter(1.0, 0.0))
        low, high = self._quantiles((0.5 - level / 2, high_level))
        return low, high

    def quantile(self, q: float) -> Tensor:
        """The exact q-quantile of the mixture (..., B, O), for each output by itself."""
        if not 0 < q < 1:
            raise ValueError(f"quantile must lie between 0 and 1, got {q}")
        return self._quantiles((q,))[0]

    def _quantiles(self, levels: tuple[float, ...]) -> Tensor:
        return self._over_rows(lambda f: self.likelihood.quantiles(f, levels), row_axis=-2)

    def entropy(self) -> Tensor:
        """Entropy in nats (..., B); for regression that of the moment-matched Gaussian, an upper bound."""
        return self._information[0]

    def mutual_information(self) -> Tensor:
        """Entropy minus the mean entropy of a single draw, in nats (..., B)."""
        return self._information[1]

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-density of y, in the user's units, under the mixture: log-mean-exp over the draws (..., B)."""
        return self._over_targets(y, lambda f, rows: _log_mean_exp(self.likelihood.log_prob(f, rows)))

    def log_prob_gaussian(self, y: Tensor) -> Tensor:
        """Log-density of y under the Gaussian with the mixture's mean and covariance (..., B)."""
        return self._over_targets(y, lambda f, rows: self.likelihood.moment_matched(f).log_prob(rows))

    def crps(self, y: Tensor) -> Tensor:
        """The continuous ranked probability score of every target (..., B, O), in the units of y, exactly.

        The lower the better; for a prediction without spread it is the absolute error.
        """
        return self._over_targets(y, self.likelihood.crps, row_axis=-2)

    def sample(self, n: int, rng: torch.Generator | None = None) -> Tensor:
        """Draw n targets for every row, (n, ..., B, O) or labels (n, ..., B).

        Rows of one sample share the network, so samples are coherent functions plus noise. Without `rng`
        every call gives the same samples.
        """
        n, rng, index, chosen = draw_count(n), checked_rng(rng), torch.empty(0), []
        for f in self._blocks():
            if not chosen:
                rng = rng or torch.Generator(f.device).manual_seed(0)
                index = torch.randint(len(f), (n,), generator=rng, device=f.device)
            chosen.append(f[index])  # (n, ..., b, O)
        assert rng is not None  # there is a first block
        return self.likelihood.sample(torch.cat(chosen, -2), index, rng)

    def distribution(self) -> Distribution:
        """The mixture over draws as a `torch.distributions` object; holds all draws."""
        return self.likelihood.mixture(self.draws)

    @property
    def draws(self) -> Tensor:
        """The network outputs (S, ..., B, O), computed again when they are not kept."""
        return torch.cat(list(self._blocks()), -2)

    def _blocks(self) -> Iterator[Tensor]:
        empty = True
        for f in self._source.blocks():
            empty = False
            yield f
        if empty:
            raise ValueError("the predictive holds no rows; predict at least one")

    def _over_rows(self, statistic: Callable[[Tensor], Tensor], row_axis: int) -> Tensor:
        """A statistic of every block, put together along the rows."""
        return torch.cat([statistic(f.double()).to(f.dtype) for f in self._blocks()], row_axis)

    def _over_targets(
        self, y: Tensor, statistic: Callable[[Tensor, Tensor], Tensor], row_axis: int = -1
    ) -> Tensor:
        """A statistic of every block and the targets of its rows, put together along the rows."""
        axis, y, start = -1 - self.likelihood.event_dim, as_tensor(y, "y"), 0
        rows, parts = y, []
        for f in self._blocks():
            rows = self._targets(y, f) if start == 0 else rows
            end = start + f.shape[-2]
            _check_rows(end <= rows.shape[axis], f"at least {end}", y)
            block = rows.narrow(axis, start, f.shape[-2])
            block = block if self.likelihood.event_dim else _labels(block, f, y)
            parts.append(statistic(f.double(), _precise(block)).to(f.dtype))
            start = end
        _check_rows(start == rows.shape[axis], f"{start}", y)
        return torch.cat(parts, row_axis)

    def _targets(self, y: Tensor, f: Tensor) -> Tensor:
        """The likelihood's targets; y (..., B) beside draws f (S, ..., b, O) has no axis of outputs yet."""
        rows = y.shape == (*f.shape[1:-2], self._source.count)
        flat = rows and (self.likelihood.event_dim == 0 or f.shape[-1] == 1)
        return self.likelihood.targets(y[..., None] if flat else y, f.shape[-1])


LabelsT = TypeVar("LabelsT", bound="LabelMixture")


class LabelMixture:
    """What likelihoods of labels share: uncertainty measured by entropy, and no quantiles.

    A row has independent variables with a few states each: one with O states, or O with two.
    """

    def given(self: LabelsT, noise: Tensor) -> LabelsT:
        """The likelihood itself: labels have no noise covariance."""
        return self

    def predictive(self: Observation, f: Tensor) -> Predictive:
        """The mixture of label probabilities over draws f (S, ..., B, O), which are kept."""
        return Predictive(self, KeptDraws(f))

    def states(self, f: Tensor) -> Tensor:
        """Probabilities (..., B, variables, states)."""
        raise NotImplementedError

    def mean_target(self, states: Tensor) -> Tensor:
        """What a `Predictive` calls mean, (..., B, O)."""
        raise NotImplementedError

    def moments(self, f: Tensor) -> Moments:
        """Mean probabilities, std of the indicators, mutual information and the mean entropy of a draw."""
        p = self.states(f)  # (S, ..., b, variables, states)
        mean = self.mean_target(p.mean(0))  # (..., b, O)
        entropy, mutual = _entropies(p)
        return Moments(mean, (mean * (1 - mean)).clamp_min(0).sqrt(), mutual, entropy - mutual)

    def information(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy of the mean probabilities and mutual information, summed over a row's variables."""
        return _entropies(self.states(f))

    def quantiles(self, f: Tensor, levels: tuple[float, ...]) -> Tensor:
        """Labels have none."""
        raise TypeError(
            f"{self} labels have no quantiles or intervals; use mean (probabilities) or entropy()"
        )

    def crps(self, f: Tensor, y: Tensor) -> Tensor:
        """Labels have none."""
        raise TypeError(f"{self} labels have no CRPS; use log_prob(y) or metrics.brier")

    def moment_matched(self, f: Tensor) -> Distribution:
        """Labels have none."""
        raise TypeError(f"{self} labels have no Gaussian density; use log_prob(y)")


def _entropies(p: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of the mean of p (S, ..., b, variables, states), and that minus the mean entropy: (..., b)."""
    entropy = entr(p.mean(0)).sum((-2, -1))
    single = entr(p).sum((-2, -1)).mean(0)
    return entropy, (entropy - single).clamp_min(0)  # >= 0 but for rounding


def equal_mixture(components: Distribution) -> MixtureSameFamily:
    """The mixture, with equal weights, over the last batch axis of the components."""
    weights = torch.zeros_like(components.mean).expand(components.batch_shape + components.event_shape)
    return MixtureSameFamily(Categorical(logits=weights[..., 0]), components)


def draw_count(n: Any) -> int:
    """How many draws are asked for, checked."""
    try:
        n = operator.index(n)
    except TypeError:
        raise TypeError(f"n is the number of draws, a whole number, not {n!r}") from None
    if n < 1:
        raise ValueError(f"n is the number of draws and must be at least 1, not {n}")
    return n


def checked_rng(rng: Any) -> torch.Generator | None:
    """A generator or none, and nothing else."""
    if rng is None or isinstance(rng, torch.Generator):
        return rng
    seed = rng if isinstance(rng, int) else 0
    raise TypeError(
        f"rng must be a torch.Generator, not {type(rng).__name__}; use torch.Generator().manual_seed({seed})"
    )


def _check_rows(agree: bool, predicted: str, y: Tensor) -> None:
    if not agree:
        raise ValueError(f"predicted {predicted} rows, y has shape {tuple(y.shape)}; give one target per row")


def _labels(labels: Tensor, f: Tensor, y: Tensor) -> Tensor:
    """Labels (..., b) of every member; those without an axis of members are for all."""
    lead, members = labels.shape[:-1], f.shape[1:-2]
    if lead != members and lead.numel() != 1:
        hot = "; one-hot rows become labels by y.argmax(-1)" if y.shape[-1] == f.shape[-1] else ""
        raise ValueError(f"y has shape {tuple(y.shape)}; labels are one number per row{hot}")
    return labels if lead == members else labels.reshape(-1).expand(*members, -1)


def _precise(y: Tensor) -> Tensor:
    """Numbers in float64; labels stay integers."""
    return y.double() if y.is_floating_point() else y


def _log_mean_exp(log_p: Tensor) -> Tensor:
    """Log of the mean over draws, the first axis."""
    return log_p.logsumexp(0) - math.log(len(log_p))
