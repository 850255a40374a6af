"""How the commands speak: answers on stdout, all else on stderr, errors in one line."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from bayeswise.plain import finite

EXTRA = "pip install 'bayeswise[all]'"


@dataclass(frozen=True)
class Voice:
    """What a command says while it works, and its answer at the end."""

    as_json: bool
    notes: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line on stderr."""
        click.echo(one_line(text), err=True)

    def note(self, text: str) -> None:
        """A line on stderr that also belongs to the answer."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(f"note: {text}")

    def answer(self, result: dict[str, Any], show: Callable[[], None]) -> None:
        """The result as one JSON object, or in the form for people."""
        if self.as_json:
            click.echo(json.dumps(finite(result), allow_nan=False))
        else:
            show()

    @contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """Say the library's warnings as notes; those meant for programmers are dropped."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *rest, **more: self.note(str(message))
            yield


class Command(click.Command):
    """A command whose errors take one line, and the whole trace with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever goes wrong ends here."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            raise click.ClickException(one_line(reason(error))) from None


def reason(error: Exception) -> str:
    """What went wrong, in words for the person who called."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("bayeswise"):
        return f"this command needs {error.name}; {EXTRA}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"not enough memory; use fewer rows or smaller layers ({text})"
    if type(error) in (ValueError, TypeError, RuntimeError) or isinstance(error, ValueError):
        return text or type(error).__name__
    return f"unexpected {type(error).__name__}: {text}; --debug shows where"


def one_line(text: str) -> str:
    """The text without line breaks and without characters that would steer a terminal."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text).strip()


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on stdout; all but the first `left` columns stand at the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(Text(name), justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    click.echo(one_line(title))
    Console(highlight=False).print(table)
