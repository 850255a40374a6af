"""`bayeswise fit`: from a CSV file to a model directory, its numbers and its report."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import jinja2  # noqa: F401  the report needs these: better to miss them now than after training
import matplotlib  # noqa: F401
import numpy as np
import pandas as pd
import torch

from bayeswise.cli.judging import LABELS, Judgement, judge, page
from bayeswise.cli.voice import Voice, show_table
from bayeswise.estimators import BayesianClassifier, BayesianRegressor
from bayeswise.methods import METHODS, fresh
from bayeswise.plain import finite
from bayeswise.report import write_report
from bayeswise.saving import SavedModelError, to_config
from bayeswise.saving.directories import CONFIG_FILE, FORMAT
from bayeswise.tables import (
    Encoder,
    NumberTarget,
    Table,
    TableError,
    Target,
    choose_target,
    held_out,
    near,
    read_table,
    shown,
    training_columns,
)
from bayeswise.tables.columns import no_numbers
from bayeswise.tables.targets import unknown

MIN_ROWS = 10
REPORT = "report.html"
PLACES = ("model", "report", "data")  # of this machine: not saved with the model


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    data: Path
    target: str
    out: Path
    task: str = "auto"
    missing: str = "error"
    test_share: float = 0.2
    drop: Sequence[str] = ()
    method: str = "bali"
    steps: int | None = None
    hidden: tuple[int, ...] = (50,)
    seed: int = 0
    device: str = "cpu"

    @property
    def imputes(self) -> bool:
        """Whether missing values are filled in."""
        return self.missing == "impute"


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs with named columns, and targets."""

    x: pd.DataFrame  # (N, I)
    y: np.ndarray[Any, Any]  # (N,)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table that is ready to be learnt from."""

    encoder: Encoder
    target: Target
    reason: str
    train: Rows
    test: Rows


def learn(request: Request, voice: Voice) -> dict[str, Any]:
    """Train, judge and save; returns what there is to tell."""
    replaces = _check_out(request.out)
    method = _method(request)
    _check_device(request.device)
    prepared = prepare(read_table(request.data), request, voice)
    if replaces:
        voice.note(f"the model in {request.out} will be replaced")
    rows = f"{len(prepared.train.y):,} rows to learn from, {len(prepared.test.y):,} held out"
    voice.say(f"{prepared.target.task.capitalize()}, because {prepared.reason}; {rows}")
    voice.say(f"Training with {request.method.lower()}")
    started = time.monotonic()
    estimator = _trained(prepared, method, request)
    seconds = time.monotonic() - started
    test = prepared.test
    judged = judge(estimator, prepared.target, prepared.train.y, test.x, test.y) if len(test.y) else None
    if judged is not None and judged.doubt:
        voice.note(judged.doubt)
    result = _result(request, prepared, judged, voice, seconds)
    about = {key: finite(value) for key, value in result.items() if key not in PLACES}
    saved = {"encoder": to_config(prepared.encoder), "target": to_config(prepared.target), "fit": about}
    estimator.save(request.out, {"table": saved})
    write_report(page(result, prepared.encoder, judged, estimator.log_likelihood_), request.out / REPORT)
    return result


def prepare(table: Table, request: Request, voice: Voice) -> Prepared:
    """Check the table, decide what it is for, split and encode it."""
    for note in table.notes:
        voice.note(note)
    frame = _chosen_columns(table, request)
    frame = _with_target(frame, request, voice)
    if len(frame) < MIN_ROWS:
        count = f"{len(frame)} row" + "s" * (len(frame) != 1)
        raise TableError(f"{table.source} has {count} to learn from; at least {MIN_ROWS} are needed")
    cells = frame[request.target]
    target, reason = choose_target(request.target, cells, request.task)
    y = target.parse(cells)
    train, test = held_out(target, y, request.test_share, request.seed)
    _check_varies(target, y[train], request.target)
    _note_copies(frame, voice)
    inputs, notes = training_columns(frame.drop(columns=[request.target]), train, request.imputes)
    encoder = Encoder.learn(inputs, train, request.imputes)
    x, more = encoder.encode(Table(inputs, table.source))
    for note in [*notes, *more]:
        voice.note(note)
    named = pd.DataFrame(x, columns=pd.Index(encoder.features))
    rows = [Rows(named.iloc[part], y[part]) for part in (train, test)]
    return Prepared(encoder, target, reason, *rows)


def _check_varies(target: Target, seen: np.ndarray, name: str) -> None:
    """Refuse numbers that are all the same in the rows to learn from."""
    if isinstance(target, NumberTarget) and (seen == seen[0]).all():
        raise TableError(
            f"the target {shown(name)} is {seen[0]:g} in all {len(seen):,} rows to learn from, so there is "
            "nothing to learn; give more rows, or split them otherwise with --seed"
        )


