"""Tables of scores: ours beside the paper's, the best of a row in bold, and which cells are reproduced.

A row is compared as it is printed, so that a score is not better by digits that the paper does not give. Two
forms: `wide` has one metric, a row per data set and a column per method; `long` has a row per data set and
method and a column per metric, with splits, steps and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bayeswise.bench import paper
from bayeswise.bench.labels import Metric, dataset_name, dataset_rank, method_name, method_rank, metric
from bayeswise.bench.summary import Line, by_group, counting, given_steps, summary
from bayeswise.report.html import Cell, Table

NEAR, REPRODUCED, MISSED = "≈", "✓", "✗"
RULES = (
    "Every cell is a mean ± its standard error over the splits or seeds. The best of a row is bold, compared "
    f"as printed; {NEAR} marks what is not worse than the best by more than the best's own standard error."
)
REPRODUCTION = (
    f"Behind our BALI, {REPRODUCED} marks a cell that is reproduced: not worse than the paper's mean by more "
    f"than two of the paper's standard errors. {MISSED} marks one that is not."
)


class Marked(str):
    """A cell that stays in one line; `strong` is the best of its row."""

    strong: bool = False

    @classmethod
    def of(cls, text: str, strong: bool = False) -> Marked:
        """The text with its weight."""
        cell = cls(text)
        cell.strong = strong
        return cell

    def __str__(self) -> str:
        """For the HTML page, which escapes whatever is not Markup."""
        from markupsafe import Markup

        tag = Markup("strong" if self.strong else "span")
        return Markup('<{0} style="white-space: nowrap">{1}</{0}>').format(tag, str.__str__(self))


@dataclass(frozen=True)
class Score:
    """A mean with its standard error, None for a single value, and the decimals to print."""

    mean: float
    error: float | None
    decimals: int

    @property
    def text(self) -> str:
        """The score as it is printed, with a true minus sign."""
        error = "" if self.error is None else f" ± {self.error:.{self.decimals}f}"
        return f"{self.mean:.{self.decimals}f}{error}".replace("-", "−")

    @property
    def printed(self) -> float:
        """The mean to the printed decimals."""
        return float(f"{self.mean:.{self.decimals}f}")


@dataclass(frozen=True)
class Run:
    """The lines of one data set, method and settings that count, and how many behind them do not."""

    lines: tuple[Line, ...]
    summary: dict[str, Any]
    newer: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Method and settings."""
        return self.summary["method"], self.summary["settings"]

    @property
    def dataset(self) -> str:
        """What it was trained on."""
        return self.summary["dataset"]

    @property
    def place(self) -> str:
        """The data set for people, and the one that it is compared with."""
        other = self.summary.get("other")
        return dataset_name(self.dataset) + (f" → {dataset_name(str(other))}" if other else "")

    @property
    def planned(self) -> int:
        """How many splits or seeds make it complete: those of the paper, and those trained together."""
        together = max(int(line.get("n_splits") or 1) for line in self.lines)
        own = max(int(line.get("splits_there") or 1) for line in self.lines) if self._is_averaged else 1
        return max(self.done, together, own, paper.n_splits(self.summary["task"], self.dataset))

    @property
    def _is_averaged(self) -> bool:
        return self.summary["task"] in ("uci", "classification")

    @property
    def trial(self) -> bool:
        """Whether it is BALI on a table of the paper, for fewer steps than the paper's by somebody's wish."""
        steps = given_steps(self.lines[0]) or math.inf
        return self.key[0] == "bali" and self.summary["task"] == "uci" and steps < paper.steps(self.dataset)

    @property
    def done(self) -> int:
        """How many splits there are, or seeds where there is one split."""
        return int(self.summary["n_splits"])

    def score(self, name: str) -> Score | None:
        """Mean and standard error of a metric, None where it is missing."""
        if self.summary.get(name) is None:
            return None
        return Score(self.summary[name], self.summary[f"{name}_se"], metric(name).decimals)

    @property
    def count(self) -> str:
        """How many splits or seeds there are, of how many where some are missing, and seeds of each split."""
        part = "" if self.done == self.planned else f" of {self.planned}"
        lines = len(self.lines)
        return f"{self.done}{part}" + ("" if lines == self.done else f", {lines} with all seeds")


