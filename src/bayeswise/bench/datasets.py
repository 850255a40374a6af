"""Data sets by name: every npz file of the data directory is one.

``uci_foo.npz`` and ``gp_foo.npz`` are the regression problem foo, ``cls_foo.npz`` is the classification
problem foo, and in a bare ``foo.npz`` whole-number targets are labels. What a file holds stands in `npz`.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayeswise.bench.npz import (
    KIND_OF_PREFIX,
    REMEDY,
    Array,
    DataError,
    Kind,
    check_keys,
    kind_of,
    named,
    parse,
    prefix,
    read_arrays,
)

__all__ = [
    "DataError",
    "Dataset",
    "Rows",
    "available",
    "data_directory",
    "equal_groups",
    "kinds",
    "load",
    "rows",
]

SHORT_NAMES = {"diabetes_brfss2015": "diabetes"}
SECOND_NAMES = {"telescope": "magic", "wine": "wine_red", "fashionmnist": "fashion_mnist"}
CONSTANT = 1e-9  # a column whose spread is smaller than this share of its size is constant
ELSEWHERE = 'give --data-dir, set BAYESWISE_DATA or run "bayeswise bench download"'


@dataclass(frozen=True, eq=False)
class Dataset:
    """All rows of a data set, and which of them each split trains and tests on."""

    name: str
    kind: Kind
    x: Array  # (N, D) float64, or pixels as uint8
    y: Array  # (N,) float64, or labels 0..C-1 as int64
    train: tuple[Array, ...]  # row numbers of every split
    test: tuple[Array, ...]
    digest: str  # SHA-256 of the file
    protocol: str  # where the splits come from, in words

    @property
    def classes(self) -> int:
        """The number of classes; 0 for regression."""
        return int(self.y.max()) + 1 if self.kind == "classification" else 0


@dataclass(frozen=True, eq=False)
class Rows:
    """Training and test rows of K splits, ready for a network."""

    x: Tensor  # (K, N, D)
    y: Tensor  # (K, N, 1), or labels (K, N)
    x_test: Tensor  # (K, M, D)
    y_test: Tensor  # (K, M, 1), or labels (K, M)


# -------------------------------------------------------------------------------------------- the directory


def data_directory(given: Path | None) -> Path:
    """Where the data sets are: as given, else BAYESWISE_DATA, else in the user's cache."""
    named_by_user = given or os.environ.get("BAYESWISE_DATA")
    if named_by_user:
        return Path(named_by_user).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "bayeswise"


def available(directory: Path) -> list[str]:
    """The names of the data sets that can be loaded."""
    return [name for name, kind in kinds(directory).items() if kind in ("regression", "classification")]


def kinds(directory: Path) -> dict[str, str]:
    """Every npz file by its name, with its kind or with the reason why it is not a data set."""
    return {name: _kind_or_fault(file) for name, file in sorted(_files(directory).items())}


def load(name: str, directory: Path) -> Dataset:
    """Read a data set by its name."""
    files = _files(directory)
    found = _found(name, files)
    if found is None:
        raise DataError(f'no data set "{name}" in "{directory}"{_hint(name, list(files))}; {ELSEWHERE}')
    content = _content(files[found])
    x, y, splits = parse(files[found], read_arrays(files[found], io.BytesIO(content)))
    kind: Kind = "classification" if y.dtype == np.int64 else "regression"
    digest = hashlib.sha256(content).hexdigest()
    return Dataset(found, kind, x, y, splits.train, splits.test, digest, splits.protocol)


def _files(directory: Path) -> dict[str, Path]:
    """The npz files by name, in the order of the prefixes; a name that is taken becomes a longer one."""
    if not directory.is_dir():
        raise DataError(f'there is no data directory "{directory}"; {ELSEWHERE}')
    order = [*KIND_OF_PREFIX, ""]
    paths = sorted(path for path in directory.glob("*.npz") if not path.name.startswith("."))
    files: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: order.index(prefix(path))):
        name = path.stem.removeprefix(prefix(path))
        forms = (SHORT_NAMES.get(name, name), path.stem, path.name)
        files[next(form for form in forms if form not in files)] = path
    return files


