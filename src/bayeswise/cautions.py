"""What about the data a person should know before trusting the answer; said in `summary()`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayeswise.data import Rows, TensorRows

FEW_ROWS = 50
MOST_COLUMNS, MOST_ROWS = 2_000, 10_000  # of which the rank is looked at
OUTLIER = 8.0  # robust standard deviations; of a Gaussian one row in 10^15 is farther away
RARE = 0.05  # the share of a class


def cautions(rows: Rows) -> tuple[str, ...]:
    """A line for each thing that is unusual in the training rows; of several splits in the first."""
    if not isinstance(rows, TensorRows):
        return ()
    x, y = (rows.x[0], rows.y[0]) if rows.lead else (rows.x, rows.y)
    found = [*_few(len(x)), *_rank(x), *(_outliers(y) if y.is_floating_point() else _rare(y))]
    return tuple(f"caution: {line}" for line in found)


def _few(n: int) -> Iterator[str]:
    if n < FEW_ROWS:
        yield f"only {n} rows: intervals and choices rest on little"


def _rank(x: Tensor) -> Iterator[str]:
    """Columns that others determine: the data cannot tell their weights apart."""
    if x.dim() != 2 or not x.is_floating_point() or not 1 < x.shape[1] <= MOST_COLUMNS:
        return
    some = x[:MOST_ROWS].double()
    some = some - some.mean(0)
    scale = some.square().mean(0).sqrt()
    constant = scale <= 1e-9 * x.double().abs().amax(0).clamp_min(1e-300)
    some = some[:, ~constant] / scale[~constant]
    if int(constant.sum()):
        yield f"{int(constant.sum())} of {x.shape[1]} input columns are constant"
    if some.shape[1] < 2:
        return
    values = torch.linalg.svdvals(some)
    rank = int((values > 1e-6 * values[0]).sum())
    if rank < some.shape[1]:
        why = "there are fewer rows" if len(x) <= some.shape[1] else "columns repeat one another"
        yield f"the inputs have rank {rank} of {some.shape[1]} columns ({why}): the prior tells them apart"


def _outliers(y: Tensor) -> Iterator[str]:
    y = y.double()
    centre = y.median(0).values
    spread = 1.4826 * (y - centre).abs().median(0).values  # the median deviation of a Gaussian, as its std
    far = ((y - centre).abs() > OUTLIER * spread) & (spread > 0)
    if int(far.sum()):
        yield (
            f"{int(far.sum())} targets lie more than {OUTLIER:g} robust standard deviations from the median: "
            "they widen the noise of all rows"
        )


def _rare(y: Tensor) -> Iterator[str]:
    least, n = int(torch.unique(y, return_counts=True)[1].min()), y.numel()
    if least < RARE * n:
        yield f"the rarest class has {least} of {n} rows ({least / n:.1%}): look at it by itself"