def runs(lines: Iterable[Line]) -> list[Run]:
    """The runs behind the lines, in the order of the tables."""
    found = [_run(members) for members in by_group(lines).values()]
    return sorted(found, key=lambda run: (dataset_rank(run.dataset), run.place, method_rank(*run.key)))


def _run(lines: Sequence[Line]) -> Run:
    counted = counting(lines)
    last = max(number for number, line in enumerate(lines) if any(line is one for one in counted))
    return Run(tuple(counted), summary(counted), len(lines) - 1 - last)


def label(key: tuple[str, str]) -> str:
    """Method and settings for people."""
    return f"{method_name(key[0])}, {key[1]}" if key[1] else method_name(key[0])


# ----------------------------------------------------------------------------------------------- the verdicts


def verdicts(scores: Sequence[Score | None], looks: Metric) -> list[tuple[bool, bool]]:
    """For every score: is it the best, is it near the best; ties are all best, unless all are equal."""
    rated = {number: _badness(score, looks) for number, score in enumerate(scores)}
    valid = {number: bad for number, bad in rated.items() if bad is not None}
    if len(set(valid.values())) < 2:
        return [(False, False)] * len(scores)
    least = min(valid.values())
    best = {number for number, bad in valid.items() if bad == least}
    slack = max((scores[number].error or 0.0) for number in best)  # type: ignore[union-attr]
    near = {number for number, bad in valid.items() if bad - least <= slack * (1 + 1e-9)} - best
    return [(number in best, number in near) for number in range(len(scores))]


def _badness(score: Score | None, looks: Metric) -> float | None:
    if score is None or looks.badness is None or not math.isfinite(score.mean):
        return None
    return looks.badness(score.printed)


def reproduced(run: Run, name: str) -> bool | None:
    """Is our mean not worse than the paper's BALI by more than two of the paper's standard errors?

    None where the paper has no such cell or we have no such run, or only a shorter one.
    """
    theirs, worse_if = paper.uci_scores().get((run.dataset, name, "BALI")), metric(name).badness
    if run.summary["task"] != "uci" or run.key[0] != "bali" or run.summary.get(name) is None:
        return None
    if theirs is None or worse_if is None or run.trial:
        return None
    return worse_if(run.summary[name]) - worse_if(theirs.mean) <= 2 * theirs.error * (1 + 1e-9)


def reproduction_counts(found: Iterable[Run]) -> dict[str, tuple[int, int]]:
    """By BALI's settings: how many cells of Tables 1 and 7 are reproduced, and how many were run in full."""
    counts: dict[str, tuple[int, int]] = {}
    for run in found:
        whole = run.done == run.planned
        for verdict in (reproduced(run, "rmse"), reproduced(run, "ll")):
            if verdict is not None:
                good, all_ = counts.get(run.key[1], (0, 0))
                counts[run.key[1]] = good + (whole and verdict), all_ + whole
    return counts


# ------------------------------------------------------------------------------------------------- the tables


def wide(found: Sequence[Run], name: str, caption: str = "") -> Table:
    """One metric: a row per data set, the paper's columns, then ours."""
    keys = sorted({run.key for run in found}, key=lambda key: method_rank(*key))
    datasets = sorted({*paper.uci_datasets(), *(run.dataset for run in found)}, key=dataset_rank)
    by_place = {(run.dataset, *run.key): run for run in found}
    columns = ("Data set", *(f"paper: {m}" for m in paper.METHODS), *(f"ours: {label(key)}" for key in keys))
    rows = [_wide_row(dataset, name, [by_place.get((dataset, *key)) for key in keys]) for dataset in datasets]
    return Table(columns, tuple(rows), caption)


