"""Figures of the scores: dots beside the paper's, curves over training, reliability."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeswise.bench import paper
from bayeswise.bench.labels import higher, method_name, method_rank, metric
from bayeswise.bench.tables import Run, Score, label, published_scores
from bayeswise.report import drawing as pen
from bayeswise.report.drawing import Array, plain
from bayeswise.report.html import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Key = tuple[str, str]  # method, settings

# Okabe and Ito's colours, darkened where text is written in them; marker and place differ as well.
COLORS = {
    "bali": pen.BLUE,
    "mc_dropout": pen.VERMILLION,
    "map": pen.GREEN,
    "bbb": "#b5568c",
    "ensemble": "#a87400",
    "laplace": "#3aa0d8",
    "swag": "#7a6a58",
}
SPARE = (*COLORS.values(), pen.INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TICKS = 5  # of a lower axis, whose numbers may be long
FAR = 5.0  # middle halves from which a mean is drawn at the edge
LEAST = 0.01  # of a mean: a middle half is not taken for narrower
BINS = 15  # of a calibration curve


@dataclass(frozen=True)
class Drawing(Picture):
    """A picture with the name of its file in the docs."""

    name: str = "figure"


@dataclass(frozen=True)
class Look:
    """How one method is drawn in a figure."""

    color: str
    marker: str


def looks(keys: Iterable[Key]) -> dict[Key, Look]:
    """A look for every method with its settings: its colour, or a free one for its other settings."""
    order = sorted(set(keys), key=lambda key: method_rank(*key))
    first = {key[0]: key for key in reversed(order)}  # of each method
    colors = {key: COLORS[method] for method, key in first.items() if method in COLORS}
    free = [color for color in SPARE if color not in colors.values()] or list(SPARE)
    others = [key for key in order if key not in colors]
    colors |= {key: free[n % len(free)] for n, key in enumerate(others)}
    return {key: Look(colors[key], MARKERS[n % len(MARKERS)]) for n, key in enumerate(order)}


def short(keys: Iterable[Key]) -> dict[Key, str]:
    """Names for a figure: the paper's settings go without saying where a method has no others there."""
    every = sorted(set(keys), key=lambda key: method_rank(*key))
    several = {key[0] for key in every if sum(other[0] == key[0] for other in every) > 1}
    return {k: label(k) if k[0] in several or k[1] != "paper" else method_name(k[0]) for k in every}


# ------------------------------------------------------------------------------------------ dots and whiskers


@dataclass(frozen=True)
class Dot:
    """One row of a figure of dots: its name, its look and its score of each metric."""

    name: str
    look: Look
    scores: tuple[Score | None, ...]


def dots(dataset: str, found: Sequence[Run], wanted: tuple[str, ...] = ("rmse", "ll")) -> Drawing | None:
    """The scores of one data set, the paper's above ours, with two standard errors to either side."""
    names = [name for name in wanted if any(run.score(name) for run in found)]
    if not names:
        return None
    published, place = _published_dots(dataset, names), found[0].place
    rows = [*published, *_our_dots(found, names)]
    with pen.style():
        axes = pen.new_axes(8.4, 1.25 + 0.27 * len(rows), columns=len(names))
        for number, (ax, name) in enumerate(zip(axes, names, strict=True)):
            _draw_dots(ax, rows, number)
            _draw_target(ax, dataset, name)
            better = "higher" if metric(name).badness is higher else "lower"
            ax.set_xlabel(f"{metric(name).label} ({better} is better)")
            ax.locator_params(axis="x", nbins=TICKS)
        axes[0].set_title(plain(place))
        for ax in axes[1:]:
            ax.tick_params(labelleft=False)
    caption = f"{place}: dots are means, bars reach two standard errors to either side; " + (
        "the paper's methods are grey, ours coloured, and an arrow is a mean far outside. "
        "In the pale green region BALI counts as reproduced."
        if published
        else "an arrow is a mean far outside."
    )
    scores = " and ".join(metric(name).label for name in names)
    count = f"{len(rows)} methods" if len(rows) > 1 else "one method"
    alt = f"{scores} of {count} on {place}; the tables have the numbers."
    return Drawing(axes[0].figure, caption, alt, f"uci_{dataset}")


def _published_dots(dataset: str, names: Sequence[str]) -> list[Dot]:
    columns = zip(*(published_scores(dataset, name) for name in names), strict=True)
    rows = [Dot(f"paper: {m}", Look(pen.GREY, "o"), c) for m, c in zip(paper.METHODS, columns, strict=True)]
    return [row for row in rows if any(row.scores)]


def _our_dots(found: Sequence[Run], names: Sequence[str]) -> list[Dot]:
    look = looks(run.key for run in found)
    return [Dot(f"ours: {label(r.key)}", look[r.key], tuple(r.score(name) for name in names)) for r in found]


