"""The command line: bayeswise demo | fit | predict | methods | bench.

Only click is loaded here; a command loads what it needs when it runs, so that help comes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import click
except ModuleNotFoundError:
    raise SystemExit("bayeswise: the command line needs click; pip install 'bayeswise[all]'") from None

from bayeswise import __version__
from bayeswise.cli.benching import bench
from bayeswise.cli.voice import Command, Voice

FILE = click.Path(path_type=Path)
SEED = click.IntRange(min=0, max=2**31 - 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bayeswise")
def main() -> None:
    """Predictions that say how sure they are: Bayesian networks for your tables."""


main.add_command(bench)


def spoken(command: Callable[..., None]) -> Callable[..., None]:
    """Add --json and --debug."""
    command = click.option("--debug", is_flag=True, help="Show the whole trace of an error.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def widths(ctx: click.Context, option: click.Parameter, value: str) -> tuple[int, ...]:
    """The widths of the hidden layers from 50,50."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} should be widths such as 50 or 50,50")
    return tuple(int(part) for part in parts)


@main.command(cls=Command)
@click.option("--out", type=FILE, default=Path("bayeswise-demo"), show_default=True, help="Folder to write.")
@click.option("--seed", type=SEED, default=0, show_default=True)
@spoken
def demo(out: Path, seed: int, as_json: bool, debug: bool) -> None:
    """Train on embedded data and write a report to look at."""
    voice = Voice(as_json)
    voice.say("Training the demonstration networks; this takes a few minutes.")
    from bayeswise.report.demo import run_demo

    with voice.warnings_as_notes():
        report = run_demo(out, seed=seed, progress=True)
    voice.answer({"report": str(report)}, lambda: click.echo(f"The report is in {report}"))


@main.command(cls=Command)
@spoken
def methods(as_json: bool, debug: bool) -> None:
    """List the methods of inference with their settings."""
    from bayeswise.cli.listing import describe, show_methods

    found = describe()
    Voice(as_json).answer({"methods": found}, lambda: show_methods(found))


@main.command(cls=Command)
@click.argument("data", type=FILE)
@click.option("--target", required=True, metavar="COLUMN", help="The column to predict.")
@click.option("--out", type=FILE, required=True, metavar="DIR", help="Folder for the model and its report.")
@click.option(
    "--task",
    type=click.Choice(["auto", "regression", "classification"]),
    default="auto",
    show_default=True,
    help="Predict a number or a class; auto looks at the target.",
)
@click.option(
    "--missing",
    type=click.Choice(["error", "impute"]),
    default="error",
    show_default=True,
    help="Stop at missing values, or fill in the median or the most frequent text and flag them.",
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 0.9),
    default=0.2,
    show_default=True,
    help="Rows held out to judge the model; 0 for none.",
)
@click.option("--drop", multiple=True, metavar="COLUMN", help="Leave a column out; may be repeated.")
@click.option("--method", default="bali", show_default=True, help="See `bayeswise methods`.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps; by default the method's own.")
@click.option("--hidden", default="50", show_default=True, callback=widths, help="Widths, such as 50,50.")
@click.option("--seed", type=SEED, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Where to compute, such as cuda.")
@spoken
def fit(debug: bool, as_json: bool, **options: Any) -> None:
    """Learn to predict one column of a CSV file from the others."""
    voice = Voice(as_json)
    voice.say(f"Reading {options['data']}")
    from bayeswise.cli.learning import Request, learn, show_result

    with voice.warnings_as_notes():
        result = learn(Request(**options), voice)
    voice.answer(result, lambda: show_result(result))


@main.command(cls=Command)
@click.argument("model", type=FILE)
@click.argument("data", type=FILE)
@click.option(
    "--interval",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    show_default="0.9",
    help="Probability that the bounds of a number enclose.",
)
@click.option("--out", type=FILE, metavar="FILE", help="CSV file to write; otherwise stdout.")
@spoken
def predict(
    model: Path, data: Path, interval: float | None, out: Path | None, as_json: bool, debug: bool
) -> None:
    """Predict the rows of a CSV file with a model that `bayeswise fit` wrote."""
    voice = Voice(as_json)
    from bayeswise.cli.predicting import answer_rows

    with voice.warnings_as_notes():
        answer_rows(model, data, interval, out, voice)
