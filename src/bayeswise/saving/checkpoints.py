"""A checkpoint is one file, ``step-000001200.safetensors``; the two newest are kept.

Its header carries the meta data and a SHA-256 of everything in it.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from bayeswise.saving.files import (
    REMEDY,
    Folder,
    Saved,
    SavedModelError,
    canonical,
    check_format,
    check_json,
    make_folder,
    own_copies,
    parse_object,
    read_bytes,
    remove_strays,
    unpack,
    write_bytes,
)

FORMAT = "bayeswise-checkpoint"
VERSION = "1"  # a safetensors header holds strings only
KEPT = 2

_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_KEYS = {"format", "version", "step", "meta", "sha256"}


class CheckpointWarning(UserWarning):
    """A checkpoint was skipped because it cannot be read."""


def write_checkpoint(folder: Folder, step: int, meta: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the checkpoint of a step and keep the one before it.

    A checkpoint of a later step belongs to a run that was given up (or cannot be read) and is removed.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step is {step!r}; a checkpoint needs a step number of at least 0")
    check_json(meta, "meta")
    folder = Path(folder)
    make_folder(folder)
    remove_strays(folder, _NAME)
    own = own_copies(tensors)
    header = {"format": FORMAT, "version": VERSION, "step": str(step), "meta": canonical(meta)}
    header["sha256"] = _content_digest(header, own)
    write_bytes(folder / f"step-{step:09d}.safetensors", safetensors.torch.save(own, header))
    _prune(folder, step)


def newest_checkpoint(folder: Folder) -> Saved | None:
    """Meta data and tensors (on the CPU) of the newest complete checkpoint; warns of those it skips."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    remove_strays(folder, _NAME)
    for step, file in sorted(_checkpoints(folder).items(), reverse=True):
        try:
            return _read_checkpoint(file, step)
        except SavedModelError as error:
            warnings.warn(f"checkpoint skipped: {error}", CheckpointWarning, stacklevel=2)
    return None


def _checkpoints(folder: Path) -> dict[int, Path]:
    matches = ((_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return {int(match[1]): entry for match, entry in matches if match}


def _prune(folder: Path, step: int) -> None:
    present = _checkpoints(folder)
    kept = sorted(s for s in present if s <= step)[-KEPT:]
    for other, file in present.items():
        if other not in kept:
            file.unlink(missing_ok=True)


def _read_checkpoint(file: Path, step: int) -> Saved:
    data = read_bytes(file.parent, file.name)
    header = _header(data, file)
    check_format(header, FORMAT, VERSION, file)
    tensors = unpack(data, file)
    saved = header.pop("sha256", None)
    if header.get("step") != str(step) or set(header) | {"sha256"} != _KEYS:
        raise SavedModelError(f'"{file}" does not say step {step} in its header; delete the file')
    if saved != _content_digest(header, tensors):
        raise SavedModelError(f'"{file}" does not match its checksum; delete the file')
    return parse_object(header["meta"].encode(), file), tensors


def _header(data: bytes, file: Path) -> dict[str, str]:
    """The string table in a safetensors header: 8 bytes of length, then JSON with "__metadata__"."""
    length = int.from_bytes(data[:8], "little")
    header = parse_object(data[8 : 8 + length], file).get("__metadata__")
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        raise SavedModelError(f'"{file}" has no header of ours; {REMEDY}')
    return header


def _content_digest(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the header and of every tensor's name, dtype, shape and bytes."""
    names = sorted(tensors)
    shapes = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(canonical([header, shapes]).encode())
    for name in names:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
