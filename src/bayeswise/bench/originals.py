"""The publishers' files as arrays: tables of text, index files, IDX images."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from bayeswise.bench.npz import Array, Arrays, DataError

Parts = Mapping[str, bytes]  # the unpacked originals of one data set, by what they are

MOST_BYTES = 1 << 29  # of one file, also unpacked
CHECKED = ("X", "y", "train_idx", "test_idx", "fold", "x_train", "y_train", "x_test", "y_test")


# ------------------------------------------------------------------------------------------------ unpacking


def gunzipped(packed: bytes) -> bytes:
    """The content of a gzip file."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            return _bounded(file.read(MOST_BYTES + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"it is no whole gzip file ({error})") from error


def member(packed: bytes, name: str) -> bytes:
    """One file of a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive, archive.open(name) as file:
            return _bounded(file.read(MOST_BYTES + 1))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError) as error:
        raise DataError(f'it is no whole zip file with "{name}" in it ({error})') from error


def _bounded(content: bytes) -> bytes:
    if len(content) > MOST_BYTES:
        raise DataError(f"it unpacks to more than {MOST_BYTES >> 20} MB")
    return content


# -------------------------------------------------------------------------------------------------- parsing


def standard_splits(parts: Parts) -> Arrays:
    """A whitespace table, the numbers of its feature and target columns, and the rows of every split."""
    data = table(parts["data"])
    features, target = _whole(parts["features"]), _whole(parts["target"])
    numbers = range(sum(name.startswith("train_") for name in parts))
    train, test = (np.stack([_whole(parts[f"{side}_{k}"]) for k in numbers]) for side in ("train", "test"))
    return {"X": data[:, features], "y": data[:, target[0]], "train_idx": train, "test_idx": test}


def spambase(parts: Parts) -> Arrays:
    """Commas, no header, the label last."""
    data = table(parts["data"], ",")
    return {"X": data[:, :-1], "y": data[:, -1].astype(np.uint8)}


def magic(parts: Parts) -> Arrays:
    """Commas, no header, last the letter g (gamma, 1) or h (hadron, 0)."""
    cells = np.loadtxt(_text(parts["data"]), dtype=str, delimiter=",", ndmin=2)
    letters = np.char.strip(cells[:, -1])
    if not np.isin(letters, ["g", "h"]).all():
        raise DataError("its last column is not always g or h")
    return {"X": cells[:, :-1].astype(np.float64), "y": (letters == "g").astype(np.uint8)}


def diabetes(parts: Parts) -> Arrays:
    """Commas and a header; all columns are small whole numbers, a column ID is left out."""
    header = parts["data"].split(b"\n", 1)[0].decode().strip().lstrip("\ufeff").replace('"', "").split(",")
    if "Diabetes_binary" not in header:
        raise DataError('it has no column "Diabetes_binary"')
    features = [i for i, name in enumerate(header) if name not in ("ID", "Diabetes_binary")]
    data = table(parts["data"], ",", skip=1)
    small = data[:, [*features, header.index("Diabetes_binary")]]
    if not np.array_equal(small, small.astype(np.uint8)):
        raise DataError("its values are not whole numbers from 0 to 255")
    return {"X": small[:, :-1].astype(np.uint8), "y": small[:, -1].astype(np.uint8)}


def folded(parts: Parts) -> Arrays:
    """Commas, the target last, and a mask (N, folds) of test rows."""
    data, mask = table(parts["data"], ","), table(parts["mask"], ",")
    if len(data) != len(mask) or not np.array_equal(mask.sum(1), np.ones(len(mask))):
        raise DataError("its rows are not in one test fold each")
    return {"X": data[:, :-1], "y": data[:, -1], "fold": mask.argmax(1).astype(np.int8)}


def images(parts: Parts) -> Arrays:
    """Four IDX files."""
    return {key: idx(parts[key]) for key in ("x_train", "y_train", "x_test", "y_test")}


def idx(content: bytes) -> Array:
    """An IDX file of bytes: 0, 0, 8, the number of dimensions, their sizes (big-endian), the bytes."""
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist() if len(content) >= start else []
    if not dimensions or len(content) != start + math.prod(shape):
        raise DataError("it is no whole IDX file of bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def table(content: bytes, delimiter: str | None = None, skip: int = 0) -> Array:
    """A table of numbers (N, D); cells are separated by the delimiter, or by spaces."""
    data = np.loadtxt(_text(content), delimiter=delimiter, skiprows=skip, ndmin=2)
    if data.size == 0:
        raise DataError("it holds no rows")
    return data


def _text(content: bytes) -> io.StringIO:
    if not content.strip():
        raise DataError("it is empty")
    return io.StringIO(content.decode())


def _whole(content: bytes) -> Array:
    """One whole number a line, perhaps in exponent form."""
    values = table(content).reshape(-1)
    if not np.array_equal(values, np.floor(values)):
        raise DataError("its row numbers are not whole")
    return values.astype(np.int32)


# ------------------------------------------------------------------------------------------------- checking


def digest(arrays: Mapping[str, Array], keys: Sequence[str] = CHECKED) -> str:
    """SHA-256 of keys, shapes and values in single precision, whatever the file around them."""
    found = hashlib.sha256()
    for key in keys:
        if key in arrays:
            found.update(f"{key}{arrays[key].shape}".encode())
            found.update(_canonical(arrays[key]).tobytes())
    return found.hexdigest()


def _canonical(array: Array) -> Array:
    if array.dtype == np.uint8:
        return array
    return (
        (array + 0.0).astype("<f4") if array.dtype.kind == "f" else array.astype("<i4")
    )  # + 0.0 undoes -0.0
