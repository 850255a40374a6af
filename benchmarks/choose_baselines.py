r"""Choose the free settings of the baselines on UCI: on folds of split 0's training rows, on no test row.

    OMP_NUM_THREADS=1 python benchmarks/choose_baselines.py --method mc_dropout --data-dir DIR \
        --out benchmarks/results/scripts/chosen_baselines.jsonl --chosen src/bayeswise/bench/chosen.json

MC dropout: the rate p and the precision τ of the noise by the log-likelihood of the held-out rows (Gal's
protocol; τ by a fine grid, because the predictions do not depend on it). Bayes by Backprop: the variance of
the prior and the learning rate by the RMSE of the held-out rows. Five folds train in one batched run.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from common import arguments, keep
from torch import Tensor

import bayeswise as bw
from bayeswise.bench.datasets import Dataset, load, rows
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import recipe
from bayeswise.saving.files import write_bytes

FOLDS, DRAWS = 5, 200
SETS = ("yacht", "concrete", "energy", "wine_red", "kin8nm", "power", "protein")
STEPS = 4_000
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "mc_dropout": {"rate": (0.002, 0.005, 0.01, 0.05), "learning_rate": (0.01,), "precision": (0.01,)},
    "bbb": {"variance": (0.1, 1.0), "learning_rate": (0.01,), "kl_weight": (1.0,)},
}


def folds(dataset: Dataset) -> Dataset:
    """Five folds of split 0's training rows as the splits of a data set."""
    order = np.random.default_rng(0).permutation(dataset.train[0])
    size = len(order) // FOLDS
    held = [order[k * size : (k + 1) * size] for k in range(FOLDS)]
    kept = [np.concatenate([order[: k * size], order[(k + 1) * size :]]) for k in range(FOLDS)]
    return Dataset(
        dataset.name,
        dataset.kind,
        dataset.x,
        dataset.y,
        tuple(kept),
        tuple(held),
        dataset.digest,
        "folds of the training rows of split 0",
    )


def method(name: str, setting: dict[str, float], steps: int) -> bw.methods.Method:
    """A baseline with one point of its grid."""
    rate = bw.Cosine(setting["learning_rate"])
    if name == "mc_dropout":
        return bw.MCDropout(
            rate=setting["rate"], learning_rate=rate, precision=setting["precision"], steps=steps
        )
    prior = bw.Isotropic(setting["variance"])
    return bw.BayesByBackprop(learning_rate=rate, kl_weight=setting["kl_weight"], prior=prior, steps=steps)


def best_noise(f: Tensor, y: Tensor) -> tuple[float, float]:
    """The variance of the noise, and the log-likelihood of y (K, B, 1) under draws f (S, K, B, 1) with it."""
    spread = float((y - f.mean(0)).square().mean())
    found = []
    for factor in np.geomspace(0.02, 5, 60):
        variance = spread * float(factor)
        log_p = -0.5 * (y - f).square() / variance - 0.5 * math.log(2 * math.pi * variance)
        found.append((float((log_p.logsumexp(0) - math.log(len(f))).mean()), variance))
    ll, variance = max(found)
    return variance, ll


def judged(dataset: Dataset, name: str, setting: dict[str, float], options) -> dict:
    """One point of the grid on the held-out rows of all folds."""
    parts, made = folds(dataset), recipe(dataset, "map", "default")
    data = rows(parts, range(FOLDS))
    assert made.batch is not None  # not left to the method
    batch = min(made.batch, data.x.shape[1])
    start = time.perf_counter()
    posterior = bw.fit(
        mlp(made.sizes, made.activation, options.seed),
        (data.x, data.y),
        bw.Gaussian(),
        method(name, setting, options.steps),
        members=FOLDS,
        batch_size=batch,
        seed=options.seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    prediction = posterior.predict(data.x_test, n=DRAWS)
    variance, ll = best_noise(prediction.draws.double(), data.y_test.double())
    rmse = float((prediction.mean - data.y_test).square().mean().sqrt())
    own = float(prediction.log_prob(data.y_test).mean())
    line = {"dataset": dataset.name, "method": name, "steps": options.steps} | setting
    return line | {"rmse": rmse, "ll": own, "ll_best": ll, "noise": variance, "seconds": round(seconds, 1)}


def main() -> None:
    """Every point of the grid on every data set, then the choice."""
    parser = arguments(__doc__)
    parser.add_argument("--method", choices=list(GRIDS), required=True)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--chosen", type=Path, required=True)
    options = parser.parse_args()
    grid = GRIDS[options.method]
    for name in options.dataset:
        dataset = load(name, options.data_dir)
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        lines = [judged(dataset, options.method, point, options) for point in points]
        for line in lines:
            keep(options, line)
        best = (
            max(lines, key=lambda line: line["ll_best"])
            if options.method == "mc_dropout"
            else min(lines, key=lambda line: line["rmse"])
        )
        wanted = (*grid, "steps", *(("noise",) if options.method == "mc_dropout" else ()))
        choose(options.chosen, options.method, name, {key: best[key] for key in wanted})


def choose(file: Path, name: str, dataset: str, setting: dict) -> None:
    """Write a choice down."""
    chosen = json.loads(file.read_text()) if file.exists() else {}
    chosen.setdefault(name, {})[dataset] = setting
    write_bytes(file, (json.dumps(chosen, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
