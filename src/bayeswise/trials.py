"""Choices before a run: methods train on some of the training rows and are judged by the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayeswise.data import Batch, Rows, TensorRows
from bayeswise.identity import identity
from bayeswise.methods.members import widened
from bayeswise.methods.protocol import Chosen, Method, Trial, Tunes, is_open
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.randomness import derived_seed
from bayeswise.training import Checkpoints, train

HELD, MOST_HELD = 0.1, 2_000  # the share of the rows that judges, and how many at most
FEW_ROWS = 10  # fewer are not parted
FOLDS = ((500, 4), (2_000, 2))  # up to so many rows, so many parts judge; with more rows one is enough
DRAWS = 64


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Training rows parted in one or several ways; each data split has its own part."""

    problem: Problem  # of the rows to train on, (folds · S) members
    rows: TensorRows
    held: Batch
    folds: int
    splits: tuple[int, ...]  # (S,) or ()
    seed: int
    progress: bool
    checkpoints: Checkpoints | None

    @classmethod
    def of(
        cls, problem: Problem, rows: Rows, seed: int, progress: bool, checkpoints: Checkpoints | None
    ) -> HeldOut | None:
        """Rows in memory can be parted, if there are enough of them."""
        if not isinstance(rows, TensorRows) or rows.n < FEW_ROWS:
            return None
        held = min(MOST_HELD, max(1, round(HELD * rows.n)))
        folds = next((folds for most, folds in FOLDS if rows.n <= most), 1)
        part, judges = rows.parted(folds, held, derived_seed(seed, 3))
        wide = replace(widened(problem, folds, rows.example[0]), n=part.n)
        return cls(wide, part, judges, folds, problem.lead, seed, progress, checkpoints)

    @property
    def n(self) -> int:
        """How many rows judge, all parts together."""
        return self.folds * self.held[0].shape[self.rows.lead]

    @property
    def members(self) -> int:
        """The runs of one trial."""
        return self.problem.members or 1

    def trial(self, method: Method[Any], what: str) -> Trial:
        """Train on most of the rows; a run with checkpoints keeps those of its trials beside its own."""
        kept = self.checkpoints
        if kept is not None:
            kept = replace(kept, folder=Path(kept.folder) / what.replace(" ", "_"))
        own = None if kept is None else identity(method, self.problem, self.rows, self.seed)
        state = train(method, self.problem, self.rows, self.seed, self.progress, (), kept, own, what)
        return Trial(state, replace(method.posterior(self.problem, state, self.rows), seed=self.seed))

    def log_lik(self, posterior: Posterior) -> Tensor:
        """Of every row that judges, (S, R) or (R,)."""
        x, y = self.held
        y = self.problem.units.to_user(y.double()) if self.problem.is_regression else y
        found = posterior.predict(x, DRAWS).log_prob(y).double()  # (folds · S, R / folds) or (R,)
        if self.folds == 1:
            return found
        return found.reshape(self.folds, *self.splits, -1).movedim(0, -2).flatten(-2)


def settled(
    method: Method[Any],
    problem: Problem,
    rows: Rows,
    seed: int,
    progress: bool,
    checkpoints: Checkpoints | None,
) -> Chosen:
    """The method with nothing left open."""
    if not isinstance(method, Tunes) or not is_open(method):
        return Chosen(method)
    with torch.inference_mode(False):
        trials = HeldOut.of(problem, rows, seed, progress, checkpoints)
        return method.tuned(problem, trials, rows.example[0].shape[len(problem.lead)])
