"""The forms that a curvature can take, with the same few operations: begin, add a batch, be a Gaussian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from bayeswise.distributions import (
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
    LayerGaussian,
    LowRankGaussian,
)
from bayeswise.linalg import GramSum
from bayeswise.linearised import Link
from bayeswise.networks import LayerView, Network, Params, is_elementwise
from bayeswise.networks.curvature import (
    CHUNK_NUMBERS,
    ENOUGH_ROWS,
    Backward,
    diagonal,
    full,
    right_factors_and_diagonal,
)
from bayeswise.weights import JointGaussian, LayerGaussians
from bayeswise.weights.curved import flat_precision, inner

Precision = Mapping[str, Tensor]  # δ of every layer, (…,)


@dataclass(frozen=True)
class Columns:
    """What a batch adds: its pass, the columns s, and Σ s sᵀ where that is known without them."""

    done: Backward
    columns: Iterator[Tensor]
    known: Tensor | None  # (…, O, O)
    output_layer: str | None
    ends: bool = True  # whether it is the last batch of a pass


@dataclass(frozen=True)
class LayerSize:
    """A layer's shape and its rows in a batch."""

    inputs: int
    outputs: int
    groups: int
    rows: int
    row: int  # numbers that a row is held as
    shared: bool  # more than one row for each example
    is_output: bool
    elementwise: bool

    @property
    def weights(self) -> int:
        """How many."""
        return self.groups * self.inputs * self.outputs

    @property
    def signals(self) -> int:
        """Numbers of the gradients of its outputs, for one column."""
        return self.groups * self.rows * self.outputs

    def gradients(self, examples: int) -> int:
        """Numbers of the gradients of single examples; of places those that are picked."""
        return self.signals if self.row < self.inputs else examples * self.weights


@dataclass(frozen=True)
class Sizes:
    """What decides how much memory a structure takes."""

    layers: tuple[LayerSize, ...]
    examples: int  # of a batch
    columns: int
    width: int  # the most numbers that any part of the network gives for one example

    @property
    def weights(self) -> int:
        """Of all layers."""
        return sum(layer.weights for layer in self.layers)

    def parted(self) -> tuple[Sizes, Sizes]:
        """The layers that are regressions, and those that are not."""
        own = tuple(layer for layer in self.layers if not layer.elementwise)
        others = tuple(layer for layer in self.layers if layer.elementwise)
        return replace(self, layers=own), replace(self, layers=others)

    @property
    def forward(self) -> int:
        """Numbers that a pass forward holds: of these layers rows, outputs twice and what comes behind."""
        kept = sum(layer.groups * layer.rows * layer.row + 3 * layer.signals for layer in self.layers)
        return kept + 2 * self.examples * self.width


@dataclass(frozen=True)
class Numbers:
    """How many numbers a structure holds: of a step in the network's precision, else in float64."""

    state: int
    step: int
    posterior: int


class Structure(Protocol):
    """A form of curvature; sums are tensors by name."""

    @property
    def passes(self) -> int:
        """How often the rows are gone through."""
        ...

    @property
    def word(self) -> str:
        """What it is called in a sentence."""
        ...

    def empty(self, network: Network, lead: tuple[int, ...]) -> Params:
        """The sums over no rows."""
        ...

    def add_(self, sums: Params, batch: Columns) -> None:
        """Add those of a batch."""
        ...

    def gaussian(
        self, sums: Params, means: dict[str, Tensor], precision: Precision, link: Link | None
    ) -> LayerGaussians | JointGaussian:
        """N(M, (G + δ)⁻¹)."""
        ...

    def numbers(self, sizes: Sizes) -> Numbers:
        """What it will hold."""
        ...


def require_layers(network: Network) -> None:
    """Refuse a model whose weights would all be certain."""
    if not network.layers:
        raise ValueError(
            "Laplace found no layer to infer: the model calls none that is supported and selected; supported "
            "are Linear, Conv1d, Conv2d, norms with scale and shift, and Embedding, not a bare nn.Parameter"
        )


