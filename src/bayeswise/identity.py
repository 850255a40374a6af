"""What makes two runs the same: a run may only go on from a checkpoint of itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayeswise.methods.protocol import Data, Method, is_open
from bayeswise.problem import Problem
from bayeswise.saving import to_config


def identity(
    method: Method[Any], problem: Problem, rows: Data, seed: int, given: Method[Any] | None = None
) -> dict[str, Any]:
    """What a run must have in common with the one that it resumes, as JSON.

    Where a run goes on from trials, that hangs on the method as it was `given`.
    """
    network, noise = problem.network, getattr(problem.likelihood, "noise", None)
    module = re.sub(r" at 0x[0-9a-f]+", "", repr(network.module))  # without addresses in memory
    start = network.layer_parameters() if method.starts_from_model else {}
    return {
        "method": configuration(method),
        "method as given": None if given is None else configuration(given),
        "seed": int(seed),
        "rows": problem.n,
        "members": problem.members,
        "likelihood": type(problem.likelihood).__name__,
        "noise": _digest({"noise": noise}) if isinstance(noise, Tensor) else noise and float(noise),
        "model": _digest({}, module, str(network.dtype), *(layer.name for layer in network.layers)),
        "fixed parameters": _digest(network.constants),
        "starting weights": _digest(start),
        "data": _digest(dict(zip("xy", rows.example, strict=True))),
    }


def configuration(method: Method[Any]) -> dict[str, Any]:
    """What decides a run beside problem, rows and seed; how a method chooses counts where it does choose."""
    own = to_config(method)
    if not is_open(method):
        own.pop("tuning", None)
    return own


def _digest(tensors: Mapping[str, Tensor], *words: str) -> str:
    """A fingerprint of words and named tensors."""
    digest = hashlib.sha256(repr(words).encode())
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
