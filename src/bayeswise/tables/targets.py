"""What is to be predicted, and which rows are kept to judge the predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayeswise.tables.columns import Array, is_number, no_numbers, numbers
from bayeswise.tables.words import TableError, shown

CLASSES = 100
FEW = 10  # whole numbers up to this many are taken as classes


@dataclass(frozen=True)
class NumberTarget:
    """A number to predict."""

    name: str
    task = "regression"

    def parse(self, cells: pd.Series) -> Array:
        """The numbers (N,)."""
        return numbers(cells)


@dataclass(frozen=True)
class ClassTarget:
    """A class to predict."""

    name: str
    classes: tuple[str, ...]
    task = "classification"

    def parse(self, cells: pd.Series) -> Array:
        """The positions (N,) of the cells' classes."""
        place = {label: index for index, label in enumerate(self.classes)}
        return labels(cells).map(place).to_numpy(np.int64)


Target = NumberTarget | ClassTarget


def labels(cells: pd.Series) -> pd.Series:
    """Cells as class labels; numbers in one spelling, so that 1 and 1.0 are the same class."""
    return cells.map(_spelled) if is_number(cells) else cells.astype(str)


def _spelled(cell: str) -> str:
    """A number with all its digits, in few where they say the same."""
    try:
        return str(int(cell))
    except ValueError:
        short = f"{float(cell):.15g}"
        return short if float(short) == float(cell) else repr(float(cell))


def unknown(cells: pd.Series, task: str) -> pd.Series:
    """Where there is no target: an infinite number is none, though a class may be called so."""
    if task == "classification" or not is_number(cells):
        return cells.isna()
    return pd.Series(np.isnan(numbers(cells)), cells.index)


def choose_target(name: str, cells: pd.Series, task: str) -> tuple[Target, str]:
    """Regression or classification for the target's cells (none missing), and why."""
    different, numeric = labels(cells).nunique(), is_number(cells)
    if different == 1:
        raise TableError(f"target {shown(name)} is {shown(cells.iloc[0])} in every row: nothing to learn")
    if task == "regression" and not numeric:
        odd = no_numbers(cells).iloc[0]
        raise TableError(f"target {shown(name)} holds {shown(odd)}, no number; use --task classification")
    kind, reason = (task, "as told") if task != "auto" else _decide(cells, different, numeric)
    if kind == "regression":
        return NumberTarget(name), reason
    if different > CLASSES or 2 * different > len(cells):
        raise TableError(
            f"target {shown(name)} has {different:,} different values in {len(cells):,} rows, "
            f"too many for classes (at most {CLASSES}, each twice on average); choose another target"
            + (" or --task regression" if numeric else "")
        )
    found = set(labels(cells))
    return ClassTarget(name, tuple(sorted(found, key=float if numeric else None))), reason


def _decide(cells: pd.Series, different: int, numeric: bool) -> tuple[str, str]:
    if not numeric:
        return "classification", "the target is text"
    whole = bool((numbers(cells) % 1 == 0).all())
    if different == 2 or whole and different <= FEW and len(cells) >= FEW * different:
        kind = "whole numbers" if whole else "numbers"
        return "classification", f"the target has only {different} different {kind}"
    return "regression", f"the target has {different:,} different numbers"


def held_out(target: Target, y: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Positions of training rows and of held-out rows, of each class the same share; both in file order."""
    rng = np.random.default_rng(seed)
    groups = [np.flatnonzero(y == k) for k in np.unique(y)] if target.task == "classification" else None
    test: list[Array] = []
    for rows in groups or [np.arange(len(y))]:
        count = min(int(share * len(rows) + rng.random()), len(rows) - 1)  # rounded up or down by chance
        test.append(rng.permutation(rows)[:count])
    held = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(y)), held), held
