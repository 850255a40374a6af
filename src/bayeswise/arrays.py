"""Numbers in whatever form a user has them: tensors, arrays, lists, tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS = "biuf"  # kinds of numpy's types: bools, whole numbers with and without a sign, floats


def as_tensor(value: Any, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor, an array, or a table of numbers as a tensor; a read-only array is copied."""
    given = type(value).__name__
    try:
        if not isinstance(value, Tensor) and hasattr(value, "to_numpy"):  # pandas, polars
            value = _table(value, name)
        if isinstance(value, np.ndarray) and not _is_torchs(value):
            value = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise TypeError(
            f"{name} is a {given} that is no array of numbers: {error}; {_remedy(value)}"
        ) from None


def _remedy(value: Any) -> str:
    """How numbers are made of it."""
    if hasattr(value, "columns"):
        return "give numbers, which astype(float) makes of digits and pandas.get_dummies of other texts"
    if _is_word(value[0] if isinstance(value, list | tuple | np.ndarray) and len(value) else None):
        return "number its texts: np.unique(texts, return_inverse=True)[1]"
    return "give a tensor, an array or a table of numbers, which astype(float) makes"


def _is_word(entry: Any) -> bool:
    """Whether it is a text and no number."""
    if not isinstance(entry, str):
        return False
    try:
        float(entry)
    except ValueError:
        return True
    return False


def _is_torchs(array: np.ndarray) -> bool:
    """Whether torch can share its memory: writeable, forwards, in the machine's order of bytes."""
    return array.flags.writeable and min(array.strides, default=0) >= 0 and array.dtype.isnative


def _plain(own: Any) -> Any:
    """The type of number behind one of pandas' own, nullable or sparse."""
    return getattr(own, "numpy_dtype", getattr(own, "subtype", own))


def _table(table: Any, name: str) -> Any:
    """The array of a table or a column; where it is one of objects, in the columns' common type of number."""
    array = table.to_numpy()
    if array.dtype != object or not hasattr(table, "dtypes"):
        return array
    types = np.atleast_1d(np.asarray(table.dtypes, dtype=object))  # of a table's columns, or of one
    for column, own in zip(getattr(table, "columns", [name]), types, strict=True):
        if getattr(own, "kind", "O") not in NUMBERS:
            raise TypeError(f'column "{column}" holds {own}')
    common = np.result_type(*(_plain(own) for own in types))
    if common.kind != "f" and bool(table.isna().to_numpy().any()):  # only floats have a NaN
        common = np.dtype(float)
    return table.to_numpy(dtype=common, na_value=np.nan)
