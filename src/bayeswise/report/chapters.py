"""The sections of the demo's report: what was learnt, in pictures, numbers and plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayeswise import metrics
from bayeswise.posterior import Posterior
from bayeswise.predictive import Predictive
from bayeswise.report.displays import (
    BandDisplay,
    ConvergenceDisplay,
    CoverageDisplay,
    PredictedDisplay,
    ReliabilityDisplay,
    SurfaceDisplay,
    UncertaintyErrorDisplay,
)
from bayeswise.report.html import Picture, Section, Table
from bayeswise.report.problems import Curve, Example, Plane
from bayeswise.training import Progress

LEVEL = 0.9
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
FAR = 1.0  # a place in the plane is far when no training point is nearer than this
EARLY = (2, 5, 10)  # steps at which a recorder looks in any case, because most is learnt there
MOST_LOOKED_AT = 256  # rows of each kind that a recorder looks at

Axes = Any


@dataclass
class Recorder:
    """Negative log likelihood of training and held-out rows in the user's units, every so many steps."""

    example: Example
    every: int
    draws: int
    steps: list[int] = field(default_factory=list)
    training: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    seconds: float = 0.0  # spent here, not on training

    def __call__(self, progress: Progress) -> None:
        """Look when it is time."""
        if progress.step % self.every and progress.step not in (*EARLY, progress.total):
            return
        start = monotonic()
        training, held = self._look(progress.posterior())
        self.steps.append(progress.step)
        self.training.append(training)
        self.held.append(held)
        self.seconds += monotonic() - start

    def _look(self, posterior: Posterior) -> tuple[float, float]:
        """Both in one prediction: drawing the networks takes longer than running them."""
        e, most = self.example, MOST_LOOKED_AT
        x, y = (torch.cat([a[:most], b[:most]]) for a, b in ((e.x, e.held_x), (e.y, e.held_y)))
        log_prob = posterior.predict(x, self.draws).log_prob(y)  # (rows,)
        n = min(most, len(e.x))
        return float(metrics.nll(log_prob[:n])), float(metrics.nll(log_prob[n:]))


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was learnt from an example."""

    example: Example
    posterior: Posterior
    held: Predictive  # of the held-out rows
    recorder: Recorder
    seconds: float  # of training

    def scores(self) -> dict[str, float]:
        """RMSE and coverage, or accuracy and ECE, and the negative log likelihood of held-out rows."""
        y, mean = self.example.held_y, self.held.mean
        nll = float(metrics.nll(self.held.log_prob(y)))
        if self.posterior.problem.is_regression:
            inside = float(metrics.coverage(*self.held.interval(LEVEL), y))
            return {"rmse": float(metrics.rmse(mean, y)), "coverage": inside, "nll": nll}
        ece = float(metrics.ece(mean, y))
        return {"accuracy": float(metrics.accuracy(mean, y)), "ece": ece, "nll": nll}


@dataclass(frozen=True, eq=False)
class CurveView:
    """A learnt curve over the range to look at: inputs (B, 1) and what is predicted there."""

    curve: Curve
    x: Tensor
    predicted: Predictive

    @classmethod
    def of(cls, outcome: Outcome, curve: Curve, points: int, draws: int) -> CurveView:
        """Predict an even grid."""
        x = curve.grid(points)
        return cls(curve, x, outcome.posterior.predict(x, draws))

    def numbers(self) -> dict[str, float]:
        """How close the mean is to the truth, the noise found, and the standard deviation by place."""
        x, inside, span = self.x, self.curve.inside(self.x), self.curve.span(self.x)
        error = (self.predicted.mean - self.curve.truth(x))[inside].square().mean().sqrt()
        std = self.predicted.epistemic[:, 0]  # (B,)
        found = {
            "error": float(error),
            "noise": float(self.predicted.aleatoric.mean()),
            "at the data": float(std[inside].mean()),
            "left": float(std[0]),
            "right": float(std[-1]),
        }
        gap = span & ~inside
        return found | ({"gap": float(std[gap].max())} if bool(gap.any()) else {})

    def draw(self, ax: Axes | None = None) -> BandDisplay:
        """Mean and bands with the data and the truth; wide bands leave the picture."""
        curve, q = self.curve, self.predicted
        low, high = (array(edge) for edge in q.interval(LEVEL))
        shown = BandDisplay.from_predictions(
            array(self.x),
            array(q.mean),
            array(q.epistemic),
            array(q.std),
            interval=(low, high),
            data=(array(curve.x), array(curve.y)),
            truth=array(curve.truth(self.x)),
            level=LEVEL,
            ax=ax,
        )
        bottom, top = float(curve.y.min()), float(curve.y.max())
        shown.ax_.set_ylim(bottom - (top - bottom), top + (top - bottom))  # else the data are a thin line
        return shown


@dataclass(frozen=True, eq=False)
class PlaneView:
    """A learnt classifier over its box: columns (W,), rows (H,) and what is predicted where they cross."""

    plane: Plane
    columns: Tensor
    rows: Tensor
    points: Tensor  # (H·W, 2)
    predicted: Predictive
    at_data: Predictive

    @classmethod
    def of(cls, outcome: Outcome, plane: Plane, points: int, draws: int) -> PlaneView:
        """Predict an even grid, and the training points."""
        columns, rows, places = plane.grid(points)
        predict = outcome.posterior.predict
        return cls(plane, columns, rows, places, predict(places, draws), predict(plane.x, draws))

    def numbers(self) -> dict[str, float]:
        """Mean mutual information at the training points, and far from all of them."""
        far = torch.cdist(self.points, self.plane.x).amin(1) > FAR  # (H·W,)
        return {
            "at the data": float(self.at_data.mutual_information().mean()),
            "far": float(self.predicted.mutual_information()[far].mean()),
        }

    def draw(self, ax: tuple[Axes, Axes] | None = None) -> SurfaceDisplay:
        """Probability and mutual information with the points."""
        shape = (len(self.rows), len(self.columns))
        return SurfaceDisplay.from_predictions(
            (self.columns.numpy(), self.rows.numpy()),
            self.predicted.mean.reshape(shape).numpy(),
            self.predicted.mutual_information().reshape(shape).numpy(),
            data=(self.plane.x.numpy(), self.plane.y.numpy()),
            measure="mutual information (nats)",
            ax=ax,
        )


def summary_section(outcomes: list[Outcome]) -> Section:
    """One row of numbers for each example."""
    names = ("rmse", "coverage", "accuracy", "ece", "nll")
    rows = []
    for outcome in outcomes:
        e, scores = outcome.example, outcome.scores()
        numbers = [_rounded(scores.get(name)) for name in names]
        rows.append((e.name, len(e.y), len(e.held_y), *numbers, round(outcome.seconds, 1)))
    columns = ("problem", "rows learnt", "rows held out", "RMSE", "inside 90%", "accuracy", "ECE", "NLL")
    text = (
        "All numbers are measured on rows that the networks have not seen. RMSE, ECE (expected calibration "
        "error) and NLL (negative log likelihood) should be small. Of the observations, nine in ten should "
        "lie inside the 90% intervals: fewer means that the model is too sure of itself, more that it is too "
        "cautious."
    )
    return Section(
        "All numbers at a glance", text, table=Table((*columns, "seconds of training"), tuple(rows))
    )


def curve_section(outcome: Outcome, view: CurveView, text: str) -> Section:
    """Bands, coverage and convergence of a curve."""
    curve, n = view.curve, view.numbers()
    rows = [
        ("RMSE of the mean to the noise-free function, where there are data", n["error"]),
        (f"noise found (true: {curve.noise:g})", n["noise"]),
        ("epistemic standard deviation where there are data, mean", n["at the data"]),
        *([("the same in the gap, largest", n["gap"])] if "gap" in n else []),
        (f"the same at x = {curve.shown[0]:g}", n["left"]),
        (f"the same at x = {curve.shown[1]:g}", n["right"]),
    ]
    best = 0.5 * math.log(2 * math.pi * math.e * curve.noise**2)
    words = (
        f"{text}\n\nNo model can reach a negative log likelihood below {best:.2f} on average, the entropy of "
        f"the noise; this one reaches {outcome.scores()['nll']:.2f} on held-out rows."
    )
    pictures = (Picture.of(view.draw()), _coverage(outcome), _convergence(outcome))
    return Section(
        curve.name, words, pictures, Table(("measure", "value"), tuple((k, round(v, 4)) for k, v in rows))
    )


def plane_section(outcome: Outcome, view: PlaneView, text: str) -> Section:
    """Decision surface with its uncertainty, reliability and convergence of a classifier in the plane."""
    n = view.numbers()
    caption = (
        "Left: the colour is the probability, the line is where it crosses one half. Right: how much the "
        "drawn networks disagree, the part of the uncertainty that more data would remove. It should be "
        "small at the points and grow away from them."
    )
    table = Table(
        ("mutual information (nats)", "value"),
        (
            ("mean at the training points", round(n["at the data"], 4)),
            (f"mean at places farther than {FAR:g} from every training point", round(n["far"], 4)),
            ("largest possible for two classes", round(math.log(2), 4)),
        ),
    )
    pictures = (Picture.of(view.draw(), caption), _reliability(outcome), _convergence(outcome))
    return Section(view.plane.name, text, pictures, table)


def regression_section(outcome: Outcome, target: str, text: str) -> Section:
    """Predicted against observed, coverage and convergence of a table with a number to predict."""
    e, q = outcome.example, outcome.held
    low, high = (array(edge) for edge in q.interval(LEVEL))
    predicted = PredictedDisplay.from_predictions(
        array(e.held_y), array(q.mean), low, high, level=LEVEL, name=target
    )
    guess = float(metrics.rmse(e.y.mean().expand_as(e.held_y), e.held_y))
    words = (
        f"{text}\n\nRMSE on held-out rows: {outcome.scores()['rmse']:.1f}; always guessing the mean of the "
        f"training rows gives {guess:.1f}."
    )
    pictures = (Picture.of(predicted), _coverage(outcome), _convergence(outcome))
    return Section(e.name, words, pictures)


def classification_section(outcome: Outcome, text: str) -> Section:
    """Reliability, errors against uncertainty and convergence of a table with classes to predict."""
    e, q = outcome.example, outcome.held
    wrong = (q.mean[:, 0] > 0.5).long() != e.held_y  # (B,)
    kept = UncertaintyErrorDisplay.from_predictions(
        wrong.double().numpy(), q.entropy().numpy(), name="share of wrong answers"
    )
    common = float(torch.maximum(e.held_y.double().mean(), 1 - e.held_y.double().mean()))
    words = (
        f"{text}\n\n{int(wrong.sum())} of {len(wrong)} held-out rows are classified wrongly; always naming "
        f"the more common class would be right in {common:.1%} of them, the network is right in "
        f"{outcome.scores()['accuracy']:.1%}."
    )
    return Section(e.name, words, (_reliability(outcome), Picture.of(kept), _convergence(outcome)))


def _coverage(outcome: Outcome) -> Picture:
    bounds = [[array(edge) for edge in outcome.held.interval(level)] for level in LEVELS]
    low, high = (np.stack(edges) for edges in zip(*bounds, strict=True))  # (levels, N)
    return Picture.of(
        CoverageDisplay.from_predictions(array(outcome.example.held_y), low, high, np.array(LEVELS))
    )


def _reliability(outcome: Outcome) -> Picture:
    y = outcome.example.held_y
    return Picture.of(ReliabilityDisplay.from_predictions(outcome.held.mean.numpy(), y.numpy()))


def _convergence(outcome: Outcome) -> Picture:
    r = outcome.recorder
    curves = {"training rows": (r.steps, r.training), "held-out rows": (r.steps, r.held)}
    return Picture.of(ConvergenceDisplay.from_history(curves))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def array(column: Tensor) -> Any:
    """The only column of (B, 1) as a vector for drawing."""
    return column[:, 0].double().cpu().numpy()
