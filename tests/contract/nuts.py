"""Every method against NUTS on networks of at most 100 weights, compared in function space.

    p(w | x, y) ∝ exp(-U(w)),  U(w) = -Σ_n log p(y_n | f(x_n; w)) + |w|² / (2 v)

NUTS draws from it in several chains that start at draws of the prior N(0, v). A method gets the setting that
comes nearest to this prior, from TABLE.

    python tests/contract/nuts.py --reference    runs NUTS again: nuts_reference.npz (about 10 minutes)
    python tests/contract/nuts.py --record       measures the methods: nuts_errors.json, docs/nuts.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

import bayeswise as bw
from bayeswise.methods import METHODS

HERE = Path(__file__).parent
REFERENCE, ERRORS = HERE / "nuts_reference.npz", HERE / "nuts_errors.json"
PAGE = HERE.parents[1] / "docs" / "nuts.md"
MARKS = "<!-- errors -->", "<!-- end -->"
RECORD = "run `python tests/contract/nuts.py --record`"
REPEATS, DRAWS = 4, 1000  # runs of a method whose errors are averaged, and draws of each
STEPS = 800  # of every method
TREE = 7  # at most 2^7 - 1 leapfrog steps a draw

Errors = dict[str, dict[str, float]]  # by region, by quantity


# ----------------------------------------------------------------------------------------------- the problems


@dataclass(frozen=True, eq=False)
class Task:
    """Data, a network whose weights have the prior N(0, variance), and where functions are compared."""

    x: Tensor  # (N, I)
    y: Tensor  # (N, O), or labels (N,)
    likelihood: bw.Gaussian | bw.Categorical
    layers: tuple[nn.Module, ...]  # no method changes them, so every network shares them
    variance: float  # v
    grid: Tensor  # (G, I)
    regions: dict[str, Tensor]  # rows of the grid, (G,) each

    @property
    def noise(self) -> float | None:
        """The variance of a Gaussian likelihood, which is known here."""
        noise = getattr(self.likelihood, "noise", None)
        return None if noise is None else float(noise)

    def network(self, dropout: float = 0.0) -> nn.Sequential:
        """The network, with dropout before its last layer where a method needs a place for it."""
        drop = (nn.Dropout(dropout),) if dropout else ()
        return nn.Sequential(*self.layers[:-1], *drop, self.layers[-1])

    def negative_log_lik(self, f: Tensor) -> Tensor:
        """-Σ log p(y | f) up to a constant, without a line of the package."""
        if self.noise is None:
            return F.cross_entropy(f, self.y, reduction="sum")
        return (f - self.y).square().sum() / (2 * self.noise)


def mlp(inputs: int, hidden: int, outputs: int) -> tuple[nn.Module, ...]:
    """Layers of a tanh network with a fixed start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
        return tuple(layer.double() for layer in layers)


def regression() -> Task:
    """A sine seen on both sides of a gap, 25 weights, known noise."""
    half = torch.linspace(-2.0, -0.8, 10, dtype=torch.float64)
    x = torch.cat([half, -half])[:, None]  # (20, 1)
    e = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = torch.linspace(-4.0, 4.0, 41, dtype=torch.float64)[:, None]
    r = grid[:, 0].abs()
    regions = {"data": (r > 0.75) & (r < 2.05), "gap": r < 0.75, "far": r > 2.05}
    return Task(x, (2 * x).sin() + 0.2 * e, bw.Gaussian(0.04), mlp(1, 8, 1), 1.0, grid, regions)


def three_classes() -> Task:
    """Three clouds in the plane that overlap, 51 weights."""
    y = torch.arange(30) % 3
    e = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centres = torch.tensor([[0.0, 1.2], [-1.2, -0.8], [1.2, -0.8]], dtype=torch.float64)
    x = centres[y] + 0.6 * e
    side = torch.linspace(-5.0, 5.0, 11, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)  # (121, 2)
    distance = torch.cdist(grid, x).amin(1)  # (121,), to the nearest datum
    regions = {"data": distance < 0.7, "far": distance > 1.5}
    return Task(x, y, bw.Categorical(), mlp(2, 8, 3), 1.0, grid, regions)


TASKS = {"regression": regression(), "three classes": three_classes()}


# ---------------------------------------------------------------------------------------------- the reference


