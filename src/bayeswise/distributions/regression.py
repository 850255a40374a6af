"""The sufficient statistics of a multivariate linear regression: a vector space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayeswise.linalg import gram


@dataclass(frozen=True)
class RegressionStats:
    """Sums over the rows of a regression y ≈ x W, which add and scale.

    They are held as one matrix, [x y]ᵀ[x y], because that is what a posterior factorises. A prior is a value
    of the same type: its pseudo-data.
    """

    joint: Tensor  # (…, I+O, I+O), symmetric
    n: Tensor  # (…,) number of rows, need not be whole
    inputs: int  # I

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> RegressionStats:
        """The statistics of rows x (…, R, I) and targets y (…, R, O)."""
        rows = torch.cat([x, y], -1)  # (…, R, I+O)
        n = torch.full(x.shape[:-2], float(x.shape[-2]), dtype=torch.float64, device=x.device)
        return cls(gram(rows), n, x.shape[-1])

    @classmethod
    def prior(cls, variance: float, scale: Tensor, dof: float, inputs: int) -> RegressionStats:
        """The pseudo-data of W | Σ ~ MN(0, variance·I, Σ), Σ ~ IW(scale, dof), scale (…, O, O)."""
        outputs = scale.shape[-1]
        joint = scale.new_zeros(*scale.shape[:-2], inputs + outputs, inputs + outputs)
        joint[..., :inputs, :inputs] = torch.eye(inputs, dtype=scale.dtype, device=scale.device) / variance
        joint[..., inputs:, inputs:] = scale
        n = torch.full(scale.shape[:-2], float(dof), dtype=torch.float64, device=scale.device)
        return cls(joint, n, inputs)

    @property
    def outputs(self) -> int:
        """O."""
        return self.joint.shape[-1] - self.inputs

    @property
    def xx(self) -> Tensor:
        """XᵀX (…, I, I)."""
        return self.joint[..., : self.inputs, : self.inputs]

    @property
    def xy(self) -> Tensor:
        """XᵀY (…, I, O)."""
        return self.joint[..., : self.inputs, self.inputs :]

    @property
    def yx(self) -> Tensor:
        """YᵀX (…, O, I)."""
        return self.joint[..., self.inputs :, : self.inputs]

    @property
    def yy(self) -> Tensor:
        """YᵀY (…, O, O)."""
        return self.joint[..., self.inputs :, self.inputs :]

    def __add__(self, other: RegressionStats) -> RegressionStats:
        """The statistics of both sets of rows."""
        return RegressionStats(self.joint + other.joint, self.n + other.n, self.inputs)

    def __sub__(self, other: RegressionStats) -> RegressionStats:
        """The statistics without those rows."""
        return self + (-1.0) * other

    def __mul__(self, weight: float) -> RegressionStats:
        """Every row counts `weight` times."""
        return RegressionStats(self.joint * weight, self.n * weight, self.inputs)

    __rmul__ = __mul__

    def shifted(self, w: Tensor, scale: Tensor | None = None) -> RegressionStats:
        """The statistics of (x, y diag(s) + x w) from those of (x, y): a change of coordinates.

        Here w is (…, I, O) and the scale s (…, O), by default 1. In float64 it loses nothing where x w is
        much larger than y, which adding the rows first would; and it leaves the rows alone.
        """
        joint, at = self.joint.to(torch.float64, copy=True), (self.inputs,)
        top, low = joint.tensor_split(at, -2)
        (xx, xy), (yx, yy) = top.tensor_split(at, -1), low.tensor_split(at, -1)
        if scale is not None:
            low.mul_(scale[..., :, None])
            yy.mul_(scale[..., None, :])
        w = w.double()
        wx = w.mT @ xx  # (…, O, I)
        half = torch.add(yx, wx, alpha=0.5) @ w  # (wᵀxx + 2 yx) w / 2
        yy.add_(half).add_(half.mT)
        xy.copy_(yx.add_(wx).mT)
        return RegressionStats(joint, self.n, self.inputs)

    def move_(self, rate: float | Tensor, other: RegressionStats, weight: float | Tensor) -> RegressionStats:
        """(1 - rate)·self + rate·weight·other, in place: self is consumed. Both may be (…,)."""
        share, n = rate * weight, self.n.mul_(1 - rate)
        joint = self.joint.mul_(1 - (rate[..., None, None] if isinstance(rate, Tensor) else rate))
        if isinstance(share, Tensor):
            joint.add_(share[..., None, None].to(joint) * other.joint)
            n.add_(share.to(n) * other.n)
        else:
            joint.add_(other.joint, alpha=share)
            n.add_(other.n, alpha=share)
        return self


@dataclass(frozen=True)
class DiagonalPrior:
    """The pseudo-data of W | Σ ~ MN(0, variance·I, Σ), Σ ~ IW(scale·I, dof), kept as four numbers.

    Variance and scale may be others for each member, (…,).
    """

    variance: float | Tensor  # of R0
    scale: float | Tensor  # of U0
    dof: float  # u0
    inputs: int
    outputs: int

    def __add__(self, data: RegressionStats) -> RegressionStats:
        """Prior and data together, without a dense prior."""
        joint = data.joint.clone()
        joint.diagonal(dim1=-2, dim2=-1).add_(self._diagonal.to(joint.device))
        return RegressionStats(joint, data.n + self.dof, self.inputs)

    @cached_property
    def _diagonal(self) -> Tensor:
        both = (torch.as_tensor(t, dtype=torch.float64) for t in (self.variance, self.scale))
        variance, scale = torch.broadcast_tensors(*both)  # (…,)
        lead = scale.shape
        precision, scale = (1 / variance)[..., None], scale[..., None]
        return torch.cat([precision.expand(*lead, self.inputs), scale.expand(*lead, self.outputs)], -1)

    def stats(self, device: torch.device | None = None) -> RegressionStats:
        """The same as dense statistics."""
        joint = torch.diag_embed(self._diagonal.to(device))  # (…, I+O, I+O)
        n = torch.full(joint.shape[:-2], float(self.dof), dtype=torch.float64, device=device)
        return RegressionStats(joint, n, self.inputs)
