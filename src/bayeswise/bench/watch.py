"""What is noted while a run trains: its seconds, with what it was made, and the likelihood of rows."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayeswise
from bayeswise.posterior import Posterior
from bayeswise.training import Progress

Look = Callable[[Posterior], dict[str, Any]]


@dataclass
class Watch:
    """Counts the seconds of training and looks at the posterior after some steps; looking is not counted.

    `history` is what a checkpoint saves of it: first the seconds, the planned steps and what it was trained
    with, then what was seen.
    """

    at: Collection[int] = ()
    look: Look | None = None
    history: list[tuple[Any, ...]] = field(default_factory=lambda: [(0.0, 0)])

    def __post_init__(self) -> None:
        """The clock starts."""
        self._here = environment()
        self._since = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """After a step."""
        seconds = self.seconds + time.perf_counter() - self._since
        begun = self.environment if self.steps else self._here  # of the first part, where it was killed
        self.history[0] = (seconds, progress.total, begun)
        if self.look is not None and progress.step in self.at:
            self.history.append((progress.step, round(self.seconds, 3), self.look(progress.posterior())))
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Of training so far, those before an interruption included; not those of an interrupted choice."""
        return float(self.history[0][0])

    @property
    def steps(self) -> int:
        """How many steps the run has; 0 before the first."""
        return int(self.history[0][1])

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, commit, threads and day when the training began; nothing where that is not known."""
        own = self.history[0][2:]
        return own[0] if own else {} if self.steps else self._here

    def curve(self) -> dict[str, list[float]]:
        """Steps, seconds and what was seen, one list each."""
        seen = self.history[1:]
        names = seen[0][2] if seen else ()
        curve = {"step": [s[0] for s in seen], "seconds": [s[1] for s in seen]}
        return curve | {name: [s[2][name] for s in seen] for name in names}


def nll_of(rows: dict[str, tuple[Tensor, Tensor]], draws: int) -> Look:
    """Looks at the mean negative log-likelihood of some rows by name."""

    def look(posterior: Posterior) -> dict[str, float]:
        return {
            name: round(-float(posterior.predict(x, draws).log_prob(y).double().mean()), 5)
            for name, (x, y) in rows.items()
        }

    return look


def spread(total: int, first: int, count: int) -> list[int]:
    """About `count` steps up to `total`, evenly spaced on a logarithmic scale from `first` on."""
    first = min(first, total)
    ratio = (total / first) ** (1 / max(1, count - 1))
    return sorted({min(total, round(first * ratio**i)) for i in range(count)} | {total})


def environment() -> dict[str, Any]:
    """With what this process trains."""
    versions = {
        "bayeswise": bayeswise.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    day = time.strftime("%Y-%m-%d")
    return {"versions": versions, "commit": commit(), "threads": torch.get_num_threads(), "date": day}


def commit() -> str:
    """The commit of the source, where it is a repository."""
    try:
        run = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return run.stdout.strip() or "unknown"
