r"""Curvature of a log-likelihood in a network's chosen layers, one column of the outputs' Hessian at a time.

With H_n the Hessian of -log p(y_n | f_n) in the outputs, and J_n = ∂f_n/∂w, the generalised Gauss-Newton
matrix is

    G = Σ_n J_nᵀ H_n J_n = Σ_n Σ_s (J_nᵀ s)(J_nᵀ s)ᵀ,      H_n = Σ_s s sᵀ

and the Fisher matrices replace Σ_s by a drawn label's or the true label's score. For a layer z = x W with the
gradients g = ∂(sᵀf)/∂z of its outputs, J_nᵀ s is Σ_t x_t g_tᵀ over the T rows t that the layer has of one
example (T > 1 for convolutions, sequences and layers that are used again):

    full        Σ_n Σ_s vec(Σ_t x g) vec(Σ_t x g)ᵀ                 over all layers together
    diagonal    Σ_n Σ_s (Σ_t x g)²
    Kronecker   (Σ x xᵀ) ⊗ (Σ Σ_s g gᵀ) / R,  R = N T              every shared position is a row of its own

Norms and embeddings (`networks/elementwise.py`) have such rows too, and a diagonal beside others' factors.
All are sums over rows: batches add in any split. No array of batch x outputs x parameters is ever formed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Generator, Tensor

from bayeswise.linalg import GramSum, first_alike, is_picks, merged, scattered
from bayeswise.networks.network import Network, Params
from bayeswise.networks.signals import by_call, recorded

Gradients = dict[str, Tensor]  # g (…, R, O) by layer, of one column
CHUNK_NUMBERS = 2**22  # of the per-example gradients that are held at once
ENOUGH_ROWS = 512  # for one product: fewer are joined with those of the next columns


class Curved(Protocol):
    """What curvature asks of a likelihood."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log p(y | f) of every row."""
        ...

    def hessian_root(self, f: Tensor, rng: Generator | None = None) -> Iterator[Tensor]:
        """Columns s (…, B, O) with Σ s sᵀ = H; with `rng` one random column with E[s sᵀ] = H."""
        ...

    def hessian_sum(self, f: Tensor) -> Tensor:
        """The sum of H over the batch, (…, O, O)."""
        ...


class Curvature(Protocol):
    """Which matrix: the columns s (…, B, O) that stand for H."""

    def columns(self, likelihood: Curved, f: Tensor, y: Tensor, rng: Generator) -> Iterator[Tensor]:
        """One column after another."""
        ...

    def sum(self, likelihood: Curved, f: Tensor) -> Tensor | None:
        """Σ_n Σ_s s sᵀ (…, O, O) where it is known without columns."""
        ...


@dataclass(frozen=True)
class GaussNewton:
    """The exact generalised Gauss-Newton matrix: a column for each output, for classes one fewer."""

    def columns(self, likelihood: Curved, f: Tensor, y: Tensor, rng: Generator) -> Iterator[Tensor]:
        """The columns of an exact root of H."""
        return likelihood.hessian_root(f)

    def sum(self, likelihood: Curved, f: Tensor) -> Tensor | None:
        """Σ_n H_n."""
        return likelihood.hessian_sum(f)


@dataclass(frozen=True)
class MonteCarloFisher:
    """The same in expectation, from labels drawn by the model: as many columns as samples."""

    samples: int = 1

    def columns(self, likelihood: Curved, f: Tensor, y: Tensor, rng: Generator) -> Iterator[Tensor]:
        """The scores of drawn labels."""
        for _ in range(self.samples):
            for column in likelihood.hessian_root(f, rng):
                yield column / self.samples**0.5

    def sum(self, likelihood: Curved, f: Tensor) -> Tensor | None:
        """Only by columns."""
        return None


@dataclass(frozen=True)
class EmpiricalFisher:
    """Products of the gradients at the true labels: one column."""

    def columns(self, likelihood: Curved, f: Tensor, y: Tensor, rng: Generator) -> Iterator[Tensor]:
        """The score ∂ log p(y | f) / ∂f."""
        with torch.enable_grad():
            point = f.detach().requires_grad_()
            yield torch.autograd.grad(likelihood.log_prob(point, y).sum(), point)[0]

    def sum(self, likelihood: Curved, f: Tensor) -> Tensor | None:
        """Only by columns."""
        return None


# ------------------------------------------------------------------------- one pass forward, many backward


