"""Result lines: one JSON object per split or seed, appended to a file; a line is whole or absent."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class ResultsError(ValueError):
    """A file of result lines that cannot be read."""


def file_of(folder: Path, task: str) -> Path:
    """Where the lines of a task are."""
    return folder / f"{task}.jsonl"


def append(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add lines at the end, all or none of them, whoever else is writing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "rb+", buffering=0) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        whole = _whole(stream.read())
        size = len(whole)
        os.ftruncate(stream.fileno(), size)  # what a killed writer left of a line
        try:
            _write(stream.fileno(), text if whole.endswith(b"\n") or not whole else b"\n" + text)
            os.fsync(stream.fileno())
        except OSError:
            os.ftruncate(stream.fileno(), size)
            raise


def read(file: Path) -> list[Line]:
    """All whole lines of a file; none where there is no file."""
    if not file.exists():
        return []
    return list(_parsed(file))


def of_run(file: Path, run: str) -> list[Line]:
    """The lines of one run."""
    return [line for line in read(file) if line.get("run") == run]


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


def _whole(text: bytes) -> bytes:
    """All whole lines; the last one may lack its end, as editors leave it."""
    rest = text[text.rfind(b"\n") + 1 :]
    try:
        return text if isinstance(json.loads(rest), dict) else text.removesuffix(rest)
    except ValueError:  # half a line
        return text.removesuffix(rest)


def _parsed(file: Path) -> Iterator[Line]:
    try:
        text = _whole(file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ResultsError(f"{file} is no text of JSON lines ({error}); move it away") from None
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ResultsError(f"{file}, line {number} is no JSON: {error}; remove that line") from None
        if not isinstance(value, dict):
            raise ResultsError(f"{file}, line {number} is no JSON object; remove that line")
        if is_of_a_run(value):
            _check(value, f"{file}, line {number}")
        yield value


def is_of_a_run(record: Line) -> bool:
    """Whether it is a line of `bench run` and no other record."""
    return "task" in record and ("dataset" in record or "metrics" in record)


def _check(line: Line, where: str) -> None:
    """Refuse what cannot be averaged, drawn or compared with other lines."""
    wrong = [
        f'"{key}" must be {what}'
        for key, (kinds, what) in FIELDS.items()
        if not isinstance(line.get(key), kinds)
    ]
    if not wrong and not _are_numbers(line["metrics"].values()):
        wrong.append('the values of "metrics" must be numbers or null')
    wrong += [
        f'"{key}" must hold {" and ".join(parts)}, lists of numbers of one length'
        for key, parts in LISTS.items()
        if not wrong and line.get(key) is not None and not _are_lists(line[key], parts)
    ]
    if wrong:
        raise ResultsError(f"{where}: {wrong[0]}; repair or remove that line")


def _are_lists(lists: dict[str, Any], parts: Sequence[str]) -> bool:
    """Whether the parts are there, and every one is a list of numbers as long as the others."""
    whole = all(isinstance(values, list) and _are_numbers(values) for values in lists.values())
    return whole and set(parts) <= set(lists) and len({len(values) for values in lists.values()}) == 1


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, NUMBER) for value in values)


NOTHING = type(None)
NUMBER = (int, float, NOTHING)  # null where it was not finite
LISTS = {"curve": ("step",), "reliability": ("confidence", "accuracy", "count")}
FIELDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("task", "dataset", "method", "settings"), ((str,), "a text")),
    **dict.fromkeys(("other", "run"), ((str, NOTHING), "a text or null")),
    "split": ((int,), "a whole number"),
    **dict.fromkeys(
        ("n_splits", "splits_there", "seed", "steps"), ((int, NOTHING), "a whole number or null")
    ),
    "seconds": (NUMBER, "a number or null"),
    "metrics": ((dict,), "an object"),
    **dict.fromkeys(
        ("configuration", "versions", "curve", "reliability", "picture", "roc", "histogram"),
        ((dict, NOTHING), "an object or null"),
    ),
}
