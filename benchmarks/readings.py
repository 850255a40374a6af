r"""How the paper's settings are read in classification, on validation rows.

    OMP_NUM_THREADS=1 python benchmarks/readings.py --data-dir DIR \
        --out benchmarks/results/scripts/readings.jsonl [--dataset NAME …] [--only CHANGE …] [--steps N]
    python benchmarks/readings.py --out benchmarks/results/scripts/readings.jsonl --page docs/reproduction.md

A fifth of the training rows of the first split, at most 10,000, is held out and judges. No test row is read.
A line that is already in the file is not computed again. The second form writes the table of the page anew.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import arguments, keep, kept, put_table
from torch import Tensor

import bayeswise as bw
from bayeswise import metrics
from bayeswise.bench.datasets import Dataset, load, rows
from bayeswise.bench.labels import dataset_name
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import recipe
from bayeswise.methods.protocol import Method

CHANGES = (
    "divided",
    "prior as printed",
    "prior and start as printed",
    "and the noise floor as printed",
    "divided, the noise floor as printed",
    "prior as printed, one logit",
    "divided, pixels from 0 to 1",
    "divided, rows counted 0.1",
    "divided, rows counted as printed",
    "divided, rows counted as printed, prior variance squared",
    "divided, prior variance squared",
    "prior as printed, prior variance squared",
    "MC dropout",
    "MC dropout, pixels from 0 to 1",
)
FLOOR = 0.01  # σ_u² / N_eff as printed
STEPS = {"spambase": 4000, "magic": 4000, "diabetes": 3000, "mnist": 3000, "fashion_mnist": 3000}
LONG = {"mnist": 10_000, "fashion_mnist": 10_000}  # as long as the results of the images
WHOLE = {"spambase": 20_000, "magic": 20_000}  # as long as the results of these tables
PART, MOST, DRAWS = 5, 10_000, 128


def changed(dataset: Dataset, change: str, steps: int, n: int) -> Method[Any]:
    """The paper's settings with one reading of them, for n rows to train on."""
    if change.startswith("MC dropout"):
        method = recipe(dataset, "mc_dropout", "paper", steps).method
        assert isinstance(method, bw.MCDropout)
        return replace(method, precision=method.precision * n / len(dataset.train[0]))  # the same decay
    method = recipe(dataset, "bali", "paper", steps).method
    assert isinstance(method, bw.BALI) and isinstance(method.prior, bw.FanIn)
    # σ_r² of the tables, or read as σ_r
    variance = method.prior.variance ** (2 if "squared" in change else 1)
    method = replace(method, prior=bw.FanIn(variance), first_prior=None, first_initial_scale=None)
    if "rows counted" in change:
        printed = recipe(dataset, "bali", "printed", steps).method
        assert isinstance(printed, bw.BALI)
        method = replace(method, effective=0.1 if "counted 0.1" in change else printed.effective)
    if "noise floor" in change:
        method = replace(method, noise_floor=FLOOR, hidden_noise_floor=FLOOR)
    if change.startswith("divided"):
        return method
    method = replace(method, first_prior=bw.Isotropic(variance))
    if change.startswith("prior as printed"):
        return method
    return replace(method, first_initial_scale=(dataset.x[0].size + 1) ** 0.5)


def judged(options, name: str, change: str, steps: int) -> dict:
    """Train on most of the training rows, and look at the others."""
    dataset = load(name, options.data_dir)
    made, data = recipe(dataset, "bali", "paper"), rows(dataset, (0,))
    inputs = from_0_to_1(data.x[0]) if "pixels" in change else data.x[0]
    x, y, held_x, held_y = parted(inputs, data.y[0])
    one = change.endswith("one logit")
    sizes, likelihood = ((*made.sizes[:-1], 1), bw.Bernoulli()) if one else (made.sizes, made.likelihood)
    method, start = changed(dataset, change, steps, len(x)), time.perf_counter()
    posterior = bw.fit(
        mlp(sizes, made.activation, options.seed),
        (x, y),
        likelihood,
        method,
        batch_size=min(made.batch or len(x), len(x)),
        seed=options.seed,
    )
    seconds = time.perf_counter() - start
    p = of_classes(posterior.predict(held_x, DRAWS).mean)
    return {
        "dataset": name,
        "change": change,
        "steps": steps,
        "seed": options.seed,
        "nll": float(F.nll_loss(p.log(), held_y)),
        "acc": float(metrics.accuracy(p, held_y)),
        "ece": float(metrics.ece(p, held_y)),
        "held": len(held_x),
        "seconds": round(seconds, 1),
    }


def from_0_to_1(x: Tensor) -> Tensor:
    """Pixels as shares of the brightest instead of standardised."""
    return (x - x.min()) / (x.max() - x.min())


def of_classes(p: Tensor) -> Tensor:
    """The probabilities of all classes (B, O); a network of one logit tells the second's only."""
    return torch.cat([1 - p, p], -1) if p.shape[-1] == 1 else p


def fits(name: str, change: str) -> bool:
    """Whether a reading means something: pixels for images, one logit for two classes."""
    image = name in LONG
    return not (image and "one logit" in change or not image and "pixels" in change)


def parted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows to train on and rows to judge by."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    held = min(MOST, len(x) // PART)
    return x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]]


def table(lines: list[dict], steps: dict[str, int]) -> list[list[str]]:
    """NLL / accuracy / ECE of every reading and data set, at its number of steps."""
    whole = [one for one in lines if one["steps"] == steps.get(one["dataset"]) and one["seed"] == 0]
    found = {(line["change"], line["dataset"]): line for line in whole}
    head = ["reading", *map(dataset_name, steps)]
    body = [[change, *(cell(found.get((change, name))) for name in steps)] for change in CHANGES]
    return [head, *(row for row in body if any(row[1:]))]


def cell(line: dict | None) -> str:
    """One cell; empty where it was not run."""
    return "" if line is None else f"{line['nll']:.4f} / {line['acc']:.4f} / {line['ece']:.4f}"


def main() -> None:
    """Every reading on every data set, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(STEPS))
    parser.add_argument("--only", nargs="*", default=list(CHANGES))
    parser.add_argument(
        "--steps",
        type=int,
        help="instead of a data set's own; the page has images with 10,000 and tables with 20,000, too",
    )
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        put_table(options.page, table(lines, STEPS), "readings")
        put_table(options.page, table(lines, LONG), "readings of images")
        put_table(options.page, table(lines, WHOLE), "readings of tables")
        return
    done = {(line["dataset"], line["change"], line["steps"], line["seed"]) for line in lines}
    for name in options.dataset:
        steps = options.steps or STEPS[name]
        for change in (change for change in options.only if fits(name, change)):
            if (name, change, steps, options.seed) not in done:
                keep(options, judged(options, name, change, steps))


if __name__ == "__main__":
    main()
