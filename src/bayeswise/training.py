"""The loop: batches, progress, callbacks, checkpoints. It knows a method's plan and nothing else of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from tqdm.auto import tqdm

from bayeswise.data import Batch, Rows
from bayeswise.methods.protocol import Info, Method, Passes
from bayeswise.networks import evaluating
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.randomness import derived_seed
from bayeswise.saving import SavedModelError, flatten, newest_checkpoint, unflatten, write_checkpoint


@dataclass(frozen=True, eq=False)
class Progress:
    """What a callback sees after a step."""

    step: int  # steps done
    total: int  # steps planned
    info: Info
    posterior: Callable[[], Posterior]  # the posterior so far, computed when called


Callback = Callable[[Progress], bool | None]  # returning True ends the run


@dataclass
class EarlyStopping:
    """End the run when the log-likelihood of held-out rows has not improved for a while.

    The held-out rows are in the user's units; they are looked at every `every` steps with `draws` networks.
    """

    x: Any
    y: Any
    every: int = 100
    patience: int = 5
    draws: int = 32
    history: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, progress: Progress) -> bool:
        """Whether to stop."""
        if progress.step % self.every:
            return False
        value = float(progress.posterior().predict(self.x, self.draws).log_prob(self.y).mean())
        self.history.append((progress.step, value))
        best = max(range(len(self.history)), key=lambda i: self.history[i][1])
        return len(self.history) - 1 - best >= self.patience


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is saved: after `every` steps, and after `seconds`, whichever comes first."""

    folder: str | Path
    every: int = 1000
    seconds: float = 60.0


@dataclass
class _Run:
    """The position of a run: all that a checkpoint holds beside the method's state."""

    state: Any
    rng: Generator
    step: int = 0
    epoch: int = 0
    position: int = 0  # batches of this epoch that are done


def train(
    method: Method[Any],
    problem: Problem,
    rows: Rows,
    seed: int,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    identity: dict[str, Any] | None = None,
) -> Any:
    """Carry out a method's plan and return its last state.

    A run with checkpoints that was interrupted goes on where its newest complete checkpoint stands, and ends
    with the same bits; `identity` says what must agree for that.
    """
    plan = method.plan(problem)
    with torch.inference_mode(False), evaluating(problem.network.module):
        rng = Generator(problem.network.device).manual_seed(derived_seed(seed, 1))
        run = _Run(method.init(problem, rows, rng), rng)
        if checkpoints is not None:
            _resume(run, checkpoints, identity or {})
        total = plan.n * sum(1 for _ in rows.ordered()) if isinstance(plan, Passes) else plan.n
        batches = (
            _ordered(rows, run) if isinstance(plan, Passes) else _shuffled(rows, run, derived_seed(seed, 2))
        )
        with tqdm(total=total, initial=run.step, disable=not progress, delay=1, unit="step") as bar:
            _loop(method, problem, rows, run, batches, total, callbacks, checkpoints, identity or {}, bar)
    return run.state


def _loop(method, problem, rows, run, batches, total, callbacks, checkpoints, identity, bar) -> None:
    clock = _Clock(checkpoints)
    shown = time.monotonic()
    stopped = False
    while run.step < total and not stopped:
        run.state, info = method.step(problem, run.state, next(batches), run.rng)
        run.step += 1
        now = Progress(run.step, total, info, lambda: method.posterior(problem, run.state, rows))
        stopped = any([bool(callback(now)) for callback in callbacks])
        bar.update()
        if time.monotonic() - shown > 0.5:
            shown = time.monotonic()
            bar.set_postfix_str(f"log-likelihood {float(info.log_lik.mean()):.3f}", refresh=False)
        if checkpoints is not None and (clock.due(run.step) or run.step == total or stopped):
            _save(run, checkpoints, identity)


def _shuffled(rows: Rows, run: _Run, seed: int) -> Iterator[Batch]:
    while True:
        found = False
        for batch in rows.epoch(run.epoch, seed, run.position):
            found = True
            run.position += 1
            yield batch
        if not found and run.position == 0:
            raise ValueError("the data yield no batch; give at least one row")
        run.epoch, run.position = run.epoch + 1, 0


def _ordered(rows: Rows, run: _Run) -> Iterator[Batch]:
    while True:
        for index, batch in enumerate(rows.ordered()):
            if index >= run.position:
                run.position += 1
                yield batch
        run.epoch, run.position = run.epoch + 1, 0


class _Clock:
    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self.checkpoints, self.last = checkpoints, time.monotonic()

    def due(self, step: int) -> bool:
        if self.checkpoints is None:
            return False
        due = step % self.checkpoints.every == 0 or time.monotonic() - self.last > self.checkpoints.seconds
        if due:
            self.last = time.monotonic()
        return due


def _save(run: _Run, checkpoints: Checkpoints, identity: dict[str, Any]) -> None:
    meta = {"step": run.step, "epoch": run.epoch, "position": run.position, "identity": identity}
    tensors: dict[str, Tensor] = {f"state/{name}": value for name, value in flatten(run.state).items()}
    write_checkpoint(checkpoints.folder, run.step, meta, tensors | {"rng": run.rng.get_state()})


def _resume(run: _Run, checkpoints: Checkpoints, identity: dict[str, Any]) -> None:
    found = newest_checkpoint(checkpoints.folder)
    if found is None:
        return
    meta, tensors = found
    differing = [key for key in identity if meta.get("identity", {}).get(key) != identity[key]]
    if differing:
        raise SavedModelError(
            f"the checkpoint in {checkpoints.folder} belongs to a run with another {differing[0]}: "
            f"{meta.get('identity', {}).get(differing[0])!r} there, {identity[differing[0]]!r} here; "
            "use another folder, or remove this one to start afresh"
        )
    device = run.rng.device
    saved = {
        name.removeprefix("state/"): value.to(
            device, copy=True
        )  # a copy is aligned, so it gives the same bits
        for name, value in tensors.items()
        if name.startswith("state/")
    }
    run.state = unflatten(run.state, saved)
    run.rng.set_state(tensors["rng"])
    run.step, run.epoch, run.position = int(meta["step"]), int(meta["epoch"]), int(meta["position"])
