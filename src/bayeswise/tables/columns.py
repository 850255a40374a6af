"""What a column is, and how its cells become the inputs of a network.

Kinds, texts and fills are learnt from the training rows and hold for every later file.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bayeswise.tables.reading import Table
from bayeswise.tables.words import TableError, counted, listed, near, number_of, plural, shown, unused

Array = NDArray[Any]
CATEGORIES = 50  # different texts up to which a column is one-hot encoded

_DATE = r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d\d))([ T]\d{1,2}:\d\d.*)?"


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; `fill` replaces a missing one, `flagged` adds a column that says where."""

    name: str
    fill: float | None = None
    flagged: bool = False

    @classmethod
    def learn(cls, name: str, cells: pd.Series) -> NumberColumn:
        """The median of the known numbers as fill."""
        values = numbers(cells)
        return cls(name, float(np.nanmedian(values)), bool(np.isnan(values).any()))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return (self.name, f"{self.name} is missing") if self.flagged else (self.name,)

    def missing(self, cells: pd.Series) -> int:
        """How many cells hold no finite number."""
        return int(np.isnan(numbers(cells)).sum())

    def unknown(self, cells: pd.Series) -> pd.Series:
        """The texts that are no numbers: an error."""
        bad = no_numbers(cells)
        if len(bad):
            where = f"row {bad.index[0] + 1} holds {shown(bad.iloc[0])}"
            raise TableError(
                f"column {shown(self.name)} held numbers in training, but {where}; correct the cell"
            )
        return bad

    def encode(self, cells: pd.Series) -> Array:
        """The numbers (N, 1), and where they were missing (N, 2)."""
        values = numbers(cells)
        absent = np.isnan(values)
        filled = values if self.fill is None else np.where(absent, self.fill, values)
        return np.stack([filled, absent], 1)[:, : len(self.features)]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of few different texts: one input for each; a new text gives zeros."""

    name: str
    values: tuple[str, ...]
    fill: str | None = None
    flagged: bool = False

    @classmethod
    def learn(cls, name: str, cells: pd.Series) -> CategoryColumn:
        """The texts that occur, the most frequent one as fill."""
        counts = Counter(cells.dropna())
        most = min(counts, key=lambda value: (-counts[value], value))
        return cls(name, tuple(sorted(counts)), most, bool(cells.isna().any()))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(f"{self.name} = {v}" for v in self.values) + (f"{self.name} is missing",) * self.flagged

    def missing(self, cells: pd.Series) -> int:
        """How many cells are empty."""
        return int(cells.isna().sum())

    def unknown(self, cells: pd.Series) -> pd.Series:
        """The texts that training has not seen."""
        return pd.Series(cells[cells.notna() & ~cells.isin(self.values)])

    def encode(self, cells: pd.Series) -> Array:
        """One column of 0 and 1 for each text (N, values), and where it was missing."""
        filled = cells if self.fill is None else cells.where(cells.notna(), self.fill)
        parts = [filled == value for value in self.values] + [cells.isna()] * self.flagged
        return np.stack([part.to_numpy(float) for part in parts], 1)


@dataclass(frozen=True)
class PairColumn(CategoryColumn):
    """A column of two texts: one input, 0 for the first and 1 for the second; a new text lies between."""

    @property
    def features(self) -> tuple[str, ...]:
        """The name of the input, and that of the flag."""
        return super().features[1:]

    def encode(self, cells: pd.Series) -> Array:
        """One column of 0, 1 and for new texts 1/2 (N, 1), and where it was missing."""
        first, second, *flag = super().encode(cells).T  # (N,) each
        return np.stack([(1 + second - first) / 2, *flag], 1)


Column = NumberColumn | CategoryColumn


def _text_column(name: str, cells: pd.Series) -> CategoryColumn:
    kind = PairColumn if cells.nunique() == 2 else CategoryColumn
    return kind.learn(name, cells)


def numbers(cells: pd.Series) -> Array:
    """Cells as float64 (N,); NaN for what is missing, infinite or no number."""
    values = _parsed(cells).to_numpy()
    return np.where(np.isfinite(values), values, np.nan)


def is_number(cells: pd.Series) -> bool:
    """Whether every cell that is there is a number."""
    return bool(cells.notna().any()) and len(no_numbers(cells)) == 0


def no_numbers(cells: pd.Series) -> pd.Series:
    """The texts among the cells that are no numbers."""
    return pd.Series(cells[cells.notna() & _parsed(cells).isna()])


def _parsed(cells: pd.Series) -> pd.Series:
    values: Any = pd.to_numeric(cells, errors="coerce")
    return values.astype(float)


@dataclass(frozen=True)
class Encoder:
    """How rows of text become inputs; learnt from the training rows."""

    columns: tuple[Column, ...]
    imputes: bool

    @classmethod
    def learn(cls, frame: pd.DataFrame, rows: Array, imputes: bool) -> Encoder:
        """Kinds of the columns from the whole file, texts and fills from its training rows."""
        columns = []
        for name in frame:
            learn = NumberColumn.learn if is_number(frame[name]) else _text_column
            columns.append(learn(str(name), frame[name].iloc[rows]))
        return cls(tuple(columns), imputes)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs; one that would be there twice gets a number."""
        names: list[str] = []
        taken = {column.name for column in self.columns}
        for column in self.columns:
            for feature in column.features:
                names.append(feature if feature == column.name else unused(feature, taken))
                taken.add(names[-1])
        return tuple(names)

    def encode(self, table: Table) -> tuple[Array, list[str]]:
        """The inputs (N, I) of a file's rows in float64, and what there is to say about them."""
        frame, notes = table.frame, []
        lacking = [column.name for column in self.columns if column.name not in frame]
        if lacking:
            hint = near(lacking[0], frame.columns)
            raise TableError(
                f"{table.source} lacks the {plural(len(lacking), 'column')} {listed(lacking)}{hint}"
            )
        for column in self.columns:
            new = column.unknown(frame[column.name])
            if len(new):
                values = listed(dict.fromkeys(new))
                rows = number_of(len(new), "row")
                notes.append(f"column {shown(column.name)}: {rows} with {values}, unseen in training")
        self._check_missing(frame, notes)
        return np.concatenate([column.encode(frame[column.name]) for column in self.columns], 1), notes

    def _check_missing(self, frame: pd.DataFrame, notes: list[str]) -> None:
        counts = {column.name: column.missing(frame[column.name]) for column in self.columns}
        counts = {name: count for name, count in counts.items() if count}
        if not counts:
            return
        if not self.imputes:
            raise TableError(
                f"missing values in {counted(counts)} of {len(frame):,} rows; "
                "fill them in, or fit the model with --missing impute"
            )
        notes.append(f"filled in missing values by the median or the most frequent text: {counted(counts)}")


