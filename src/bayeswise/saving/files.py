"""Files that are whole or absent, JSON that means what it says, tensors that come back bit for bit.

A file gets its name only when all of it is on the disk. A process that is killed leaves at most a temporary
``.name.<process>-<token>.tmp``, which the next writer of that name removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

TEMPORARY = re.compile(r"\.(.+)\.(\d+)-[0-9a-f]{8}\.tmp")
REMEDY = "restore it from a copy or save again"

Folder = str | os.PathLike[str]
Saved = tuple[dict[str, Any], dict[str, Tensor]]

_UNREADABLE = (safetensors.SafetensorError, ValueError, KeyError, TypeError, AssertionError, RuntimeError)
_STARTED = time.time()


class SavedModelError(ValueError):
    """A saved model, checkpoint or configuration that cannot be used; the message says why and what to do."""


# ----------------------------------------------------------------------------------------------------- JSON


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def parse_object(text: bytes, file: Path) -> dict[str, Any]:
    """Parse a JSON object strictly: UTF-8, no NaN or infinity, no key twice."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise SavedModelError(f'"{file}" is not valid JSON ({error}); {REMEDY}') from error
    if not isinstance(value, dict):
        raise SavedModelError(f'"{file}" holds no JSON object; {REMEDY}')
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def check_json(value: Any, where: str) -> None:
    """Refuse by name what JSON would lose or change."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; JSON keys are strings")
            check_json(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON cannot hold; give a finite number or None")
    elif value is not None and not isinstance(value, bool | int | float | str):
        kind = type(value).__name__
        raise TypeError(f"{where} is a {kind}; JSON holds numbers, strings, None, lists and dicts")


# -------------------------------------------------------------------------------------------------- tensors


def own_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, each in memory of its own."""
    return {name: _copy(name, tensor) for name, tensor in tensors.items()}


def _copy(name: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f'"{name}" is a {type(tensor).__name__}; only tensors can be saved')
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise TypeError(f'"{name}" is no dense tensor with content; only those can be saved')
    if tensor.dtype == torch.complex128:
        raise TypeError(f'"{name}" is complex128, unknown to safetensors; save torch.view_as_real of it')
    if name == "__metadata__":
        raise ValueError('safetensors keeps the name "__metadata__" for itself; rename the tensor')
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    return tensor.clone(memory_format=torch.contiguous_format)


def unpack(data: bytes, file: Path) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file."""
    try:
        return safetensors.torch.load(data)
    except _UNREADABLE as error:
        raise SavedModelError(f'"{file}" is no complete safetensors file ({error}); {REMEDY}') from error


def check_format(body: Mapping[str, Any], name: str, version: int | str, file: Path) -> None:
    """Refuse what another program or another version wrote."""
    if body.get("format") != name:
        raise SavedModelError(f'"{file}" has the format {body.get("format")!r}, not "{name}"; {REMEDY}')
    found = body.get("version")
    if type(found) is not type(version) or found != version:
        raise SavedModelError(
            f'"{file}" has format version {found!r} and this bayeswise reads {version!r}; '
            "load it with the version that saved it, or save again"
        )


# ---------------------------------------------------------------------------------------------------- files


def read_bytes(folder: Path, name: str) -> bytes:
    """The content of a file that lies in the folder itself, not behind a link to elsewhere."""
    file = folder / name
    try:
        inside = file.resolve().parent == folder.resolve()
        data = file.read_bytes() if inside else b""
    except (OSError, RuntimeError) as error:
        raise SavedModelError(f'"{file}" cannot be read ({error}); {REMEDY}') from error
    if not inside:
        raise SavedModelError(f'"{file}" leads out of its directory; put the file itself there')
    return data


def make_folder(folder: Path) -> None:
    """Create a directory and its parents if need be."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def temporary_name(path: Path) -> Path:
    """A fresh name beside the path that says who writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def write_bytes(path: Path, data: bytes) -> None:
    """Put a whole file in place in one step, on the disk before it has its name."""
    temporary = temporary_name(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a directory durable; Windows has no way to ask for it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_strays(folder: Path, owner: re.Pattern[str]) -> None:
    """Remove temporaries for these names that are older than this process and whose writer is gone."""
    for entry in folder.iterdir():
        match = TEMPORARY.fullmatch(entry.name)
        if match is None or owner.fullmatch(match[1]) is None or _alive(int(match[2])):
            continue
        with contextlib.suppress(OSError):  # another process may clean up as well
            if entry.lstat().st_mtime < _STARTED:
                _remove(entry)


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _alive(process: int) -> bool:
    """Whether another process has this number; on Windows an open file cannot be removed anyway."""
    if process == os.getpid() or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
