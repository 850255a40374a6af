"""Convolutions as layer views: each output position is a row, the patch it looks at is that row's input.

A batch of B inputs with P output positions gives R = B·P rows; what such rows count for is said in
`networks/views.py`. The patches of a batch are held at once, R x I numbers: about as many as the layer's
input has, times the numbers of a kernel where the stride is 1. A smaller batch needs less.

G groups are G regressions side by side that share nothing, and so a leading dimension (…, G, R, I).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Size, Tensor, nn
from torch.nn import functional as F

from bayeswise.networks.plain import is_plain, parameter_names

MODES = {"zeros": "constant"}  # as `F.pad` calls them, where the name is another


@dataclass(frozen=True)
class Window:
    """Where the patches of a convolution lie; one number for each dimension of space."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after
    mode: str  # of `F.pad`

    @classmethod
    def of(cls, module: nn.Conv1d | nn.Conv2d) -> Window:
        """The window of a module."""
        mode = MODES.get(module.padding_mode, module.padding_mode)
        return cls(module.kernel_size, module.stride, module.dilation, _padding(module), mode)

    @property
    def space(self) -> int:
        """The dimensions of space."""
        return len(self.kernel)

    def patches(self, x: Tensor) -> Tensor:
        """The patches (N, C, P…, k…) of inputs x (N, C, …): a view of their padded numbers."""
        if any(map(any, self.padding)):
            x = F.pad(x, [size for pair in reversed(self.padding) for size in pair], self.mode)
        sizes = zip(self.kernel, self.stride, self.dilation, strict=True)
        for dim, (kernel, stride, dilation) in enumerate(sizes, start=2):
            x = x.unfold(dim, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
        return x


def _padding(module: nn.Conv1d | nn.Conv2d) -> tuple[tuple[int, int], ...]:
    """Before and after, along each dimension; "same" puts an odd number's rest after."""
    if module.padding == "valid":
        return ((0, 0),) * len(module.kernel_size)
    if isinstance(module.padding, str):
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((size, size) for size in module.padding)


@dataclass(frozen=True)
class ConvolutionView:
    """`nn.Conv1d` and `nn.Conv2d`: W (…, I, O) has the channel and place in the patch as rows, the bias last.

    With G > 1 groups everything has that dimension in front: x (…, G, R, I), W (…, G, I, O), z (…, G, R, O).
    """

    name: str
    window: Window
    channels: int  # of one group's input
    outputs: int  # of one group
    groups: tuple[int, ...]  # (G,), or () for a single one
    bias: bool

    @property
    def features(self) -> int:
        """The numbers in a patch."""
        return self.channels * math.prod(self.window.kernel)

    @property
    def inputs(self) -> int:
        """I: the numbers in a patch, and the column of ones where there is a bias."""
        return self.features + self.bias

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.groups) * self.inputs * self.outputs

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the module's parameters that this layer owns."""
        return parameter_names(self.name, self.bias)

    def rows(self, x: Tensor, lead: int) -> Tensor:
        """The patches as rows (…, R, I), R = B·P: written once, into the place of the ones."""
        space, members = self.window.space, x.shape[:lead]
        batch = x.shape[lead : -1 - space].numel()  # 1 for an input without a batch
        patches = self.window.patches(x.reshape(-1, *x.shape[-1 - space :]))  # (K B, G c, P…, k…)
        parts = (math.prod(members), batch, math.prod(self.groups), self.channels)
        patches = patches.reshape(*parts, *patches.shape[2:])  # (K, B, G, c, P…, k…)
        order = (0, 2, 1, *range(4, 4 + space), 3, *range(4 + space, 4 + 2 * space))
        patches = patches.permute(order)  # (K, G, B, P…, c, k…)
        rows = x.new_ones(*patches.shape[: 3 + space], self.inputs)
        rows[..., : self.features].unflatten(-1, patches.shape[3 + space :]).copy_(patches)
        return rows.reshape(*members, *self.groups, -1, self.inputs)

    def output_rows(self, z: Tensor, lead: int) -> Tensor:
        """The layer's output as rows (…, R, O)."""
        members, space = z.shape[:lead], self.window.space
        z = z.reshape(*members, -1, math.prod(self.groups), self.outputs, z.shape[-space:].numel())
        return z.transpose(-4, -3).mT.reshape(*members, *self.groups, -1, self.outputs)

    def unrows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows (…, R, O) in the shape of the layer's output `like`."""
        members, space = self._members(rows), self.window.space
        positions = like.shape[-space:].numel()
        rows = rows.reshape(*members, math.prod(self.groups), -1, positions, self.outputs)
        return rows.mT.transpose(-4, -3).reshape(like.shape)

    def matrix(self, parameters: dict[str, Tensor]) -> Tensor:
        """W (…, I, O) from the module's own parameters."""
        weight = parameters[self.parameters[0]].flatten(-1 - self.window.space)  # (…, G O, features)
        members = weight.shape[:-2]
        matrix = weight.reshape(*members, *self.groups, self.outputs, self.features)
        if self.bias:
            bias = parameters[self.parameters[1]].reshape(*members, *self.groups, self.outputs, 1)
            matrix = torch.cat([matrix, bias], -1)
        return matrix.mT

    def split(self, matrix: Tensor) -> dict[str, Tensor]:
        """The module's own parameters from W (…, I, O)."""
        members, outputs = self._members(matrix), math.prod(self.groups) * self.outputs
        weight = matrix[..., : self.features, :].mT
        values = [weight.reshape(*members, outputs, self.channels, *self.window.kernel)]
        if self.bias:
            values.append(matrix[..., self.features, :].reshape(*members, outputs))
        return dict(zip(self.parameters, values, strict=True))

    def _members(self, tensor: Tensor) -> Size:
        """The dimensions before those of the groups."""
        return tensor.shape[: tensor.dim() - 2 - len(self.groups)]


def convolution_view(name: str, module: nn.Module) -> ConvolutionView | None:
    """The view of a plain `nn.Conv1d` or `nn.Conv2d`."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return None
    kind = nn.Conv1d if isinstance(module, nn.Conv1d) else nn.Conv2d
    if not is_plain(module, kind, "_conv_forward"):
        return None
    groups = () if module.groups == 1 else (module.groups,)
    channels, outputs = module.in_channels // module.groups, module.out_channels // module.groups
    return ConvolutionView(name, Window.of(module), channels, outputs, groups, module.bias is not None)
