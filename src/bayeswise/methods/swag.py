"""SWAG: a Gaussian through the weights that SGD visits around a trained network (arXiv 1902.02476).

After a warm-up by Adam, SGD at a rate that does not vanish; every so many steps a snapshot w_t enters

    w̄_t = w̄_{t-1} + (w_t - w̄_{t-1}) / t                              mean of the snapshots, the first included
    S_t = S_{t-1} + (w_t - w̄_{t-1}) (w_t - w̄_t)                       so Σ_diag = S_T / T = mean(w²) - w̄²
    D_t = w_t - w̄_t                                                  of the last snapshots

    w = w̄ + sqrt(c / 2) Σ_diag^{1/2} z₁ + sqrt(c / (2 (K - 1))) D z₂,   z₁ ~ N(0, I_d), z₂ ~ N(0, I_K)

w̄ `mean`, S `squares`, D `columns` (at most `rank`, K of them held), c `scale`, 1 for the paper's covariance
(Σ_diag + D Dᵀ / (K - 1)) / 2. One z₂ serves all parameters, so layers are correlated. S is Welford's sum: the
difference of two averages, mean(w²) - w̄², loses its digits in float32.

MultiSWAG (arXiv 2002.08791) is E `members` from independent starts, each with its own Gaussian.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor

from bayeswise.likelihoods import Gaussian
from bayeswise.methods.gradient import (
    SGD,
    Adam,
    Descent,
    GradientMethod,
    Optimiser,
    all_values,
    bare,
    check_settings,
    descend,
    fresh_,
    outputs,
    residual_covariance,
    starting_values,
    training_notes,
)
from bayeswise.methods.protocol import Batch, Data, Info
from bayeswise.methods.schedules import Constant, Cosine, Schedule, require_schedule
from bayeswise.networks import Params, norms_with_statistics, renew_statistics
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import LowRank, MeanField, Mixture, Particles, Point, WeightDistribution

SEED = 20190207  # of the networks whose statistics are renewed
LEAST_ROWS = 8  # of a step of SGD, where the batch has so many
COARSE = {torch.float32: torch.bfloat16}  # columns: 0.4 % of each number, far below the error of K snapshots


@dataclass(frozen=True)
class Snapshots:
    """Moments of the weights that were visited, and the last deviations from their running mean."""

    count: Tensor  # T
    mean: Params  # w̄ (…)
    squares: Params  # S (…)
    columns: Params  # D (Q, …), the oldest is overwritten

    @classmethod
    def none(cls, params: Params, rank: int, device: torch.device) -> Snapshots:
        """Before the first one."""
        mean, squares = ({name: torch.zeros_like(w) for name, w in params.items()} for _ in range(2))
        columns = {
            name: w.new_zeros((rank, *w.shape), dtype=COARSE.get(w.dtype, w.dtype))
            for name, w in params.items()
            if rank
        }
        return cls(torch.zeros((), dtype=torch.int64, device=device), mean, squares, columns)

    def take_(self, params: Params) -> Snapshots:
        """With one more snapshot, in place."""
        before = int(self.count)
        for name, w in params.items():
            step = w - self.mean[name]
            self.mean[name].add_(step / (before + 1))
            column = w - self.mean[name]
            self.squares[name].addcmul_(step, column)
            if name in self.columns:
                self.columns[name][before % len(self.columns[name])] = column
        return replace(self, count=self.count + 1)

    def std(self, scale: float) -> Params:
        """Sqrt(c / 2) Σ_diag^{1/2} (…); a sum that rounding left below zero is zero."""
        gain = scale / (2 * int(self.count))
        return {name: s.clamp_min(0).mul(gain).sqrt() for name, s in self.squares.items()}

    def factor(self, scale: float) -> Params:
        """Sqrt(c / (2 (K - 1))) D (K, …)."""
        gain, count = (scale / 2) ** 0.5, int(self.count)
        held = {name: d[: min(count, len(d))] for name, d in self.columns.items()}
        return {name: d * (gain / max(1, len(d) - 1) ** 0.5) for name, d in held.items()}


@dataclass(frozen=True)
class Trajectory:
    """The state: where the weights are, and what they have been."""

    descent: Descent
    snapshots: Snapshots


@dataclass(frozen=True)
class SWAG(GradientMethod):
    """A Gaussian through the weights that SGD visits around a trained network.

    The share `warmup` of the steps trains by Adam; with `warmup=0` the model must be trained. SGD's rate
    counts in units of the likelihood's noise, and its steps take at most the share `rows` of the data, drawn
    anew out of larger batches: gradients without noise would leave no spread. `rank=0` is a diagonal
    Gaussian, `scale=0` the mean alone (SWA), `members` more than one a mixture from fresh starts (MultiSWAG).
    Where norms keep running statistics, `draws` networks are drawn, each with statistics of its own.
    """

    rank: int = 20
    scale: float = 1.0
    learning_rate: Schedule = field(default=Constant(0.03))
    momentum: float = 0.9
    every: int = 20
    rows: float = 0.1
    warmup: float = 0.5
    warmup_rate: Schedule = field(default=Cosine(0.005))
    precision: float = 1.0
    members: int = 1
    draws: int = 30
    steps: int = 4000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        check_settings(self)
        require_schedule("SWAG: warmup_rate", self.warmup_rate)
        for name, least in (("rank", 0), ("every", 1), ("members", 1), ("draws", 1)):
            value = operator.index(getattr(self, name))  # numpy's integers are welcome
            object.__setattr__(self, name, value)
            if value < least:
                raise ValueError(f"SWAG: {name} must be at least {least}, not {value}")
        self._check_shares()

    def _check_shares(self) -> None:
        if self.rank == 1:
            raise ValueError("SWAG: one deviation has no covariance; use rank=0 for a diagonal, or rank=2")
        if not (0 <= self.scale < float("inf") and 0 <= self.momentum < 1):
            given = f"{self.scale}, {self.momentum}"
            raise ValueError(f"SWAG: scale must not be negative, and momentum in [0, 1), not {given}")
        if not (0 <= self.warmup < 1 and 0 < self.rows <= 1):
            given = f"{self.warmup}, {self.rows}"
            raise ValueError(f"SWAG: warmup is a share in [0, 1) and rows one in (0, 1], not {given}")
        if self.members > 1 and self.warmup == 0:
            raise ValueError("SWAG: members start from fresh weights; give them a warmup, 0.5 of all steps")

    @property
    def standardises(self) -> bool:
        """Not without a warm-up: the weights are then those of a trained model."""
        return self.warmup > 0

    @property
    def starts_from_model(self) -> bool:
        """One member does."""
        return self.members == 1

    @property
    def warm_steps(self) -> int:
        """The steps of Adam."""
        return round(self.warmup * self.steps)

    def rate_at(self, step: int) -> float:
        """Each phase has a schedule of its own."""
        if step < self.warm_steps:
            return self.warmup_rate(step, self.warm_steps)
        return self.learning_rate(step - self.warm_steps, self.steps - self.warm_steps)

    def optimiser(self, problem: Problem, state: Descent) -> Optimiser:
        """Adam, then SGD."""
        if int(state.step) < self.warm_steps:
            return Adam()
        return SGD(self.momentum, _noise_scale(problem, state.noise))

    def init(self, problem: Problem, data: Data, rng: Generator) -> Trajectory:
        """The module's present weights, or fresh ones for every member."""
        network, lead = problem.network, self._lead(problem)
        params, buffers = starting_values(self, network, lead)
        params = fresh_(params, network, rng) if self.members > 1 else params
        descent = Descent.start(params, buffers, network, lead)
        return Trajectory(descent, Snapshots.none(params, self.rank, network.device))

    def step(
        self, problem: Problem, state: Trajectory, batch: Batch, rng: Generator
    ) -> tuple[Trajectory, Info]:
        """One step of Adam or SGD, and a snapshot where one is due: the last step takes one."""
        lead = len(self._lead(problem))
        walks = int(state.descent.step) >= self.warm_steps
        x, y = self._subset(problem, batch, rng) if walks else batch

        def run(params: Params) -> tuple[Tensor, float]:
            f = outputs(problem.network, params, state.descent.buffers, x, lead, len(problem.lead))
            return f, 0.0

        descent, info = descend(self, problem, state.descent, y, rng, run, self.precision / problem.n)
        due = walks and (self.steps - int(descent.step)) % self.every == 0
        snapshots = state.snapshots.take_(descent.params) if due else state.snapshots
        return Trajectory(descent, snapshots), info

    def posterior(self, problem: Problem, state: Trajectory, data: Data) -> Posterior:
        """The Gaussian, with the covariance of the residuals at its mean as noise."""
        own, seen = bare(problem), state.snapshots
        centre = self._centre(own, state, data)
        weights = self._weights(own, centre, seen, residual_covariance(self, own, centre, data))
        if norms_with_statistics(own.network.module) and not isinstance(weights, Point):
            weights = self._particles(own, weights, centre, data)
        notes = training_notes(problem, state.descent, self._what()) + (self._spread(seen),)
        return Posterior(own, weights, "SWAG" if self.members == 1 else "MultiSWAG", notes)

    def _lead(self, problem: Problem) -> tuple[int, ...]:
        return problem.lead if self.members == 1 else (self.members, *problem.lead)

    def _subset(self, problem: Problem, batch: Batch, rng: Generator) -> Batch:
        """At most the share `rows` of the data, the same places for all members."""
        (x, y), lead = batch, len(problem.lead)
        n = max(LEAST_ROWS, round(self.rows * problem.n))
        if n >= x.shape[lead]:
            return batch
        places = torch.randperm(x.shape[lead], generator=rng, device=rng.device)[:n].to(x.device)
        return x.index_select(lead, places), y.index_select(lead, places)

    def _centre(self, problem: Problem, state: Trajectory, data: Data) -> Descent:
        """At the mean of the snapshots, with the statistics that belong to it."""
        values = all_values(self, state.descent)
        mean = state.snapshots.mean if int(state.snapshots.count) else state.descent.params
        params = {name: w.clone() for name, w in mean.items()}
        buffers = {name: values[name] for name in state.descent.buffers}
        buffers = _renewed(problem, params, buffers, data, len(self._lead(problem)))
        return replace(state.descent, params=params, buffers=buffers)

    def _weights(
        self, problem: Problem, centre: Descent, seen: Snapshots, noise: Tensor | None
    ) -> WeightDistribution:
        """One Gaussian or a mixture; points where there is no spread."""
        values = centre.params | centre.buffers
        if self.scale == 0 or int(seen.count) < 2:
            return (Point if self.members == 1 else Particles)(values, noise)
        std, columns = seen.std(self.scale), seen.factor(self.scale)
        if self.members == 1:
            return _gaussian(values, std, columns, noise, problem.lead)
        parts = []
        for e in range(self.members):
            mean, own = ({name: v[e].clone() for name, v in part.items()} for part in (values, std))
            factor = {name: d[:, e].clone() for name, d in columns.items()}
            parts.append(_gaussian(mean, own, factor, None if noise is None else noise[e], problem.lead))
        return Mixture(tuple(parts))

    def _particles(
        self, problem: Problem, weights: WeightDistribution, centre: Descent, data: Data
    ) -> Particles:
        """So many draws, each with statistics of its own, and the noise of the mean it was drawn around."""
        rng = Generator(problem.network.device).manual_seed(SEED)
        drawn, noise = weights.sample(self.draws, problem.network, rng)
        if noise is None and (shared := weights.noise()) is not None:
            noise = shared.expand(self.draws, *shared.shape).clone()
        params = {name: drawn[name] for name in centre.params}
        buffers = {name: drawn[name] for name in centre.buffers}
        return Particles(params | _renewed(problem, params, buffers, data, 1 + len(problem.lead)), noise)

    def _what(self) -> str:
        kind = "a diagonal Gaussian" if self.rank == 0 else f"a Gaussian of rank {self.rank} and a diagonal"
        kind = "the mean" if self.scale == 0 else kind
        return kind if self.members == 1 else f"{self.members} networks, for each {kind}"

    def _spread(self, seen: Snapshots) -> str:
        count = int(seen.count)
        few = "" if count > 1 or self.scale == 0 else ": no spread is known, so draws are all the same"
        return f"{count} snapshots of SGD, one every {self.every} steps{few}"


def _gaussian(
    mean: Params, std: Params, columns: Params, noise: Tensor | None, lead: tuple[int, ...]
) -> MeanField | LowRank:
    return LowRank(mean, std, columns, noise, lead) if columns else MeanField(mean, std, noise)


def _noise_scale(problem: Problem, noise: Tensor) -> Tensor:
    """The smallest variance of the noise (…), else 1: a Gaussian likelihood is as steep as its inverse."""
    likelihood, lead = problem.seen_likelihood(noise), noise.shape[:-2]
    if not isinstance(likelihood, Gaussian) or not isinstance(likelihood.noise, Tensor):
        return noise.new_ones(lead)
    return torch.linalg.eigvalsh(likelihood.noise)[..., 0].expand(lead)


def _renewed(problem: Problem, params: Params, buffers: Params, data: Data, lead: int) -> Params:
    """Copies of the buffers, with the running statistics that these networks have over all rows."""
    own, x_lead = {name: value.clone() for name, value in buffers.items()}, len(problem.lead)

    def run(x: Tensor) -> None:
        outputs(problem.network, params, own, x, lead, x_lead)

    renew_statistics(problem.network.module, (x for x, _ in data.ordered()), run, x_lead)
    return own
