"""Names, counts and hints from files nobody has checked, as words for one line."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable


class TableError(ValueError):
    """A table that cannot be used; the message names the culprit and the remedy."""


def shown(text: object, most: int = 40) -> str:
    """A name or a cell from a file, in quotes, on one line and not too long."""
    line = " ".join(str(text).split())
    return f'"{line if len(line) <= most else line[: most - 1] + "…"}"'


def listed(names: Iterable[object], most: int = 5) -> str:
    """A few names, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(shown(name) for name in all_names[:most]) + more


def counted(counts: dict[str, int], most: int = 8) -> str:
    """Names with their counts, the largest first."""
    order = sorted(counts, key=lambda name: -counts[name])
    more = f" and {len(order) - most} more columns" if len(order) > most else ""
    return ", ".join(f"{shown(name)} ({counts[name]:,})" for name in order[:most]) + more


def near(name: str, names: Iterable[object], least: float = 0.6) -> str:
    """A hint at names that resemble this one."""
    by_case = {str(other).lower(): str(other) for other in names}
    found = difflib.get_close_matches(name.lower(), by_case, n=3, cutoff=least)
    return f"; did you mean {' or '.join(shown(by_case[key]) for key in found)}?" if found else ""


def unused(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it where it is taken."""
    numbered = (f"{name} ({number})" for number in itertools.count(2))
    return next(new for new in itertools.chain([name], numbered) if new not in taken)


def plural(count: int, noun: str) -> str:
    """The noun for this many."""
    return noun if count == 1 else f"{noun}s"


def number_of(count: int, noun: str) -> str:
    """The count with its noun."""
    return f"{count:,} {plural(count, noun)}"
