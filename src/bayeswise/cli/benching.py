"""The benchmark's commands: bayeswise bench run | list | report | download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bayeswise.cli.voice import Command, Voice, show_table
from bayeswise.plain import finite

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
RESULTS = Path("benchmarks/results")
DATA_HELP = "Folder of the data sets; else BAYESWISE_DATA, else the user's cache."

data_dir_option = click.option("--data-dir", type=FOLDER, metavar="DIR", help=DATA_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
debug_option = click.option("--debug", is_flag=True, help="Show the whole trace of an error.")


@click.group()
def bench() -> None:
    """The paper's experiments: run them, list them, look at the results."""


@bench.command("run", cls=Command)
@click.argument("task")
@click.option("--dataset", "datasets", multiple=True, metavar="NAME", help="May be repeated; else all.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    default=("bali",),
    show_default=True,
    metavar="NAME",
    help="May be repeated; see `bayeswise methods`.",
)
@click.option(
    "--settings",
    default="paper",
    show_default=True,
    help="paper: what the paper prints; default: the method's own; see the documentation for others.",
)
@click.option("--splits", type=click.IntRange(min=1), help="Splits or seeds; by default all of the paper's.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps instead of the settings' own.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True)
@data_dir_option
@click.option("--out", type=FOLDER, default=RESULTS, show_default=True, help="Folder of the result lines.")
@json_option
@debug_option
def run(data_dir: Path | None, methods: tuple[str, ...], as_json: bool, debug: bool, **options: Any) -> None:
    """Run a task, and append a line per split or seed to OUT/TASK.jsonl; a killed run goes on."""
    voice = Voice(as_json)
    from bayeswise.bench.datasets import data_directory
    from bayeswise.bench.jobs import Request
    from bayeswise.bench.runner import check
    from bayeswise.bench.runner import run as carry_out

    with voice.warnings_as_notes():
        folder = data_directory(data_dir)
        requests = [Request(data_dir=folder, method=name, **options) for name in dict.fromkeys(methods)]
        for request in requests[1:]:  # before any trains
            check(request)
        found = [one for request in requests for one in carry_out(request, voice.say)]
    if as_json:
        for one in found:
            click.echo(json.dumps(finite(one), allow_nan=False))
    else:
        _show(found)


@bench.command("list", cls=Command)
@data_dir_option
@json_option
@debug_option
def listing(data_dir: Path | None, as_json: bool, debug: bool) -> None:
    """Show tasks, data sets and methods."""
    from bayeswise.bench.datasets import data_directory, kinds
    from bayeswise.bench.settings import SETTINGS
    from bayeswise.bench.tasks import TASKS
    from bayeswise.methods import METHODS

    directory = data_directory(data_dir)
    there = kinds(directory) if directory.is_dir() or data_dir is not None else {}
    found = {
        "tasks": [{"name": n, "datasets": list(t.datasets), "summary": t.summary} for n, t in TASKS.items()],
        "datasets": [{"name": name, "kind": kind} for name, kind in there.items()],
        "data_dir": str(directory),
        "methods": list(METHODS),
        "settings": list(SETTINGS),
    }
    Voice(as_json).answer(found, lambda: _show_list(found))


@bench.command("report", cls=Command)
@click.option(
    "--results", type=FOLDER, default=RESULTS, show_default=True, help="Folder of the result lines."
)
@click.option("--docs", type=FOLDER, metavar="DIR", help="Write results.md and its figures into this folder.")
@click.option("--html", type=FILE, metavar="FILE", help="Write one self-contained page.")
@json_option
@debug_option
def report(results: Path, docs: Path | None, html: Path | None, as_json: bool, debug: bool) -> None:
    """Render tables and figures, ours beside the paper's; by default bench.html beside the results."""
    voice = Voice(as_json)
    from bayeswise.bench.page import write_report

    if docs is None and html is None:
        html = results / "bench.html"
    with voice.warnings_as_notes():
        written = write_report(results, docs, html)
    voice.answer({"written": [str(p) for p in written]}, lambda: click.echo("\n".join(map(str, written))))


@bench.command("download", cls=Command)
@click.argument("names", nargs=-1)
@data_dir_option
@json_option
@debug_option
def download(names: tuple[str, ...], data_dir: Path | None, as_json: bool, debug: bool) -> None:
    """Get data sets from their publishers; without NAMES all of them."""
    voice = Voice(as_json)
    from bayeswise.bench.datasets import data_directory
    from bayeswise.bench.download import fetch

    written = fetch(names, data_directory(data_dir), say=voice.say)
    voice.answer({"written": [str(p) for p in written]}, lambda: click.echo("\n".join(map(str, written))))


def _show(found: list[dict[str, Any]]) -> None:
    """A line for every metric; what is the same as in the line above is not said again."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        about = (one["dataset"], f"{one['method']} ({one['settings']})", str(one["n_splits"]))
        names = [key.removesuffix("_se") for key in one if key.endswith("_se")]
        cells = [(name, _cell(one[name], one[f"{name}_se"])) for name in names]
        for number, cell in enumerate([*cells, ("seconds", _seconds(one["seconds"]))]):
            rows.append((*(about if number == 0 else ("", "", "")), *cell))
    columns = ("data set", "method (settings)", "splits", "metric", "mean ± error")
    show_table(found[0]["task"], columns, rows, left=5)


def _cell(mean: float | None, error: float | None) -> str:
    """A dash for a score that was no number in some line."""
    if mean is None:
        return "–"
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"


def _seconds(time: float | None) -> str:
    """A dash where no line says how long it took."""
    from bayeswise.bench.tables import in_seconds

    return "–" if time is None else in_seconds(time)


def _show_list(found: dict[str, Any]) -> None:
    rows = [(t["name"], ", ".join(t["datasets"]), t["summary"]) for t in found["tasks"]]
    show_table("Tasks", ("task", "data sets of the paper", "what it is"), rows, left=3)
    rows = [(d["name"], d["kind"]) for d in found["datasets"]] or [("none", "see `bayeswise bench download`")]
    show_table(f"Data sets in {found['data_dir']}", ("data set", "kind"), rows, left=2)
    click.echo(f"Methods: {', '.join(found['methods'])}")
    click.echo(f"Settings: {', '.join(found['settings'])}")