def _found(name: str, files: dict[str, Path]) -> str | None:
    """The name that is meant: in any case, with hyphens, a second name, or the stem of the file."""
    by_name = {path.stem.lower(): known for known, path in files.items()}
    by_name |= {form: known for known in files for form in (known.lower().replace("-", "_"), known.lower())}
    plain = name.lower().replace("-", "_")
    forms = (name, name.lower(), plain, SECOND_NAMES.get(plain, ""), SHORT_NAMES.get(plain, ""))
    return name if name in files else next((by_name[form] for form in forms if form in by_name), None)


def _hint(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), [*names, *SECOND_NAMES], n=1)
    there = f"there are {named(sorted(names))}" if names else "it holds no npz file"
    return f'; did you mean "{near[0]}"? {there}' if near else f"; {there}"


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f'"{file}" cannot be read ({error.strerror}); {REMEDY}') from error


def _kind_or_fault(file: Path) -> str:
    try:
        with open(file, "rb") as source:
            targets = read_arrays(file, source, only=("y", "y_train"))
        check_keys(file, targets, ("y_train",) if "y_train" in targets else ("y",))
        return kind_of(file, next(iter(targets.values())))
    except (DataError, OSError) as error:
        return f"not usable: {error}"


# -------------------------------------------------------------------------------------------- for a network


def rows(dataset: Dataset, splits: Sequence[int], dtype: torch.dtype = torch.float32) -> Rows:
    """The rows of splits of equal size, inputs scaled by each split's own training rows, targets as they are.

    Columns get mean 0 and spread 1; a constant one only loses its mean. Pixels have one mean and one
    spread in common.
    """
    _check_asked(dataset, splits)
    scaled = _pixels if dataset.x.dtype == np.uint8 else _standardised
    x, x_test = (torch.stack(side) for side in zip(*(scaled(dataset, k, dtype) for k in splits), strict=True))
    y, y_test = (
        torch.stack([_targets(dataset, side[k], dtype) for k in splits])
        for side in (dataset.train, dataset.test)
    )
    return Rows(x, y, x_test, y_test)


def equal_groups(dataset: Dataset, splits: Sequence[int]) -> list[list[int]]:
    """The splits in groups of equal size: `rows` takes one group at a time."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k in splits:
        groups.setdefault((len(dataset.train[k]), len(dataset.test[k])), []).append(k)
    return list(groups.values())


def _check_asked(dataset: Dataset, splits: Sequence[int]) -> None:
    count = len(dataset.train)
    unknown = [k for k in splits if not 0 <= k < count]
    if unknown or not splits:
        asked = f"split {unknown[0]}" if unknown else "no split"
        raise DataError(f'"{dataset.name}": {asked} was asked for; the splits are 0 to {count - 1}')
    if len(equal_groups(dataset, splits)) > 1:
        raise DataError(f'"{dataset.name}": the splits differ in size; take them by equal_groups')


def _standardised(dataset: Dataset, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """z = (x - mean) / std with the training rows' mean and std, in float64 before it is rounded."""
    x, x_test = dataset.x[dataset.train[k]], dataset.x[dataset.test[k]]  # (N, D), (M, D)
    mean, std = x.mean(0), x.std(0)
    std = np.where(std <= CONSTANT * np.abs(x).max(0), 1.0, std)
    z, z_test = (torch.from_numpy((side - mean) / std).to(dtype) for side in (x, x_test))
    if not (z.isfinite().all() and z_test.isfinite().all()):
        raise DataError(f'"{dataset.name}": inputs are too large for {dtype}; scale the columns of the file')
    return z, z_test


def _pixels(dataset: Dataset, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """z = (x - mean) / std with one mean and std of all pixels of the training rows, (N, D) and (M, D)."""
    x, x_test = (dataset.x[side[k]] for side in (dataset.train, dataset.test))
    mean, std = float(x.mean()), float(x.std()) or 1.0
    z, z_test = ((torch.from_numpy(side).to(dtype) - mean) / std for side in (x, x_test))
    return z, z_test


def _targets(dataset: Dataset, chosen: Array, dtype: torch.dtype) -> Tensor:
    y = torch.from_numpy(dataset.y[chosen])
    return y if dataset.kind == "classification" else y.to(dtype).unsqueeze(-1)