def published_scores(dataset: str, name: str) -> list[Score | None]:
    """The paper's scores of one row, in the order of its columns."""
    found = [paper.uci_scores().get((dataset, name, method)) for method in paper.METHODS]
    return [None if p is None else Score(p.mean, p.error, p.decimals) for p in found]


def _wide_row(dataset: str, name: str, ours: Sequence[Run | None]) -> tuple[Cell, ...]:
    scores = published_scores(dataset, name) + [run.score(name) if run else None for run in ours]
    marks = [""] * len(paper.METHODS) + [_marks(run, name) if run else "" for run in ours]
    cells = [
        _cell(score, verdict, mark)
        for score, verdict, mark in zip(scores, verdicts(scores, metric(name)), marks, strict=True)
    ]
    return (Marked.of(dataset_name(dataset)), *cells)


def _marks(run: Run, name: str) -> str:
    """Whether the cell is reproduced, and that splits or steps are missing."""
    verdict = reproduced(run, name)
    mark = "" if verdict is None else f" {REPRODUCED if verdict else MISSED}"
    notes = [run.count] if run.done < run.planned else []
    notes += [f"{run.lines[0]['steps']:,} steps"] if run.trial else []
    return f"{mark} ({', '.join(notes)})" if notes else mark


def _cell(score: Score | None, verdict: tuple[bool, bool], mark: str = "") -> Cell:
    if score is None:
        return None
    best, near = verdict
    return Marked.of(f"{score.text}{f' {NEAR}' if near else ''}{mark}", strong=best)


def long(found: Sequence[Run], without: Iterable[str] = (), caption: str = "") -> Table:
    """Every metric: a row per data set and method; the best of a data set is bold in each column."""
    names = [name for name in metric_names(found) if name not in set(without)]
    columns = ("Data set", "Method, settings", *(metric(name).label for name in names), *COST)
    cells = {name: _long_column(found, name) for name in names}
    rows = [
        (*_who(run), *(cells[name][number] for name in names), *cost(run)) for number, run in enumerate(found)
    ]
    return Table(columns, tuple(rows), caption)


def _who(run: Run) -> tuple[Cell, Cell]:
    return Marked.of(run.place), Marked.of(label(run.key))


COST = ("Splits or seeds", "Steps", "Seconds")


def cost(run: Run) -> tuple[Cell, Cell, Cell]:
    """How many splits or seeds, how many steps, and the seconds of training."""
    steps = sorted({int(line["steps"]) for line in run.lines if line.get("steps") is not None})
    time = run.summary["seconds"]
    return (
        Marked.of(run.count),
        Marked.of(_span(steps)),
        None if time is None else Marked.of(in_seconds(time)),
    )


def _span(steps: Sequence[int]) -> str:
    return " to ".join(f"{n:,}" for n in dict.fromkeys((*steps[:1], *steps[-1:])))


def in_seconds(time: float) -> str:
    """Whole seconds, a digit more below ten."""
    return f"{time:,.1f}" if time < 10 else f"{time:,.0f}"


def metric_names(found: Iterable[Run]) -> list[str]:
    """All metrics of the runs in the order of their first."""
    names = [name for run in found for name in run.summary if f"{name}_se" in run.summary]
    return list(dict.fromkeys(names))


def _long_column(found: Sequence[Run], name: str) -> list[Cell]:
    scores = [run.score(name) for run in found]
    cells: list[Cell] = [None] * len(found)
    for place in dict.fromkeys(run.place for run in found):
        here = [number for number, run in enumerate(found) if run.place == place]
        judged = verdicts([scores[number] for number in here], metric(name))
        for number, verdict in zip(here, judged, strict=True):
            cells[number] = _cell(scores[number], verdict)
    return cells