def _draw_dots(ax: Axes, rows: Sequence[Dot], number: int) -> None:
    scores = {h: s for h, row in enumerate(rows) if (s := row.scores[number]) and np.isfinite(s.mean)}
    low, high = _usual([score.mean for score in scores.values()])
    off = {h: score for h, score in scores.items() if not low <= score.mean <= high}
    for height, score in scores.items():
        if height in off:
            continue
        reach, look = 2 * (score.error or 0.0), rows[height].look
        ax.plot([score.mean - reach, score.mean + reach], [height] * 2, color=look.color, lw=1.8)
        ax.plot([score.mean], [height], look.marker, color=look.color, ms=6, mec="white", mew=0.6)
    for height, score in off.items():
        _draw_off(ax, height, score, rows[height].look, right=score.mean > high)
    ax.set(yticks=range(len(rows)), ylim=(len(rows) - 0.4, -0.6))
    ax.set_yticklabels([plain(row.name, 40) for row in rows])
    for text, row in zip(ax.get_yticklabels(), rows, strict=True):
        text.set_color(row.look.color if row.look.color != pen.GREY else pen.INK)
    ax.grid(axis="y", visible=False)


def _usual(means: Sequence[float]) -> tuple[float, float]:
    """Where means are drawn to scale: within five times the middle half of them; the others at the edge."""
    if not means:
        return 0.0, 0.0
    low, high = np.quantile(means, [0.25, 0.75])
    reach = FAR * max(high - low, LEAST * abs(high))
    return low - reach, high + reach


def _draw_off(ax: Axes, height: int, score: Score, look: Look, right: bool) -> None:
    """An arrow at the edge with the number."""
    edge, inner, side = (1.0, 0.96, "right") if right else (0.0, 0.04, "left")
    across = ax.get_yaxis_transform()  # x as a share of the width
    arrow = ">" if right else "<"
    ax.plot([edge], [height], arrow, color=look.color, ms=7, clip_on=False, transform=across)
    ax.text(inner, height, score.text, color=look.color, ha=side, va="center", fontsize=8, transform=across)


def _draw_target(ax: Axes, dataset: str, name: str) -> None:
    """Where our BALI counts as reproduced."""
    target = paper.uci_scores().get((dataset, name, "BALI"))
    if target is None:
        return
    side = -1 if metric(name).badness is higher else 1
    left, right = ax.get_xlim()
    limit = target.mean + 2 * side * target.error
    ax.axvspan(left if side > 0 else limit, limit if side > 0 else right, color="#dcefe4", lw=0, zorder=0)
    ax.set_xlim(left, right)


# ----------------------------------------------------------------------------------------------------- curves


Curve = dict[str, Array]


def mean_curve(run: Run) -> Curve | None:
    """The run's curves averaged over its lines, at the steps that all of them have."""
    found = [curve for line in run.lines if (curve := line.get("curve") or line["metrics"].get("curve"))]
    if not found:
        return None
    steps = sorted(set.intersection(*(set(curve["step"]) for curve in found)))
    rows = [[list(curve["step"]).index(step) for step in steps] for curve in found]
    mean: Curve = {"step": np.asarray(steps, float)}
    for name in ("seconds", "train_nll", "test_nll"):
        mean[name] = np.mean(
            [np.asarray(curve[name], float)[at] for curve, at in zip(found, rows, strict=True)], axis=0
        )
    return mean


def curves(found: Sequence[Run], task: str) -> Drawing | None:
    """Negative log likelihood of one data set against steps and against seconds, all methods together."""
    drawn = {run.key: curve for run in found if (curve := mean_curve(run)) is not None}
    if not drawn:
        return None
    place, names = found[0].place, short(drawn)
    with pen.style():
        axes = pen.new_axes(9.6, 3.9, columns=2)
        for ax, x in zip(axes, ("step", "seconds"), strict=True):
            _draw_curves(ax, drawn, x)
        _set_limits(axes, drawn)
        axes[0].set(title=plain(place), ylabel="negative log likelihood", xlabel="step")
        axes[1].set(xlabel="seconds of training")
        for ax in axes:
            _label_ends(ax, drawn, names)
    caption = f"{place}: test rows solid, training rows dashed; means over splits or seeds."
    alt = f"Negative log likelihood on {place} against steps and seconds: {'; '.join(names.values())}."
    return Drawing(axes[0].figure, caption, alt, f"{task}_{found[0].dataset}")


def _draw_curves(ax: Axes, drawn: Mapping[Key, Curve], x: str) -> None:
    look = looks(drawn)
    for key, curve in drawn.items():
        after = curve["step"] > 0  # the axis is logarithmic
        end: Any = {"marker": look[key].marker, "markevery": [-1], "ms": 5} if after.any() else {}
        ax.plot(curve[x][after], curve["test_nll"][after], color=look[key].color, lw=1.8, **end)
        dashes: Any = pen.DASHED
        ax.plot(curve[x][after], curve["train_nll"][after], color=look[key].color, ls=dashes, lw=1.1)
    _set_log(ax)


