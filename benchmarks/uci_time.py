r"""How long `BALI()` takes beside the paper's settings: all splits of a UCI set, choosing included.

    OMP_NUM_THREADS=1 python benchmarks/uci_time.py --data-dir DIR --results benchmarks/results \
        --part FOLDER --out benchmarks/results/scripts/uci_time.jsonl [--dataset NAME …]

For each set the defaults train in full, and right after them the paper's settings for a tenth of their steps,
which are all alike: ten times these seconds are what they take. `processor` is the same ratio in seconds of
the processor, scoring included, which says more where other work runs beside. What is in the folders already
is not computed again: for a measurement both are empty, or hold runs of the same day and load.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from common import arguments, keep
from reproduction import SETS

from bayeswise.bench import runner
from bayeswise.bench.datasets import load
from bayeswise.bench.jobs import Request
from bayeswise.bench.settings import recipe

PART = 10


def seconds(options, name: str, settings: str, out: Path, steps: int | None = None) -> tuple[float, float]:
    """Of training all splits, and of the processor."""
    asked = Request("uci", "bali", out, options.data_dir, (name,), settings, steps=steps, seed=options.seed)
    start = time.process_time()
    (found,) = runner.run(asked, lambda text: print(text, file=sys.stderr))
    return float(found["seconds"]), time.process_time() - start


def main() -> None:
    """One set after another."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(SETS))
    parser.add_argument("--results", type=Path, required=True, help="folder of the default lines")
    parser.add_argument("--part", type=Path, required=True, help="folder of the shortened runs")
    options = parser.parse_args()
    for name in options.dataset:
        steps = recipe(load(name, options.data_dir), "bali", "paper").method.length // PART
        ours, busy = seconds(options, name, "default", options.results)
        part, part_busy = seconds(options, name, "paper", options.part, steps)
        line = {"dataset": name, "seed": options.seed, "default": ours, "paper": round(PART * part, 1)}
        line |= {"paper_steps_run": steps, "ratio": round(ours / part / PART, 3)}
        keep(options, line | {"processor": round(busy / part_busy / PART, 3)})


if __name__ == "__main__":
    main()
