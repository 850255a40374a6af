r"""How much faster the 20 Yacht splits train in one batched run than one after another.

    OMP_NUM_THREADS=1 python benchmarks/batched_splits.py --data-dir DIR \
        --out benchmarks/results/scripts/batched_splits.jsonl

Rounds of the three sides alternate: `--steps` batched steps, the same steps of one split, and Adam steps of
the same network on that split; medians over the rounds. One after another costs 20 times one split.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, keep, mlp
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.bench.datasets import load, rows
from bayeswise.bench.settings import recipe
from bayeswise.data import TensorRows
from bayeswise.networks import discover, evaluating
from bayeswise.problem import Problem, Units


def bali_steps(x: Tensor, y: Tensor, method: bw.BALI, members: int | None, steps: int) -> Callable[[], None]:
    """A call that makes so many steps, going on from the last."""
    model = mlp((x.shape[-1], 50, 1), nn.ReLU)
    found = discover(model, x if members is None else x[0])
    units = Units.identity(1, found.dtype, found.device)
    problem = Problem(found, bw.Gaussian(), x.shape[-2], units, members)
    rng = torch.Generator().manual_seed(0)
    state = method.init(problem, TensorRows(x, y, x.shape[-2], len(problem.lead)), rng)

    def run() -> None:
        nonlocal state
        with evaluating(model):
            for _ in range(steps):
                state, _ = method.step(problem, state, (x, y), rng)

    return run


def adam_steps(x: Tensor, y: Tensor, steps: int) -> Callable[[], None]:
    """The same for a plain loop with Adam."""
    model = mlp((x.shape[-1], 50, 1), nn.ReLU)
    optimiser = torch.optim.Adam(model.parameters())

    def run() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimiser.step()

    return run


def main() -> None:
    """Alternate, take medians, keep."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    dataset = load("yacht", options.data_dir)
    found = rows(dataset, range(len(dataset.train)))
    x, y = found.x, found.y
    y = (y - y.mean(1, keepdim=True)) / y.std(1, keepdim=True)
    method = recipe(dataset, "bali", "paper", steps=1_000_000).method
    assert isinstance(method, bw.BALI)
    sides = {
        "batched": bali_steps(x, y, method, len(x), options.steps),
        "single": bali_steps(x[0], y[0], method, None, options.steps),
        "adam": adam_steps(x[0], y[0], options.steps),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(options.rounds + 2):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if i >= 2:
                times[name].append((time.perf_counter() - start) / options.steps)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    line = {f"ms_{name}": round(1e3 * value, 3) for name, value in seconds.items()}
    line["one_after_another_over_batched"] = round(len(x) * seconds["single"] / seconds["batched"], 2)
    line["single_over_adam"] = round(seconds["single"] / seconds["adam"], 2)
    keep(options, line)


if __name__ == "__main__":
    main()
