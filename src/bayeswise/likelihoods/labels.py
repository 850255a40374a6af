"""Classes, and labels of yes or no."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributions as td

from bayeswise.likelihoods.protocol import rows_of_outputs
from bayeswise.predictive import LabelMixture, equal_mixture


@dataclass(frozen=True)
class Categorical(LabelMixture):
    """One of O classes: labels 0 ... O - 1, outputs are logits."""

    event_dim: ClassVar[int] = 0

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """Labels as integers (..., B); (..., B, 1) is accepted."""
        y = torch.as_tensor(y)
        y = y.squeeze(-1) if y.ndim > 1 else y
        if outputs < 2:
            raise ValueError(
                "Categorical needs a model with one output per class, got 1 output; use Bernoulli"
            )
        if y.ndim == 0:
            raise ValueError(f"Categorical labels have shape (B,), got a single number for {outputs} outputs")
        y = y if y.is_floating_point() else y.long()  # torch compares no uint16 and uint32
        labels = y.long()
        bad = (labels != y) | (labels < 0) | (labels >= outputs)
        if bool(bad.any()):
            raise ValueError(
                f"label {y[bad][0].item():g} is not one of the classes 0 ... {outputs - 1}, "
                f"the model has {outputs} outputs; number the classes from 0"
            )
        return labels

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log-softmax of f at the label, (..., B)."""
        log_p = f.log_softmax(-1)
        if y.shape != f.shape[:-1]:
            shape = torch.broadcast_shapes(y.shape, f.shape[:-1])
            log_p, y = log_p.expand(*shape, -1), y.expand(shape)
        return log_p.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def hessian_mul(self, f: Tensor, v: Tensor) -> Tensor:
        """H v = p v - p (pᵀv)."""
        p = f.softmax(-1)
        return p * (v - (p * v).sum(-1, keepdim=True))

    def hessian_root(self, f: Tensor, rng: torch.Generator | None = None) -> Iterator[Tensor]:
        """The O - 1 columns of the Cholesky factor; with `rng` e_y - p for a sampled label y.

        With the tails t_k = Σ_{j ≥ k} p_j column k is sqrt(p_k t_{k+1} / t_k) at k, and that times
        -p_j / t_{k+1} at each j behind it.
        """
        p = f.softmax(-1)
        if rng is not None:
            yield F.one_hot(_sample_label(f, rng), f.shape[-1]) - p
            return
        p = p.movedim(-1, 0).contiguous()  # (O, ..., B): a class's numbers lie side by side, which is faster
        tails = p.flip(0).cumsum(0).flip(0).clamp_min(torch.finfo(p.dtype).tiny)  # t (O, ..., B)
        ahead = tails[1:]
        sizes = (p[:-1] * ahead / tails[:-1]).sqrt()  # (O - 1, ..., B)
        ratios = -sizes / ahead
        for k in range(f.shape[-1] - 1):
            column = p * ratios[k]  # (O, ..., B)
            column[:k] = 0
            column[k] = sizes[k]
            yield column.movedim(0, -1)

    def hessian_sum(self, f: Tensor) -> Tensor:
        """diag(Σ p) - PᵀP, in float64: the difference is exactly zero for the vector of ones."""
        p = f.double().softmax(-1)  # (..., B, O)
        return torch.diag_embed(p.sum(-2)) - p.mT @ p

    def conditional(self, f: Tensor) -> td.Distribution:
        """Class probabilities of every draw and row."""
        return td.Categorical(logits=f)

    def states(self, f: Tensor) -> Tensor:
        """One variable with O states."""
        return f.softmax(-1).unsqueeze(-2)

    def mean_target(self, states: Tensor) -> Tensor:
        """The class probabilities."""
        return states.squeeze(-2)

    def mixture(self, f: Tensor) -> td.Distribution:
        """A mixture of categoricals is the categorical with the mean probabilities."""
        return td.Categorical(probs=f.softmax(-1).mean(0))

    def sample(self, f: Tensor, index: Tensor, rng: torch.Generator) -> Tensor:
        """A label for every chosen draw and row."""
        return _sample_label(f, rng)


@dataclass(frozen=True)
class Bernoulli(LabelMixture):
    """O yes/no labels that are independent given the outputs, which are log-odds.

    Entropies are those of the single outputs, summed; for O > 1 this bounds the joint entropy from above.
    """

    event_dim: ClassVar[int] = 1

    def targets(self, y: Tensor, outputs: int) -> Tensor:
        """Labels as floats (..., B, O); (B,) is accepted for one output."""
        y = rows_of_outputs(torch.as_tensor(y), outputs, "Bernoulli")
        bad = (y != 0) & (y != 1)
        if bool(bad.any()):
            raise ValueError(
                f"Bernoulli labels are 0 or 1, got {y[bad][0].item():g}; use Categorical for more classes"
            )
        return y if y.is_floating_point() else y.to(torch.get_default_dtype())

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Sum over outputs of y log p + (1 - y) log(1 - p), (..., B)."""
        return F.logsigmoid((2 * y - 1) * f).sum(-1)

    def hessian_mul(self, f: Tensor, v: Tensor) -> Tensor:
        """H v = p (1 - p) v."""
        return _bernoulli_variance(f) * v

    def hessian_root(self, f: Tensor, rng: torch.Generator | None = None) -> Iterator[Tensor]:
        """The columns sqrt(p (1 - p)) e_o; with `rng` y - p for sampled labels y."""
        if rng is not None:
            yield _sample_bits(f, rng) - f.sigmoid()
            return
        std = _bernoulli_variance(f).sqrt()
        for e in torch.eye(f.shape[-1], dtype=f.dtype, device=f.device):
            yield std * e

    def hessian_sum(self, f: Tensor) -> Tensor:
        """diag(Σ p (1 - p))."""
        return torch.diag_embed(_bernoulli_variance(f).sum(-2))

    def conditional(self, f: Tensor) -> td.Distribution:
        """Independent yes/no labels for every draw and row."""
        return td.Independent(td.Bernoulli(logits=f), 1)

    def states(self, f: Tensor) -> Tensor:
        """O variables with two states."""
        return torch.stack([(-f).sigmoid(), f.sigmoid()], -1)

    def mean_target(self, states: Tensor) -> Tensor:
        """The probability of 1."""
        return states[..., 1]

    def mixture(self, f: Tensor) -> td.Distribution:
        """The mixture of the draws' independent labels; mixing makes them dependent."""
        return equal_mixture(self.conditional(f.movedim(0, -2)))

    def sample(self, f: Tensor, index: Tensor, rng: torch.Generator) -> Tensor:
        """Labels for every chosen draw and row."""
        return _sample_bits(f, rng)


def _bernoulli_variance(f: Tensor) -> Tensor:
    return f.sigmoid() * (-f).sigmoid()


def _sample_label(f: Tensor, rng: torch.Generator) -> Tensor:
    """Labels (..., B) with probabilities softmax(f): the first of O exponential clocks to ring."""
    clocks = torch.empty_like(f).exponential_(generator=rng)
    return (f - clocks.log()).argmax(-1)


def _sample_bits(f: Tensor, rng: torch.Generator) -> Tensor:
    """Zeros and ones with probabilities sigmoid(f)."""
    return (torch.rand(f.shape, generator=rng, dtype=f.dtype, device=f.device) < f.sigmoid()).to(f.dtype)
