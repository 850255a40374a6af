"""The stored lines of all runs, of every task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayeswise.bench import results as files
from bayeswise.bench.summary import Line


@dataclass(frozen=True)
class Stored:
    """Result lines in the order of their files, and how many lines of other records each file holds."""

    lines: tuple[Line, ...]
    left_out: dict[str, int]

    def of(self, task: str) -> list[Line]:
        """The lines of one task."""
        return [line for line in self.lines if line["task"] == task]


def read(results: Path) -> Stored:
    """Every line of every *.jsonl file in a folder; a line without a task is another kind of record."""
    if not results.is_dir():
        raise files.ResultsError(
            f'no folder "{results}"; name the one that `bayeswise bench run --out` wrote'
        )
    lines: list[Line] = []
    left_out: Counter[str] = Counter()
    for file in sorted(results.glob("*.jsonl")):
        for number, line in enumerate(files.read(file), 1):
            if "task" not in line:
                left_out[file.name] += 1
                continue
            _check(line, f"{file}, line {number}")
            lines.append(line)
    return Stored(tuple(lines), dict(left_out))


def _check(line: dict[str, Any], where: str) -> None:
    for key in ("task", "dataset", "method", "settings"):
        if not isinstance(line.get(key), str):
            raise files.ResultsError(f'{where}: "{key}" must be a text; repair or remove that line')
    if not isinstance(line.get("metrics"), dict):
        raise files.ResultsError(f'{where}: "metrics" must be an object; repair or remove that line')
