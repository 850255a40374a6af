r"""`BALI()` on two tables that were set aside while it was built, beside a tuned MAP network of its size.

    OMP_NUM_THREADS=1 python benchmarks/set_aside.py --data-dir DIR \
        --out benchmarks/results/scripts/set_aside.jsonl [--dataset NAME …] [--splits K]

The tables are `gp_pol` and `gp_bike`, the latter without its two columns that add up to the target. MAP's
settings are the best on a tenth of the first split's training rows, in RMSE, of all in `CANDIDATES`; then it
trains on all rows of every split. `coverage` is the share of test rows inside the central 90 % interval.
"""

from __future__ import annotations

import time
from itertools import product

import torch
from common import arguments, keep
from reproduction import mean_and_error, parted
from torch import Tensor

import bayeswise as bw
from bayeswise.bench.datasets import Dataset, Rows, equal_groups, load, rows
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import recipe

NAMES = ("gp_pol", "gp_bike")
DRAWS, BATCH = 256, 1024
CANDIDATES = tuple(
    bw.MAP(precision=precision, learning_rate=bw.Cosine(rate), steps=steps)
    for precision, rate, steps in product((0.1, 1.0, 10.0), (0.005, 0.02), (2_000, 8_000))
)


def fitted(dataset: Dataset, data: Rows, method: bw.MAP | bw.BALI, seed: int) -> bw.Posterior:
    """One run for all splits."""
    made = recipe(dataset, "bali", "default")
    model = mlp(made.sizes, made.activation, seed)
    batch = BATCH if isinstance(method, bw.MAP) else None
    return bw.fit(
        model, (data.x, data.y), made.likelihood, method, members=len(data.x), batch_size=batch, seed=seed
    )


def scores(posterior: bw.Posterior, data: Rows) -> dict[str, Tensor]:
    """Error, share of test rows in the central 90 % interval and log-likelihood of every split, (S,)."""
    found = posterior.predict(data.x_test, n=DRAWS)
    low, high = found.interval(0.9)
    return {
        "rmse": (found.mean - data.y_test).square().mean((1, 2)).sqrt(),
        "coverage": ((low <= data.y_test) & (data.y_test <= high)).double().mean((1, 2)),
        "ll": found.log_prob(data.y_test).mean(1),
    }


def tuned_map(dataset: Dataset, seed: int) -> bw.MAP:
    """The candidate with the smallest error on a tenth of the first split's training rows."""
    data = rows(parted(dataset, 1), range(1))
    found = [scores(fitted(dataset, data, method, seed), data)["rmse"] for method in CANDIDATES]
    return CANDIDATES[int(torch.stack(found).flatten().argmin())]


def compared(options, name: str) -> dict:
    """Both methods on all splits; those of equal size train together."""
    dataset = load(name, options.data_dir)
    count = min(options.splits or len(dataset.train), len(dataset.train))
    groups = equal_groups(dataset, range(count))
    line: dict = {"dataset": name, "n_splits": count, "seed": options.seed}
    method, chosen = tuned_map(dataset, options.seed), []
    for side, own in (("map", method), ("bali", bw.BALI())):
        start, found = time.perf_counter(), []
        for group in groups:
            data = rows(dataset, group)
            posterior = fitted(dataset, data, own, options.seed)
            found.append(scores(posterior, data))
            chosen += posterior.notes[:3] if side == "bali" else ()
        line[f"seconds_{side}"] = round(time.perf_counter() - start, 1)
        for score in found[0]:
            mean, error = mean_and_error(torch.cat([one[score] for one in found]))
            line |= {f"{score}_{side}": mean, f"{score}_{side}_se": error}
    line["ratio"] = line["rmse_bali"] / line["rmse_map"]
    line["map"] = f"precision {method.precision:g}, {method.learning_rate}, {method.steps} steps"
    return line | {"chosen": chosen}


def main() -> None:
    """Every table."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(NAMES))
    parser.add_argument("--splits", type=int, help="only the first so many")
    options = parser.parse_args()
    for name in options.dataset:
        keep(options, compared(options, name))


if __name__ == "__main__":
    main()
