"""`bayeswise predict`: a saved model and a CSV file in, predictions out."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from bayeswise.cli.voice import Voice
from bayeswise.estimators import BayesianClassifier, BayesianRegressor, load_estimator
from bayeswise.saving import SavedModelError, from_config
from bayeswise.saving.files import write_bytes
from bayeswise.storage import read_extra
from bayeswise.tables import (
    CategoryColumn,
    ClassTarget,
    Encoder,
    NumberColumn,
    NumberTarget,
    PairColumn,
    Table,
    Target,
    listed,
    read_table,
    shown,
)

LEVEL = 0.9  # probability inside the bounds of a number
COLUMNS = (CategoryColumn, NumberColumn, PairColumn)
KINDS = {kind.__name__: kind for kind in (*COLUMNS, Encoder, ClassTarget, NumberTarget)}

Estimator = BayesianRegressor | BayesianClassifier


def answer_rows(model: Path, data: Path, level: float | None, out: Path | None, voice: Voice) -> None:
    """Predict every row of a file and write or print the answers."""
    _check_out(out)
    encoder, target, estimator = load_model(model)
    if level is not None and isinstance(target, ClassTarget):
        voice.note(f"--interval is for numbers; {shown(target.name)} is a class and gets probabilities")
    table = read_table(data)
    _note_columns(table, encoder, target, voice)
    x, notes = encoder.encode(table)
    for note in notes:
        voice.note(note)
    named = pd.DataFrame(x, columns=pd.Index(encoder.features))
    answers = predictions(estimator, target, named, level or LEVEL)
    result = {"model": str(model), "rows": len(answers), "columns": list(answers), "notes": list(voice.notes)}
    if out is None:
        rows = {"predictions": answers.to_dict(orient="records")} if voice.as_json else {}
        voice.answer(result | rows, lambda: click.echo(as_csv(answers), nl=False))
        return
    write_bytes(out, as_csv(answers).encode())
    voice.answer(result | {"out": str(out)}, lambda: click.echo(f"{len(answers):,} predictions are in {out}"))


def load_model(model: Path) -> tuple[Encoder, Target, Estimator]:
    """What `bayeswise fit` saved."""
    saved = read_extra(model).get("table")
    if saved is None:
        raise SavedModelError(f'"{model}" was not written by `bayeswise fit`; load it in Python instead')
    return from_config(saved["encoder"], KINDS), from_config(saved["target"], KINDS), load_estimator(model)


def predictions(estimator: Estimator, target: Target, x: pd.DataFrame, level: float) -> pd.DataFrame:
    """Mean, std and bounds of a number; or the class, the probability of each, and the entropy."""
    dist = estimator.predict_dist(x)
    if isinstance(target, NumberTarget):
        low, high = dist.interval(level)
        parts = {"mean": dist.mean, "std": dist.std, "low": low, "high": high}
        return pd.DataFrame({name: values[:, 0].double().cpu().numpy() for name, values in parts.items()})
    probs = dist.mean.double().cpu().numpy()  # (B, O)
    columns: dict[str, Any] = {"class": np.array(target.classes, dtype=object)[probs.argmax(1)]}
    columns |= {f"p_{label}": probs[:, index] for index, label in enumerate(target.classes)}
    return pd.DataFrame(columns | {"entropy": dist.entropy().double().cpu().numpy()})


def as_csv(answers: pd.DataFrame) -> str:
    """The answers as CSV text, with the digits that a large mean and its close bounds differ in."""
    stream = io.StringIO()
    answers.to_csv(stream, index=False, float_format="%.15g", lineterminator="\n")
    return stream.getvalue()


def _note_columns(table: Table, encoder: Encoder, target: Target, voice: Voice) -> None:
    for note in table.notes:
        voice.note(note)
    used = {column.name for column in encoder.columns} | {target.name}
    unused = [name for name in table.frame.columns if name not in used]
    if unused:
        voice.note(f"ignored columns that the model does not use: {listed(unused)}")


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.is_dir():
        raise ValueError(f'"{out}" is a directory; give the name of a file with --out')
    if not out.absolute().parent.is_dir():
        raise ValueError(f'there is no folder "{out.parent}"; make it, or give another file with --out')
