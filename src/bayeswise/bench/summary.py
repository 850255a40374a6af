"""From lines, one per split or seed, to one object per data set, method and settings: means and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]

# What lines that may be averaged have in common, beside their steps.
ALIKE = ("configuration", "network", "batch", "train_rows", "draws", "data")
GROUP = ("task", "dataset", "other", "method", "settings")  # `other`: the data set that a task compares with


def grouped(lines: Iterable[Line]) -> dict[tuple[Any, ...], list[Line]]:
    """The lines that count of every task, data set, method and settings, in the order of their first."""
    return {key: counting(members) for key, members in by_group(lines).items()}


def by_group(lines: Iterable[Line]) -> dict[tuple[Any, ...], list[Line]]:
    """All lines of every task, data set, method and settings."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(tuple(line.get(key) for key in GROUP), []).append(line)
    return groups


def counting(lines: Sequence[Line]) -> list[Line]:
    """A line of every split and seed, of one configuration: what is averaged was trained alike.

    Where there are several configurations (a short trial beside the whole run), it is the one with most
    lines, of equals the one with most steps, and of these the last. Of several lines of a split it is the one
    trained together with most others, and of equals the last.
    """
    alike: dict[str, dict[tuple[Any, Any], Line]] = {}
    for line in lines:
        about = [*(line.get(key) for key in ALIKE), given_steps(line)]
        kind = json.dumps(about, sort_keys=True, default=str)
        own = alike[kind] = alike.pop(kind, {})  # to the end: it is the last now
        place = line.get("seed"), line.get("split")
        own[place] = max(line, own.get(place, line), key=_together)  # of equals the first: the newer
    return list(max(reversed(alike.values()), key=_weight).values())


def _weight(alike: Mapping[Any, Line]) -> tuple[int, float]:
    """How many lines, and how long each trained; a length that was chosen is not a trial's."""
    lines = list(alike.values())
    steps = given_steps(lines[0])
    return len(lines), math.inf if steps is None else steps


def _together(line: Line) -> int:
    """How many splits were trained in one run."""
    return int(line.get("n_splits") or 1)


def given_steps(line: Line) -> int | None:
    """How long a run was, where that was given and not chosen by the method."""
    chooses = "steps" in (own := line.get("configuration") or {}) and own["steps"] is None
    return None if chooses else line.get("steps")


def summaries(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """One object per data set, method and settings: every metric's mean and standard error over its lines.

    The keys are `task, dataset, method, settings, n_splits`, then `rmse, rmse_se` and so on for every metric,
    then `seconds`. Several seeds of a split are averaged first, for they share its test rows; where there is
    one split only, the seeds are what is counted. A standard error is the sample deviation / √n, and None for
    one value. A metric that is null in some line, because it was not finite, has no mean: None. `seconds`
    adds the training of all runs; splits trained together count once.
    """
    return [summary(members) for members in grouped(lines).values()]


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """The object of one group of lines; see `summaries`."""
    result = {key: lines[0][key] for key in GROUP if key in lines[0]}
    result["n_splits"] = len(units(lines))
    for name in _metrics(lines):
        result[name], result[f"{name}_se"] = _mean_and_error(lines, name)
    result["seconds"] = seconds(lines)
    return result


def _mean_and_error(lines: Sequence[Line], name: str) -> tuple[float | None, float | None]:
    """Of one metric, over the lines that have it."""
    found = [[line["metrics"][name] for line in unit if name in line["metrics"]] for unit in units(lines)]
    if any(value is None for seeds in found for value in seeds):
        return None, None  # a split or seed has failed
    values = [mean(seeds) for seeds in found if seeds]
    return mean(values), standard_error(values)


def units(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of every split; of every seed, where there is one split only."""
    by_split: dict[Any, list[Line]] = {}
    for line in lines:
        by_split.setdefault(line.get("split"), []).append(line)
    return list(by_split.values()) if len(by_split) > 1 else [[line] for line in lines]


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


def _metrics(lines: Iterable[Line]) -> list[str]:
    """Names of all metrics, numbers or null where they were not finite, in the order of their first."""
    found = [(name, value) for line in lines for name, value in line["metrics"].items()]
    return list(dict.fromkeys(name for name, value in found if value is None or _is_number(value)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
