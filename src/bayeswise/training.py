"""The loop: batches, progress, callbacks, checkpoints. It knows a method's plan and nothing else of it."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset
from tqdm.auto import tqdm

from bayeswise.data import Batch, LoaderRows, Rows
from bayeswise.methods.protocol import Info, Method, Passes, Plan, Renews
from bayeswise.networks import evaluating
from bayeswise.plain import finite
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.randomness import derived_seed
from bayeswise.saving import SavedModelError, flatten, newest_checkpoint, unflatten, write_checkpoint


class ReplayWarning(UserWarning):
    """The data cannot be gone through again in the same order, so a resumed run may differ."""


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
    What was seen is saved with a checkpoint, as of any callback that has a `history`; a number that is not
    finite comes back as None.
    """

    x: Any
    y: Any
    every: int = 100
    patience: int = 5
    draws: int = 32
    history: list[tuple[int, float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse numbers without meaning."""
        if min(self.every, self.patience, self.draws) < 1:
            given = f"{self.every}, {self.patience} and {self.draws}"
            raise ValueError(f"EarlyStopping: every, patience and draws must be at least 1, not {given}")

    def __call__(self, progress: Progress) -> bool:
        """Whether to stop."""
        if progress.step % self.every:
            return False
        if self.history and progress.step <= self.history[-1][0]:
            self.history.clear()  # a new run
        value = float(progress.posterior().predict(self.x, self.draws).log_prob(self.y).mean())
        self.history.append((progress.step, value))
        best = max(range(len(self.history)), key=lambda i: _rank(self.history[i][1]))
        return len(self.history) - 1 - best >= self.patience


def _rank(value: float | None) -> float:
    """What is no number is worse than all numbers."""
    return -math.inf if value is None or math.isnan(value) else value


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a run is saved: after `every` steps, and after `seconds`, whichever comes first."""

    folder: str | Path
    every: int = 1000
    seconds: float = 60.0

    def __post_init__(self) -> None:
        """Refuse numbers without meaning."""
        if self.every < 1 or not self.seconds >= 0:
            given = f"{self.every} and {self.seconds}"
            raise ValueError(f"Checkpoints: every must be at least 1 and seconds not negative, not {given}")


def train(
    method: Method[Any],
    problem: Problem,
    rows: Rows,
    seed: int,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    identity: dict[str, Any] | None = None,
    what: str | None = None,
    answers: tuple[Problem, Rows] | None = None,
    start: Any = None,
) -> Any:
    """Carry out a method's plan and return its last state.

    A run with checkpoints that was interrupted goes on where its newest complete checkpoint stands, and ends
    with the same bits; `identity` says what must agree for that. `what` names the progress bar. `answers` is
    what posteriors are made of that callbacks ask for, where the run itself is in a finer precision. `start`
    is the state to go on from, instead of a fresh one.
    """
    with torch.inference_mode(False), evaluating(problem.network.module):
        rng = Generator(problem.network.device).manual_seed(derived_seed(seed, 1))
        run = Run(method.init(problem, rows, rng) if start is None else start, rng)
        keeper = None if checkpoints is None else Keeper(checkpoints, identity or {}, callbacks)
        if keeper is not None:
            _warn_stream(rows)
            keeper.resume(run)
        seen, seen_rows = answers or (problem, rows)
        total, batches = _planned(method.plan(problem), rows, run, derived_seed(seed, 2))
        with _bar(what, total, run.step, progress) as bar:
            for info in _steps(method, problem, rows, run, batches, total):
                now = Progress(run.step, total, info, lambda: method.posterior(seen, run.state, seen_rows))
                run.stopped = any([bool(callback(now)) for callback in callbacks])
                _show(bar, info)
                if keeper is not None:
                    keeper.keep(run, last=run.stopped or run.step == total)
    return run.state


def _planned(plan: Plan, rows: Rows, run: Run, seed: int) -> tuple[int, Iterator[Batch]]:
    """How many steps there are, and the batches of those that are left."""
    if isinstance(plan, Passes):
        return plan.n * sum(1 for _ in rows.ordered()), _ordered(rows, run)
    return plan.n, _shuffled(rows, run, seed)


def _bar(what: str | None, total: int, step: int, progress: bool) -> Any:
    """The progress bar, where it is wanted."""
    interval = 0.1 if _is_terminal() else 1.0  # a log keeps every line
    return tqdm(
        desc=what,
        total=total,
        initial=step,
        disable=not progress,
        delay=1,
        mininterval=interval,
        unit="step",
    )


def _is_terminal() -> bool:
    """Whether somebody may be looking; a program without a console has no stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


@dataclass
class Run:
    """The position of a run: all that a checkpoint holds beside what callbacks saw."""

    state: Any
    rng: Generator
    step: int = 0
    epoch: int = 0
    position: int = 0  # batches of this epoch that are done
    stopped: bool = False  # by a callback


def _steps(
    method: Method[Any], problem: Problem, rows: Rows, run: Run, batches: Iterator[Batch], total: int
) -> Iterator[Info]:
    looks = method if isinstance(method, Renews) else None
    while run.step < total and not run.stopped:
        run.state, info = method.step(problem, run.state, next(batches), run.rng)
        run.step += 1
        if looks is not None and looks.due(run.step):
            run.state = looks.renewed(problem, run.state, rows)
        yield info


def _show(bar: tqdm, info: Info) -> None:
    """Advance the bar, and show the log-likelihood when the bar is drawn anew."""
    if bar.update():
        bar.set_postfix_str(f"log-likelihood {float(info.log_lik.mean()):.3f}", refresh=False)


def _shuffled(rows: Rows, run: Run, seed: int) -> Iterator[Batch]:
    while True:
        found = False
        for batch in rows.epoch(run.epoch, seed, run.position):
            found = True
            run.position += 1
            yield batch
        if not found and run.position == 0:
            raise ValueError("the data yield no batch; give at least one row")
        run.epoch, run.position = run.epoch + 1, 0


def _ordered(rows: Rows, run: Run) -> Iterator[Batch]:
    while True:
        for index, batch in enumerate(rows.ordered()):
            if index >= run.position:
                run.position += 1
                yield batch
        run.epoch, run.position = run.epoch + 1, 0


def _warn_stream(rows: Rows) -> None:
    if isinstance(rows, LoaderRows) and isinstance(rows.loader.dataset, IterableDataset):
        warnings.warn(
            "a DataLoader over an IterableDataset may yield other batches when it is gone through again: "
            "a resumed run need not end with the same bits; use a map-style Dataset for that",
            ReplayWarning,
            stacklevel=4,
        )


class Keeper:
    """Saves a run now and then, and brings it back."""

    def __init__(
        self, checkpoints: Checkpoints, identity: dict[str, Any], callbacks: Sequence[Callback]
    ) -> None:
        """What must agree between the runs, and the callbacks whose history belongs to them."""
        self.where, self.identity, self.callbacks = checkpoints, identity, callbacks
        self.last = time.monotonic()

    def keep(self, run: Run, last: bool) -> None:
        """Write a checkpoint if one is due."""
        late = time.monotonic() - self.last > self.where.seconds
        if not (last or late or run.step % self.where.every == 0):
            return
        meta = {"step": run.step, "epoch": run.epoch, "position": run.position, "stopped": run.stopped}
        meta |= {"identity": self.identity, "histories": [_history(c) for c in self.callbacks]}
        tensors: dict[str, Tensor] = {f"state/{name}": value for name, value in flatten(run.state).items()}
        write_checkpoint(self.where.folder, run.step, meta, tensors | {"rng": run.rng.get_state()})
        self.last = time.monotonic()

    def resume(self, run: Run) -> None:
        """Go on from the newest complete checkpoint, if there is one of the same run."""
        found = newest_checkpoint(self.where.folder)
        if found is None:
            return
        meta, tensors = found
        self._check(meta.get("identity", {}))
        saved = {
            name.removeprefix("state/"): value.to(run.rng.device, copy=True)  # aligned, for the same bits
            for name, value in tensors.items()
            if name.startswith("state/")
        }
        run.state = unflatten(run.state, saved)
        run.rng.set_state(tensors["rng"])
        run.step, run.epoch, run.position = int(meta["step"]), int(meta["epoch"]), int(meta["position"])
        run.stopped = bool(meta["stopped"])
        for callback, history in zip(self.callbacks, meta["histories"], strict=False):
            if history is not None and hasattr(callback, "history"):
                callback.history[:] = [tuple(item) for item in history]  # type: ignore[attr-defined]

    def _check(self, theirs: dict[str, Any]) -> None:
        for key, value in self.identity.items():
            if theirs.get(key) != value:
                there, here = _differing(theirs.get(key), value)
                raise SavedModelError(
                    f"the checkpoint in {self.where.folder} belongs to a run with another {key}: "
                    f"{there!r} there, {here!r} here; "
                    "use another folder, or remove this one to start afresh"
                )


def _differing(one: Any, other: Any) -> tuple[Any, Any]:
    """Both as they are, or of two dicts what differs."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return one, other
    there, here = {}, {}
    for name in one | other:
        if name in one and name in other and one[name] != other[name]:
            there[name], here[name] = _differing(one[name], other[name])
        elif name not in other:
            there[name] = one[name]
        elif name not in one:
            here[name] = other[name]
    return there, here


def _history(callback: Callback) -> list[list[Any]] | None:
    history = getattr(callback, "history", None)
    return [finite(list(item)) for item in history] if isinstance(history, list) else None
