"""What we know after inference: it draws functions, predicts, and saves itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.likelihoods import Likelihood
from bayeswise.networks import Params, evaluating
from bayeswise.predictive import KeptDraws, Predictive
from bayeswise.problem import Problem
from bayeswise.weights import WeightDistribution

MEMORY = 2**30  # bytes that the draws of a prediction may take
DRAWS = 256
CHUNK_NUMBERS = 2**24  # numbers held at once while networks are drawn and run


@dataclass(frozen=True, eq=False)
class Posterior:
    """A distribution over weights, with all that turns it into predictions in the user's units."""

    problem: Problem
    weights: WeightDistribution
    method: str
    notes: tuple[str, ...] = ()
    seed: int = 0
    rescues: int = 0  # factorisations that needed jitter

    def sample(self, n: int, rng: Generator | None = None) -> Params:
        """Parameters of n networks (n, …), by their names in the module."""
        return self.weights.sample(n, self.problem.network, rng or self._rng())[0]

    def draw(self, n: int, rng: Generator | None = None) -> Functions:
        """Draw n coherent functions, (B, …) -> (n, B, O) in the user's units; the same ones without `rng`."""
        if rng is None:
            return Functions(self, n, self._rng().get_state())
        seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))  # the next call gets others
        own = Generator(self.problem.network.device).manual_seed(seed)
        return Functions(self, n, own.get_state())

    def predict(
        self, x: Any, n: int = DRAWS, rng: Generator | None = None, memory: int = MEMORY
    ) -> Predictive:
        """The predictive distribution of rows x (B, …), from n networks.

        Without `rng` the same networks answer every call. Draws that take more than `memory` bytes are not
        kept: every statistic computes them again, block by block.
        """
        functions, x = self.draw(n, rng), self.inputs(x)
        likelihood = self.likelihood(functions)
        network = self.problem.network
        rows = x.shape[len(self.problem.lead)]
        row_bytes = n * max(1, self.problem.members or 1) * network.outputs * network.dtype.itemsize
        if rows * row_bytes <= memory:
            return Predictive(likelihood, KeptDraws(functions(x)))
        return Predictive(likelihood, RowBlocks(functions, x, max(1, memory // (4 * row_bytes))))

    def likelihood(self, functions: Functions) -> Likelihood:
        """The likelihood of these functions, in the user's units."""
        if not self.problem.infers_noise:
            return self.problem.likelihood
        noise = self.weights.noise()
        return self.problem.user_likelihood(functions.noise() if noise is None else noise)

    def inputs(self, x: Any) -> Tensor:
        """The user's rows, checked, in the network's precision and place."""
        return prepared_inputs(x, self.problem.network.dtype, self.problem.network.device)

    def summary(self) -> str:
        """What was inferred, layer by layer, and what was not."""
        rescued = [f"{self.rescues} factorisations needed jitter"] if self.rescues else []
        return "\n".join([f"{self.method} posterior", *self.notes, *rescued])

    def save(self, path: str | Path) -> None:
        """Write a directory that `bayeswise.load(path, model)` reads."""
        from bayeswise.storage import save_posterior  # storage reads posteriors, so it knows this module

        save_posterior(self, path)

    def _rng(self) -> Generator:
        return Generator(self.problem.network.device).manual_seed(self.seed)


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions drawn together: the same at every call, whatever rows are asked for and in which order."""

    posterior: Posterior
    n: int
    rng_state: Tensor

    def __call__(self, x: Any) -> Tensor:
        """Outputs (n, …, B, O) in the user's units for rows x (…, B, …)."""
        problem = self.posterior.problem
        network, lead = problem.network, len(problem.lead)
        x = self.posterior.inputs(x)
        parts = []
        with torch.no_grad(), evaluating(network.module):
            for params, _ in self._chunks():
                rows = x.split(self._block(params), dim=lead)
                outputs = [network(params, block, lead + 1, lead) for block in rows]
                parts.append(torch.cat(outputs, -2))  # (chunk, …, B, O)
        return problem.units.to_user(torch.cat(parts))

    def noise(self) -> Tensor:
        """The noise covariance that was drawn with each function (n, …, O, O)."""
        return torch.cat([noise for _, noise in self._chunks() if noise is not None])

    def _chunks(self) -> Iterator[tuple[Params, Tensor | None]]:
        """The networks, a few at a time; how many depends on the network alone, and so do the draws."""
        network = self.posterior.problem.network
        size = sum(layer.inputs * layer.outputs for layer in network.layers) * max(
            1, self.posterior.problem.members or 1
        )
        chunk = max(1, min(64, CHUNK_NUMBERS // max(1, size)))
        rng = Generator(network.device)
        rng.set_state(self.rng_state)
        for start in range(0, self.n, chunk):
            yield self.posterior.weights.sample(min(chunk, self.n - start), network, rng)

    def _block(self, params: Params) -> int:
        """Rows that run at once."""
        draws = next(iter(params.values())).shape[0] if self.posterior.problem.network.vectorised else 1
        width = max((layer.outputs for layer in self.posterior.problem.network.layers), default=1)
        return max(16, CHUNK_NUMBERS // (draws * width * max(1, self.posterior.problem.members or 1)))


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Draws that are computed when they are asked for, a few rows at a time."""

    functions: Functions
    x: Tensor
    rows: int
    kept = False

    def blocks(self) -> Iterator[Tensor]:
        """The outputs (n, …, b, O) of each block of rows."""
        lead = len(self.functions.posterior.problem.lead)
        for block in self.x.split(self.rows, dim=lead):
            yield self.functions(block)


def prepared_inputs(x: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Inputs as a finite tensor in the precision and place of the network; whole numbers stay whole."""
    try:
        x = torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"inputs must be a tensor or an array of numbers, not {type(x).__name__}: {error}"
        ) from None
    if x.dim() == 0 or x.shape[0] == 0:
        raise ValueError(f"inputs have shape {tuple(x.shape)}; at least one row is needed")
    x = x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype)
    bad = int((~torch.isfinite(x)).sum()) if x.is_floating_point() else 0
    if bad:
        raise ValueError(f"{bad} of {x.numel()} inputs are NaN or infinite; clean those rows or impute them")
    return x
