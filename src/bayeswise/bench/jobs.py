"""One training run of a task: what it trains on, how, and what makes it the same run as another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from bayeswise.bench.models import mlp
from bayeswise.bench.settings import Recipe
from bayeswise.bench.watch import Watch, commit
from bayeswise.fitting import fit
from bayeswise.identity import configuration
from bayeswise.posterior import Posterior
from bayeswise.saving.files import json_digest
from bayeswise.training import Checkpoints

CHECKPOINT_SECONDS = 20.0  # a killed run loses no more


@dataclass(frozen=True)
class Request:
    """What a person asks of a task; None leaves it to the task."""

    task: str
    method: str
    out: Path
    data_dir: Path
    datasets: tuple[str, ...] = ()
    settings: str = "paper"
    splits: int | None = None
    steps: int | None = None
    seed: int = 0
    progress: bool = True


@dataclass(frozen=True, eq=False)
class Job:
    """One run: x (K, N, …) and y of K splits that train batched, or x (N, …) of one."""

    task: str
    dataset: str
    method: str
    settings: str
    seed: int
    splits: tuple[int, ...]
    recipe: Recipe
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    draws: int
    data: str  # SHA-256 of the file
    batched: bool
    splits_there: int = 1  # how many the data set has
    other: str | None = None  # a data set to compare with
    other_data: str = ""  # SHA-256 of its file
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How long it trains; 0 where the method does not count steps, or chooses how many."""
        return int(getattr(self.recipe.method, "steps", None) or 0)

    @property
    def about(self) -> dict[str, Any]:
        """What two runs with the same result have in common."""
        other = {} if self.other is None else {"other": self.other, "other_data": self.other_data}
        noise = getattr(self.recipe.likelihood, "noise", None)
        return {
            "task": self.task,
            "dataset": self.dataset,
            **other,
            "method": self.method,
            "settings": self.settings,
            "seed": self.seed,
            "steps": self.steps,
            "draws": self.draws,
            "train_rows": int(self.x.shape[1 if self.batched else 0]),
            "network": [*self.recipe.sizes, self.recipe.activation],
            "batch": self.recipe.batch,
            "configuration": configuration(self.recipe.method) | ({} if noise is None else {"noise": noise}),
            "data": self.data,
        }

    @property
    def run(self) -> str:
        """The name of the run: the same for the same splits, settings and data."""
        return json_digest(self.about | {"splits": self.splits})[:16]

    def training(self, watch: Watch) -> str:
        """The name of the training: the same for tasks that ask different things of the same networks.

        What is looked at on the way is named behind a hyphen: it does not change the networks.
        """
        own = {
            key: value
            for key, value in self.about.items()
            if key not in ("task", "other", "other_data", "settings", "draws")
        }
        looks = f"-{json_digest(sorted(watch.at))[:8]}" if watch.at else ""
        return json_digest(own | {"splits": self.splits})[:16] + looks

    def lines(self, found: Sequence[dict[str, Any]], watch: Watch) -> list[dict[str, Any]]:
        """The result lines, one per split."""
        environment = {"seconds": round(watch.seconds, 1), "run": self.run} | watch.environment
        if environment.get("commit") != (now := commit()):
            environment["scored"] = now
        trained = {
            "n_splits": len(self.splits),
            "splits_there": self.splits_there,
            "steps": self.steps or watch.steps,
        }
        return [
            self.about | {"split": split} | trained | one | environment
            for split, one in zip(self.splits, found, strict=True)
        ]


def train(job: Job, folder: Path, watch: Watch, progress: bool) -> Posterior:
    """Carry out a job; a run that was killed goes on where its last checkpoint in the folder stands."""
    r = job.recipe
    return fit(
        mlp(r.sizes, r.activation, job.seed),
        (job.x, job.y),
        r.likelihood,
        r.method,
        batch_size=r.batch,
        members=len(job.splits) if job.batched else None,
        seed=job.seed,
        progress=progress,
        callbacks=[watch],
        checkpoint=Checkpoints(folder, every=10**9, seconds=CHECKPOINT_SECONDS),
    )
