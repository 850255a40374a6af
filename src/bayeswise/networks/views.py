"""Layer views: a layer seen as the linear map z = x W of rows, whatever its own shape is.

A view is the extension point for layer types: register a function in `VIEWS` and every layerwise method
can train the layer.

How rows that share one input count is said here, once, for every view: R is the number of rows of *this
layer* in the batch, for each of B inputs one row per position (of a sequence, or of a convolution's output)
and per call. A row counts for N_eff / R rows of the data (`Problem.row_weight`), so that the positions of one
input together have one row's worth of evidence: more positions make a layer's statistics smoother, not surer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from bayeswise.networks.convolutions import convolution_view
from bayeswise.networks.plain import is_plain, parameter_names


class LayerView(Protocol):
    """How one layer becomes rows: x (…, R, I) with its column of ones, W (…, I, O), z = x W.

    A layer of G independent regressions has the dimension G before the last two: x (…, G, R, I) and so on.
    """

    @property
    def name(self) -> str:
        """The layer's name in the module."""
        ...

    @property
    def inputs(self) -> int:
        """I, the column of ones counted."""
        ...

    @property
    def bias(self) -> bool:
        """Whether there is a column of ones; its weights are the last row of W."""
        ...

    @property
    def outputs(self) -> int:
        """O."""
        ...

    @property
    def groups(self) -> tuple[int, ...]:
        """(G,) for G independent regressions side by side, () for one."""
        ...

    @property
    def size(self) -> int:
        """The number of weights, those of the column of ones counted."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the module's parameters that this layer owns."""
        ...

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """The layer's input as rows (…, R, I), `lead` of whose dimensions are members."""
        ...

    def output_rows(self, z: Tensor, lead: int) -> Tensor:
        """The layer's output as rows (…, R, O)."""
        ...

    def unrows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows (…, R, O) in the shape of the layer's output."""
        ...

    def matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """W from the module's own parameters."""
        ...

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """The module's own parameters from W."""
        ...


@dataclass(frozen=True)
class LinearView:
    """`nn.Linear`: W is torch's weight transposed, with the bias as its last row.

    `lead` says how many leading dimensions are members; all others but the last are rows.
    """

    name: str
    features: int
    outputs: int
    bias: bool

    @property
    def inputs(self) -> int:
        """I: the features, and the column of ones where there is a bias."""
        return self.features + self.bias

    @property
    def groups(self) -> tuple[int, ...]:
        """One regression."""
        return ()

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the module's parameters that this layer owns."""
        return parameter_names(self.name, self.bias)

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """The layer's input as rows (…, R, I): a copy, because the module may change its tensor in place."""
        flat = _flat(x, lead)
        return torch.cat([flat, flat.new_ones(*flat.shape[:-1], 1)], -1) if self.bias else flat.clone()

    def output_rows(self, z: Tensor, lead: int) -> Tensor:
        """The layer's output as rows (…, R, O)."""
        return _flat(z, lead)

    def unrows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows (…, R, O) in the shape of the layer's output `like`."""
        return rows.reshape(like.shape)

    def matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """W (…, I, O) from the module's own parameters."""
        weight = parameters[self.parameters[0]].mT
        return torch.cat([weight, parameters[self.parameters[1]][..., None, :]], -2) if self.bias else weight

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """The module's own parameters from W (…, I, O)."""
        if not self.bias:
            return {self.parameters[0]: matrix.mT}
        weight, bias = self.parameters
        return {weight: matrix[..., :-1, :].mT, bias: matrix[..., -1, :]}


def _flat(x: Tensor, lead: int) -> Tensor:
    """All dimensions between the leading and the last one as rows; one row where there is none."""
    extra = x.dim() - lead
    return x if extra == 2 else x.flatten(lead, -2) if extra > 2 else x.unsqueeze(-2)


def linear_view(name: str, module: nn.Module) -> LinearView | None:
    """The view of a plain `nn.Linear`; None where a subclass or parametrisation changes what it computes."""
    if not isinstance(module, nn.Linear) or not is_plain(module, nn.Linear):
        return None
    return LinearView(name, module.in_features, module.out_features, module.bias is not None)


VIEWS: list[Callable[[str, nn.Module], LayerView | None]] = [linear_view, convolution_view]


def view_of(name: str, module: nn.Module) -> LayerView | None:
    """The first registered view that knows this module."""
    for make in VIEWS:
        view = make(name, module)
        if view is not None:
            return view
    return None
