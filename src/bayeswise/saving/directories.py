"""A saved model is a directory that is complete at every moment.

``config.json`` holds format, version, the caller's configuration, size and SHA-256 of the tensor file, and
the SHA-256 of itself; ``tensors.safetensors`` holds the numbers. Replacing a model writes the new tensors
under the other of two names and then swaps ``config.json`` in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from bayeswise.saving.files import (
    REMEDY,
    TEMPORARY,
    Folder,
    Saved,
    SavedModelError,
    check_format,
    check_json,
    json_digest,
    make_folder,
    own_copies,
    parse_object,
    read_bytes,
    remove_strays,
    sync_folder,
    temporary_name,
    unpack,
    write_bytes,
)

FORMAT = "bayeswise-model"
VERSION = 1
CONFIG_FILE = "config.json"
TENSOR_FILES = ("tensors.safetensors", "tensors-2.safetensors")

_KEYS = {"format", "version", "config", "files", "sha256"}
_NAMES = re.compile("|".join(map(re.escape, (CONFIG_FILE, *TENSOR_FILES))))


def write_directory(path: Folder, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Save a model; whenever the process dies, the directory holds the old or the new model, complete.

    A directory with other content is refused; other files beside a saved model are left alone. One writer at
    a time: two that save to one directory at once may leave a model that ``read_directory`` refuses.
    """
    folder = Path(path).resolve()
    check_json(config, "config")
    data = safetensors.torch.save(own_copies(tensors))
    if folder.exists():
        _check_replaceable(folder)
        _commit(folder, config, data)
        return
    make_folder(folder.parent)
    remove_strays(folder.parent, re.compile(re.escape(folder.name)))
    fresh = temporary_name(folder)
    fresh.mkdir()
    try:
        _commit(fresh, config, data)
        os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync_folder(folder.parent)


def read_directory(path: Folder) -> Saved:
    """The configuration and the tensors (on the CPU) of a saved model, exactly as saved or not at all."""
    folder = Path(path)
    if not (folder / CONFIG_FILE).exists():
        raise SavedModelError(
            f'"{folder}" holds no {CONFIG_FILE}; give the directory that a model was saved to'
        )
    while True:
        text = read_bytes(folder, CONFIG_FILE)
        try:
            return _read_model(folder, text)
        except SavedModelError:
            if read_bytes(folder, CONFIG_FILE) == text:
                raise  # otherwise the model was replaced while we read it: read the new one


def _commit(folder: Path, config: dict[str, Any], data: bytes) -> None:
    """Write the tensors under the name not in use, then make them the model by replacing config.json."""
    used = _present(folder).get("files")
    in_use = isinstance(used, dict) and TENSOR_FILES[0] in used
    old, new = TENSOR_FILES if in_use else TENSOR_FILES[::-1]
    files = {new: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    body = {"format": FORMAT, "version": VERSION, "config": config, "files": files}
    body["sha256"] = json_digest(body)
    remove_strays(folder, _NAMES)
    write_bytes(folder / new, data)
    write_bytes(folder / CONFIG_FILE, json.dumps(body, indent=1, allow_nan=False).encode() + b"\n")
    (folder / old).unlink(missing_ok=True)


def _present(folder: Path) -> dict[str, Any]:
    """What config.json says, unchecked; empty if it says nothing."""
    with contextlib.suppress(OSError, SavedModelError):
        return parse_object((folder / CONFIG_FILE).read_bytes(), folder / CONFIG_FILE)
    return {}


def _check_replaceable(folder: Path) -> None:
    """Only an empty directory, a saved model, or what a killed first save left may be written to."""
    if not folder.is_dir():
        raise SavedModelError(f'"{folder}" is a file; save to a directory')
    names = {entry.name for entry in folder.iterdir()}
    unfinished = all(name in TENSOR_FILES or TEMPORARY.fullmatch(name) for name in names)
    if not unfinished and _present(folder).get("format") != FORMAT:
        raise SavedModelError(f'"{folder}" holds other files; save to a new directory or empty this one')


def _read_model(folder: Path, text: bytes) -> Saved:
    file = folder / CONFIG_FILE
    body = parse_object(text, file)
    check_format(body, FORMAT, VERSION, file)
    rest = {key: value for key, value in body.items() if key != "sha256"}
    if set(body) != _KEYS or body["sha256"] != json_digest(rest):
        raise SavedModelError(f'"{file}" does not match its checksum; {REMEDY}')
    config, files = body["config"], body["files"]
    if not isinstance(config, dict) or not isinstance(files, dict) or len(files) != 1:
        raise SavedModelError(f'"{file}" does not list one configuration and one tensor file; {REMEDY}')
    [(name, about)] = files.items()
    if name not in TENSOR_FILES:
        raise SavedModelError(
            f'"{file}" names the file {name!r}; only {TENSOR_FILES} are ever read; {REMEDY}'
        )
    data = read_bytes(folder, name)
    _check_content(folder / name, data, about)
    return config, unpack(data, folder / name)


def _check_content(file: Path, data: bytes, about: Any) -> None:
    size = about.get("bytes") if isinstance(about, dict) else None
    if size != len(data):
        raise SavedModelError(f'"{file}" has {len(data)} bytes where {size} were saved; {REMEDY}')
    if about.get("sha256") != hashlib.sha256(data).hexdigest():
        raise SavedModelError(f'"{file}" does not match its checksum; {REMEDY}')
