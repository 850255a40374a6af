r"""What `BALI()` should choose by itself, and what it should leave: one change at a time, on validation rows.

    OMP_NUM_THREADS=1 python benchmarks/tuning.py --data-dir DIR \
        --out benchmarks/results/scripts/tuning.jsonl [--only CHANGE …] [--dataset NAME …]
    python benchmarks/tuning.py --out benchmarks/results/scripts/tuning.jsonl --page docs/tuning.md

Every split's training rows are parted once more, nine to one; the smaller part is what the figures are for.
No test row is read. A line that is already in the file is not computed again. The second form writes the
table of the page anew. "as chosen" is `BALI()` itself with everything it does; the other lines train for the
same number of steps with settings as given, and without its temperature.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from common import arguments, keep, kept, put_table
from reproduction import SETS, parted, scored

import bayeswise as bw
from bayeswise.bench.datasets import load, rows
from bayeswise.bench.settings import recipe
from bayeswise.methods.rehearsals import TEMPERATURES, Draft
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.posterior import Posterior
from bayeswise.weights import Layerwise, Mixture

SPLITS, STEPS = 5, 2500
BASE = {"step_size": 0.5, "effective": 1.0, "members": 4, "steps": STEPS}
OPEN = {"members": None, "steps": None, "step_size": None, "effective": None}
EIGHT = {"members": 8, "batch": 256, "steps": 2 * STEPS}
CHANGES: dict[str, dict | None] = {
    "four members": {},
    "one member": {"members": 1},
    "every row counts four times": {"effective": 4.0},
    "every row counts sixteen times": {"effective": 16.0},
    "once and four times, by turns": {"turns": (1.0, 4.0)},
    "four and sixteen times, by turns": {"turns": (4.0, 16.0)},
    "once and a quarter, by turns": {"turns": (1.0, 0.25)},
    "a quarter and a sixteenth, by turns": {"turns": (0.25, 0.0625)},
    "a quarter of the rows counts": {"effective": 0.25},
    "a sixteenth of the rows counts": {"effective": 0.0625},
    "step size 1": {"step_size": 1.0},
    "step size 0.25": {"step_size": 0.25},
    "rate from 0.5": {"update_rate": bw.Cosine(0.5)},
    "weights drawn in training": {"forward": bw.WeightNoise()},
    "first layer divided": {"first_prior": bw.FanIn(40.0)},
    "prior variance 400": {"prior": bw.FanIn(400.0), "first_prior": bw.Isotropic(400.0)},
    "straight starts": {"bias_scale": 100.0},
    "straight starts, 100 steps": {"bias_scale": 100.0, "steps": 100},
    "a quarter of the steps": {"steps": STEPS // 4},
    "twice the steps": {"steps": 2 * STEPS},
    "steps of 256 rows": {"batch": 256},
    "the same with one member": {"batch": 256, "members": 1},
    "the same, a quarter of the rows counts": {"batch": 256, "effective": 0.25},
    "the same, weights drawn in training": {"batch": 256, "forward": bw.WeightNoise()},
    "eight members, steps of 256 rows": EIGHT | {"steps": STEPS},
    "eight members, 5,000 steps of 256 rows": EIGHT,
    "the same, every row counts four times": EIGHT | {"effective": 4.0},
    "the same, prior ten times as wide": EIGHT | {"prior_scale": 10.0},
    "the same, every row counts four times, prior ten times as wide": EIGHT
    | {"effective": 4.0, "prior_scale": 10.0},
    "the same, once and four times by turns, half of the priors wide": EIGHT
    | {"turns": (1.0, 4.0), "scales": (1.0, 10.0)},
    "the same, 20,000 steps": EIGHT | {"turns": (1.0, 4.0), "scales": (1.0, 10.0), "steps": 8 * STEPS},
    "as chosen": None,
    "the same, steps of up to 256 rows": OPEN | {"tuning": bw.Tuning(little=1.0)},
    "the same, averaging statistics": OPEN | {"update": NaturalUpdate()},
    "the same, few rows train for 5,000 steps, too": OPEN | {"tuning": bw.Tuning(few_steps=5_000)},
    "the same, four starts of 7,000 steps": OPEN
    | {"tuning": bw.Tuning(small_members=4, lengths=(7_000, 20_000), few_steps=7_000)},
    "as chosen, one member": OPEN | {"members": 1},
}


def judged(options, name: str, change: str) -> dict:
    """Train with a change, and look at the validation rows."""
    dataset = load(name, options.data_dir)
    made = recipe(dataset, "bali", "default")
    dataset = parted(dataset, options.splits)
    data = rows(dataset, range(len(dataset.train)))
    own = CHANGES[change]
    batch = None if own is None else own.get("batch")
    apart = ("batch", "turns", "scales")
    given = {} if own is None else {key: value for key, value in own.items() if key not in apart}
    method = bw.BALI() if own is None else bw.BALI(**(BASE | given))
    if own is not None:
        method = Draft(method, own.get("turns", ()), own.get("scales", ())).run(method.starts, len(data.x))
    posterior, scores = scored(options, made, data, method, batch)
    line = {"dataset": name, "change": change, "n_splits": len(data.x), "seed": options.seed} | scores
    best, temperature = best_temperature(posterior, data.x_test, data.y_test)
    line |= {"ll_best": best, "temperature_best": temperature}
    return line | ({"chosen": list(posterior.notes[:3])} if method.open else {})


def best_temperature(posterior: Posterior, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """The best log-likelihood that one temperature for all splits could reach on these rows, and which."""
    weights = posterior.weights
    assert isinstance(weights, Layerwise | Mixture)
    warm = {t: replace(posterior, weights=weights.tempered(t)) for t in TEMPERATURES}
    found = {t: float(one.predict(x, 64).log_prob(y).mean()) for t, one in warm.items()}
    best = max(found, key=lambda t: found[t])
    return found[best], best


def table(lines: list[dict]) -> list[list[str]]:
    """RMSE / log-likelihood (the best that a temperature could do) of every change and data set."""
    found = {(line["change"], line["dataset"]): line for line in lines if line["seed"] == 0}
    head = ["change", *SETS]
    body = [[change, *(cell(found.get((change, name))) for name in SETS)] for change in CHANGES]
    return [head, *(row for row in body if any(row[1:]))]


def cell(line: dict | None) -> str:
    """One cell; empty where it was not run."""
    return "" if line is None else f"{line['rmse']:.4g} / {line['ll']:.3f} ({line['ll_best']:.3f})"


def main() -> None:
    """Every change on every data set, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--only", nargs="*", default=list(CHANGES))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        put_table(options.page, table(lines))
        return
    done = {(line["dataset"], line["change"], line["seed"]) for line in lines}
    for change in options.only:
        for name in options.dataset:
            if (name, change, options.seed) not in done:
                keep(options, judged(options, name, change))


if __name__ == "__main__":
    main()
