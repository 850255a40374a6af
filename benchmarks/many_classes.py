r"""Laplace on a last layer of 512 inputs and 3,000 classes: memory, and time against one eigh of that size.

    OMP_NUM_THREADS=1 python benchmarks/many_classes.py [--out benchmarks/results/scripts/many_classes.jsonl]

The fit (Kronecker, exact Gauss-Newton, precision by the evidence) and the predictive of 256 rows (marginal
variances, probit), and the covariance of a row's outputs on request, in chunks.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from common import arguments, keep
from torch import nn

import bayeswise as bw

INPUTS, CLASSES, ROWS, NEW = 512, 3_000, 6_000, 256


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long it takes, and what it gives."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def main() -> None:
    """One fit and one prediction, beside one eigendecomposition."""
    options = arguments(__doc__).parse_args()
    rng = torch.Generator().manual_seed(options.seed)
    x = torch.randn(ROWS + NEW, INPUTS, generator=rng)
    y = torch.randint(CLASSES, (ROWS,), generator=rng)
    model = nn.Linear(INPUTS, CLASSES)
    with torch.no_grad():  # each row's own class gets its direction: a trained model in one line
        model.weight.zero_().index_add_(0, y, x[:ROWS], alpha=0.02)
        model.bias.zero_()
    square = torch.randn(CLASSES, CLASSES, generator=rng)
    eigh, _ = seconds(lambda: torch.linalg.eigh(square @ square.mT))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    method = bw.Laplace(subset="last", link=bw.Probit())
    fit, posterior = seconds(
        lambda: bw.fit(model, (x[:ROWS], y), bw.Categorical(), method, batch_size=500, progress=False)
    )
    fitted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    predict, _ = seconds(lambda: posterior.predict(x[ROWS:]).mean)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = {"eigh": eigh, "fit": fit, "predict": predict, "in eighs": (fit + predict) / eigh}
    line |= {"peak GB": peak / 2**20, "extra GB": (peak - before) / 2**20}
    line["fit's extra GB"] = (fitted - before) / 2**20
    keep(options, {key: round(value, 3) for key, value in line.items()})


if __name__ == "__main__":
    main()
