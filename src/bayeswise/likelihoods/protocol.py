"""What methods and predictions ask of p(y | f), and what likelihoods share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch import distributions as td

from bayeswise.predictive import Observation, Predictive


class Likelihood(Observation, Protocol):
    """What methods and predictions ask of p(y | f)."""

    def given(self, noise: Tensor) -> Likelihood:
        """A copy with this noise covariance; likelihoods without noise return themselves."""
        ...

    def hessian_mul(self, f: Tensor, v: Tensor) -> Tensor:
        """H v for every row, (..., B, O); never holds (B, O, O)."""
        ...

    def hessian_root(self, f: Tensor, rng: torch.Generator | None = None) -> Iterator[Tensor]:
        """Columns s (..., B, O) with Σ s sᵀ = H; with `rng` one random column with E[s sᵀ] = H."""
        ...

    def hessian_sum(self, f: Tensor) -> Tensor:
        """The sum of H over the batch, (..., O, O)."""
        ...

    def conditional(self, f: Tensor) -> td.Distribution:
        """The distribution p(y | f) of every draw and row."""
        ...

    def predictive(self, f: Tensor) -> Predictive:
        """The mixture over draws f (S, ..., B, O), which are kept."""
        ...


def rows_of_outputs(y: Tensor, outputs: int, name: str) -> Tensor:
    """Targets (..., B, O) from a tensor of that shape, or from (B,) where there is one output."""
    if y.ndim == 1 and outputs == 1:
        return y.unsqueeze(-1)
    if y.ndim < 2 or y.shape[-1] != outputs:
        raise ValueError(
            f"{name} targets have shape {tuple(y.shape)}, the model's outputs (..., B, {outputs}); "
            "give one column for each output"
        )
    return y