@dataclass(frozen=True)
class Backward:
    """A pass forward, and one backward pass for each column that is asked for."""

    output: Tensor  # f (…, B, O)
    rows: dict[str, Tensor]  # x (…, R, I) by layer, one example after another; of embeddings places (…, R, 1)
    back: Callable[[Tensor], Gradients]  # s (…, B, O) -> g of every layer
    inputs: dict[str, int]  # I by layer

    @property
    def examples(self) -> int:
        """B."""
        return self.output.shape[-2]

    def without(self, *names: str | None) -> Backward:
        """The same, blind for some layers."""
        rows = {key: x for key, x in self.rows.items() if key not in names}
        return replace(
            self, rows=rows, back=lambda s: {k: g for k, g in self.back(s).items() if k not in names}
        )

    def per_example(self, name: str, g: Tensor) -> Tensor:
        """Σ_t x g of every example, (…, B, I, O)."""
        x, g = self.rows[name].unflatten(-2, (self.examples, -1)), g.unflatten(-2, (self.examples, -1))
        return scattered(x, g, self.inputs[name]) if is_picks(x) else x.mT @ g

    def flat(self, grads: Gradients) -> Tensor:
        """J_nᵀ s of every example, all layers one after another: (…, B, P)."""
        lead = self.output.dim() - 2
        parts = [self.per_example(name, grads[name]).flatten(-2) for name in self.rows]
        return torch.cat([beside(part, lead) for part in parts], -1)

    def blocks(self, grads: Gradients) -> Iterator[Tensor]:
        """The same for a few examples at a time, so that few numbers are held."""
        size = sum(self.inputs[name] * self._outputs(g) for name, g in grads.items())
        per = self.examples if self.examples * size <= CHUNK_NUMBERS else max(1, CHUNK_NUMBERS // size)
        for start in range(0, self.examples, per):
            part = slice(start, min(start + per, self.examples))
            rows = {name: _part(x, part, self.examples) for name, x in self.rows.items()}
            few = replace(self, output=self.output[..., part, :], rows=rows)
            yield few.flat({name: _part(g, part, self.examples) for name, g in grads.items()})

    def _outputs(self, g: Tensor) -> int:
        """O of all the regressions that a layer has side by side."""
        return g.shape[-1] * g.shape[self.output.dim() - 2 : -2].numel()


def beside(features: Tensor, lead: int) -> Tensor:
    """Numbers of every example (…, B, F), where independent regressions had them apart (…, G, B, F)."""
    return features if features.dim() == lead + 2 else features.movedim(-3, -2).flatten(-2)


def _part(rows: Tensor, part: slice, examples: int) -> Tensor:
    """The rows of some examples."""
    return rows.unflatten(-2, (examples, -1))[..., part, :, :].flatten(-3, -2)


def backward(network: Network, params: Params, x: Tensor, lead: int = 0) -> Backward:
    """Run the network at these parameters; columns come back as gradients of the layers' outputs.

    With `lead` = 1 parameters and x carry a leading member dimension.
    """
    with torch.enable_grad():
        f, tape, points = recorded(network, params, x, lead)
    flat = [point for name in points for point in points[name]]
    views = {view.name: view for view in network.layers}

    def joined(name: str, parts: list[Tensor]) -> Tensor:
        return _by_example(parts, f.shape[-2], name)

    def back(s: Tensor) -> Gradients:
        found = iter(
            torch.autograd.grad(f, flat, s, retain_graph=True, allow_unused=True, materialize_grads=True)
        )
        grads = {name: by_call(tape[name], [next(found) for _ in of]) for name, of in points.items()}
        return {k: joined(k, [views[k].output_rows(g, lead) for g in of]) for k, of in grads.items()}

    rows = {view.name: joined(view.name, [rows for rows, _ in tape[view.name]]) for view in network.layers}
    return Backward(f.detach(), rows, back, {view.name: view.inputs for view in network.layers})


def _by_example(parts: list[Tensor], examples: int, name: str) -> Tensor:
    """The rows of all calls, those of one example beside one another: (…, B·T, width)."""
    for part in parts:
        if part.shape[-2] % examples:
            raise ValueError(
                f'layer "{name}" has {part.shape[-2]} rows for {examples} examples; its rows must belong to '
                "single examples: leave the layer out with select=…"
            )
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.unflatten(-2, (examples, -1)) for part in parts], -2).flatten(-3, -2)


# --------------------------------------------------------------------------- sums over the rows of one batch


def right_factors(done: Backward, columns: Iterator[Tensor]) -> dict[str, Tensor]:
    """Σ Σ_s g gᵀ of every layer, (…, O, O)."""
    return right_factors_and_diagonal(done, columns, ())[0]


