"""Norms and embeddings as layer views: each of their weights moves one number of the output by itself.

They are no regressions, so methods that solve one leave them alone; a method that takes them asks for
`Network.with_elementwise()` and gives them a diagonal.

A norm is z_c = x̂_c w_c + b_c for every channel c: C groups with the rows (x̂, 1) and a single output. An
embedding is z = W_v: its row is one-hot, and held as the whole number v (see `linalg/picks.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayeswise.networks.plain import is_plain, parameter_names
from bayeswise.networks.views import LayerView


def _batch_normed(module: Any, x: Tensor) -> Tensor:
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


def _layer_normed(module: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.normalized_shape, eps=module.eps)


def _rms_normed(module: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, list(module.normalized_shape), eps=module.eps)


def _group_normed(module: Any, x: Tensor) -> Tensor:
    return F.group_norm(x, module.num_groups, eps=module.eps)


NORMED: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.BatchNorm1d: _batch_normed,
    nn.BatchNorm2d: _batch_normed,
    nn.BatchNorm3d: _batch_normed,
    nn.LayerNorm: _layer_normed,
    nn.RMSNorm: _rms_normed,
    nn.GroupNorm: _group_normed,
}  # x̂ of a module and its input


@dataclass(frozen=True)
class NormView:
    """A norm with a scale, and maybe a shift, for each channel: W (…, C, 2, 1) or (…, C, 1, 1)."""

    name: str
    shape: tuple[int, ...]  # of the scale
    bias: bool
    last: bool  # whether channels are the last dimensions, as in LayerNorm, and not the second
    module: nn.Module = field(repr=False, compare=False)
    normed: Callable[[Any, Tensor], Tensor] = field(repr=False)
    outputs = 1

    @property
    def inputs(self) -> int:
        """The normed number, and a one where there is a shift."""
        return 1 + self.bias

    @property
    def groups(self) -> tuple[int, ...]:
        """(C,)."""
        return (math.prod(self.shape),)

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.inputs * math.prod(self.shape)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the module's parameters that this layer owns."""
        return parameter_names(self.name, self.bias)

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """(x̂, 1) as rows (…, C, R, 2), by the statistics that the module has in this pass."""
        normed = self.output_rows(self.normed(self.module, x), lead)
        return torch.cat([normed, torch.ones_like(normed)], -1) if self.bias else normed

    def output_rows(self, z: Tensor, lead: int) -> Tensor:
        """The layer's output as rows (…, C, R, 1)."""
        members = z.shape[:lead]
        if self.last:
            return z.reshape(*members, -1, *self.groups).mT[..., None]
        by_channel = z.flatten(lead + 2).transpose(lead, lead + 1) if z.dim() > lead + 2 else z.mT
        return by_channel.reshape(*members, *self.groups, -1, 1)

    def unrows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows (…, C, R, 1) in the shape of the layer's output `like`."""
        rows = rows[..., 0]  # (…, C, R)
        if self.last:
            return rows.mT.reshape(like.shape)
        lead = rows.dim() - 2
        rows = rows.unflatten(-1, (like.shape[lead], -1))  # (…, C, B, T)
        return rows.transpose(-3, -2).reshape(like.shape)

    def matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """W (…, C, 2, 1) from the module's own parameters."""
        parts = [parameters[name].flatten(-len(self.shape)) for name in self.parameters]
        return torch.stack(parts, -1)[..., None]

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """The module's own parameters from W."""
        parts = matrix[..., 0].movedim(-1, 0).contiguous()  # with strides batch_norm's gradient is wrong
        return {k: part.unflatten(-1, self.shape) for k, part in zip(self.parameters, parts, strict=True)}


@dataclass(frozen=True)
class EmbeddingView:
    """`nn.Embedding`: W is its own weight (…, V, D), and a row the place v of its one."""

    name: str
    inputs: int  # V
    outputs: int  # D

    @property
    def bias(self) -> bool:
        """There is none."""
        return False

    @property
    def groups(self) -> tuple[int, ...]:
        """One table."""
        return ()

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the module's parameters that this layer owns."""
        return parameter_names(self.name, False)

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """The places (…, R, 1), whole numbers."""
        return x.reshape(*x.shape[:lead], -1, 1).long().clone()

    def output_rows(self, z: Tensor, lead: int) -> Tensor:
        """The layer's output as rows (…, R, D)."""
        return z.reshape(*z.shape[:lead], -1, self.outputs)

    def unrows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows (…, R, D) in the shape of the layer's output `like`."""
        return rows.reshape(like.shape)

    def matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """W (…, V, D): the module's own weight."""
        return parameters[self.parameters[0]]

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """The module's own weight."""
        return {self.parameters[0]: matrix}


def elementwise_view(name: str, module: nn.Module) -> LayerView | None:
    """The view of a plain norm with a scale, or of a plain embedding; else None."""
    if unsuited(module) is not None:
        return None
    if isinstance(module, nn.Embedding):
        return EmbeddingView(name, module.num_embeddings, module.embedding_dim)
    normed = NORMED[next(kind for kind in NORMED if isinstance(module, kind))]
    weight, bias = module.get_parameter("weight"), getattr(module, "bias", None) is not None
    last = isinstance(module, nn.LayerNorm | nn.RMSNorm)
    return NormView(name, tuple(weight.shape), bias, last, module, normed)


def is_elementwise(view: LayerView) -> bool:
    """Whether a view is one of those here."""
    return isinstance(view, NormView | EmbeddingView)


def unsuited(module: nn.Module) -> str | None:
    """Why a module has no such view; None where it has."""
    word = type(module).__name__
    kind = next((kind for kind in (nn.Embedding, *NORMED) if isinstance(module, kind)), None)
    if kind is None or not is_plain(module, kind):
        return f"{word} is none of the layers that can be inferred"
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        return f"{word} has a padding vector, which must stay"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return f"{word} changes its own weights (max_norm)"
    if getattr(module, "running_mean", 0) is None:
        return f"{word} takes its statistics from the batch"
    return None
