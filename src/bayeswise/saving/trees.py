"""Trees of tensors as named tensors, and small frozen values as JSON objects.

A tree is a nest of frozen dataclasses, dicts, tuples, tensors, None and plain numbers. Tensors are content;
numbers (a layer's width) are structure: they are saved too, and must be equal when the tree is rebuilt.

A configuration is a dataclass of numbers, strings, None, tuples, dicts with string keys and such dataclasses;
it comes back exactly, but for a list, which becomes a tuple, and only as a class that the reader names.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bayeswise.saving.files import SavedModelError

Tree = TypeVar("Tree")

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


# ----------------------------------------------------------------------------------------- trees of tensors


def flatten(tree: Any) -> dict[str, Tensor]:
    """Name every tensor of a tree by its path, ``layers.fc.data.joint``; None has no entry.

    In a dict key ``.`` becomes ``%2E`` and ``%`` becomes ``%25``, an empty key becomes ``%``: no two paths
    share a name.
    """
    return dict(_leaves(tree, ""))


def unflatten(template: Tree, tensors: Mapping[str, Tensor]) -> Tree:
    """Rebuild a tree like the template from named tensors; names, shapes, dtypes and numbers must agree."""
    expected = flatten(template)
    for name in [*expected, *tensors]:
        _compare(name, expected.get(name), tensors.get(name))
    return _rebuild(template, "", tensors)


def _children(tree: Any, path: str) -> dict[str, Any]:
    """The parts of a tree by encoded path component."""
    if _is_value(tree):
        return _fields(tree)
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise TypeError(f'"{path}" has the dict key {key!r}; only string keys can be saved')
        return {_encode(key): value for key, value in tree.items()}
    if isinstance(tree, tuple):
        return {str(index): value for index, value in enumerate(tree)}
    kind = type(tree).__name__
    raise TypeError(f'"{path}" is a {kind}; a saved tree holds tensors, None, dataclasses, dicts and tuples')


def _encode(key: str) -> str:
    return key.replace("%", "%25").replace(".", "%2E") or "%"


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if tree is None:
        return
    if isinstance(tree, Tensor):
        yield path, tree
    elif type(tree) in _NUMBERS:
        yield path, torch.tensor(tree, dtype=_NUMBERS[type(tree)])
    else:
        for part, child in _children(tree, path).items():
            yield from _leaves(child, _join(path, part))


def _rebuild(template: Any, path: str, tensors: Mapping[str, Tensor]) -> Any:
    if template is None:
        return None
    if isinstance(template, Tensor):
        return tensors[path]
    if type(template) in _NUMBERS:
        return _same_number(template, path, tensors[path].item())
    parts = _children(template, path)
    values = {part: _rebuild(child, _join(path, part), tensors) for part, child in parts.items()}
    if isinstance(template, dict):
        return dict(zip(template, values.values(), strict=True))
    if isinstance(template, tuple):
        make: Callable[[Any], Any] = getattr(type(template), "_make", tuple)  # a named tuple has _make
        return make(values.values())
    return dataclasses.replace(template, **values)


def _same_number(expected: Any, path: str, found: Any) -> Any:
    if found != expected:
        message = f'number "{path}": saved is {found}, expected is {expected}'
        raise SavedModelError(f"{message}; load with the model and method that were saved")
    return expected


def _compare(name: str, expected: Tensor | None, found: Tensor | None) -> None:
    if expected is not None and found is not None:
        if expected.shape == found.shape and expected.dtype == found.dtype:
            return
    message = f'tensor "{name}": saved is {_describe(found)}, expected is {_describe(expected)}'
    raise SavedModelError(f"{message}; load with the model and method that were saved")


def _describe(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def _is_value(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


# ---------------------------------------------------------------------------------- values <-> JSON objects


def to_config(value: Any) -> dict[str, Any]:
    """A dataclass of plain values, tuples, dicts and such dataclasses as JSON, its class under "kind"."""
    if not _is_value(value):
        raise TypeError(f"only a dataclass instance becomes a configuration, not {type(value).__name__}")
    return _to_json(value, type(value).__name__)


def from_config(config: Mapping[str, Any], known: Mapping[str, type]) -> Any:
    """The value that ``to_config`` described; only the classes in ``known`` are ever built."""
    if not isinstance(config, Mapping):
        raise SavedModelError(f"the configuration is a {type(config).__name__}, not an object; save again")
    return _from_json(config, known, str(config.get("kind", "configuration")))


def _to_json(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):  # numpy's too
        return int(value)
    if isinstance(value, Real):  # JSON has no infinity: it becomes an object of kind "float"
        number = float(value)
        return number if math.isfinite(number) else {"kind": "float", "value": repr(number)}
    if isinstance(value, tuple | list):
        return [_to_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {"kind": "dict", "items": _items(value, where)}
    if not _is_value(value):
        kind = type(value).__name__
        raise TypeError(
            f"{where} is a {kind}; a configuration holds plain numbers, strings, None, tuples and dicts: "
            "give one of those"
        )
    fields = _fields(value)
    if "kind" in fields:
        raise TypeError(f'{where}.kind: "kind" names the class in a configuration; rename the field')
    return {"kind": type(value).__name__} | {k: _to_json(v, f"{where}.{k}") for k, v in fields.items()}


def _items(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{where} has the key {key!r}; a configuration has strings as keys")
    return {str(key): _to_json(item, f"{where}[{key!r}]") for key, item in value.items()}


def _from_json(value: Any, known: Mapping[str, type], where: str) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_from_json(item, known, f"{where}[{index}]") for index, item in enumerate(value))
    if not isinstance(value, Mapping):
        return value
    kind = value.get("kind")
    if kind == "float" and value.get("value") in ("inf", "-inf", "nan"):
        return float(value["value"])
    if kind == "dict" and isinstance(value.get("items"), Mapping):
        return {k: _from_json(v, known, f"{where}[{k!r}]") for k, v in value["items"].items()}
    if not isinstance(kind, str) or kind not in known:
        raise SavedModelError(
            f"{where}: unknown kind {kind!r}; import the module that defines and registers it first"
        )
    fields = {k: _from_json(v, known, f"{where}.{k}") for k, v in value.items() if k != "kind"}
    return _construct(known[kind], fields, where)


def _construct(cls: type, fields: dict[str, Any], where: str) -> Any:
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    remedy = "load it with the version of bayeswise that saved it, or fit again"
    for name in fields:
        if name not in names:
            raise SavedModelError(f'{where}: {cls.__name__} has no field "{name}"; {remedy}')
    for name in names:
        if name not in fields:
            raise SavedModelError(f'{where}: the field "{name}" of {cls.__name__} is missing; {remedy}')
    try:
        return cls(**fields)
    except (ValueError, TypeError) as error:
        raise SavedModelError(f"{where}: {cls.__name__} refuses its fields ({error}); {remedy}") from error
