"""One npz file as inputs, targets and splits; whatever is wrong with it is said in one line.

A file holds `X (N, D), y (N,)` with `train_idx, test_idx (n_splits, n)`, or with `fold (N,)`, whose split k
tests on fold k, or without splits. Or it holds `x_train, y_train, x_test, y_test`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]
Kind = Literal["regression", "classification"]

KIND_OF_PREFIX: dict[str, Kind] = {"uci_": "regression", "cls_": "classification", "gp_": "regression"}
LEAKING = {"gp_bike": (15, 16)}  # casual and registered riders: their sum is the target
APART = ("x_train", "y_train", "x_test", "y_test")
DRAWN_SPLITS, TRAIN_SHARE, SEED = 5, 0.8, 0
REMEDY = 'restore it from a copy or run "bayeswise bench download"'

_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    RuntimeError,  # encrypted, or compressed in a way that is not known
    MemoryError,  # a shape that no memory holds
    zipfile.BadZipFile,
    zlib.error,
)


class DataError(ValueError):
    """A data set that cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True, eq=False)
class Splits:
    """The rows that each split trains and tests on, and where they come from, in words."""

    train: tuple[Array, ...]
    test: tuple[Array, ...]
    protocol: str


def prefix(file: Path) -> str:
    """The part of the file's name that tells the kind of problem; empty for a bare name."""
    return next((p for p in KIND_OF_PREFIX if file.stem.startswith(p) and file.stem != p), "")


def kind_of(file: Path, y: Array) -> Kind:
    """By the file's prefix; without one, whole-number targets are labels."""
    whole: Kind = "classification" if y.dtype.kind in "iub" else "regression"
    return KIND_OF_PREFIX.get(prefix(file), whole)


def named(names: Iterable[object]) -> str:
    """Names in quotes, for a message."""
    return ", ".join(f'"{name}"' for name in names)


# -------------------------------------------------------------------------------------------------- reading