@dataclass(frozen=True)
class Kronecker:
    """Every layer's block as the product of two small matrices, (Σ x xᵀ) ⊗ (Σ g gᵀ) / R.

    `bias` "joint" keeps the covariance between a layer's weights and its bias, "apart" drops it. Norms and
    embeddings have the exact diagonal.
    """

    bias: Literal["joint", "apart"] = "joint"
    passes = 1
    word = "Kronecker"

    def __post_init__(self) -> None:
        """Refuse another word."""
        if self.bias not in ("joint", "apart"):
            raise ValueError(f'Kronecker: bias is "joint" or "apart", not {self.bias!r}')

    def empty(self, network: Network, lead: tuple[int, ...]) -> Params:
        """Two factors for each layer, and its rows; of norms and embeddings the diagonal."""
        sums: Params = {}
        for view in network.layers:
            if is_elementwise(view):
                sums[f"{view.name}/diagonal"] = _of_weights(network, view, lead)
                continue
            own = (*lead, *view.groups)
            sums[f"{view.name}/left"] = _zeros(network, *own, view.inputs, view.inputs)
            sums[f"{view.name}/right"] = _zeros(network, *own, view.outputs, view.outputs)
            sums[f"{view.name}/rows"] = _zeros(network)
            if self.bias == "apart" and view.bias:
                sums[f"{view.name}/apart"] = _zeros(network)  # says that the last input is the column of ones
        return sums

    def add_(self, sums: Params, batch: Columns) -> None:
        """The output's layer needs no backward pass where Σ s sᵀ is known."""
        done, last, known = batch.done, batch.output_layer, {}
        if last is not None and last in done.rows and batch.known is not None:
            known, done = {last: batch.known}, done.without(last)
        elementwise = [name for name in done.rows if f"{name}/diagonal" in sums]
        right, squares = right_factors_and_diagonal(done, batch.columns, elementwise)
        right |= known
        for name, x in batch.done.without(*elementwise).rows.items():  # of the left factor one triangle
            GramSum(sums[f"{name}/left"]).add_(x)
            sums[f"{name}/right"] += right[name]
            sums[f"{name}/rows"] += x.shape[-2]
        for name in elementwise:
            sums[f"{name}/diagonal"] += squares[name]

    def gaussian(
        self, sums: Params, means: dict[str, Tensor], precision: Precision, link: Link | None
    ) -> LayerGaussians:
        """In the eigenbasis of the factors."""
        layers: dict[str, LayerGaussian] = {}
        for name, mean in means.items():
            if f"{name}/diagonal" in sums:
                squares = sums[f"{name}/diagonal"].clone()
                layers[name] = DiagonalGaussian(squares, inner(precision[name], mean))
                continue
            left, right, rows = (sums[f"{name}/{part}"] for part in ("left", "right", "rows"))
            left = _apart(left) if f"{name}/apart" in sums else left
            layers[name] = KroneckerGaussian.of(left, right, rows, inner(precision[name], left))
        return LayerGaussians(means, {}, None, link, layers)

    def numbers(self, sizes: Sizes) -> Numbers:
        """Factors, their eigenvectors and values; the gradients of a column, or of several with few rows."""
        own, others = sizes.parted()
        factors = sum(k.groups * (k.inputs**2 + k.outputs**2) for k in own.layers)
        inner = [k for k in own.layers if not k.is_output]
        held = [k.signals * min(sizes.columns, -(-ENOUGH_ROWS // k.rows)) for k in inner] or [0]
        step = sizes.forward + sum(k.signals for k in inner) + sum(held) + max(held)
        if others.layers:
            apart = Diagonal().numbers(others)
            step += apart.step - others.forward
        return Numbers(factors + others.weights, step, factors + 2 * sizes.weights)


def _apart(left: Tensor) -> Tensor:
    """Without the products of inputs and the column of ones, the last one."""
    left = left.clone()
    left[..., -1, :-1] = 0
    left[..., :-1, -1] = 0
    return left


@dataclass(frozen=True)
class Diagonal:
    """One number for each weight: the exact diagonal."""

    passes = 1
    word = "diagonal"

    def empty(self, network: Network, lead: tuple[int, ...]) -> Params:
        """Zeros of the weights' shape."""
        return {view.name: _of_weights(network, view, lead) for view in network.layers}

    def add_(self, sums: Params, batch: Columns) -> None:
        """Squared gradients."""
        for name, found in diagonal(batch.done, batch.columns).items():
            sums[name] += found

    def gaussian(
        self, sums: Params, means: dict[str, Tensor], precision: Precision, link: Link | None
    ) -> LayerGaussians:
        """Independent weights."""
        layers = {
            name: DiagonalGaussian(sums[name].clone(), inner(precision[name], mean))
            for name, mean in means.items()
        }
        return LayerGaussians(means, {}, None, link, layers)

    def numbers(self, sizes: Sizes) -> Numbers:
        """One for each weight; gradients of single examples only where rows are shared."""
        own = [k for k in sizes.layers if k.shared]
        apart = max((min(CHUNK_NUMBERS, k.gradients(sizes.examples)) for k in own), default=0)
        step = sizes.forward + 2 * sum(k.signals for k in sizes.layers) + 2 * apart
        return Numbers(sizes.weights, step, 2 * sizes.weights)


@dataclass(frozen=True)
class Full:
    """All weights of all layers together; the matrix is as large as the square of their number."""

    limit: int = 20_000  # weights, beyond which it is refused: their square takes 3.2 GB
    passes = 1
    word = "full"

    def empty(self, network: Network, lead: tuple[int, ...]) -> Params:
        """One matrix."""
        size = sum(view.size for view in network.layers)
        if size > self.limit:
            raise ValueError(
                f"a full covariance of {size} weights needs {8 * size**2 / 1e9:.1f} GB; use Kronecker(), "
                f"fewer layers (subset), or raise Full(limit={self.limit})"
            )
        return {"full": _zeros(network, *lead, size, size)}

    def add_(self, sums: Params, batch: Columns) -> None:
        """Products of all gradients."""
        sums["full"] += full(batch.done, batch.columns)

    def gaussian(
        self, sums: Params, means: dict[str, Tensor], precision: Precision, link: Link | None
    ) -> JointGaussian:
        """With one Cholesky factor."""
        joint = DenseGaussian.of(sums["full"], flat_precision(means, precision))
        return JointGaussian(means, {}, None, link, joint)

    def numbers(self, sizes: Sizes) -> Numbers:
        """Squares of the number of weights: the sum, one of a batch in float64, G and its factor."""
        size = sizes.weights
        step = sizes.forward + 3 * sizes.examples * size + 2 * size**2
        return Numbers(size**2, step, 2 * size**2 + 2 * size)


@dataclass(frozen=True)
class LowRank:
    """The largest eigenvalues of the full matrix and their directions, found by going through the rows again.

    Every pass multiplies `rank` + `extra` directions by the matrix, which turns them towards the largest
    eigenvalues; more passes or more extra directions come closer. One prior precision serves all layers.
    """

    rank: int
    passes: int = 6
    extra: int = 10
    word = "low rank"

    def __post_init__(self) -> None:
        """Refuse numbers without meaning."""
        if self.rank < 1 or self.passes < 2 or self.extra < 0:
            raise ValueError(f"LowRank: rank and extra must be positive, passes at least 2, not {self}")

    def empty(self, network: Network, lead: tuple[int, ...]) -> Params:
        """Random directions."""
        size = sum(view.size for view in network.layers)
        rng = torch.Generator(network.device).manual_seed(0)
        shape = (*lead, size, min(size, self.rank + self.extra))
        start = torch.randn(shape, generator=rng, dtype=torch.float64, device=network.device)
        basis = torch.linalg.qr(start).Q.contiguous()
        return {"basis": basis, "product": torch.zeros_like(basis), "turns": _zeros(network)}

    def add_(self, sums: Params, batch: Columns) -> None:
        """G V of the batch; after a pass, but the last, V becomes an orthonormal basis of G V."""
        basis = sums["basis"].to(batch.done.output.dtype)
        for s in batch.columns:
            for jacobian in batch.done.blocks(batch.done.back(s)):  # (…, b, P)
                sums["product"] += jacobian.mT @ (jacobian @ basis)
        if batch.ends:
            sums["turns"] += 1
            if int(sums["turns"]) < self.passes:
                sums["basis"].copy_(torch.linalg.qr(sums["product"]).Q)
                sums["product"].zero_()

    def gaussian(
        self, sums: Params, means: dict[str, Tensor], precision: Precision, link: Link | None
    ) -> JointGaussian:
        """The best that the last directions hold (Rayleigh and Ritz)."""
        basis = sums["basis"]
        inside = basis.mT @ sums["product"]  # Vᵀ G V
        values, turn = torch.linalg.eigh(0.5 * (inside + inside.mT))
        found = (basis @ turn)[..., -self.rank :].contiguous()
        joint = LowRankGaussian(
            found, values[..., -self.rank :].clamp_min(0), flat_precision(means, precision)
        )
        return JointGaussian(means, {}, None, link, joint)

    def numbers(self, sizes: Sizes) -> Numbers:
        """Directions and their products; gradients of single examples, a few at a time."""
        size = sizes.weights
        kept = size * min(size, self.rank + self.extra)
        step = sizes.forward + 3 * min(max(size, CHUNK_NUMBERS), sizes.examples * size) + 2 * kept
        return Numbers(2 * kept, step, size * (min(size, self.rank) + 2))


def _zeros(network: Network, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=network.device)


def _of_weights(network: Network, view: LayerView, lead: tuple[int, ...]) -> Tensor:
    """Zeros (…, I, O)."""
    return _zeros(network, *lead, *view.groups, view.inputs, view.outputs)