def _set_log(ax: Axes) -> None:
    """A logarithmic lower axis with plain numbers, more of them where it is short."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 50 * low:
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    ax.xaxis.set_minor_formatter(NullFormatter())


def _set_limits(axes: Sequence[Axes], drawn: Mapping[Key, Curve]) -> None:
    """One range for both; a training curve that dives to zero may leave it, a test curve may not."""
    test, train = (_finite(drawn, name) for name in ("test_nll", "train_nll"))
    if not test.size or not train.size:
        return
    low, high = min(float(test.min()), float(train.min())), float(test.max())
    scale = "log" if low > 0 and high > 8 * test.min() else "linear"
    low = max(low, float(test.min()) / 5) if scale == "log" else low
    for ax in axes:
        pen.set_scale(ax, scale)
        margin = 0.05 * (high - low)
        ax.set_ylim((low * 0.9, high * 1.1) if scale == "log" else (low - margin, high + margin))


def _finite(drawn: Mapping[Key, Curve], name: str) -> Array:
    values = np.concatenate([curve[name][curve["step"] > 0] for curve in drawn.values()])
    return values[np.isfinite(values)]


def _label_ends(ax: Axes, drawn: Mapping[Key, Curve], names: Mapping[Key, str]) -> None:
    """Names at the right edge, at the height of each test curve's end, moved apart where they would touch."""
    look, to_share = looks(drawn), ax.transData + ax.transAxes.inverted()
    ends = {key: _last(curve["test_nll"]) for key, curve in drawn.items()}
    shares = {key: float(to_share.transform((1.0, end))[1]) for key, end in ends.items() if np.isfinite(end)}
    for key, height in apart(shares, 0.06).items():
        text: dict[str, Any] = {"transform": ax.transAxes, "va": "center", "fontsize": 9}
        ax.text(1.015, height, plain(names[key], 30), color=look[key].color, **text)


def _last(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else float("nan")


def apart(heights: Mapping[Any, float], gap: float) -> dict[Any, float]:
    """The heights with at least `gap` between neighbours, inside 0 to 1 as far as there is room."""
    order = sorted(heights, key=lambda key: heights[key])
    at = [min(max(heights[key], 0.0), 1.0) for key in order]
    for _ in range(100):  # neighbours that are too near push each other away
        for n in range(1, len(at)):
            push = max(0.0, gap - (at[n] - at[n - 1])) / 2
            at[n - 1], at[n] = at[n - 1] - push, at[n] + push
    shift = max(0.0, -min(at, default=0.0)) - max(0.0, max(at, default=0.0) - 1.0)
    return {key: height + shift for key, height in zip(order, at, strict=True)}


# ------------------------------------------------------------------------------------------------ reliability


def reliability(found: Sequence[Run]) -> Drawing | None:
    """Accuracy against confidence by bin, all methods of one data set, pooled over splits or seeds.

    Lines carry "reliability": {"confidence": […], "accuracy": […], "count": […]}, a value per bin with rows.
    """
    drawn = {run.key: pooled for run in found if (pooled := _pooled(run)) is not None}
    if not drawn:
        return None
    place, look, names = found[0].place, looks(drawn), short(drawn)
    with pen.style():
        ax = pen.new_axes(5.6, 4.4)[0]
        dashes: Any = pen.DASHED
        ax.plot([0, 1], [0, 1], color=pen.GREY, ls=dashes, lw=1.2, label="perfectly calibrated")
        for key, (confidence, accuracy) in drawn.items():
            marker = look[key].marker
            ax.plot(confidence, accuracy, marker=marker, ms=5, color=look[key].color, label=names[key])
        least = min(float(min(x.min(), y.min())) for x, y in drawn.values()) - 0.03
        ax.set(xlim=(least, 1.02), ylim=(least, 1.02))
        ax.set(xlabel="confidence in the chosen class", ylabel="share that is right", title=plain(place))
        ax.legend(loc="upper left")
    caption = f"{place}: below the dashed line a method is too sure of itself, above it too cautious."
    alt = f"Reliability on {place}: {'; '.join(names.values())}."
    return Drawing(ax.figure, caption, alt, f"reliability_{found[0].dataset}")


def _pooled(run: Run) -> tuple[Array, Array] | None:
    found = [line["reliability"] for line in run.lines if line.get("reliability")]
    if len(found) < len(run.lines):  # some seeds would speak for all
        return None
    confidence, accuracy, count = (
        np.concatenate([np.asarray(bins[name], float) for bins in found])
        for name in ("confidence", "accuracy", "count")
    )
    bins = np.ceil(BINS * confidence - 1e-9)  # bin k holds ((k - 1) / 15, k / 15]; empty ones are not stored
    full = [n for n in np.unique(bins) if count[bins == n].sum() > 0]
    x, y = (
        np.asarray([np.average(values[bins == n], weights=count[bins == n]) for n in full])
        for values in (confidence, accuracy)
    )
    return x, y