@dataclass(frozen=True)
class Chains:
    """How NUTS runs."""

    chains: int = 4
    warmup: int = 200
    draws: int = 500
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments of the targets on the grid, and how far the chains agree on the functions."""

    mean: Tensor  # (G, O); class probabilities for labels
    std: Tensor  # (G, O), noise included
    rhat: float  # the largest split R-hat of a function value
    ess: float  # the smallest effective number of draws of one


def sampled(task: Task, how: Chains) -> Reference:
    """The reference of a task, by NUTS."""
    w = torch.stack([chain(task, how, k) for k in range(how.chains)])  # (C, S, P)
    return summarised(task, functions(task, w))


def chain(task: Task, how: Chains, k: int) -> Tensor:
    """Weights (S, P) of one chain, which starts at a draw of the prior."""
    from pyro.infer import MCMC, NUTS

    model, split = task.network(), splitter(task.network())

    def potential(z: dict[str, Tensor]) -> Tensor:
        w = z["w"]
        f = functional_call(model, split(w), (task.x,))  # (N, O)
        return task.negative_log_lik(f) + w @ w / (2 * task.variance)

    size = sum(p.numel() for p in model.parameters())
    with torch.random.fork_rng(devices=[]):  # pyro draws with the global generator
        torch.manual_seed(1000 * how.seed + k)
        start = task.variance**0.5 * torch.randn(size, dtype=torch.float64)
        kernel = NUTS(potential_fn=potential, max_tree_depth=TREE)
        run = MCMC(kernel, how.draws, how.warmup, initial_params={"w": start}, disable_progbar=True)
        run.run()
    return run.get_samples()["w"].detach()


def splitter(model: nn.Module) -> Callable[[Tensor], dict[str, Tensor]]:
    """What turns a vector (P,) into the model's parameters."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def split(w: Tensor) -> dict[str, Tensor]:
        parts = zip(shapes.items(), w.split(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    return split


def functions(task: Task, w: Tensor) -> Tensor:
    """Outputs (C, S, G, O) of the networks w (C, S, P) on the grid."""
    model, split = task.network(), splitter(task.network())
    with torch.no_grad():
        f = vmap(lambda v: functional_call(model, split(v), (task.grid,)))(w.flatten(0, 1))
    return f.unflatten(0, w.shape[:2])


def summarised(task: Task, f: Tensor) -> Reference:
    """Moments over all draws f (C, S, G, O), and the convergence of their values."""
    from pyro.ops.stats import effective_sample_size, split_gelman_rubin

    rhat = float(split_gelman_rubin(f, chain_dim=0, sample_dim=1).max())
    ess = float(effective_sample_size(f, chain_dim=0, sample_dim=1).min())
    f = f.flatten(0, 1)  # (C·S, G, O)
    if task.noise is None:
        p = f.softmax(-1).mean(0)
        return Reference(p, (p * (1 - p)).sqrt(), rhat, ess)
    return Reference(f.mean(0), (f.var(0) + task.noise).sqrt(), rhat, ess)


def stored() -> dict[str, Reference]:
    """The references of all tasks, from the file."""
    with np.load(REFERENCE) as file:
        return {name: _read(file, name) for name in TASKS}


def _read(file: Mapping[str, np.ndarray], name: str) -> Reference:
    mean, std, rhat, ess = (file[f"{name}/{part}"] for part in ("mean", "std", "rhat", "ess"))
    return Reference(torch.from_numpy(mean), torch.from_numpy(std), float(rhat), float(ess))


def store(references: dict[str, Reference]) -> None:
    """Write the file that `stored` reads."""
    arrays: dict[str, Any] = {}
    for name, reference in references.items():
        arrays |= {f"{name}/{part}": np.asarray(value) for part, value in vars(reference).items()}
    np.savez_compressed(REFERENCE, **arrays)


# ------------------------------------------------------------------------------------------------ the methods


@dataclass(frozen=True)
class Row:
    """How a method is set for a task: as near to the prior N(0, v) as it can be."""

    build: Callable[[Task], Any]
    dropout: float = 0.0  # of the network that it gets


def bali(task: Task, **settings: Any) -> bw.BALI:
    """BALI's prior of a layer is N(0, R0 Σ): Σ is the known noise of the last one, about α² of any other."""
    step = settings.get("step_size", 0.5)
    hidden = bw.Isotropic(task.variance / step**2)
    last = hidden if task.noise is None else bw.Isotropic(task.variance / task.noise)
    return bw.BALI(prior=hidden, last_prior=last, steps=STEPS, **settings)


def descending(name: str, **settings: Any) -> Callable[[Task], Any]:
    """A method that takes λ = 1 / v."""
    settings = {"learning_rate": bw.Cosine(0.02), "steps": STEPS} | settings
    return lambda task: METHODS[name](precision=1 / task.variance, **settings)


TABLE = {
    "bali": Row(bali),
    "map": Row(descending("map")),
    "ensemble": Row(descending("ensemble")),
    "laplace": Row(
        lambda task: METHODS["laplace"](precision=1 / task.variance, first=descending("map")(task))
    ),
    "swag": Row(descending("swag", learning_rate=bw.Constant(0.03), warmup_rate=bw.Cosine(0.02), every=10)),
    "mc_dropout": Row(descending("mc_dropout"), dropout=0.1),
    "bbb": Row(
        lambda task: METHODS["bbb"](
            prior=bw.Isotropic(task.variance), learning_rate=bw.Cosine(0.02), steps=STEPS
        )
    ),
}
VARIANTS = {
    "bali, α = 0.25": Row(lambda task: bali(task, step_size=0.25)),
    "laplace, full": Row(
        lambda task: METHODS["laplace"](
            structure=bw.Full(), precision=1 / task.variance, first=descending("map")(task)
        )
    ),
}


def names() -> list[str]:
    """The registered methods, and the variants."""
    return [*METHODS, *VARIANTS]


def row(name: str) -> Row:
    """How a method is set."""
    rows = TABLE | VARIANTS
    if name not in rows:
        raise LookupError(
            f'method "{name}" is registered and has no row: give it one in TABLE of tests/contract/nuts.py, '
            f"set as near to the prior N(0, v) as it can be, and {RECORD}"
        )
    return rows[name]


def fitted(task: Task, name: str) -> bw.Predictive:
    """What a method predicts on the grid, (REPEATS, G, O): runs from as many starts, in one batch."""
    given = row(name)
    x, y, grid = (t.expand(REPEATS, *t.shape).contiguous() for t in (task.x, task.y, task.grid))
    posterior = bw.fit(
        task.network(given.dropout),
        (x, y),
        task.likelihood,
        given.build(task),
        members=REPEATS,
        standardise=False,  # the prior is one of weights in the user's units
        progress=False,
    )
    return posterior.predict(grid, DRAWS)


def measured(task: Task, name: str, reference: Reference) -> Errors:
    """The errors of a method, averaged over its runs."""
    predictive = fitted(task, name)
    runs = [errors(task, m, s, reference) for m, s in zip(predictive.mean, predictive.std, strict=True)]
    return {
        region: {kind: float(np.mean([run[region][kind] for run in runs])) for kind in kinds}
        for region, kinds in runs[0].items()
    }


def errors(task: Task, mean: Tensor, std: Tensor, reference: Reference) -> Errors:
    """Distances to the reference of moments (G, O), region by region.

    Regression: `mean` is the rms of (m - m0) / s0, `std` that of log(s / s0), and `ratio` the mean of
    log(s / s0), below zero where a method is too sure. Labels: `variation` is the mean of Σ |p - p0| / 2.
    """
    found = {}
    for name, rows in task.regions.items():
        m, s, m0, s0 = (t[rows] for t in (mean, std, reference.mean, reference.std))
        if task.noise is None:
            found[name] = {"variation": float((m - m0).abs().sum(-1).mean() / 2)}
            continue
        z, ratio = (m - m0) / s0, (s / s0).log()
        found[name] = {"mean": _rms(z), "std": _rms(ratio), "ratio": float(ratio.mean())}
    return found


def _rms(t: Tensor) -> float:
    return float(t.square().mean().sqrt())


# ------------------------------------------------------------------------------------------- what is recorded


def recorded() -> dict[str, dict[str, Errors]]:
    """The errors by task and method, from the file."""
    return json.loads(ERRORS.read_text())


def tables(record: dict[str, dict[str, Errors]]) -> str:
    """The record as Markdown, a table for each task."""
    return "\n\n".join("\n".join([f"**{task}**", "", *_table(found)]) for task, found in record.items())


def _table(found: dict[str, Errors]) -> Iterable[str]:
    first = next(iter(found.values()))
    cells = [(region, kind) for kind in next(iter(first.values())) for region in first]
    yield "| method | " + " | ".join(f"{kind}, {region}" for region, kind in cells) + " |"
    yield "|---|" + "---|" * len(cells)
    for method, by_region in found.items():
        numbers = (_number(kind, by_region[region][kind]) for region, kind in cells)
        yield f"| {method} | " + " | ".join(numbers) + " |"


def _number(kind: str, value: float) -> str:
    return f"{value:+.2f}" if kind == "ratio" else f"{value:.2f}"


def with_tables(page: str, text: str) -> str:
    """The page with this text between its two marks."""
    before, found, rest = page.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (found and end):
        raise ValueError(
            f"the page has lost the marks {MARKS}, between which its tables stand; put them back"
        )
    return f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}"


def record_errors() -> None:
    """Measure the registered methods; write the file and the tables of the page."""
    references = stored()
    found = {
        task: {name: _rounded(measured(TASKS[task], name, references[task])) for name in names()}
        for task in TASKS
    }
    ERRORS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), tables(found)))
    print(tables(found))


def _rounded(found: Errors) -> Errors:
    return {region: {kind: round(v, 4) for kind, v in kinds.items()} for region, kinds in found.items()}


def record_reference() -> None:
    """Run NUTS on every task; write the file."""
    references = {name: sampled(task, Chains()) for name, task in TASKS.items()}
    store(references)
    for name, reference in references.items():
        print(f"{name}: R-hat {reference.rhat:.3f}, effective draws {reference.ess:.0f}")


def main() -> None:
    """Do what is asked for, references first."""
    parser = argparse.ArgumentParser(description="every method against NUTS on small networks")
    parser.add_argument("--reference", action="store_true", help="run NUTS again (about 10 minutes)")
    parser.add_argument("--record", action="store_true", help="measure the methods and record their errors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.reference:
        record_reference()
    if options.record:
        record_errors()


if __name__ == "__main__":
    main()