def read_arrays(file: Path, source: BinaryIO, only: Sequence[str] | None = None) -> Arrays:
    """The arrays of an npz file, or some of them; nothing is ever unpickled."""
    try:
        stored = np.load(source, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise ValueError("it is a single array")
        with stored:
            return {key: _array(stored[key], key) for key in stored.files if only is None or key in only}
    except _UNREADABLE as error:
        raise DataError(f'"{file}" is no whole npz file ({_why(error)}); {REMEDY}') from error


def _array(value: Any, key: str) -> Array:
    if not isinstance(value, np.ndarray):  # a member of the zip file that is no npy file
        raise ValueError(f'"{key}" is no array')
    return value


def _why(error: Exception) -> str:
    if "allow_pickle" in str(error):  # also what numpy says of bytes that it does not know
        return "it is something else, or an array of objects: store real numbers"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_keys(file: Path, arrays: Arrays, keys: Sequence[str]) -> None:
    """Refuse a file without these keys."""
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise DataError(
            f'"{file}" has no {named(missing)}; a data set holds X, y (and train_idx, test_idx or fold), '
            "or x_train, y_train, x_test, y_test"
        )


def parse(file: Path, arrays: Arrays) -> tuple[Array, Array, Splits]:
    """Inputs (N, D), targets or labels (N,), and the splits, all checked."""
    x, y, splits = _apart(file, arrays) if "x_train" in arrays else _table(file, arrays)
    _check_splits(file, splits, len(y))
    return x, _labels(file, y) if kind_of(file, y) == "classification" else y.astype(np.float64), splits


def _apart(file: Path, arrays: Arrays) -> tuple[Array, Array, Splits]:
    """Training rows and test rows in arrays of their own: one split."""
    check_keys(file, arrays, APART)
    x_train, y_train, x_test, y_test = (arrays[key] for key in APART)
    _check_rows(file, x_train, y_train, "_train")
    _check_rows(file, x_test, y_test, "_test")
    if x_train.shape[1:] != x_test.shape[1:]:
        shapes = f"{x_train.shape} and {x_test.shape}"
        raise DataError(f'"{file}": x_train and x_test are {shapes}; their rows must have the same shape')
    x = np.concatenate([x_train, x_test]).reshape(len(x_train) + len(x_test), -1)  # (N, D)
    y = np.concatenate([y_train, y_test]).reshape(-1)  # (N,)
    train, test = np.split(np.arange(len(x)), [len(x_train)])
    return _numbers(x), y, Splits((train,), (test,), "the published train/test split")


def _numbers(x: Array) -> Array:
    return x if x.dtype == np.uint8 else x.astype(np.float64)


def _table(file: Path, arrays: Arrays) -> tuple[Array, Array, Splits]:
    """One table, with the splits of the file or ours."""
    check_keys(file, arrays, ("X", "y"))
    x, y = arrays["X"], arrays["y"]
    _check_rows(file, x, y)
    if x.ndim != 2:
        raise DataError(f'"{file}": X is {x.shape}; make it (rows, columns)')
    splits = _splits(file, arrays, len(x))
    leaking = LEAKING.get(file.stem, ())
    if leaking and x.shape[1] > max(leaking):
        x = np.delete(x, leaking, axis=1)
        gone = f"{splits.protocol}, without columns 15 and 16, whose sum is the target"
        splits = Splits(splits.train, splits.test, gone)
    return x.astype(np.float64), y.reshape(-1), splits


# ------------------------------------------------------------------------------------------------- checking


def _check_rows(file: Path, x: Array, y: Array, part: str = "") -> None:
    x_key, y_key = (f"x{part}", f"y{part}") if part else ("X", "y")
    _check_numbers(file, x_key, x)
    _check_numbers(file, y_key, y)
    shapes = f'"{file}": {x_key} is {x.shape} and {y_key} is {y.shape}'
    if x.ndim < 2 or y.ndim not in (1, 2) or y.size != len(y):
        raise DataError(f"{shapes}; make them (rows, columns) and (rows,)")
    if len(x) != len(y) or x.size == 0:
        raise DataError(f"{shapes}; they need the same number of rows, and one at least")


def _check_numbers(file: Path, key: str, values: Array) -> None:
    if values.dtype.kind not in "iufb":
        raise DataError(f'"{file}": {key} holds {values.dtype}; store real numbers')
    bad = int((~np.isfinite(values)).sum()) if values.dtype.kind == "f" else 0
    if bad:
        raise DataError(f'"{file}": {bad} of {values.size} values of {key} are NaN or infinite; clean them')


def _labels(file: Path, y: Array) -> Array:
    """Labels 0..C-1, in the order of the file's numbers."""
    values, labels = np.unique(y, return_inverse=True)
    if not np.array_equal(values, np.floor(values)):
        raise DataError(f'"{file}": labels are not whole numbers; name a regression file uci_NAME.npz')
    if len(values) < 2:
        raise DataError(f'"{file}": all labels are {values[0]}; at least two classes are needed')
    return labels.reshape(-1).astype(np.int64)


def _check_splits(file: Path, splits: Splits, n: int) -> None:
    for k, (train, test) in enumerate(zip(splits.train, splits.test, strict=True)):
        sizes = f"{len(train)} training and {len(test)} test rows"
        if len(train) == 0 or len(test) == 0:
            raise DataError(f'"{file}": split {k} has {sizes}; both sides need rows')
        wrong = [
            row for row in (min(train.min(), test.min()), max(train.max(), test.max())) if not 0 <= row < n
        ]
        if wrong:
            raise DataError(f'"{file}": split {k} names row {wrong[0]}; the rows are 0 to {n - 1}')
        shared = np.intersect1d(train, test)
        if len(shared):
            raise DataError(f'"{file}": split {k} trains and tests on row {shared[0]}; leave it to one side')


# --------------------------------------------------------------------------------------------------- splits


def _splits(file: Path, arrays: Arrays, n: int) -> Splits:
    if "train_idx" in arrays or "test_idx" in arrays:
        check_keys(file, arrays, ("train_idx", "test_idx"))
        return _standard(file, arrays["train_idx"], arrays["test_idx"])
    return _folds(file, arrays["fold"], n) if "fold" in arrays else _drawn(n)


def _standard(file: Path, train: Array, test: Array) -> Splits:
    """The splits that the file lists."""
    shapes = f"train_idx is {train.shape} {train.dtype} and test_idx is {test.shape} {test.dtype}"
    whole = train.dtype.kind in "iu" and test.dtype.kind in "iu"
    if not whole or train.ndim != 2 or test.ndim != 2 or len(train) != len(test) or len(train) == 0:
        raise DataError(f'"{file}": {shapes}; make both (splits, rows) of integers, with equal splits')
    protocol = f"{len(train)} standard splits" if len(train) > 1 else "1 standard split"
    return Splits(tuple(train.astype(np.int64)), tuple(test.astype(np.int64)), protocol)


def _folds(file: Path, fold: Array, n: int) -> Splits:
    """Split k tests on the rows with fold k."""
    if fold.shape != (n,) or fold.dtype.kind not in "iu":
        raise DataError(
            f'"{file}": fold is {fold.shape} {fold.dtype}; make it one integer for each of {n} rows'
        )
    count = len(np.unique(fold))
    if count < 2 or not np.array_equal(np.unique(fold), np.arange(count)):
        raise DataError(
            f'"{file}": folds go from {fold.min()} to {fold.max()}; number them 0, 1, … without gap'
        )
    train = tuple(np.flatnonzero(fold != k) for k in range(count))
    test = tuple(np.flatnonzero(fold == k) for k in range(count))
    return Splits(train, test, f"{count} folds")


def _drawn(n: int) -> Splits:
    """For a file without splits: the same shuffles every time."""
    rng = np.random.default_rng(SEED)
    cut = round(TRAIN_SHARE * n)
    orders = [rng.permutation(n) for _ in range(DRAWN_SPLITS)]
    train, test = tuple(order[:cut] for order in orders), tuple(order[cut:] for order in orders)
    return Splits(train, test, f"{DRAWN_SPLITS} splits 80/20 drawn with seed {SEED}")
