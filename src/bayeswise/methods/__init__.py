"""One file per method; no method imports another. A new one is a file here and a line in `METHODS`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bayeswise.methods.protocol import Method

if TYPE_CHECKING:
    from bayeswise.methods.bali import BALI as BALI
    from bayeswise.methods.bbb import BayesByBackprop as BayesByBackprop
    from bayeswise.methods.ensemble import Ensemble as Ensemble
    from bayeswise.methods.laplace import Laplace as Laplace
    from bayeswise.methods.map import MAP as MAP
    from bayeswise.methods.mc_dropout import MCDropout as MCDropout
    from bayeswise.methods.swag import SWAG as SWAG


class Registry(dict[str, Any]):
    """Methods by name; a file is loaded when its method is first asked for."""

    def __getitem__(self, name: str) -> Any:
        """The class, which is given, or named as file.Class."""
        kind = super().__getitem__(name)
        if not isinstance(kind, str):
            return kind
        file, _, own = kind.partition(".")
        return getattr(import_module(f"bayeswise.methods.{file}"), own)

    def values(self) -> list[Any]:  # type: ignore[override]
        """The classes."""
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Names and classes."""
        return [(name, self[name]) for name in self]


METHODS = Registry(
    {
        "bali": "bali.BALI",
        "map": "map.MAP",
        "mc_dropout": "mc_dropout.MCDropout",
        "bbb": "bbb.BayesByBackprop",
        "ensemble": "ensemble.Ensemble",
        "laplace": "laplace.Laplace",
        "swag": "swag.SWAG",
    }
)


def __getattr__(name: str) -> Any:
    """The class of a method by its own name."""
    for method, where in dict.items(METHODS):
        if isinstance(where, str) and where.endswith(f".{name}"):
            return METHODS[method]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def fresh(name: str, steps: int | None = None) -> Method[Any]:
    """A registered method for a model that is not trained yet; one that needs a trained model trains it."""
    kind, own = METHODS[name], {} if steps is None else {"steps": steps}
    settings = {setting.name for setting in fields(kind)}
    if "first" in settings:
        return trained_first(kind(), **own)
    if own and "steps" not in settings:
        raise ValueError(f"{name} has no number of steps")
    return kind(**own)


def trained_first(method: Any, **own: Any) -> Any:
    """The method for a new network: one that would take its weights as they are has it trained by MAP."""
    takes_it = is_dataclass(method) and getattr(method, "first", method) is None
    return replace(method, first=METHODS["map"](**own)) if takes_it else method  # type: ignore[type-var]