def _chosen_columns(table: Table, request: Request) -> pd.DataFrame:
    for name in (request.target, *request.drop):
        if name not in table.frame:
            names = list(table.frame.columns)
            hint = near(name, names) or f"; it has {', '.join(shown(other) for other in names[:8])}"
            hint += " …" if len(names) > 8 and "did you" not in hint else ""
            raise TableError(f"{table.source} has no column {shown(name)}{hint}{_headless(names)}")
    if request.target in request.drop:
        raise TableError(f"{shown(request.target)} is the target; it cannot be dropped as well")
    return table.frame.drop(columns=list(request.drop))


def _headless(names: list[str]) -> str:
    is_data = 2 * len(no_numbers(pd.Series(names))) < len(names)
    return " (its first line looks like data; put the names of the columns there)" if is_data else ""


def _with_target(frame: pd.DataFrame, request: Request, voice: Voice) -> pd.DataFrame:
    """The rows whose target is known; a target is never made up."""
    cells = frame[request.target]
    absent = unknown(cells, request.task)
    if not absent.any():
        return frame
    value = "value" if absent.equals(cells.isna()) else "finite value"
    count = f"{int(absent.sum()):,} of {len(frame):,} rows"
    what = f"{count} have no {value} of the target {shown(request.target)}"
    if not request.imputes or absent.all():
        raise TableError(f"{what}; fill them in, or leave those rows out with --missing impute")
    voice.note(f"{what}: left out")
    return pd.DataFrame(frame[~absent])


def _note_copies(frame: pd.DataFrame, voice: Voice) -> None:
    copies = int(frame.duplicated().sum())
    if copies:
        times = "1 row repeats an earlier one" if copies == 1 else f"{copies:,} rows repeat earlier ones"
        voice.note(f"{times}: held-out copies make the model look better than it is")


def _method(request: Request) -> Any:
    name = request.method.lower()
    if name not in METHODS:
        raise click.BadParameter(f"{request.method!r} is none of {', '.join(METHODS)}", param_hint="--method")
    try:
        return fresh(name, request.steps)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--steps") from None


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used: {why}") from None


def _check_out(out: Path) -> bool:
    """Refuse a place that cannot be written to before time is spent; whether a model is there already."""
    if out.exists() and not out.is_dir():
        raise SavedModelError(f'"{out}" is a file; give another folder with --out')
    filled = out.is_dir() and any(out.iterdir())
    if filled and not _is_model(out):
        raise SavedModelError(f'"{out}" holds other files; give a new or empty folder with --out')
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise SavedModelError(f'"{place}" cannot be written to; give another folder with --out')
    return filled


def _is_model(folder: Path) -> bool:
    try:
        config = json.loads((folder / CONFIG_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def _trained(prepared: Prepared, method: Any, request: Request) -> BayesianRegressor | BayesianClassifier:
    kind = BayesianRegressor if prepared.target.task == "regression" else BayesianClassifier
    bar = int(sys.stderr.isatty())  # a log file gets lines, not a moving bar
    estimator = kind(
        request.hidden, method=method, random_state=request.seed, verbose=bar, device=request.device
    )
    return estimator.fit(prepared.train.x, prepared.train.y)


def _result(
    request: Request, prepared: Prepared, judged: Judgement | None, voice: Voice, seconds: float
) -> dict[str, Any]:
    return {
        "model": str(request.out),
        "report": str(request.out / REPORT),
        "data": str(request.data),
        "target": request.target,
        "task": prepared.target.task,
        "reason": prepared.reason,
        "classes": list(getattr(prepared.target, "classes", ())),
        "rows": {"training": len(prepared.train.y), "held_out": len(prepared.test.y)},
        "columns": len(prepared.encoder.columns),
        "inputs": len(prepared.encoder.features),
        "method": request.method.lower(),
        "seed": request.seed,
        "seconds": round(seconds, 2),
        "metrics": judged.metrics if judged else {},
        "baseline": judged.baseline if judged else {},
        "notes": list(voice.notes),
    }


def show_result(result: dict[str, Any]) -> None:
    """The numbers of a fit as a table, and where to find the rest."""
    if result["metrics"]:
        rows = [
            (LABELS[name], f"{value:.4g}", f"{result['baseline'][name]:.4g}")
            for name, value in result["metrics"].items()
        ]
        title = f"{result['rows']['held_out']:,} held-out rows of {result['target']}"
        show_table(title, ("", "model", "without inputs"), rows)
    click.echo(f"The model is in {result['model']}, its report in {result['report']}")