def training_columns(frame: pd.DataFrame, rows: Array, imputes: bool) -> tuple[pd.DataFrame, list[str]]:
    """The columns that can be learnt from these rows of a file, and what is said of the others."""
    notes: list[str] = []
    training = frame.iloc[rows]
    frame = _without(frame, [name for name in frame if _is_empty(training[name])], "empty", notes)
    _check_kinds(frame)
    if not imputes:
        _check_complete(frame)
    constant = [name for name in frame if training[name].nunique(dropna=False) == 1]
    frame = _without(frame, constant, "constant", notes)
    frame = _without(frame, _copies(frame), "a copy of another column", notes)
    if frame.shape[1] == 0:
        raise TableError("no column is left to predict the target from; give more columns or drop fewer")
    return frame, notes


def _is_empty(cells: pd.Series) -> bool:
    """Whether no cell holds a text or a finite number."""
    return bool(cells.isna().all() or (is_number(cells) and np.isnan(numbers(cells)).all()))


def _check_complete(frame: pd.DataFrame) -> None:
    counts = {str(name): _missing(frame[name]) for name in frame}
    counts = {name: count for name, count in counts.items() if count}
    if counts:
        raise TableError(
            f"missing or infinite values in {counted(counts)} of {len(frame):,} rows; "
            "fill them in, or use --missing impute"
        )


def _copies(frame: pd.DataFrame) -> list[Any]:
    first: dict[int, list[Any]] = {}
    copies = []
    for name in frame:
        same = first.setdefault(hash(tuple(frame[name].astype(str))), [])
        if any(frame[name].equals(frame[other]) for other in same):
            copies.append(name)
        else:
            same.append(name)
    return copies


def _missing(cells: pd.Series) -> int:
    return int(np.isnan(numbers(cells)).sum()) if is_number(cells) else int(cells.isna().sum())


def _without(frame: pd.DataFrame, names: list[Any], why: str, notes: list[str]) -> pd.DataFrame:
    if names:
        notes.append(f"left out because {why}: {listed(names)}")
    return frame.drop(columns=names)


def _check_kinds(frame: pd.DataFrame) -> None:
    """Refuse dates and texts that are almost all different, all of them in one message."""
    problems = {str(name): problem for name in frame if (problem := _problem(frame[name]))}
    if problems:
        found = "; ".join(f"column {shown(name)} holds {what}" for name, what in list(problems.items())[:5])
        more = f" and {len(problems) - 5} more columns are like that" if len(problems) > 5 else ""
        remedy = " ".join(f"--drop {shlex.quote(name)}" for name in problems)
        raise TableError(f"{found}{more}; leave out with {remedy}")


def _problem(cells: pd.Series) -> str | None:
    present = cells.dropna().astype(str)
    if is_number(present):
        return None
    if present.str.fullmatch(_DATE).all():
        return f"dates ({shown(present.iloc[0])}), which are not used"
    different = present.nunique()
    if different <= CATEGORIES:
        return None
    odd = no_numbers(present)
    if 2 * len(odd) < len(present):
        return f"{number_of(len(odd), 'text')} among numbers ({shown(odd.iloc[0])} in row {odd.index[0] + 1})"
    return f"{different:,} different texts, more than the {CATEGORIES} that are encoded"
