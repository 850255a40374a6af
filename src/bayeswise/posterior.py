"""What we know after inference: it draws functions, predicts, and saves itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.arrays import as_tensor
from bayeswise.likelihoods import Likelihood
from bayeswise.linearised import MANY_OUTPUTS, LinearisedPredictive, Noise, packed
from bayeswise.networks import EmbeddingView, LayerView, Network, Params, evaluating, row_counts
from bayeswise.networks.curvature import backward
from bayeswise.networks.tangent import Tangent
from bayeswise.predictive import KeptDraws, Predictive, checked_rng, draw_count
from bayeswise.problem import Problem
from bayeswise.randomness import derived_seed
from bayeswise.weights import Curved, WeightDistribution

MEMORY = 2**30  # bytes that the draws of a prediction may take
DRAWS = 256
CHUNK_NUMBERS = 2**22  # weights drawn at once, with a few copies; the draws depend on it
GAUSSIAN_BYTES = 2**24  # gradients of all outputs that are held at once
RUN_NUMBERS = 2**20  # outputs of the widest layer computed at once: few enough to stay in the cache


@dataclass(frozen=True, eq=False)
class Posterior:
    """A distribution over weights, with all that turns it into predictions in the user's units."""

    problem: Problem
    weights: WeightDistribution
    method: str
    notes: tuple[str, ...] = ()
    seed: int = 0
    rescues: int = 0  # factorisations that needed jitter
    log_evidence: Tensor | None = None  # log p(data) (…,), where the method knows it

    def sample(self, n: int, rng: Generator | None = None) -> Params:
        """Parameters (n, …) by their names in the module: those of the n networks that `draw` runs."""
        return self.draw(n, rng).params()

    def draw(self, n: int, rng: Generator | None = None) -> Functions:
        """Draw n coherent functions, (B, …) -> (n, B, O) in the user's units; the same ones without `rng`."""
        n, rng = draw_count(n), checked_rng(rng)
        if rng is None:
            return Functions(self, n, self.seed)
        seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))  # the next call gets others
        return Functions(self, n, seed)

    def predict(
        self, x: Any, n: int = DRAWS, rng: Generator | None = None, memory: int = MEMORY
    ) -> Predictive:
        """The predictive distribution of rows x (B, …), from n networks.

        Without `rng` the same networks answer every call. Draws that take more than `memory` bytes are not
        kept: every statistic computes them again, block by block. A linearised posterior needs no draws.
        """
        if self.weights.tangent is not None:
            return self._linearised(self.inputs(x), self.draw(n, rng), memory)
        functions, x = self.draw(n, rng), self.inputs(x)
        likelihood = self.likelihood(functions)
        network = self.problem.network
        rows = x.shape[len(self.problem.lead)]
        row_bytes = functions.distinct * (self.problem.members or 1) * network.outputs
        row_bytes *= network.dtype.itemsize
        if rows * row_bytes <= memory:
            return Predictive(likelihood, KeptDraws(functions(x)))
        return Predictive(likelihood, RowBlocks(functions, x, max(1, memory // (4 * row_bytes))))

    def _linearised(self, x: Tensor, functions: Functions, memory: int) -> Predictive:
        """Exact means and covariances of the outputs; what has no closed form uses as many draws."""
        source, link = GaussianRows(self, x, memory), self.weights.tangent
        assert link is not None
        draws = KeptDraws(torch.cat(list(source.blocks()), -2)) if source.bytes <= memory else source
        noise = Noise(functions.n, functions.seed)
        return LinearisedPredictive(self.likelihood(functions), draws, link, noise, CoherentOutputs(self, x))

    def function_covariance(self, x: Any) -> Tensor:
        """The covariance (…, B·O, B·O) of all outputs at all rows together; row by row, output by output.

        It holds an array of rows x outputs x weights: ask for few rows at a time.
        """
        weights, x = self.weights, self.inputs(x)
        if weights.tangent is None or not isinstance(weights, Curved):
            raise TypeError(f"{self.method} draws networks: their outputs have no covariance in closed form")
        network, scale = self.problem.network, self.problem.units.scale
        lead = len(self.problem.lead)
        with torch.inference_mode(False), evaluating(network.module):
            with _fitting(x, lead):
                done = backward(network, weights.values(network), x, lead)
            phi = weights.joint_features(done)  # (…, B, O, P)
        phi = (phi * scale[..., None, :, None]).flatten(-3, -2)
        return phi @ phi.mT

    def likelihood(self, functions: Functions) -> Likelihood:
        """The likelihood of these functions, in the user's units."""
        if not self.problem.infers_noise:
            return self.problem.likelihood
        noise = self.weights.noise()
        return self.problem.user_likelihood(functions.noise() if noise is None else noise)

    @property
    def network(self) -> Network:
        """What runs the weights that are drawn: the network, or its linearisation."""
        network, weights = self.problem.network, self.weights
        if weights.tangent is None or not isinstance(weights, Curved):
            return network
        return Tangent.of(network, weights.centre(network))

    def inputs(self, x: Any) -> Tensor:
        """The user's rows, checked, in the network's precision and place."""
        members, network = self.problem.members, self.problem.network
        x = prepared_inputs(x, network.dtype, network.device)
        if members is not None and (x.dim() < 2 or x.shape[0] != members or x.shape[1] == 0):
            raise ValueError(
                f"x has shape {tuple(x.shape)}; this posterior has {members} members, so x needs the shape "
                f"({members}, B, …): stack each member's rows, or x.expand({members}, *x.shape) for the same"
            )
        return x

    def __repr__(self) -> str:
        """One line; `summary()` says more."""
        network = self.problem.network
        layers = f"{len(network.layers)} layers inferred, " if network.layers else ""
        kind = type(self.problem.likelihood).__name__
        about = f"{layers}{kind}, {self.problem.n} rows"
        return f"{self.method} posterior of {type(network.module).__name__} ({about})"

    def summary(self) -> str:
        """What was inferred, layer by layer, and what was not."""
        rescued = [f"{self.rescues} factorisations needed jitter"] if self.rescues else []
        return "\n".join([f"{self.method} posterior", *self.notes, *rescued])

    def save(self, path: str | Path) -> None:
        """Write a directory that `bayeswise.load(path, model)` reads."""
        from bayeswise.storage import save_posterior  # storage reads posteriors, so it knows this module

        save_posterior(self, path)


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions drawn together: the same at every call, whatever rows are asked for and in which order."""

    posterior: Posterior
    n: int
    seed: int

    @property
    def distinct(self) -> int:
        """How many of the functions differ; the others repeat them."""
        return min(self.n, self.posterior.weights.distinct or self.n)

    def __call__(self, x: Any) -> Tensor:
        """Outputs (n, …, B, O) in the user's units for rows x (…, B, …)."""
        problem, x, start = self.posterior.problem, self.posterior.inputs(x), 0
        network, rows = problem.network, x.shape[len(problem.lead)]
        shape = (self.distinct, *problem.lead, rows, network.outputs)
        dtype = torch.promote_types(network.dtype, problem.units.scale.dtype)  # float64 where y needs it
        f = torch.empty(shape, dtype=dtype, device=network.device)
        with torch.no_grad(), evaluating(network.module):
            for params in self._chunks():
                stop = start + _draws(params)
                self._run(params, x, f[start:stop])
                start = stop
        return _repeated(f, self.n)

    def params(self) -> Params:
        """The parameters (n, …) of the networks."""
        chunks = list(self._chunks())
        return {name: _repeated(torch.cat([c[name] for c in chunks]), self.n) for name in chunks[0]}

    def noise(self) -> Tensor:
        """The noise covariance that was drawn with each function (n, …, O, O)."""
        drawn = torch.cat([root @ root.mT for _, root in self._noise_factors() if root is not None])
        return _repeated(drawn, self.n)

    def _chunks(self) -> Iterator[Params]:
        """The networks, a few at a time; how many depends on the network alone, and so do the draws."""
        network = self.posterior.problem.network
        rng = Generator(network.device).manual_seed(self.seed)
        for n, root in self._noise_factors():
            yield self.posterior.weights.sample(n, network, rng, root)[0]

    def _noise_factors(self) -> Iterator[tuple[int, Tensor | None]]:
        """How many networks each chunk has, and the roots (chunk, …, O, O) of their noise where it is drawn.

        They have a generator of their own, so that the noise can be had without the weights.
        """
        problem, weights = self.posterior.problem, self.posterior.weights
        chunk = max(1, min(64, CHUNK_NUMBERS // max(1, _size(problem))))
        chunk = -(-chunk // weights.turn) * weights.turn  # every chunk has all parts of a mixture
        chunk = weights.distinct or chunk  # those that repeat are there already: one chunk
        rng = Generator(problem.network.device).manual_seed(derived_seed(self.seed, 1))
        for start in range(0, self.distinct, chunk):
            n = min(chunk, self.distinct - start)
            yield n, weights.noise_factor(n, rng)

    def _run(self, params: Params, x: Tensor, f: Tensor) -> None:
        """Write the outputs of these networks to f (chunk, …, B, O), a block of rows at a time."""
        problem, network, rows = self.posterior.problem, self.posterior.network, self._block(params, x)
        lead = len(problem.lead)
        for block, out in zip(x.split(rows, lead), f.split(rows, -2), strict=True):
            with _fitting(x, lead):
                found = network(params, block, lead + 1, lead)
            if found.shape != out.shape:
                wrong = f"its outputs have shape {tuple(found.shape[1:])} instead of {tuple(out.shape[1:])}"
                raise ValueError(_unfit(x, lead, wrong))
            out.copy_(problem.units.to_user(found))

    def _block(self, params: Params, x: Tensor) -> int:
        """Rows that run at once."""
        network, lead = self.posterior.problem.network, len(self.posterior.problem.lead)
        widths = [network.width]
        widths += [value.shape[lead + 1] for value in params.values() if value.dim() > lead + 1]
        widths += [value.shape[0] for value in network.constants.values() if value.dim() > 0]
        members = x.shape[:lead].numel() if network.vectorised else 1
        draws = _draws(params) if network.vectorised else 1
        row = members * max(draws * max(widths), x.shape[lead + 1 :].numel())  # numbers of one row
        return max(16, RUN_NUMBERS // row)


def _size(problem: Problem) -> int:
    """How many numbers one draw has: of the chosen layers, or of the whole module where none are chosen."""
    network = problem.network
    chosen = sum(layer.size for layer in network.layers)
    own = chosen or sum(value.numel() for value in network.module.parameters())
    return own * (problem.members or 1)


def _draws(params: Params) -> int:
    return next(iter(params.values())).shape[0]


def _repeated(draws: Tensor, n: int) -> Tensor:
    """N draws (n, …) from fewer, one after another from the first again; a single one takes no memory."""
    if len(draws) == n:
        return draws
    return draws.expand(n, *draws.shape[1:]) if len(draws) == 1 else draws[torch.arange(n) % len(draws)]


@contextmanager
def _fitting(x: Tensor, lead: int) -> Iterator[None]:
    """Say what rows are needed where the network does not take these."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        raise ValueError(_unfit(x, lead, str(error))) from error


def _unfit(x: Tensor, lead: int, why: str) -> str:
    """What to say of rows that the network does not take."""
    kind, wanted = str(x.dtype).removeprefix("torch."), "(members, B, …)" if lead else "(B, …)"
    floats = ", as floats: x.float()" if not x.is_floating_point() and "type" in why else ""
    return (
        f"the network cannot run on x of shape {tuple(x.shape)} and type {kind}: {why}; "
        f"give rows {wanted} like those it was fitted on{floats}"
    )


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Draws that are computed when they are asked for, a few rows at a time."""

    functions: Functions
    x: Tensor
    rows: int  # of a block
    kept = False

    @property
    def count(self) -> int:
        """All rows."""
        return self.x.shape[len(self.functions.posterior.problem.lead)]

    def blocks(self) -> Iterator[Tensor]:
        """The outputs (n, …, b, O) of each block of rows, in parts that leave room for temporaries."""
        lead = len(self.functions.posterior.problem.lead)
        for block in self.x.split(self.rows, dim=lead):
            yield from KeptDraws(self.functions(block)).blocks()


@dataclass(frozen=True, eq=False)
class CoherentOutputs:
    """Outputs of whole functions at some rows."""

    posterior: Posterior
    x: Tensor

    def __call__(self, noise: Noise) -> Tensor:
        """Those of as many functions as the noise has draws, (n, …, B, O)."""
        return Functions(self.posterior, noise.n, noise.seed)(self.x)


@dataclass(frozen=True, eq=False)
class GaussianRows:
    """Mean and covariance of the linearised network's outputs, computed when they are asked for."""

    posterior: Posterior
    x: Tensor
    memory: int  # bytes
    kept = False

    @property
    def count(self) -> int:
        """All rows."""
        return self.x.shape[len(self.posterior.problem.lead)]

    @property
    def _marginal(self) -> bool:
        """Whether covariances between outputs are left out."""
        problem = self.posterior.problem
        return problem.network.outputs > MANY_OUTPUTS and not problem.is_regression

    @property
    def bytes(self) -> int:
        """Of all blocks together."""
        network = self.posterior.problem.network
        parts = 2 if self._marginal else 1 + network.outputs
        rows = self.x.shape[: len(self.posterior.problem.lead) + 1].numel()
        return rows * parts * network.outputs * network.dtype.itemsize

    def blocks(self) -> Iterator[Tensor]:
        """Means and covariances of a few rows each, in the user's units."""
        posterior, problem = self.posterior, self.posterior.problem
        weights, network, lead = posterior.weights, problem.network, len(problem.lead)
        assert isinstance(weights, Curved)  # it has a tangent
        with torch.inference_mode(False):
            weights = weights.cast(network.dtype)
            centre = weights.values(network)
        with evaluating(network.module):
            for block in self.x.split(self._rows(weights), lead):
                with torch.inference_mode(False):  # gradients are needed, whatever the caller's mode
                    found = self._moments(weights, centre, block)
                yield found

    def _moments(self, weights: Curved, centre: Params, block: Tensor) -> Tensor:
        """Means and covariances of one block."""
        problem, lead = self.posterior.problem, len(self.posterior.problem.lead)
        network, scale = problem.network, problem.units.scale
        with _fitting(self.x, lead):
            done = backward(network, centre, block, lead)
        spread = weights.function_variance if self._marginal else weights.function_covariance
        c = spread(done, network.output_layer)
        if not self._marginal:
            c = c * (scale[..., None, :, None] * scale[..., None, None, :])
        return packed(problem.units.to_user(done.output), c)

    def _rows(self, weights: Curved) -> int:
        """Rows at once: as many as let the gradients of all outputs stay in a part of the memory."""
        problem, network = self.posterior.problem, self.posterior.problem.network.at(weights.fixed)
        lead = len(problem.lead)
        with _fitting(self.x, lead):
            counts = row_counts(network, self.x.narrow(lead, 0, 1), lead)
        numbers = 0  # of one output's gradients
        for view in network.layers:
            if view.name != network.output_layer:
                numbers += _gradient_numbers(view, counts[view.name])
        held = 1 if self._marginal else network.outputs  # outputs whose gradients are held together
        row = (held * (numbers + 2 * network.outputs)) * network.dtype.itemsize * (problem.members or 1)
        return max(1, min(self.memory // 8, GAUSSIAN_BYTES) // row)


def _gradient_numbers(view: LayerView, rows: int) -> int:
    """Numbers of one output's gradient in a layer that has so many rows of an example."""
    if rows == 1 or isinstance(view, EmbeddingView):  # of an embedding only the vectors that were picked
        return math.prod(view.groups) * rows * view.outputs
    return view.size


def prepared_inputs(x: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Inputs as a finite tensor in the precision and place of the network; whole numbers stay whole."""
    x = as_tensor(x, "x")
    if x.dim() == 0 or x.shape[0] == 0:
        raise ValueError(f"inputs have shape {tuple(x.shape)}; at least one row is needed")
    x = x.detach().to(device=device, dtype=dtype if x.is_floating_point() else x.dtype)
    if not x.is_floating_point() or bool(x.sum().isfinite()):  # one that is not would make the sum so
        return x
    bad = (~torch.isfinite(x)).nonzero()  # (how many, dimensions)
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {x.numel()} inputs are NaN or infinite, the first is x{bad[0].tolist()}; "
            "clean those rows or impute them"
        )
    return x
