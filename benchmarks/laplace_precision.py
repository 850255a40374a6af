r"""Whether the evidence chooses the prior precision that held-out rows choose, for Laplace on five UCI sets.

    OMP_NUM_THREADS=1 python benchmarks/laplace_precision.py --data-dir DIR \
        --out benchmarks/results/scripts/laplace_precision.jsonl [--dataset NAME …] [--sweep WHEN …]
    python benchmarks/laplace_precision.py --out benchmarks/results/scripts/laplace_precision.jsonl \
        --page docs/methods/laplace.md

The paper's network of each set trains by `MAP()` on nine tenths of a split's training rows; the others judge:
the best precision is the one under whose linearised predictive they are most likely. One precision serves all
layers, and the noise is always the evidence's.

after: one training, under `--precision` (1); the sweep and `Evidence(shared=True)` at these weights.
in: the sweep trains under every precision, and the evidence's choice is the one with the largest log Z;
`online` is what `Online(shared=True)` finds in one training.

`interval` are the precisions around the best that are within one standard error of it, row by row, `loss` is
how much less likely the held-out rows are under the evidence's choice. No test row is read. A line that is
already in the file is not computed again. The second form writes the tables of the page anew.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from common import arguments, keep, kept, put_table
from reproduction import parted
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.bench.datasets import Rows, load, rows
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import recipe

SETS = ("yacht", "concrete", "energy", "wine_red", "kin8nm")
STRUCTURES = {"kronecker": bw.Kronecker(), "diagonal": bw.Diagonal()}
GRIDS = {
    "after": tuple(10.0 ** (k / 4) for k in range(-12, 21)),  # 1e-3 … 1e5
    "in": tuple(10.0 ** (k / 4) for k in range(-6, 11)),  # 0.03 … 316
}
STEPS, SPLITS = 2_000, 3


@cache
def given(name: str, folder: Path, splits: int) -> tuple[tuple[int, ...], str, Rows]:
    """The network of a set, and its rows."""
    dataset = load(name, folder)
    made = recipe(dataset, "map", "default")
    dataset = parted(dataset, splits)
    return made.sizes, made.activation, rows(dataset, range(splits))


@cache
def trained(name: str, folder: Path, splits: int, precision: float) -> list[nn.Module]:
    """The network of every split at MAP's weights."""
    sizes, activation, data = given(name, folder, splits)
    method = bw.MAP(precision=precision, steps=STEPS)
    own: dict[str, Any] = {"members": splits, "progress": False}
    found: Any = bw.fit(mlp(sizes, activation, 0), (data.x, data.y), bw.Gaussian(), method, **own)
    models = [mlp(sizes, activation, 0) for _ in range(splits)]
    for k, model in enumerate(models):
        model.load_state_dict({key: value[k] for key, value in found.weights.params.items()})
    return list(models)


def fitted(model: nn.Module, data: Rows, split: int, method: bw.Laplace) -> tuple[Any, Tensor]:
    """The posterior of a split, and the log-likelihood of its held-out rows (M,)."""
    train = (data.x[split], data.y[split])
    posterior = bw.fit(model, train, bw.Gaussian(), method, standardise=True, progress=False)
    return posterior, posterior.predict(data.x_test[split]).log_prob(data.y_test[split]).double()


def after(options: argparse.Namespace, name: str, structure: Any) -> Iterator[dict]:
    """The evidence and the sweep at the weights of one training."""
    *_, data = given(name, options.data_dir, SPLITS)
    for split, model in enumerate(trained(name, options.data_dir, SPLITS, options.precision)):
        chosen, own = fitted(model, data, split, bw.Laplace(structure, precision=bw.Evidence(shared=True)))
        fixed = [bw.Laplace(structure, precision=delta) for delta in GRIDS["after"]]
        sweep = torch.stack([fitted(model, data, split, method)[1] for method in fixed])  # (C, M)
        line = {"split": split, "trained": options.precision, "evidence": shared(chosen)}
        line |= judged("after", sweep, own) | about(model, data, split, chosen)
        yield line


def inside(options: argparse.Namespace, name: str, structure: Any) -> Iterator[dict]:
    """The evidence and the sweep, trained under every precision; and what is found online."""
    sizes, activation, data = given(name, options.data_dir, SPLITS)
    for split in range(SPLITS):
        log_z, sweep = [], []
        for delta in GRIDS["in"]:
            model = trained(name, options.data_dir, SPLITS, delta)[split]
            posterior, ll = fitted(model, data, split, bw.Laplace(structure, precision=delta))
            log_z, sweep = [*log_z, float(posterior.log_evidence)], [*sweep, ll]
        best = max(range(len(log_z)), key=log_z.__getitem__)
        line = {"split": split, "evidence": GRIDS["in"][best], "log_evidence": max(log_z)}
        line |= judged("in", torch.stack(sweep), sweep[best])
        first = bw.MAP(precision=options.precision, steps=STEPS)
        method = bw.Laplace(structure, precision=bw.Online(shared=True), first=first)
        found, ll = fitted(mlp(sizes, activation, 0), data, split, method)
        own = {"online": shared(found), "online_log_evidence": float(found.log_evidence)}
        own["online_loss"] = line["best"] - float(ll.mean())
        own["online_determined"] = determined(found)
        yield line | own | {"n": data.x.shape[1], "held": len(ll), "cautions": cautions(found)}


SWEEPS = {"after": after, "in": inside}


def shared(posterior: Any) -> float:
    """The precision of all layers."""
    return float(next(iter(posterior.weights.layers.values())).precision)


