"""From lines, one per split or seed, to one object per data set, method and settings: means and errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]

GROUP = ("task", "dataset", "other", "method", "settings")  # `other`: the data set that a task compares with


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of every split and seed: what a later run has done again replaces the earlier."""
    return list({(*_group(line), line.get("seed"), line.get("split")): line for line in lines}.values())


def grouped(lines: Iterable[Line]) -> dict[tuple[Any, ...], list[Line]]:
    """The latest lines of every task, data set, method and settings, in the order of their first."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in latest(lines):
        groups.setdefault(_group(line), []).append(line)
    return groups


def summaries(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """One object per data set, method and settings: every metric's mean and standard error over its lines.

    The keys are `task, dataset, method, settings, n_splits`, then `rmse, rmse_se` and so on for every metric,
    then `seconds`. `n_splits` counts the lines: several seeds of a split are several lines. A standard error
    is the sample deviation / √n, and None where there is one line only. `seconds` adds the training of all
    runs; the lines of splits that were trained together carry the same time, which counts once.
    """
    return [summary(members) for members in grouped(lines).values()]


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """The object of one group of lines; see `summaries`."""
    result = {key: lines[0][key] for key in GROUP if key in lines[0]}
    result["n_splits"] = len(lines)
    for name in _metrics(lines):
        values = [float(line["metrics"][name]) for line in lines if _is_number(line["metrics"].get(name))]
        result[name], result[f"{name}_se"] = mean(values), standard_error(values)
    result["seconds"] = seconds(lines)
    return result


def mean(values: Sequence[float]) -> float:
    """x̄ = Σ x / n."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """√(Σ (x - x̄)² / (n - 1)) / √n, or None for a single value."""
    n, center = len(values), mean(values)
    return math.sqrt(sum((x - center) ** 2 for x in values) / (n - 1) / n) if n > 1 else None


def seconds(lines: Iterable[Line]) -> float | None:
    """The training time of all runs behind the lines; splits trained together count once."""
    times = {(line.get("run"), line["seconds"]) for line in lines if _is_number(line.get("seconds"))}
    return sum(time for _, time in times) if times else None


def _group(line: Line) -> tuple[Any, ...]:
    return tuple(line.get(key) for key in GROUP)


def _metrics(lines: Iterable[Line]) -> list[str]:
    """Names of all metrics that are a number in some line, in the order of their first."""
    found = [name for line in lines for name, value in line["metrics"].items() if _is_number(value)]
    return list(dict.fromkeys(found))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
