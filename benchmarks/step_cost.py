"""What one BALI step costs, in Adam steps of the same network, both sides in one run.

    OMP_NUM_THREADS=1 python benchmarks/step_cost.py

Steps of all sides alternate, 50 each after warm-up; the figure is the ratio of the medians over blocks of ten
steps, because the default refreshes its factors now and then. The Adam side is a plain PyTorch loop with
`torch.optim.Adam` at its defaults. `default` is BALI as it is, `default_drawn` draws weights in training,
`exact` averages statistics and factorises at every step, `exact_mean` moves the means instead. One JSON line
per network, also appended to --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import LeakyTanh, mlp
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.networks import discover
from bayeswise.problem import Problem, Units

NETWORKS = {
    "784-256-256-10": ((784, 256, 256, 10), 2048, "classification"),
    "13-50-1": ((13, 50, 1), 256, "regression"),
    "6-50-1": ((6, 50, 1), 277, "regression"),
}
SIDES: dict[str, dict] = {
    "default": {},
    "default_drawn": {"forward": bw.WeightNoise()},
    "exact": {"update": NaturalUpdate()},
    "exact_mean": {"update": MeanUpdate()},
}


def network(sizes: tuple[int, ...], task: str) -> nn.Sequential:
    """The paper's fully connected network."""
    return mlp(sizes, nn.ReLU if task == "regression" else LeakyTanh)


def adam_step(model: nn.Module, x: Tensor, y: Tensor, task: str) -> Callable[[], None]:
    """One ordinary training step."""
    optimiser = torch.optim.Adam(model.parameters())
    loss = nn.functional.mse_loss if task == "regression" else nn.functional.cross_entropy

    def step() -> None:
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()

    return step


def bali_step(model: nn.Module, x: Tensor, y: Tensor, task: str, method: bw.BALI) -> Callable[[], None]:
    """One step of the method, as the training loop makes it: the model is in eval mode from the first on."""
    likelihood = bw.Gaussian() if task == "regression" else bw.Categorical()
    found = discover(model, x)
    problem = Problem(found, likelihood, 60_000, Units.identity(found.outputs, found.dtype, found.device))
    rng = torch.Generator().manual_seed(0)
    rows = TensorRows(x, y, len(x))
    state = method.init(problem, rows, rng)
    model.eval()

    def step() -> None:
        nonlocal state
        state, _ = method.step(problem, state, (x, y), rng)

    return step


def seconds_of(
    sides: dict[str, Callable[[], None]],
    repeats: int,
    warm_up: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds of one call of each side, the sides alternating."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(warm_up + repeats):
        for name, call in sides.items():
            start = clock()
            call()
            if i >= warm_up:
                times[name].append(clock() - start)
    return {name: statistics.median(map(statistics.fmean, blocks(values))) for name, values in times.items()}


def blocks(values: list[float]) -> list[list[float]]:
    """Ten steps each, so that every block has its share of the refreshes."""
    return [values[i : i + 10] for i in range(0, len(values) - 9, 10)]


def main() -> None:
    """Measure every network with every noise mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--network", choices=list(NETWORKS))
    options = parser.parse_args()
    for name in [options.network] if options.network else NETWORKS:
        sizes, batch, task = NETWORKS[name]
        rng = torch.Generator().manual_seed(0)
        x = torch.randn(batch, sizes[0], generator=rng)
        y = torch.randint(sizes[-1], (batch,), generator=rng)
        y = torch.randn(batch, 1, generator=rng) if task == "regression" else y
        sides = {"adam": adam_step(network(sizes, task), x, y, task)}
        for side, own in SIDES.items():
            method = bw.BALI(steps=1_000_000, effective=0.25, **own)
            sides[side] = bali_step(network(sizes, task), x, y, task, method)
        seconds = seconds_of(sides, options.repeats)
        line = {"network": name, "batch": batch, "threads": torch.get_num_threads()}
        line |= {f"ms_{side}": round(1e3 * value, 3) for side, value in seconds.items()}
        line |= {f"ratio_{s}": round(v / seconds["adam"], 2) for s, v in seconds.items() if s != "adam"}
        print(json.dumps(line))
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
