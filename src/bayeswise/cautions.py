"""What about the data a person should know before trusting the answer; said in `summary()`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayeswise.data import Rows, TensorRows

FEW_ROWS = 50
FEW_EACH = 5  # rows for each column
FIRST = 256  # rows
MOST_WORK = 500_000_000  # rows · columns²: the rank of more would cost as much as a fit
OUTLIER = 8.0  # robust standard deviations; of a Gaussian one row in 10^15 is farther away
RARE = 0.05  # the share of a class


def cautions(rows: Rows, is_regression: bool) -> tuple[str, ...]:
    """A line for each thing that is unusual in the training rows; of several splits in the first."""
    if not isinstance(rows, TensorRows):
        return ()
    x, y = (rows.x[0], rows.y[0]) if rows.lead else (rows.x, rows.y)
    found = [*_few(x), *_rank(x), *(_outliers(y) if is_regression else _rare(y))]
    return tuple(f"caution: {line}" for line in found)


def _few(x: Tensor) -> Iterator[str]:
    """Few rows, or few for each column of a table."""
    if len(x) < FEW_ROWS:
        yield f"only {len(x)} rows: intervals and choices rest on little"
    elif x.dim() == 2 and len(x) < FEW_EACH * x.shape[1]:
        each = f"{len(x) / x.shape[1]:.2g} rows for each of {x.shape[1]} columns"
        yield f"only {each}: compare with a linear model"


def _rank(x: Tensor) -> Iterator[str]:
    """Columns that others determine: the data cannot tell their weights apart."""
    if x.dim() != 2 or not x.is_floating_point() or x.shape[1] < 2:
        return
    varies = _varies(x)
    columns = int(varies.sum())
    if columns < x.shape[1]:
        yield f"{x.shape[1] - columns} of {x.shape[1]} input columns are constant"
    enough, most = min(len(x), 4 * columns), MOST_WORK // max(1, columns) ** 2
    if columns < 2 or most < enough:
        return
    some = _without_one_hot(x[:most, varies])
    columns = some.shape[1]
    some = some.double()
    some = some - some.mean(0)
    values = torch.linalg.svdvals(some / some.square().mean(0).sqrt().clamp_min(1e-300))
    rank = int((values > 1e-6 * values[0]).sum())
    if rank < columns:
        why = "there are fewer rows" if len(x) <= columns else "columns repeat one another"
        yield f"the inputs have rank {rank} of {columns} columns ({why}): the prior tells them apart"


def _without_one_hot(x: Tensor) -> Tensor:
    """The columns without the last one of each text that is one-hot encoded: that is no accident."""
    low, high = x.aminmax(dim=0)
    two_valued = ((x == low) | (x == high)).all(0)
    ones = (x == high) & two_valued  # (N, I)
    kept, start = [], 0
    while start < x.shape[1]:
        stop = _one_hot_stop(ones, start)
        kept += range(start, max(stop - 1, start + 1))
        start = max(stop, start + 1)
    return x[:, kept]


def _one_hot_stop(ones: Tensor, start: int) -> int:
    """Where the columns end of which each row has exactly one, from `start` on; `start` if there are none."""
    seen = torch.zeros_like(ones[:, 0])
    for column in range(start, ones.shape[1]):
        own = ones[:, column]
        if not bool(own.any()) or bool((seen & own).any()):
            return start
        seen = seen | own
        if bool(seen.all()):
            return column + 1
    return start


def _varies(x: Tensor) -> Tensor:
    """Which columns of (N, I) are not constant, up to rounding; most show it in their first rows."""
    varies = _differ(x[:FIRST])
    varies[~varies] = _differ(x[:, ~varies])
    return varies


def _differ(x: Tensor) -> Tensor:
    low, high = x.aminmax(dim=0)
    return (high - low).double() > 1e-9 * torch.maximum(low.abs(), high.abs()).double()


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
    """A class with few of the labels (N,), or of any column of yes and no (N, O)."""
    columns, n = y.reshape(len(y), -1).unbind(-1), len(y)
    least = min(int(torch.unique(column, return_counts=True)[1].min()) for column in columns)
    if least < RARE * n:
        yield f"the rarest class has {least} of {n} rows ({least / n:.1%}): look at it by itself"
