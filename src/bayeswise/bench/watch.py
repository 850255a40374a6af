"""What is noted while a run trains: its seconds, and the likelihood of rows along the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bayeswise.posterior import Posterior
from bayeswise.training import Progress

Look = Callable[[Posterior], dict[str, Any]]


@dataclass
class Watch:
    """Counts the seconds of training and looks at the posterior after some steps; looking is not counted.

    `history` is what a checkpoint saves of it: first the seconds and the planned steps, then what was seen.
    """

    at: Collection[int] = ()
    look: Look | None = None
    history: list[tuple[Any, ...]] = field(default_factory=lambda: [(0.0, 0)])

    def __post_init__(self) -> None:
        """The clock starts."""
        self._since = time.perf_counter()

    def __call__(self, progress: Progress) -> None:
        """After a step."""
        self.history[0] = (self.seconds + time.perf_counter() - self._since, progress.total)
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
