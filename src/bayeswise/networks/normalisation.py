"""Running statistics of norms: which modules keep them, and how they are taken anew for other weights.

    μ ← μ + r / R · (μ_b - μ),  v ← v + r / R · (v_b - v)             r the rows of a batch, R all so far

After a pass over all rows each statistic is the mean of the batches' statistics, weighted by their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bayeswise.networks.network import in_mode


def norms_with_statistics(module: nn.Module) -> list[_NormBase]:
    """The batch and instance norms that keep running statistics."""
    norms = (m for m in module.modules() if isinstance(m, _NormBase))
    return [m for m in norms if m.running_mean is not None]


def renew_statistics(
    module: nn.Module, batches: Iterable[Tensor], run: Callable[[Tensor], object], dim: int = 0
) -> None:
    """Let `run` pass over batches, with rows in dimension `dim`, so that norms take their statistics anew.

    They go where `run` has the module keep its buffers. A batch of one row after others counts for nothing: a
    norm has no variance of it.
    """
    if not norms_with_statistics(module):
        return
    seen = 0
    for x in batches:
        rows = x.shape[dim]
        if rows == 1 and seen:
            continue
        seen += rows
        with torch.no_grad(), taking_statistics(module, rows / seen):
            run(x)


@contextmanager
def taking_statistics(module: nn.Module, share: float) -> Iterator[None]:
    """Run with norms that replace this share of their statistics by those of the rows that they see.

    All else is in eval mode, so that the statistics are those of the network that predicts: a Dropout is at
    rest. Modes and momenta come back, whatever happens.
    """
    norms = norms_with_statistics(module)
    own = [norm.momentum for norm in norms]
    with in_mode(module, False):
        try:
            for norm in norms:
                norm.training, norm.momentum = True, share
            yield
        finally:
            for norm, momentum in zip(norms, own, strict=True):
                norm.training, norm.momentum = False, momentum
