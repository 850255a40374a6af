"""Move the mean itself (eq. 74, with γ in place of β): the same posterior by another way, and cheaper.

With M the mean before the step, r = y - x M the rest, and w = N_eff / R the weight of a row,

    Ψxx ← (1 - γ) Ψxx + γ w xᵀx,   R⁻¹ = R0⁻¹ + Ψxx
    G   = w xᵀr - R0⁻¹ M
    D   = γ R G
    M   ← M + D
    S   ← (1 - γ) S + γ (w rᵀr + Mᵀ R0⁻¹ M - Dᵀ G),   U = U0 + S

is what eq. 16 and 17 give, without a difference of large matrices. Two things save time. Where a layer's
inputs are the data themselves, Ψxx is known after one pass, and so is R; S is then the average of w rᵀr,
because a batch by itself need not fit that R. And S, which a pass without weight noise does not use, may
take in one batch now and then, with the rate Γ = 1 - Π (1 - γ) of all steps since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart
from bayeswise.linalg import factorise, gram, solve_lower, solve_lower_right, solve_lower_t
from bayeswise.methods.updates import Shape, Targets


@dataclass(frozen=True)
class MovedPosterior(MatrixNormalInverseWishart):
    """A posterior whose mean has moved on since its factors were computed; `factor` has no cross block."""

    moved: Tensor  # M (…, I, O)

    @property
    def mean(self) -> Tensor:
        """M."""
        return self.moved

    @property
    def cross_factor(self) -> Tensor:
        """L11ᵀM (…, I, O)."""
        return self.precision_factor.mT @ self.moved.to(self.factor)

    def draw(self, rng: Generator | None = None) -> Tensor:
        """W = M + L11⁻ᵀ A Fᵀ, one draw (…, I, O)."""
        shape = self.moved.mT.shape
        a = torch.randn(shape, generator=rng, dtype=self.factor.dtype, device=self.factor.device)
        return self.moved + solve_lower_right(self.precision_factor, self.noise_factor @ a).mT


@dataclass(frozen=True)
class MeanStats:
    """What is kept of a layer."""

    mean: Tensor  # M (…, I, O), in the network's precision
    xx: Tensor  # Ψxx / b (…, I, I)
    rest: Tensor  # S (…, O, O)
    n: Tensor  # (…,)
    factor: Tensor  # (…, I+O, I+O): the factors of R⁻¹ and U, side by side
    spread: Tensor  # R (…, I, I) where it is known; else empty
    left: Tensor  # (…,) Π (1 - γ) since S last moved
    steps: Tensor  # done
    jitter: Tensor  # (…,) what the last step's factorisations had to add


@dataclass(frozen=True)
class MeanUpdate:
    """The noise takes in a batch every so many steps: 1 is exact."""

    every: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        if self.every < 1:
            raise ValueError(f"MeanUpdate: every must be at least 1, not {self.every}")

    def empty(self, shape: Shape) -> MeanStats:
        """No data yet."""
        size, count = shape.inputs + shape.outputs, torch.zeros((), dtype=torch.int64, device=shape.device)
        return MeanStats(
            mean=shape.zeros(shape.inputs, shape.outputs, dtype=shape.dtype),
            xx=shape.zeros(shape.inputs, shape.inputs),
            rest=shape.zeros(shape.outputs, shape.outputs, dtype=torch.float64),
            n=shape.zeros(dtype=torch.float64),
            factor=shape.zeros(size, size),
            spread=shape.zeros(0, 0),
            left=shape.zeros(dtype=torch.float64) + 1,
            steps=count,
            jitter=shape.zeros(),
        )

    def knowing(self, prior: DiagonalPrior, data: MeanStats, xx: Tensor, name: str) -> MeanStats:
        """What is kept where Ψxx (…, I, I) is known before the first step."""
        found = factorise(_plus(xx.double(), 1 / prior.variance), name)
        data.factor[..., : prior.inputs, : prior.inputs] = found.lower.to(data.factor)
        spread = torch.cholesky_inverse(found.lower).to(data.xx)
        return replace(data, xx=xx.to(data.xx), spread=spread, jitter=found.jitter.to(data.jitter))

    def current(self, prior: DiagonalPrior, data: MeanStats, name: str) -> MatrixNormalInverseWishart:
        """The mean, with the factors."""
        return MovedPosterior(data.factor, data.n + prior.dof, prior.inputs, data.jitter, data.mean)

    def exact(self, prior: DiagonalPrior, data: MeanStats, name: str) -> MatrixNormalInverseWishart:
        """The same as one factor, cross block and all."""
        factor = data.factor.clone()
        moved = self.current(prior, data, name)
        factor[..., prior.inputs :, : prior.inputs] = moved.cross_factor.mT
        return MatrixNormalInverseWishart(factor, moved.dof, moved.inputs, moved.jitter)

    def sums(self, data: MeanStats, x: Tensor, g: Tensor) -> None:
        """It needs the rows themselves."""

    def __call__(
        self,
        prior: DiagonalPrior,
        data: MeanStats,
        batch: Targets,
        rate: float | Tensor,
        weight: float | Tensor,
    ) -> MeanStats:
        """One step with rate γ, or one for each member; it consumes `data`.

        The first has γ = 1 and forgets where it starts; from the weights of the pass r is small, and S exact.
        """
        data = data if int(data.steps) else replace(data, mean=batch.w.to(data.mean))
        back = _times(1 / prior.variance, data.mean.to(data.xx))  # R0⁻¹ M
        g = _times(weight, batch.pull(data.mean)).to(data.xx) - back  # G
        if data.spread.numel():
            d, fitted = _times(rate, data.spread @ g), None  # γ R G (…, I, O)
            data = replace(data, jitter=torch.zeros_like(data.jitter))
        else:
            data, lower = _with_inputs(prior, data, batch, rate, weight)
            within = data.factor[..., : prior.inputs, : prior.inputs]  # the same, laid out for L⁻ᵀ
            d = _times(rate, solve_lower_t(within, solve_lower(lower, g.to(lower))))
            fitted = (g, d)
        data = replace(data, left=data.left.mul_(1 - rate))
        if int(data.steps) % self.every == 0:
            data = _with_rest(prior, data, batch, fitted, rate, weight)
        return replace(data, mean=data.mean + d.to(data.mean), steps=data.steps + 1)


def _with_inputs(
    prior: DiagonalPrior, data: MeanStats, batch: Targets, rate: float | Tensor, weight: float | Tensor
) -> tuple[MeanStats, Tensor]:
    """Ψxx and the factor of R⁻¹ with the rows of a batch, and this factor by itself (…, I, I)."""
    new = _times(rate * weight, gram(batch.x)).to(data.xx)
    xx = data.xx.mul_(1 - (rate[..., None, None] if isinstance(rate, Tensor) else rate)).add_(new)
    found = factorise(_plus(xx, 1 / prior.variance), batch.name)
    factor = data.factor.to(found.lower.dtype, copy=True)  # the posterior of the pass keeps its own
    factor[..., : prior.inputs, : prior.inputs] = found.lower
    return replace(data, xx=xx, factor=factor, jitter=found.jitter.to(data.jitter)), found.lower


def _with_rest(
    prior: DiagonalPrior,
    data: MeanStats,
    batch: Targets,
    fitted: tuple[Tensor, Tensor] | None,  # G and D, where R is that of these rows too
    step_rate: float | Tensor,
    weight: float | Tensor,
) -> MeanStats:
    """S and the factor of U: (1 - Γ) S + Γ (w rᵀr + MᵀR0⁻¹M - DᵀG), or of w rᵀr alone; Γ = 1 - `left`.

    A member whose steps are done, γ = 0, stays as it is.
    """
    moves = torch.as_tensor(step_rate, device=data.left.device) > 0
    rate, r = (1 - data.left) * moves, batch.residual(data.mean)  # Γ (…,)
    new = _times(weight, gram(r)).double()
    if fitted is not None:
        (g, d), mean = (part.double() for part in fitted), data.mean.double()
        new = new + _times(1 / prior.variance, mean.mT @ mean) - d.mT @ g
    rest = data.rest.mul_((1 - rate)[..., None, None]).add_(_times(0.5 * rate, new + new.mT))
    found = factorise(_plus(rest, prior.scale), f"{batch.name}: noise")
    factor = data.factor.clone()
    factor[..., prior.inputs :, prior.inputs :] = found.lower.to(factor.dtype)
    n = data.n.mul_(1 - rate).add_(rate * weight * float(r.shape[-2]))
    jitter = torch.maximum(data.jitter, found.jitter.to(data.jitter))
    left = data.left.masked_fill(moves, 1.0)
    return replace(data, rest=rest, n=n, factor=factor, left=left, jitter=jitter)


def _plus(matrix: Tensor, diagonal: float | Tensor) -> Tensor:
    """Matrices (…, n, n) with a number, or one for each (…,), added to the diagonal."""
    total = matrix.clone()
    added = torch.as_tensor(diagonal, dtype=total.dtype, device=total.device)
    total.diagonal(dim1=-2, dim2=-1).add_(added[..., None])
    return total


def _times(weight: float | Tensor, matrix: Tensor) -> Tensor:
    """A weight for all, or one for each member (…,), times matrices (…, n, m)."""
    return weight[..., None, None].to(matrix) * matrix if isinstance(weight, Tensor) else weight * matrix
