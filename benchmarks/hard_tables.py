r"""Tables on which methods break, with `BALI()` as it is: five of them, each beside a linear model.

    OMP_NUM_THREADS=1 python benchmarks/hard_tables.py --out benchmarks/results/scripts/hard_tables.jsonl

Each is made with a fixed seed: a rank-deficient one, one of 20 rows, one of 500 columns, one whose target has
outliers, one with 2 % of positives. Every table is given in float32 and, the same numbers and the same noise,
in float64; `float32` is the largest difference of their predictive means in predictive standard deviations.
RMSE is compared with RidgeCV's, the negative log-likelihood with LogisticRegressionCV's, on 2,000 new rows.
`cautions` is what summary() warns of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from common import arguments, keep, mlp
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from torch import Tensor, nn

import bayeswise as bw

NEW = 2_000
Table = tuple[np.ndarray, np.ndarray]


def rank_deficient(rng: np.random.Generator, n: int) -> Table:
    """Ten columns, four of which are sums of the others, and one constant."""
    x = rng.normal(size=(n, 5))
    x = np.concatenate([x, x @ SUMS, np.full((n, 1), 3.0)], 1)
    return x, np.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))


def straight(columns: int, noise: float) -> Callable[[np.random.Generator, int], Table]:
    """A straight line in the first three of so many columns."""

    def make(rng: np.random.Generator, n: int) -> Table:
        x = rng.normal(size=(n, columns))
        return x, x[:, :3] @ np.array([[1.0], [-2.0], [0.5]]) + noise * rng.normal(size=(n, 1))

    return make


def outliers(rng: np.random.Generator, n: int) -> Table:
    """One target in fifty is twenty times too far away."""
    x, y = straight(6, 0.3)(rng, n)
    return x, np.where(rng.random((n, 1)) < 0.02, 20 * y, y)


def rare(rng: np.random.Generator, n: int) -> Table:
    """Two positives in a hundred."""
    x = rng.normal(size=(n, 6))
    return x, (x[:, 0] + 0.5 * x[:, 1] ** 2 + 0.7 * rng.normal(size=n) > 3.0).astype(int)


SUMS = np.random.default_rng(7).normal(size=(5, 4))
TABLES: dict[str, tuple[Callable[[np.random.Generator, int], Table], int]] = {
    "rank-deficient": (rank_deficient, 300),
    "20 rows": (straight(5, 0.3), 20),
    "500 columns": (straight(500, 0.5), 800),
    "outliers": (outliers, 500),
    "2 % positives": (rare, 2_000),
}


@contextmanager
def one_noise() -> Iterator[None]:
    """Normal numbers are drawn in float64 and rounded, so that both precisions see the same."""
    own = torch.randn

    def randn(*size: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return own(*size, dtype=torch.float64, **options).to(dtype or torch.get_default_dtype())

    torch.randn = randn
    try:
        yield
    finally:
        torch.randn = own


def fitted(x: Tensor, y: Tensor, classes: bool, seed: int) -> tuple[bw.Posterior, float]:
    """A network of 50 hidden units."""
    torch.manual_seed(seed)
    model = mlp((x.shape[1], 50, 2 if classes else 1), nn.ReLU)
    likelihood = bw.Categorical() if classes else bw.Gaussian()
    start = time.perf_counter()
    posterior = bw.fit(model.to(x.dtype), (x, y), likelihood, seed=seed, progress=False)
    return posterior, time.perf_counter() - start


def judged(name: str, seed: int) -> dict:
    """Train, and compare with a linear model and with the run in float64."""
    make, n = TABLES[name]
    x, y = make(np.random.default_rng(seed), n + NEW)
    scale = x[:n].std(0)
    x = (x - x[:n].mean(0)) / np.where(scale > 1e-9, scale, 1.0)
    classes = y.dtype.kind == "i"
    train, test = (x[:n], y[:n]), (x[n:], y[n:])
    inputs, target = torch.from_numpy(train[0]).float(), torch.from_numpy(train[1])
    target = target if classes else target.float()
    new = torch.from_numpy(test[0]).float()
    with one_noise():
        posterior, seconds = fitted(inputs, target, classes, seed)
        wide, _ = fitted(inputs.double(), target if classes else target.double(), classes, seed)
        found, exact = posterior.predict(new), wide.predict(new.double())
        found.draws, exact.draws  # noqa: B018 - drawn here
    far = ((found.mean.double() - exact.mean).abs() / exact.std).max()
    line = {"table": name, "rows": n, "columns": x.shape[1], "seed": seed, "seconds": round(seconds, 1)}
    line |= {"float32": round(float(far), 5)}
    line |= {"cautions": [note for note in posterior.notes if note.startswith("caution")]}
    line |= {"chosen": [note for note in posterior.notes if "chosen" in note]}
    if classes:
        linear = LogisticRegressionCV(max_iter=1000).fit(*train)
        nll = -float(found.log_prob(torch.from_numpy(test[1])).double().mean())
        theirs = float(log_loss(test[1], linear.predict_proba(test[0])))
        return line | {"nll": nll, "nll_linear": theirs, "held": bool(nll <= theirs + 0.02)}
    linear = RidgeCV(np.logspace(-3, 3, 13)).fit(train[0], train[1][:, 0])
    rmse = float(np.sqrt(np.mean((found.mean.double().numpy() - test[1]) ** 2)))
    theirs = float(np.sqrt(np.mean((linear.predict(test[0])[:, None] - test[1]) ** 2)))
    return line | {"rmse": rmse, "rmse_linear": theirs, "held": bool(rmse <= 1.05 * theirs)}


def main() -> None:
    """All tables."""
    parser = arguments(__doc__)
    parser.add_argument("--table", choices=list(TABLES), nargs="*", default=list(TABLES))
    options = parser.parse_args()
    for name in options.table:
        keep(options, judged(name, options.seed))


if __name__ == "__main__":
    main()
