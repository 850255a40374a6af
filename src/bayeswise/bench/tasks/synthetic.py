"""Figures 1 and 4 to 6: three small problems, a large network, and what is believed away from the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayeswise import metrics
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.settings import Recipe, with_steps
from bayeswise.bench.tasks.protocol import check_known
from bayeswise.bench.watch import Watch
from bayeswise.methods import METHODS, fresh
from bayeswise.posterior import Posterior
from bayeswise.report.demo import Settings
from bayeswise.report.problems import Curve, Plane, sinc, sines, two_moons

PROBLEMS = {"sinc": sinc, "sines_trend": sines, "two_moons": two_moons}
HIDDEN, DRAWS, POINTS, SIDE = (256, 256, 256), 256, 301, 48
KL_WEIGHTS = (1.0, 0.1, 0.001)
BBB_STEPS = 5_000
BBB_STD = 0.002  # of the first weights: the default 0.02 on 256 inputs is too much noise to learn from
FAR = 2.0  # distance from the data at which a classifier should doubt


class Synthetic:
    """Underfitting and overconfidence, in numbers and pictures."""

    summary = "three synthetic problems; Bayes by Backprop at three KL weights (Fig. 1, 4 to 6)"
    datasets = tuple(PROBLEMS)

    def jobs(self, request: Request) -> Iterator[Job]:
        """One run of each problem and seed; three for Bayes by Backprop."""
        check_known(request, request.datasets, PROBLEMS, "problem")
        for name in request.datasets or self.datasets:
            for seed in range(request.seed, request.seed + (request.splits or 1)):
                yield from _jobs(request, name, seed)

    def watch(self, job: Job) -> Watch:
        """Only the time."""
        return Watch()

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """The fit at the data and the uncertainty away from them, with the picture."""
        problem = job.extra["problem"]
        if isinstance(problem, Curve):
            return [_curve(problem, posterior, job.draws)]
        return [_plane(problem, posterior, job.draws)]


def _jobs(request: Request, name: str, seed: int) -> Iterator[Job]:
    problem = PROBLEMS[name](seed)
    sizes = (problem.x.shape[1], *HIDDEN, 1)
    for settings, method in _methods(request, name):
        chosen = method if request.steps is None else with_steps(method, request.method, request.steps)
        made = Recipe(sizes, "tanh", len(problem.x), chosen, problem.likelihood)
        rows = (problem.x, problem.y, problem.held_x, problem.held_y)
        yield Job(
            request.task,
            name,
            request.method,
            settings,
            seed,
            (0,),
            made,
            *rows,
            draws=DRAWS,
            data="drawn with the seed",
            batched=False,
            extra={"problem": problem},
        )


def _methods(request: Request, name: str) -> Iterator[tuple[str, Any]]:
    """The settings of a method with their names."""
    if request.method not in METHODS:
        raise ValueError(f"there is no method {request.method!r}; there are {', '.join(METHODS)}")
    if request.settings == "default":
        yield "default", fresh(request.method)
    elif request.settings != "paper" or request.method not in ("bali", "bbb"):
        asked = f"{request.settings} settings for {request.method}"
        raise ValueError(f"task synthetic has no {asked}; use --settings default")
    elif request.method == "bbb":
        for weight in KL_WEIGHTS:
            yield f"kl={weight:g}", METHODS["bbb"](kl_weight=weight, initial_std=BBB_STD, steps=BBB_STEPS)
    else:
        own = Settings()
        yield "paper", {"sinc": own.sinc, "sines_trend": own.sines, "two_moons": own.moons}[name]


def _curve(problem: Curve, posterior: Posterior, draws: int) -> dict[str, Any]:
    """RMSE at the training inputs, and the standard deviations at the data, in the gap and outside."""
    grid = problem.grid(POINTS)
    seen, view = posterior.predict(problem.x, draws), posterior.predict(grid, draws)
    inside, span = problem.inside(grid), problem.span(grid)
    gap = span & ~inside
    found = {
        "rmse_train": float(metrics.rmse(seen.mean, problem.y)),
        "rmse_function": float(metrics.rmse(view.mean[inside], problem.truth(grid)[inside])),
        "noise": problem.noise,
        "std_data": float(seen.std.mean()),
        "epistemic_data": float(seen.epistemic.mean()),
        "std_outside": float(view.std[~span].mean()),
    }
    if bool(gap.any()):
        found |= {"std_gap": float(view.std[gap].mean()), "epistemic_gap": float(view.epistemic[gap].mean())}
    picture = {
        "x": _listed(grid),
        "mean": _listed(view.mean),
        "epistemic": _listed(view.epistemic),
        "std": _listed(view.std),
        "truth": _listed(problem.truth(grid)),
        "x_train": _listed(problem.x),
        "y_train": _listed(problem.y),
    }
    return {"metrics": found, "picture": picture}


def _plane(problem: Plane, posterior: Posterior, draws: int) -> dict[str, Any]:
    """Accuracy on held-out points, and entropy at the data and at distance 2 from them."""
    columns, rows, points = problem.grid(SIDE)
    view, held = posterior.predict(points, draws), posterior.predict(problem.held_x, draws)
    found = {
        "acc": float(metrics.accuracy(held.mean, problem.held_y)),
        "nll": -float(held.log_prob(problem.held_y).mean()),
        "entropy_data": float(posterior.predict(problem.x, draws).entropy().mean()),
        "entropy_far": float(posterior.predict(_ring(problem.x, FAR), draws).entropy().mean()),
    }
    picture = {
        "x1": _listed(columns),
        "x2": _listed(rows),
        "probability": view.mean.reshape(len(rows), -1).mul(1e4).round().div(1e4).tolist(),
        "entropy": view.entropy().reshape(len(rows), -1).mul(1e4).round().div(1e4).tolist(),
        "x_train": problem.x.tolist(),
        "y_train": problem.y.tolist(),
    }
    return {"metrics": found, "picture": picture}


def _ring(x: Tensor, distance: float, tolerance: float = 0.05, side: int = 200) -> Tensor:
    """Points (P, 2) of a grid whose nearest data point is so far away."""
    low, high = x.amin(0) - 1.2 * distance, x.amax(0) + 1.2 * distance
    axes = [torch.linspace(float(a), float(b), side) for a, b in zip(low, high, strict=True)]
    points = torch.cartesian_prod(*axes)
    nearest = torch.cdist(points, x).amin(1)
    return points[(nearest - distance).abs() < tolerance]


def _listed(values: Tensor) -> list[float]:
    return [round(float(v), 4) for v in values.flatten()]
