"""The data sets from their publishers: fetch, check, rebuild, and put in place in one step.

This is the only code of the package that uses a network. Originals stay in memory, so a download that breaks
off leaves nothing behind; the npz file has its name only when all of it is on the disk.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import io
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayeswise.bench.datasets import SECOND_NAMES, SHORT_NAMES
from bayeswise.bench.npz import Arrays, DataError, named, parse, read_arrays
from bayeswise.bench.originals import MOST_BYTES, digest, gunzipped, member
from bayeswise.bench.sources import NOT_REBUILT, SOURCES, Original, Source
from bayeswise.saving.files import make_folder, remove_strays, write_bytes

TIMEOUT = 30.0  # seconds without a byte
TRIES = 2  # of every address
CHUNK = 1 << 16
PROGRESS = 8 << 20  # bytes between two lines about one file
CHANGED = (
    "the publisher may have changed it, or something on the way did; try again or put the npz file there"
)

Say = Callable[[str], None]


def fetch(
    names: Sequence[str],
    directory: Path,
    sources: Mapping[str, Source] = SOURCES,
    say: Say = lambda line: None,
    timeout: float = TIMEOUT,
) -> list[Path]:
    """Bring these data sets, or all of them, into the directory; those that are there already stay.

    One that fails does not stop the others; the error at the end names every one.
    """
    wanted = _wanted(names, sources)
    _prepare(directory)
    paths, faults = [], {}
    for name in wanted:
        path = directory / sources[name].file
        try:
            arrays = None if _is_there(path, sources[name]) else _arrays(name, sources[name], say, timeout)
            if arrays is not None:
                _write(path, arrays)
        except DataError as error:
            faults[name] = str(error)
            say(f"{name}: failed")
            continue
        say(f'{name}: "{path}" {"is there already" if arrays is None else "written"}')
        paths.append(path)
    if faults:
        raise DataError("; ".join(faults.values()))
    return paths


def _wanted(names: Sequence[str], sources: Mapping[str, Source]) -> list[str]:
    """The names of the table that are meant; all for none."""
    plain = [name.lower().replace("-", "_") for name in names]
    known = [SHORT_NAMES.get(name, SECOND_NAMES.get(name, name)) for name in plain]
    for name in known:
        if name in NOT_REBUILT and name not in sources:
            raise DataError(
                f'"{name}" cannot be rebuilt: {NOT_REBUILT[name]}; copy its npz file if you have it'
            )
        if name not in sources:
            near = difflib.get_close_matches(name, sources, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise DataError(f'no source for a data set "{name}"; {hint}there are {named(sources)}')
    return list(dict.fromkeys(known)) or list(sources)


# ------------------------------------------------------------------------------------------------ the files


def _prepare(directory: Path) -> None:
    try:
        make_folder(directory)
        remove_strays(directory, re.compile(r".*\.npz"))
    except OSError as error:
        raise DataError(
            f'"{directory}" cannot be used ({error.strerror}); give another --data-dir'
        ) from error


def _is_there(path: Path, source: Source) -> bool:
    """Whether the file holds these arrays; a broken one does not count, another one is not replaced."""
    if not path.exists():
        return False
    try:
        with open(path, "rb") as file:
            arrays = read_arrays(path, file)
    except DataError:
        return False
    except OSError as error:
        raise DataError(f'"{path}" cannot be read ({error.strerror}); move it away') from error
    if digest(arrays) != source.digest:
        raise DataError(f'"{path}" holds other data than the standard set; move it away to have it replaced')
    return True


def _write(path: Path, arrays: Arrays) -> None:
    packed, members = io.BytesIO(), dict[str, Any](arrays)
    np.savez_compressed(packed, **members)
    try:
        write_bytes(path, packed.getvalue())
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f'"{path}" cannot be written ({reason}); make room or give another --data-dir'
        ) from error


# -------------------------------------------------------------------------------------------- the originals


def _arrays(name: str, source: Source, say: Say, timeout: float) -> Arrays:
    """Get, unpack, check and parse the originals of a data set."""
    count = len(source.originals)
    say(f"{name}: getting {count} {'file' if count == 1 else 'files'}")
    parts = {part: _content(original, say, timeout) for part, original in source.originals.items()}
    first = next(iter(source.originals.values())).urls[0]
    try:
        arrays = source.build(parts)
        parse(Path(source.file), arrays)
    except (ValueError, IndexError) as error:  # a DataError too: it says what is wrong, but not where
        raise DataError(f'{name} from "{first}" is not as expected ({_line(error)}); {CHANGED}') from error
    rows = len(arrays["X" if "X" in arrays else "x_train"])
    if rows != source.rows:
        raise DataError(f'{name} from "{first}" has {rows} rows instead of {source.rows}; {CHANGED}')
    if digest(arrays) != source.digest:
        raise DataError(f'{name} from "{first}" has other values than the standard set; {CHANGED}')
    return arrays


def _content(original: Original, say: Say, timeout: float) -> bytes:
    """The unpacked original, from the first address that gives it."""
    faults = []
    for url in original.urls * TRIES:
        try:
            return _checked(_unpacked(_body(url, say, timeout), original), original)
        except (DataError, OSError, http.client.HTTPException) as error:
            faults.append(f'"{url}" {_fault(error)}')
    raise DataError(
        f"{'; '.join(dict.fromkeys(faults))}; check the network, or put the npz file there yourself"
    )


def _unpacked(packed: bytes, original: Original) -> bytes:
    content = gunzipped(packed) if original.gzip else packed
    return member(content, original.member) if original.member else content


def _checked(content: bytes, original: Original) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if original.sha256 and found != original.sha256:
        raise DataError(f"has SHA-256 {found[:12]}… instead of {original.sha256[:12]}…")
    return content


def _body(url: str, say: Say, timeout: float) -> bytes:
    """All bytes of an answer, as many as it announces."""
    if not url.startswith(("http://", "https://")):
        raise DataError("is no http or https address")
    request = urllib.request.Request(url, headers={"User-Agent": "bayeswise"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        length = answer.headers.get("Content-Length")
        announced = int(length) if length and length.isdigit() else None
        content = _read(answer, announced, url, say)
    if announced is not None and len(content) != announced:
        raise DataError(f"broke off after {len(content)} of {announced} bytes")
    return content


def _read(answer: http.client.HTTPResponse, announced: int | None, url: str, say: Say) -> bytes:
    content = bytearray()
    while chunk := answer.read(CHUNK):
        if len(content) // PROGRESS < (len(content) + len(chunk)) // PROGRESS:
            of = f" of {announced / 1e6:.0f}" if announced else ""
            say(f"{os.path.basename(url)}: {(len(content) + len(chunk)) / 1e6:.0f}{of} MB")
        content += chunk
        if len(content) > MOST_BYTES:
            raise DataError(f"is larger than {MOST_BYTES >> 20} MB")
    return bytes(content)


def _fault(error: Exception) -> str:
    """What went wrong with an address, in words that follow it."""
    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "does not answer in time"
    return f"cannot be reached ({_line(cause)})"


def _line(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
