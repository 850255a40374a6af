"""MC dropout: one set of weights, trained and asked with random masks on layer inputs (arXiv 1506.02142).

    minimise  -mean_n log p(y_n | f(x_n; w, m_n)) + λ / (2 N) |w|²    masks m_n drawn anew for every row
    m = b / (1 - p),  b ~ Bernoulli(1 - p)                            on the inputs of dropout layers
    p(y | x) = mean_s p(y | f(x; w, m_s))                             one mask m_s for all rows of a draw

p `rate`, λ `precision`. Gal's length scale l and noise precision τ: λ = (1 - p) l², with `Gaussian(1 / τ)` as
the likelihood. The noise of `Gaussian()` is that of the residuals under masks: a moving average during
training, one pass over all rows at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Size, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from bayeswise.methods.gradient import (
    Descent,
    GradientMethod,
    all_values,
    bare,
    check_settings,
    descend,
    outputs,
    residual_covariance,
    starting_values,
    training_notes,
)
from bayeswise.methods.protocol import Batch, Data, Info
from bayeswise.methods.schedules import Cosine, Schedule
from bayeswise.networks import LinearView, Network, Params, mask_key
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import Dropped, draw_masks

NOISE_ROWS = 4000  # masked rows under which the noise is measured, at least
SEED = 0  # of the masks under which the noise is measured
RATE = 0.1  # where neither the method nor the module says another
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # these drop all of a channel


@dataclass(frozen=True)
class Place:
    """One call of a submodule whose input is masked."""

    key: str
    rate: float
    one: tuple[int, ...]  # the mask's shape for one row
    more: tuple[int, ...]  # what every further row adds to it

    def shape(self, rows: int) -> tuple[int, ...]:
        """Of a mask for so many rows, each with its own."""
        return tuple(a + (rows - 1) * b for a, b in zip(self.one, self.more, strict=True))

    @property
    def shared(self) -> tuple[int, ...]:
        """Of a mask that all rows share."""
        return tuple(1 if b else a for a, b in zip(self.one, self.more, strict=True))


@dataclass(frozen=True)
class MCDropout(GradientMethod):
    """Dropout that stays on: one network for each mask.

    Every parameter that requires a gradient trains. Masks act where the module has Dropout layers, or, if it
    has none, on the input of every chosen layer. `rate` None means each Dropout layer's own p, or 0.1 where
    there are none; a number holds for all.
    """

    rate: float | None = None
    learning_rate: Schedule = field(default=Cosine(0.005))
    precision: float = 1.0
    steps: int = 2000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        check_settings(self)
        if self.rate is not None and not 0 <= self.rate < 1:
            raise ValueError(f"MCDropout: rate must be at least 0 and below 1, not {self.rate}")

    def init(self, problem: Problem, data: Data, rng: Generator) -> Descent:
        """The module's present weights."""
        self.places(problem, data.example[0])  # refuses modules without one
        params, buffers = starting_values(self, problem.network, problem.lead)
        return Descent.start(params, buffers, problem.network, problem.lead)

    def step(self, problem: Problem, state: Descent, batch: Batch, rng: Generator) -> tuple[Descent, Info]:
        """One step of Adam with masks for every row."""
        (x, y), lead = batch, len(problem.lead)
        masks, own = self._masks(problem, x, rng), _dropouts(problem.network)

        def run(params: Params) -> tuple[Tensor, float]:
            with _resting(own.values()):
                return outputs(problem.network, params | masks, state.buffers, x, lead, lead), 0.0

        return descend(self, problem, state, y, rng, run, self.precision / problem.n)  # λ / N

    def posterior(self, problem: Problem, state: Descent, data: Data) -> Posterior:
        """The weights with masks to be drawn, and the noise that all rows show, each under a mask."""
        values, places = all_values(self, state), self.places(problem, data.example[0])
        rates = {place.key: place.rate for place in places}
        shapes = {place.key: (*problem.lead, *place.shared) for place in places}
        rng = Generator(problem.network.device).manual_seed(SEED)
        passes = -(-NOISE_ROWS // problem.n) if places else 1
        noise = residual_covariance(
            self, problem, state, data, lambda x: self._masks(problem, x, rng), passes
        )
        weights = Dropped(values, rates, shapes, noise)
        notes = training_notes(problem, state, "one network with masks on its inputs,")
        return Posterior(bare(problem), weights, "MC dropout", notes + (_where(places),))

    def places(self, problem: Problem, x: Tensor) -> tuple[Place, ...]:
        """Where masks act, and of what shape; found once for a network, by two passes over a row of x."""
        network, key = problem.network, (MCDropout, self.rate)
        if key not in network.cache:
            row = x[(0,) * len(problem.lead)][:1]
            own, layers = _dropouts(network), _linear(network)
            found = self._found(network, list(own), row) or self._found(network, layers, row)
            if not found:
                raise ValueError("MCDropout found no input to mask: add nn.Dropout, or select a linear layer")
            network.cache[key] = tuple(place for place in found if place.rate > 0)
        return network.cache[key]

    def _found(self, network: Network, names: list[str], row: Tensor) -> list[Place]:
        """The calls of these submodules: what changes with a second row is a dimension of rows."""
        single, double = (_input_shapes(network, names, x) for x in (row, torch.cat([row, row])))
        found = []
        for name, calls in single.items():
            module = network.module.get_submodule(name)
            rate = self._rate(name, module)
            for call, (one, two) in enumerate(zip(calls, double[name], strict=True)):
                more = tuple(b - a for a, b in zip(one, two, strict=True))
                kept = 2 if isinstance(module, CHANNELS) else len(one)
                one, more = _flat(one, kept, 1), _flat(more, kept, 0)
                found.append(Place(mask_key(name, call), rate, one, more))
        return found

    def _rate(self, name: str, module: nn.Module) -> float:
        rate = self.rate if self.rate is not None else getattr(module, "p", RATE)
        if not 0 <= rate < 1:
            raise ValueError(f'MCDropout: "{name}" drops all of its input (p = {rate}); lower p, or set rate')
        return float(rate)

    def _masks(self, problem: Problem, x: Tensor, rng: Generator) -> Params:
        """A mask for every row of the batch, at every place."""
        rows, network = x.shape[len(problem.lead)], problem.network
        shapes = {place: (*problem.lead, *place.shape(rows)) for place in self.places(problem, x)}
        return {place.key: draw_masks(shape, place.rate, network, rng) for place, shape in shapes.items()}


def _dropouts(network: Network) -> dict[str, _DropoutNd]:
    """The module's Dropout layers by name; found once for a network."""
    key = (MCDropout, "layers")
    if key not in network.cache:
        found = {name: m for name, m in network.module.named_modules() if isinstance(m, _DropoutNd)}
        for name, module in found.items():
            if not isinstance(module, (nn.Dropout, *CHANNELS)):
                kind = type(module).__name__
                raise ValueError(f'MCDropout cannot draw masks for "{name}", a {kind}; use nn.Dropout there')
        network.cache[key] = found
    return network.cache[key]


def _linear(network: Network) -> list[str]:
    return [view.name for view in network.layers if isinstance(view, LinearView)]


@contextmanager
def _resting(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Dropout layers in eval mode, where they are the identity: our masks stand in for them."""
    awake = [m for m in modules if m.training]
    for m in awake:
        m.training = False
    try:
        yield
    finally:
        for m in awake:
            m.training = True


def _input_shapes(network: Network, names: list[str], x: Tensor) -> dict[str, list[Size]]:
    """The shape of the first input of every call of these submodules, in the order of their first call."""
    shapes: dict[str, list[Size]] = {}
    handles = []

    def look(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            shapes.setdefault(name, []).append((args[0] if args else next(iter(kwargs.values()))).shape)

        return hook

    try:
        for name in names:
            submodule = network.module.get_submodule(name)
            handles.append(submodule.register_forward_pre_hook(look(name), with_kwargs=True))
        with torch.no_grad():
            network(network.layer_parameters(), x)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _flat(sizes: Iterable[int], kept: int, rest: int) -> tuple[int, ...]:
    return tuple(size if i < kept else rest for i, size in enumerate(sizes))


def _where(places: tuple[Place, ...]) -> str:
    if not places:
        return "no input is masked: every draw is the same network"
    named = (f'"{place.key.rpartition(":")[0]}" ({place.rate:g})' for place in places)
    return f"masks on the inputs of {', '.join(named)}"
