r"""What predictions cost: draws of 784-256-256-10 against as many forward passes, and their memory.

    OMP_NUM_THREADS=1 python benchmarks/prediction_cost.py --out FILE

The first line: 64 draws on 10,000 rows, drawing included, a second `predict` of other rows (which reuses the
draws), and 64 forward passes of the plain module, alternating; ratios of medians. The second: how much the
peak of memory grows by 1,000 draws on 100,000 rows with `memory=500_000_000`, mean and standard deviation of
every row included; blocks are as large for 13,000 rows, which take four minutes instead of half an hour.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import torch
from common import LeakyTanh, arguments, keep, mlp
from torch import Tensor, nn

import bayeswise as bw

SIZES, DRAWS, ROWS = (784, 256, 256, 10), 64, 10_000
MANY_DRAWS, MANY_ROWS, MEMORY = 1_000, 100_000, 500_000_000


def posterior(seed: int) -> tuple[nn.Module, bw.Posterior]:
    """A network that has seen a few steps: what predictions cost does not depend on more."""
    torch.manual_seed(seed)
    model = mlp(SIZES, LeakyTanh)
    x, y = torch.rand(2048, SIZES[0]), torch.randint(SIZES[-1], (2048,))
    return model, bw.fit(model, (x, y), bw.Categorical(), bw.BALI(steps=3), progress=False)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cost(model: nn.Module, found: bw.Posterior, x: Tensor, repeats: int) -> dict:
    """Predictions in forward passes."""

    def plain() -> None:
        with torch.inference_mode():
            for _ in range(DRAWS):
                model(x)

    sides = {
        "first": lambda: found.predict(x, DRAWS, rng=torch.Generator().manual_seed(1)).mean,
        "again": lambda: found.predict(x, DRAWS).mean,
        "plain": plain,
    }
    times = {name: [] for name in sides}
    for work in sides.values():
        work()
    for _ in range(repeats):
        for name, work in sides.items():
            times[name].append(seconds(work))
    middle = {name: statistics.median(values) for name, values in times.items()}
    line = {"what": "time", "draws": DRAWS, "rows": len(x), "plain_seconds": round(middle["plain"], 3)}
    return line | {name: round(middle[name] / middle["plain"], 3) for name in ("first", "again")}


def growth(found: bw.Posterior, x: Tensor) -> dict:
    """Bytes by which the peak grows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    prediction = found.predict(x, MANY_DRAWS, memory=MEMORY)
    shapes = tuple(prediction.mean.shape), tuple(prediction.std.shape)
    took = time.perf_counter() - start
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    line = {"what": "memory", "draws": MANY_DRAWS, "rows": len(x), "allowed": MEMORY, "peak_growth": more}
    return line | {"shapes": shapes, "seconds": round(took, 1), "held": more <= MEMORY}


def main() -> None:
    """Both lines."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--rows", type=int, default=MANY_ROWS, help="of the second line")
    options = parser.parse_args()
    model, found = posterior(options.seed)
    if options.only != "time":  # before anything else has raised the peak
        keep(options, growth(found, torch.rand(options.rows, SIZES[0])))
    if options.only != "memory":
        keep(options, cost(model, found, torch.rand(ROWS, SIZES[0]), options.repeats))


if __name__ == "__main__":
    main()