def determined(posterior: Any) -> float:
    """The directions that the data determine, γ."""
    return float(sum(layer.determined() for layer in posterior.weights.layers.values()))


def cautions(posterior: Any) -> list[str]:
    """What summary() warns of."""
    return [note for note in posterior.notes if note.startswith("caution")]


def judged(when: str, sweep: Tensor, own: Tensor) -> dict:
    """The best of the grid by held-out rows (C, M), its neighbours that are not clearly worse, the loss."""
    grid, best = GRIDS[when], int(sweep.mean(1).argmax())
    worse = sweep[best] - sweep  # (C, M), row by row
    near = (worse.mean(1) <= worse.std(1) / math.sqrt(sweep.shape[1])).tolist()
    low = next(i + 1 for i in range(best, -2, -1) if i < 0 or not near[i])
    high = next(i - 1 for i in range(best, len(grid) + 1) if i == len(grid) or not near[i])
    curve = [round(float(value), 4) for value in sweep.mean(1)]
    value = float(sweep[best].mean())
    line = {"held_out": grid[best], "interval": [grid[low], grid[high]], "best": value, "curve": curve}
    return line | {"loss": value - float(own.mean())}


def about(model: nn.Module, data: Rows, split: int, posterior: Any) -> dict:
    """What might tell where the two disagree."""
    units = posterior.problem.units
    with torch.no_grad():
        errors = [
            float((model(x[split]) - units.to_network(y[split])).square().mean())
            for x, y in ((data.x, data.y), (data.x_test, data.y_test))
        ]
    line = {"n": data.x.shape[1], "held": data.x_test.shape[1], "determined": determined(posterior)}
    line |= {"weights": sum(p.numel() for p in model.parameters()), "mse": errors[0], "mse_held": errors[1]}
    return line | {"noise": float(posterior.weights.covariance), "cautions": cautions(posterior)}


def started(line: dict) -> float:
    """The precision under which MAP trained, or began to."""
    return line.get("trained", 1.0)


def listed(lines: list[dict], *keys: str, form: str = ".2g") -> str:
    """One figure of every split, or a range of two."""
    return ", ".join(" to ".join(plain(line[key], form) for key in keys) for line in lines)


def plain(value: float, form: str = ".2g") -> str:
    """A number without exponents where it is short."""
    return f"{value:{form}}" if form != ".2g" or not 100 <= value < 1e6 else f"{float(f'{value:.2g}'):.0f}"


def interval(line: dict) -> dict:
    """The ends as figures of their own."""
    low, high = line["interval"]
    return line | {"low": low, "high": high}


def after_row(lines: list[dict]) -> list[str]:
    """Evidence and held-out rows at the weights of one training."""
    share = f"{sum(line['determined'] for line in lines) / len(lines):.0f}"
    counts = f"{share} / {lines[0]['n']} / {lines[0]['weights']}"
    row = [listed(lines, "evidence"), listed(lines, "held_out"), listed(lines, "low", "high")]
    return [*row, listed(lines, "loss", form=".3f"), counts, warned(lines)]


def in_row(lines: list[dict]) -> list[str]:
    """The same where every precision has a training of its own."""
    row = [listed(lines, "evidence"), listed(lines, "online"), listed(lines, "held_out")]
    losses = [listed(lines, key, form=".3f") for key in ("loss", "online_loss")]
    return [*row, listed(lines, "low", "high"), *losses, warned(lines)]


def warned(lines: list[dict]) -> str:
    """Which of the two cautions on the evidence summary() has."""
    found = [note for line in lines for note in line["cautions"] if "the data determine" in note]
    crowded = sum("numbers" in note for note in found)
    words = {"γ / N": crowded, "γ / P": len(found) - crowded}
    return ", ".join(word for word, count in words.items() if count) or "no"


HEADS = {
    "after": ["evidence", "held-out rows", "within a standard error", "loss", "γ / N / P", "warns"],
    "in": [
        "largest log Z",
        "`Online()`",
        "held-out rows",
        "within a standard error",
        "loss of log Z",
        "of `Online()`",
        "warns",
    ],
}
ROWS = {"after": after_row, "in": in_row}


def table(lines: list[dict], when: str) -> list[list[str]]:
    """A row for every data set and structure, in it every split."""
    body = []
    for name in SETS:
        for word in STRUCTURES:
            key = (name, when, word, 1.0)
            own = [
                line
                for line in lines
                if key == (line["dataset"], line["sweep"], line["structure"], started(line))
            ]
            own = [interval(line) for line in own]
            body += [[name, word, *ROWS[when](own)]] if own else []
    return [["data", "form", *HEADS[when]], *body]


def main() -> None:
    """Every data set, structure and sweep, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--sweep", nargs="*", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--precision", type=float, default=1.0, help="of MAP's prior")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        for when in SWEEPS:
            put_table(options.page, table(lines, when), f"precision {when}")
        return
    done = {(line["dataset"], line["sweep"], line["structure"], started(line)) for line in lines}
    for when in options.sweep:
        for name in options.dataset:
            for word, structure in STRUCTURES.items():
                if (name, when, word, options.precision) not in done:
                    run(options, when, name, word, structure)


def run(options: argparse.Namespace, when: str, name: str, word: str, structure: Any) -> None:
    """One sweep of all splits."""
    start = time.perf_counter()
    for line in list(SWEEPS[when](options, name, structure)):
        seconds = round(time.perf_counter() - start, 1)
        keep(options, {"dataset": name, "sweep": when, "structure": word} | line | {"seconds": seconds})


if __name__ == "__main__":
    main()
