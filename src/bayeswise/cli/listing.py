"""The methods and their settings, as data and as a table."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from bayeswise.cli.voice import show_table
from bayeswise.methods import METHODS


def describe() -> list[dict[str, Any]]:
    """Name, class, summary and settings of every registered method."""
    return [
        {
            "name": name,
            "class": method.__name__,
            "summary": (inspect.getdoc(method) or "").partition("\n")[0],
            "settings": {setting.name: _default(setting) for setting in dataclasses.fields(method)},
        }
        for name, method in METHODS.items()
    ]


def show_methods(found: Sequence[dict[str, Any]]) -> None:
    """A table for every method."""
    for method in found:
        rows = [(name, default) for name, default in method["settings"].items()]
        show_table(f"{method['name']}: {method['summary']}", ("setting", "default"), rows, left=2)


def _default(setting: dataclasses.Field[Any]) -> str:
    if setting.default_factory is not dataclasses.MISSING:
        return repr(setting.default_factory())
    return "required" if setting.default is dataclasses.MISSING else repr(setting.default)