def right_factors_and_diagonal(
    done: Backward, columns: Iterator[Tensor], elementwise: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Σ Σ_s g gᵀ of every layer, but the diagonal of those that are named: from the same backward passes."""
    squares, products = Squares(done), Products()
    for s in columns if done.rows else ():
        grads = done.back(s)
        squares.add_({name: grads.pop(name) for name in elementwise})
        products.add_(grads)
    return products.sums(), squares.sums()


@dataclass(frozen=True)
class Products:
    """Σ Σ_s g gᵀ, one column after another; each while it is at hand, unless its rows are few."""

    total: dict[str, GramSum] = field(default_factory=dict)
    held: dict[str, list[Tensor]] = field(default_factory=dict)

    def add_(self, grads: Gradients) -> None:
        """Add a column."""
        for name, g in grads.items():
            some = self.held.setdefault(name, [])
            some.append(g)
            if len(some) * g.shape[-2] >= ENOUGH_ROWS:
                self._join(name)

    def sums(self) -> dict[str, Tensor]:
        """Those of the columns so far, (…, O, O) by layer."""
        for name in self.held:
            self._join(name)
        return {name: total.total() for name, total in self.total.items()}

    def _join(self, name: str) -> None:
        some = self.held[name]
        if not some:
            return
        rows = some[0] if len(some) == 1 else torch.cat(some, -2)
        if name not in self.total:
            self.total[name] = GramSum.like(rows)
        self.total[name].add_(rows)
        some.clear()


def diagonal(done: Backward, columns: Iterator[Tensor]) -> dict[str, Tensor]:
    """Σ_n Σ_s (Σ_t x g)² of every layer, (…, I, O)."""
    squares = Squares(done)
    for s in columns:
        squares.add_(done.back(s))
    return squares.sums()


@dataclass(frozen=True)
class Squares:
    """Σ_n Σ_s (Σ_t x g)², one column after another."""

    done: Backward
    total: dict[str, Tensor] = field(default_factory=dict)  # (…, I, O), or Σ_s g² of rows that stand alone
    first: dict[str, Tensor] = field(default_factory=dict)  # of places, the first of those that are alike

    def add_(self, grads: Gradients) -> None:
        """Add a column."""
        for name, g in grads.items():
            if self._stand_alone(name):
                g = self._merged(name, g) if is_picks(self.done.rows[name]) else g
                self.total[name] = self.total[name].addcmul_(g, g) if name in self.total else g.square()
            else:
                found = _squared_gradients(self.done.rows[name], g, self.done.examples)
                self.total[name] = self.total[name].add_(found) if name in self.total else found

    def sums(self) -> dict[str, Tensor]:
        """Those of the columns so far, (…, I, O) by layer."""
        return {name: self._sum(name, self.total[name]) for name in self.done.rows if name in self.total}

    def _sum(self, name: str, total: Tensor) -> Tensor:
        x = self.done.rows[name]
        if is_picks(x):
            return scattered(x, total, self.done.inputs[name])
        return x.square().mT @ total if self._stand_alone(name) else total

    def _stand_alone(self, name: str) -> bool:
        """Whether an example has one row; or, where rows pick places, one for each place."""
        x = self.done.rows[name]
        return x.shape[-2] == self.done.examples or is_picks(x)

    def _merged(self, name: str, g: Tensor) -> Tensor:
        """The sums of an example's rows that are alike, (…, R, O)."""
        apart = (self.done.examples, -1)
        if name not in self.first:
            self.first[name] = first_alike(self.done.rows[name].unflatten(-2, apart))
        return merged(self.first[name], g.unflatten(-2, apart)).flatten(-3, -2)


def _squared_gradients(x: Tensor, g: Tensor, examples: int) -> Tensor:
    """Σ_n (Σ_t x g)², a few examples at a time."""
    x, g = x.unflatten(-2, (examples, -1)), g.unflatten(-2, (examples, -1))  # (…, B, T, ·)
    size = max(1, CHUNK_NUMBERS // (x.shape[-1] * g.shape[-1] * x.shape[:-3].numel()))
    parts = zip(x.split(size, -3), g.split(size, -3), strict=True)
    return torch.stack([(a.mT @ b).square().sum(-3) for a, b in parts]).sum(0)


def full(done: Backward, columns: Iterator[Tensor]) -> Tensor:
    """Σ_n Σ_s vec(Σ_t x g) vec(Σ_t x g)ᵀ of all layers together, (…, P, P).

    In float64: what products lose in float32, an inverse enlarges by the condition of the matrix.
    """
    total: GramSum | None = None
    for s in columns:
        rows = done.flat(done.back(s)).double()
        total = GramSum.like(rows) if total is None else total
        total.add_(rows)
    return torch.zeros(()) if total is None else total.total()
