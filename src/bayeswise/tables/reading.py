"""CSV files as tables of text, whatever their delimiter and encoding."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from bayeswise.tables.words import TableError, listed, near, number_of, shown

MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})  # in any case
DELIMITERS = ",;\t|"
SAMPLE = 1 << 16  # bytes or characters that are looked at to recognise a file

_DECIMAL_COMMA = r"[+-]?\d*,?\d+([eE][+-]?\d+)?"
_KNOWN_BINARY = {b"PK": "an Excel or zip file", b"\x1f\x8b": "a compressed file", b"PAR1": "a parquet file"}


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of a file as text, NaN where one is missing."""

    frame: pd.DataFrame
    source: str
    notes: tuple[str, ...] = ()


def read_table(path: str | Path) -> Table:
    """Read a CSV file, whatever its delimiter and encoding."""
    file = Path(path)
    text, notes = _decoded(_content(file), file)
    text = text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\n")
    delimiter, header = _header(text, file)
    if delimiter != ",":
        notes.append(f"the columns are separated by {delimiter!r}")
    frame = _cells(text, delimiter, header, file)
    nameless = [column for column, name in enumerate(header) if not name]
    if nameless:
        notes.append(f"left out {number_of(len(nameless), 'column')} without a name")
        frame = frame.drop(columns=nameless)
    frame.columns = pd.Index([name for name in header if name])
    if frame.empty:
        raise TableError(f'"{file}" has a header but no rows')
    if delimiter != ",":
        frame = _with_points(frame, notes)
    return Table(frame, str(file), tuple(notes))


def _content(file: Path) -> bytes:
    if file.is_dir():
        raise TableError(f'"{file}" is a directory; give a CSV file')
    if not file.exists():
        names = [p.name for p in file.parent.iterdir() if p.is_file()] if file.parent.is_dir() else []
        raise TableError(f'there is no file "{file}"{near(file.name, names, 0.8)}')
    data = file.read_bytes()
    if not data.strip():
        raise TableError(f'"{file}" is empty')
    return data


def _decoded(data: bytes, file: Path) -> tuple[str, list[str]]:
    """The text of a file, and a note where it is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _in_encoding(data, "utf-16", file), ["the file is UTF-16"]
    _check_text(data[:SAMPLE], file)
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        note = f"the file is not UTF-8 (byte 0x{data[error.start]:02x} in line {line}): read as Windows-1252"
        return _in_encoding(data, "cp1252", file), [note]


def _in_encoding(data: bytes, encoding: str, file: Path) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        wanted = "UTF-8 nor Windows-1252" if encoding == "cp1252" else "UTF-8 nor whole UTF-16"
        raise TableError(f'"{file}" is neither {wanted} text; save it as UTF-8') from None


def _check_text(start: bytes, file: Path) -> None:
    kind = next((kind for magic, kind in _KNOWN_BINARY.items() if start.startswith(magic)), None)
    control = sum(start.count(code) for code in range(32) if code not in b"\t\n\r\f")
    if kind is not None or b"\0" in start or control > 0.01 * len(start):
        raise TableError(f'"{file}" is {kind or "a binary file"}, not a CSV file; export the table as CSV')


def _delimiter(text: str) -> str:
    """The delimiter that splits the header into most names and most rows into as many cells."""

    def columns(delimiter: str) -> int:
        rows = csv.reader(io.StringIO(text[:SAMPLE]), delimiter=delimiter, skipinitialspace=True)
        widths = [len(row) for row, _ in zip(rows, range(50), strict=False) if row]
        return widths[0] if widths and 2 * widths.count(widths[0]) >= len(widths) else 1

    return max(DELIMITERS, key=columns)


def _header(text: str, file: Path) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns."""
    try:
        delimiter = _delimiter(text)
        rows = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
        header = [name.strip() for name in next(rows)]
    except csv.Error as error:
        raise TableError(f'"{file}" cannot be read as CSV ({error}); check its quotes') from None
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        times = header.count(twice[0])
        raise TableError(f"{file}: the column name {shown(twice[0])} stands {times} times; rename the others")
    return delimiter, header


def _cells(text: str, delimiter: str, header: Sequence[str], file: Path) -> pd.DataFrame:
    """All cells as text under column numbers; what means "missing" is NaN.

    A blank line among the rows of a single column is an empty cell.
    """
    text = text.rstrip() if len(header) == 1 else text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row that is too long
            frame = pd.read_csv(
                io.StringIO(text), sep=delimiter, dtype=str, keep_default_na=False, skipinitialspace=True,
                header=None, skiprows=1, names=list(range(len(header))), index_col=False,
                skip_blank_lines=len(header) > 1,
            )  # fmt: skip
    except pd.errors.EmptyDataError:
        raise TableError(f'"{file}" has a header but no rows') from None
    except pd.errors.ParserWarning:
        raise TableError(f"{file}: rows have more cells than the header's {len(header)} names") from None
    except pd.errors.ParserError as error:
        raise TableError(f"{file}: {_fault(str(error), len(header))}") from None
    return pd.DataFrame({column: _clean(frame[column]) for column in frame})


def _fault(message: str, names: int) -> str:
    """What pandas found, in our words."""
    where = re.search(r"line (\d+), saw (\d+)", message)
    if where:
        return f"line {where[1]} has {where[2]} cells where the header has {names}; correct that line"
    return f"cannot be read as CSV ({message}); check its quotes"


def _clean(cells: pd.Series) -> pd.Series:
    cells = cells.astype("object").where(cells.notna(), "").str.strip()
    return cells.mask(cells.str.lower().isin(MISSING), np.nan)


def _with_points(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Columns of numbers with decimal commas, with points instead."""
    present = {name: frame[name].dropna().astype(str) for name in frame}
    changed = [
        name
        for name, cells in present.items()
        if cells.str.contains(",").any() and cells.str.fullmatch(_DECIMAL_COMMA).all()
    ]
    if changed:
        notes.append(f"read decimal commas in {listed(changed)}")
    return frame.assign(**{str(name): frame[name].str.replace(",", ".") for name in changed})
