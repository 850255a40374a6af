"""Modules that compute just what their type says, from parameters of their own."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin


def is_plain(module: nn.Module, kind: type[nn.Module], *methods: str) -> bool:
    """Whether a module is of this kind, computes as it does, and owns its weight and bias.

    Not so: subclasses with another forward (or another of the named methods), parametrised weights, and lazy
    modules that have no weights yet.
    """
    if not isinstance(module, kind) or isinstance(module, LazyModuleMixin):
        return False
    if any(getattr(type(module), name) is not getattr(kind, name) for name in ("forward", *methods)):
        return False
    own = dict(module.named_parameters(recurse=False))
    return "weight" in own and (getattr(module, "bias", None) is None or "bias" in own)


def parameter_names(name: str, bias: bool) -> tuple[str, ...]:
    """The weight, and the bias where there is one, by their names in the whole module."""
    names = ("weight", "bias") if bias else ("weight",)
    return tuple(f"{name}.{part}" if name else part for part in names)
