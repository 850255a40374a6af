"""What a pass does to submodules beside giving them parameters: masks on inputs, noise on outputs.

Marks travel among the parameters, under keys with a colon, and so carry the same leading dimensions:

    "NAME:mask"      multiplies the first input of the submodule NAME; "NAME:mask2" that of its second call
    "NAME:variance"  V (I, O), the variances of a chosen layer's weights, and
    "NAME:noise"     ε (R, O): its outputs get sqrt(x² V) ε, row by row; its groups stand in front

Hooks live for one pass and leave nothing behind on the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayeswise.networks.views import LayerView

Params = dict[str, Tensor]
MASK, VARIANCE, NOISE = "mask", "variance", "noise"


def mask_key(name: str, call: int = 0) -> str:
    """The key of a mask on the submodule's input in this call of a pass, counted from 0."""
    return f"{name}:{MASK}{call + 1 if call else ''}"


def noise_keys(name: str) -> tuple[str, str]:
    """The keys of the variances of a layer's weights, and of the noise on its outputs."""
    return f"{name}:{VARIANCE}", f"{name}:{NOISE}"


def is_mark(key: str) -> bool:
    """Whether a key among the parameters is no parameter but a mark."""
    return ":" in key and key.rpartition(":")[2].rstrip("0123456789") in (MASK, VARIANCE, NOISE)


@contextmanager
def marked(module: nn.Module, views: Sequence[LayerView], marks: Params) -> Iterator[None]:
    """Let the marks act on the module's submodules."""
    handles = []
    try:
        for name in {key.rpartition(":")[0]: None for key in marks}:
            submodule = module.get_submodule(name)
            if mask_key(name) in marks:
                hook = _masking(name, marks)
                handles.append(submodule.register_forward_pre_hook(hook, with_kwargs=True))
            if noise_keys(name)[1] in marks:
                hook = _adding(next(view for view in views if view.name == name), marks)
                handles.append(submodule.register_forward_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _masking(name: str, marks: Params) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    calls = iter(range(len(marks) + 1))

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask = marks.get(mask_key(name, next(calls)))
        if mask is None:
            raise RuntimeError(f'"{name}" is called more often than there are masks for it')
        if args:
            return (args[0] * mask, *args[1:]), kwargs
        first = next(iter(kwargs))
        return args, kwargs | {first: kwargs[first] * mask}

    return hook


def _adding(view: LayerView, marks: Params) -> Callable[..., Tensor]:
    variance, noise = (marks[key] for key in noise_keys(view.name))
    start = 0

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], z: Tensor) -> Tensor:
        nonlocal start
        rows = view.rows(args[0] if args else kwargs["input"], 0)  # (…, R, I)
        spread = rows.square() @ variance  # (…, R, O)
        spread = spread.add(torch.finfo(spread.dtype).tiny).sqrt()  # a row of zeros has a gradient too
        own, start = noise[..., start : start + rows.shape[-2], :], start + rows.shape[-2]
        return z + view.unrows(spread * own, z)

    return hook
