r"""Which rate SWAG should walk at by default: one after another, on validation rows, beside MAP.

    OMP_NUM_THREADS=1 python benchmarks/swag_rate.py --data-dir DIR \
        --out benchmarks/results/scripts/swag_rate.jsonl [--dataset NAME …]
    python benchmarks/swag_rate.py --out benchmarks/results/scripts/swag_rate.jsonl \
        --page docs/methods/swag.md

Every split's training rows are parted once more, nine to one; the smaller part is what the figures are for.
No test row is read. "MAP" trains as the warm-up does and is no further than that. A line that is already in
the file is not computed again. The second form writes the table of the page anew.
"""

from __future__ import annotations

import time
from pathlib import Path

from common import arguments, keep, kept, put_table
from reproduction import mean_and_error, parted

import bayeswise as bw
from bayeswise.bench.datasets import load, rows
from bayeswise.bench.models import mlp
from bayeswise.bench.settings import recipe
from bayeswise.linalg import NumericalError

SETS = ("yacht", "concrete", "energy", "wine_red", "kin8nm")
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
SPLITS, DRAWS = 3, 128
SIDES: dict[str, bw.MAP | bw.SWAG] = {"MAP": bw.MAP(learning_rate=bw.Cosine(0.005), steps=2000)} | {
    f"rate {rate:g}": bw.SWAG(learning_rate=bw.Constant(rate)) for rate in RATES
}


def judged(options, name: str, side: str) -> dict:
    """Train, and look at the validation rows."""
    dataset = load(name, options.data_dir)
    made = recipe(dataset, "swag", "default")
    dataset = parted(dataset, options.splits)
    data = rows(dataset, range(len(dataset.train)))
    start = time.perf_counter()
    posterior = bw.fit(
        mlp(made.sizes, made.activation, options.seed),
        (data.x, data.y),
        made.likelihood,
        SIDES[side],
        members=len(data.x),
        batch_size=min(made.batch or 1024, data.x.shape[1]),
        seed=options.seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    prediction = posterior.predict(data.x_test, n=DRAWS)
    line = {"dataset": name, "side": side, "n_splits": len(data.x), "seed": options.seed}
    line |= dict(zip(("ll", "ll_se"), mean_and_error(prediction.log_prob(data.y_test).mean(1)), strict=True))
    rmse = (prediction.mean - data.y_test).square().mean((1, 2)).sqrt()
    line |= dict(zip(("rmse", "rmse_se"), mean_and_error(rmse), strict=True))
    return line | {"seconds": round(seconds, 1)}


def tried(options, name: str, side: str) -> dict:
    """The same, or that the walk went astray."""
    try:
        return judged(options, name, side)
    except NumericalError as error:
        return {"dataset": name, "side": side, "seed": options.seed, "diverged": str(error)}


def table(lines: list[dict]) -> list[list[str]]:
    """NLL, the best of a set bold, and RMSE in brackets."""
    found = {(line["side"], line["dataset"]): line for line in lines if line["seed"] == 0}
    walked = [line for line in found.values() if "ll" in line]
    best = {name: max((k["ll"] for k in walked if k["dataset"] == name), default=0.0) for name in SETS}

    def cell(side: str, name: str) -> str:
        line = found.get((side, name))
        if line is None or "ll" not in line:
            return "" if line is None else "diverged"
        nll = f"{-line['ll']:.3f}"
        nll = f"**{nll}**" if line["ll"] == best[name] else nll
        return f"{nll} ({line['rmse']:.3g})"

    return [["", *SETS], *([side, *(cell(side, name) for name in SETS)] for side in SIDES)]


def main() -> None:
    """Every rate on every data set, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        put_table(options.page, table(lines))
        return
    done = {(line["dataset"], line["side"], line["seed"]) for line in lines}
    for name in options.dataset:
        for side in SIDES:
            if (name, side, options.seed) not in done:
                keep(options, tried(options, name, side))


if __name__ == "__main__":
    main()
