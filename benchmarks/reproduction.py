r"""What moves BALI away from, or towards, the paper's UCI figures: one change at a time, on validation rows.

    OMP_NUM_THREADS=1 python benchmarks/reproduction.py --data-dir DIR \
        --out benchmarks/results/scripts/reproduction.jsonl [--only CHANGE …] [--dataset NAME …]
    python benchmarks/reproduction.py --out benchmarks/results/scripts/reproduction.jsonl \
        --page docs/reproduction.md

Every split's training rows are parted once more, nine to one; the smaller part is what the figures are for.
No test row is read. A line that is already in the file is not computed again. The second form writes the
tables of the page anew. `--times 1` trains as long as the paper does (20,000 steps, Protein 30,000),
`--times 2` twice as long; otherwise it is `--steps`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import arguments, keep, kept, put_table
from torch import Tensor

import bayeswise as bw
from bayeswise.bench.datasets import Dataset, Rows, load, rows
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import Recipe, recipe
from bayeswise.posterior import Posterior

SETS = ("yacht", "concrete", "energy", "wine_red", "kin8nm", "power", "protein")
STEPS, SPLITS, PART = 5_000, 10, 10
CHANGES: dict[str, dict] = {
    "as printed": {},
    "step size 0.1": {"step_size": 0.1},
    "step size 1": {"step_size": 1.0},
    "rate 0.5": {"update_rate": bw.StepDecay(0.5)},
    "cosine rate from 0.5": {"update_rate": bw.Cosine(0.5)},
    "rows counted fully": {"effective": 1.0},
    "rows counted 0.5": {"effective": 0.5},
    "rows counted 0.25": {"effective": 0.25},
    "rows counted 0.1": {"effective": 0.1},
    "noise floor 0.01": {"noise_floor": 1e-2, "hidden_noise_floor": 1e-2},
    "noise floor 0.01, hidden only": {"hidden_noise_floor": 1e-2},
    "prior variance squared": {"square": True},
    "first layer divided": {"first_prior": None},
    "first start undivided": {"undivided": True},
    "first start halved": {"first_initial_scale": 0.5},
    "first start a fifth": {"first_initial_scale": 0.2},
    "first start a twentieth": {"first_initial_scale": 0.05},
    "step size 0.5": {"step_size": 0.5},
    "means in the forward pass": {"forward": bw.Deterministic()},
    "noise on outputs": {"forward": bw.LocalReparametrisation()},
    "noise drawn": {"noise": "drawn"},
    "step size 1, rows counted 0.25": {"step_size": 1.0, "effective": 0.25},
}
NAMES = {"as printed": "`--settings paper`"}  # what the page calls a change


def parted(dataset: Dataset, splits: int) -> Dataset:
    """The training rows of each split, parted into new training rows and validation rows."""
    train = np.stack(dataset.train[:splits])
    order = np.random.default_rng(0).permutation(train.shape[1])
    held = train.shape[1] // PART
    return replace(dataset, train=tuple(train[:, order[held:]]), test=tuple(train[:, order[:held]]))


def changed(method: bw.BALI, inputs: int, change: dict) -> bw.BALI:
    """The paper's settings with one change."""
    change = dict(change)
    if change.pop("square", False):
        assert isinstance(method.prior, bw.FanIn)
        variance = method.prior.variance**2
        change |= {"prior": bw.FanIn(variance), "first_prior": bw.Isotropic(variance)}
    if change.pop("undivided", False):
        change["first_initial_scale"] = (inputs + 1) ** 0.5
    return replace(method, **change)


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Mean and standard error over the splits; of one split there is no error."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
    return float(values.mean()), error


def scored(
    options, made: Recipe, data: Rows, method: bw.BALI, batch: int | None
) -> tuple[Posterior, dict[str, float | None]]:
    """Train on the rows of all splits in one run, and judge by the others."""
    start = time.perf_counter()
    posterior = bw.fit(
        mlp(made.sizes, made.activation, options.seed),
        (data.x, data.y),
        made.likelihood,
        method,
        members=len(data.x),
        batch_size=batch,
        seed=options.seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    prediction = posterior.predict(data.x_test, n=256)
    rmse = (prediction.mean - data.y_test).square().mean((1, 2)).sqrt()
    found = dict(zip(("rmse", "rmse_se"), mean_and_error(rmse), strict=True))
    found |= dict(zip(("ll", "ll_se"), mean_and_error(prediction.log_prob(data.y_test).mean(1)), strict=True))
    return posterior, found | {"seconds": round(seconds, 1)}


def judged(options, name: str, change: str) -> dict:
    """Train with a change, and look at the validation rows."""
    dataset = load(name, options.data_dir)
    made = recipe(dataset, "bali", "paper", None if options.times else options.steps)
    dataset = parted(dataset, options.splits)
    data = rows(dataset, range(len(dataset.train)))
    assert made.batch is not None  # not left to the method
    batch = min(made.batch, data.x.shape[1])
    assert isinstance(made.method, bw.BALI)
    method = changed(made.method, data.x.shape[-1], CHANGES[change])
    method = replace(method, steps=round(method.length * (options.times or 1)))
    _, scores = scored(options, made, data, method, batch)
    line = {"dataset": name, "change": change, "steps": method.steps, "n_splits": len(data.x)}
    line |= {"times": options.times} if options.times else {}
    return line | scores | {"seed": options.seed}


def length(line: dict) -> str:
    """How long a line trained: a number of steps, or times the paper's own."""
    return f"times {line['times']:g}" if "times" in line else str(line["steps"])


def table(lines: list[dict], wanted: str) -> list[list[str]]:
    """RMSE / log-likelihood of every change and data set; what is better than unchanged is bold."""
    same = [line for line in lines if length(line) == wanted and line["seed"] == 0]
    found = {(line["change"], line["dataset"]): line for line in same}
    head = ["change", *SETS]
    body = [[NAMES.get(c, c), *(cell(found, c, name) for name in SETS)] for c in CHANGES]
    return [head, *(row for row in body if any(row[1:]))]


def cell(found: dict, change: str, name: str) -> str:
    """One cell; empty where it was not run."""
    line, plain = found.get((change, name)), found.get(("as printed", name))
    if line is None:
        return ""
    texts = [f"{line['rmse']:.4g}", f"{line['ll']:.3f}"]
    if plain is not None and line is not plain:
        better = (line["rmse"] < plain["rmse"], line["ll"] > plain["ll"])
        texts = [f"**{text}**" if good else text for text, good in zip(texts, better, strict=True)]
    return " / ".join(texts)


def main() -> None:
    """Every change on every data set, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--only", nargs="*", default=list(CHANGES))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--times", type=float)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        for wanted in sorted({length(line) for line in lines}):
            put_table(options.page, table(lines, wanted), f"table {wanted}")
        return
    done = {(line["dataset"], line["change"], length(line), line["seed"]) for line in lines}
    own = length({"times": options.times} if options.times else {"steps": options.steps})
    for change in options.only:
        for name in options.dataset:
            if (name, change, own, options.seed) not in done:
                keep(options, judged(options, name, change))


if __name__ == "__main__":
    main()
