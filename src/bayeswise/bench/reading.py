"""The stored lines of all runs, of every task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

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
        for line in files.read(file):
            if not files.is_of_a_run(line):
                left_out[file.name] += 1
                continue
            lines.append(line)
    return Stored(tuple(lines), dict(left_out))
