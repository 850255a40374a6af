"""Figures of predictions in scikit-learn's Display manner: arrays in, the numbers shown and their axes out.

matplotlib is loaded when the first figure is drawn; pyplot never, so nothing is shown or kept globally.
A `Display` also carries a caption (what to look for) and an alternative text, which the report prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bayeswise.report import drawing as pen
from bayeswise.report.drawing import Array, Pair, percent, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, kw_only=True)
class Display:
    """A finished figure: its axes, what it shows in words, and what to look for in it."""

    ax_: Axes
    alt: str
    caption: str = ""

    @property
    def figure_(self) -> Any:
        """The matplotlib figure that holds the axes."""
        return self.ax_.figure


@dataclass(frozen=True, eq=False, kw_only=True)
class BandDisplay(Display):
    """A regression function of one input: mean, band of the function (epistemic), of new data (total)."""

    x: Array
    mean: Array
    epistemic: tuple[Array, Array]  # lower and upper edge of the band
    total: tuple[Array, Array]
    caption: str = (
        "The blue band is what the model does not know about the function; the grey band adds the noise of a "
        "new observation. The blue band should be narrow at the data and widen away from it."
    )

    @classmethod
    def from_predictions(
        cls,
        x: ArrayLike,
        mean: ArrayLike,
        epistemic: ArrayLike,
        std: ArrayLike,
        *,
        interval: Pair | None = None,
        data: Pair | None = None,
        truth: ArrayLike | None = None,
        level: float = 0.9,
        labels: tuple[str, str] = ("x", "y"),
        ax: Axes | None = None,
    ) -> Self:
        """Draw mean ± z(level)·standard deviation over inputs (B,), for the function and for new data.

        `interval` (low, high) replaces the Gaussian total band, for instance by `predictive.interval(level)`.
        """
        x, mean, epistemic, std = pen.vectors(x=x, mean=mean, epistemic=epistemic, std=std)
        z, order = NormalDist().inv_cdf(0.5 + level / 2), np.argsort(x, kind="stable")
        low, high = (mean - z * std, mean + z * std) if interval is None else interval
        _, low, high = pen.vectors(x=x, low=low, high=high)
        inner = (mean - z * epistemic)[order], (mean + z * epistemic)[order]
        total = low[order], high[order]
        with pen.style():
            ax = ax or pen.new_axes(6.4, 3.8)[0]
            ax.plot(x[order], mean[order], color=pen.BLUE, label="mean")
            pen.draw_band(ax, x[order], inner, pen.SKY, f"epistemic, {percent(level)}")
            pen.draw_band(ax, x[order], total, pen.PALE, f"total, {percent(level)}")
            if truth is not None:
                line = pen.vectors(x=x, truth=truth)[1][order]
                ax.plot(x[order], line, color=pen.INK, ls=pen.DASHED, lw=1.2, label="truth")
            if data is not None:
                pen.draw_points(ax, *pen.vectors(data_x=data[0], data_y=data[1]), name="data")
            pen.finish(ax, labels)
        names = f"{plain(labels[1])} against {plain(labels[0])}"
        alt = f"{names}: mean, epistemic and total band, {percent(level)} each."
        return cls(ax_=ax, alt=alt, x=x[order], mean=mean[order], epistemic=inner, total=total)


@dataclass(frozen=True, eq=False, kw_only=True)
class SurfaceDisplay(Display):
    """A classifier of two inputs: probability of class 1 with its decision boundary, and its uncertainty."""

    uncertainty_ax_: Axes
    probability: Array
    uncertainty: Array
    caption: str = (
        "Left: the colour is the probability, the line is where it crosses one half. Right: dark is unsure. "
        "The model should be sure at the points, and unsure between the classes and far from all points."
    )

    @classmethod
    def from_predictions(
        cls,
        grid: Pair,
        probability: ArrayLike,
        uncertainty: ArrayLike,
        *,
        data: Pair | None = None,
        measure: str = "entropy (nats)",
        classes: tuple[str, str] = ("0", "1"),
        labels: tuple[str, str] = ("x₁", "x₂"),
        ax: tuple[Axes, Axes] | None = None,
    ) -> Self:
        """Draw P(class 1) and its uncertainty, both (H, W), over an even grid of columns (W,) and rows (H,).

        `data` is (points (N, 2), labels (N,) of 0 and 1); `measure` names the uncertainty.
        """
        columns, rows = (np.asarray(axis, float) for axis in grid)
        p = pen.grid_map("probability", probability, rows, columns)
        u = pen.grid_map("uncertainty", uncertainty, rows, columns)
        title = f"probability of class {plain(classes[1], 40)}"
        with pen.style():
            left, right = ax or pen.new_axes(8.4, 3.8, columns=2)
            pen.draw_surface(left, (columns, rows), p, (pen.BLUE, "#f7f7f7", pen.VERMILLION), 1.0)
            top = float(u.max()) or 1.0
            pen.draw_surface(right, (columns, rows), u, ("#ffffff", "#b9b1d8", "#6f5aa8"), top)
            for axes, name in ((left, title), (right, plain(measure))):
                if p.min() < 0.5 < p.max():
                    axes.contour(columns, rows, p, levels=[0.5], colors=pen.INK, linewidths=1.4)
                axes.set(title=name, xlabel=plain(labels[0]), ylabel=plain(labels[1]))
                if data is not None:
                    pen.draw_classes(axes, data, classes)
            if data is not None:
                left.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=2, borderaxespad=0)
        names = f"{plain(labels[0])} and {plain(labels[1])}"
        alt = f"{title} and {plain(measure)} over {names}, with the decision boundary."
        return cls(ax_=left, uncertainty_ax_=right, alt=alt, probability=p, uncertainty=u)


@dataclass(frozen=True, eq=False, kw_only=True)
class ReliabilityDisplay(Display):
    """How often a classifier is right against how sure it says it is, with the cases in each bin."""

    confidence: Array  # mean confidence of every bin that is not empty
    accuracy: Array
    counts: Array
    ece: float
    caption: str = (
        "Points on the dashed line are calibrated; below it the model is too sure of itself, above it too "
        "cautious. Long bars and low columns mean few cases: such points prove little."
    )

    @classmethod
    def from_predictions(
        cls, probability: ArrayLike, labels: ArrayLike, *, bins: int = 15, ax: Axes | None = None
    ) -> Self:
        """Bin the confidence in the chosen class; probabilities (N, O), or (N,) for P(y = 1).

        Bars are 95% Wilson intervals of each bin; ECE = Σ count/N · |accuracy - confidence|.
        """
        confidence, hit, classes = _chosen(np.asarray(probability, float), np.asarray(labels))
        mean, rate, counts = pen.binned(confidence, hit, bins)
        ece = float(np.sum(counts * np.abs(rate - mean)) / counts.sum())
        low, high = pen.wilson(rate, counts)
        with pen.style():
            ax = ax or pen.axes_with_room_below(5.6, 5.0)
            ax.plot([0, 1], [0, 1], color=pen.GREY, ls=pen.DASHED, lw=1.2, label="perfectly calibrated")
            pen.draw_bars(ax, mean, low, high, color=pen.BLUE, lw=1.2, label="95% interval")
            ax.plot(mean, rate, "o", color=pen.BLUE, ms=5.5, label="cases of one bin")
            ax.set(xlim=(bins // classes / bins - 0.02, 1.02), ylim=(-0.02, 1.02))
            ax.set(ylabel="share that is right")
            ax.set_title(f"expected calibration error {ece:.3f} ({counts.sum():,} cases)")
            ax.legend(loc="best")
            pen.draw_counts(ax, confidence, bins, "confidence in the chosen class")
        alt = f"Accuracy against confidence in {len(mean)} bins; expected calibration error {ece:.3f}."
        return cls(ax_=ax, alt=alt, confidence=mean, accuracy=rate, counts=counts, ece=ece)


def _chosen(probability: Array, labels: Array) -> tuple[Array, Array, int]:
    """The confidence in the most probable class, whether it is right, and the number of classes."""
    p = probability[:, None] if probability.ndim == 1 else probability
    p = np.concatenate([1 - p, p], 1) if p.ndim == 2 and p.shape[1] == 1 else p  # (N, O)
    y = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels  # (N,)
    if p.ndim != 2 or y.shape != p.shape[:1] or not y.size:
        shapes = f"probability {probability.shape} and labels {labels.shape}"
        raise ValueError(f"{shapes} must be (N, O) and (N,), or (N,) and (N,) for two classes")
    pen.finite("probability", p)
    return p.max(1), (p.argmax(1) == y).astype(float), p.shape[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class CoverageDisplay(Display):
    """The share of observations inside the prediction intervals against the share that was promised."""

    levels: Array
    coverage: Array
    caption: str = (
        "Inside the grey band the intervals keep their promise as far as this many cases can tell; below it "
        "they are too narrow, above it too wide."
    )

    @classmethod
    def from_predictions(
        cls, y: ArrayLike, low: ArrayLike, high: ArrayLike, levels: ArrayLike, *, ax: Axes | None = None
    ) -> Self:
        """Count the y (N,) inside the intervals low to high, both (levels, N), of the given levels.

        The band holds the coverage of an honest model in 95 of 100 samples of N cases (exact binomial).
        """
        y, low, high, levels = (np.asarray(values, float) for values in (y, low, high, levels))
        wanted = (levels.size, *y.shape)
        if low.shape != wanted or high.shape != wanted or not low.size:
            raise ValueError(f"low {low.shape} and high {high.shape} must be (levels, N), here {wanted}")
        for name, values in {"y": y, "low": low, "high": high, "levels": levels}.items():
            pen.finite(name, values)
        coverage = ((low <= y) & (y <= high)).reshape(levels.size, -1).mean(1)  # (levels,)
        nominal = np.linspace(0, 1, 101)
        with pen.style():
            ax = ax or pen.new_axes(5.6, 4.2)[0]
            ax.plot(levels, coverage, "o-", color=pen.BLUE, ms=5, label="this model")
            ax.plot([0, 1], [0, 1], color=pen.GREY, ls=pen.DASHED, lw=1.2, label="perfect coverage")
            band = pen.binomial_band(nominal, y.size)
            pen.draw_band(ax, nominal, band, pen.PALE, f"chance, 95% ({y.size:,} cases)")
            ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
            ax.set(xlabel="level of the interval", ylabel="share of cases inside")
            ax.legend(loc="upper left")
        worst = float(np.abs(coverage - levels).max())
        alt = f"Coverage of the intervals of {y.size:,} cases, at most {worst:.3f} from their level."
        return cls(ax_=ax, alt=alt, levels=levels, coverage=coverage)


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvergenceDisplay(Display):
    """Curves against training steps."""

    curves: Mapping[str, tuple[Array, Array]]  # as drawn: long curves are averaged over neighbouring steps
    caption: str = (
        "The curves should have flattened out before the end. A held-out curve that rises while the training "
        "curve falls means that the model learns the noise."
    )

    @classmethod
    def from_history(
        cls,
        curves: Mapping[str, Pair],
        *,
        ylabel: str = "negative log likelihood",
        yscale: Literal["linear", "log"] = "linear",
        ax: Axes | None = None,
    ) -> Self:
        """Draw every name ↦ (steps, values) as a line."""
        if not curves:
            raise ValueError("no curves to draw; give at least one name with its steps and values")
        looks = ((pen.BLUE, "-"), (pen.VERMILLION, "--"), (pen.GREEN, "-."), (pen.INK, ":"))
        drawn: dict[str, tuple[Array, Array]] = {}
        with pen.style():
            ax = ax or pen.new_axes(6.4, 3.4)[0]
            for number, (name, (steps, values)) in enumerate(curves.items()):
                steps, values = pen.vectors(**{f"{name} steps": steps, f"{name} values": values})
                drawn[name] = pen.block_means(steps, values)
                every = -(-len(steps) // pen.MOST_POINTS)
                note = f" (means of {every} values)" if every > 1 else ""
                color, line = looks[number % len(looks)]
                ax.plot(*drawn[name], color=color, ls=line, lw=1.4, label=plain(name, 40) + note)
            pen.set_scale(ax, yscale)
            pen.finish(ax, ("step", ylabel))
        alt = f"{plain(ylabel)} against steps: {', '.join(plain(name) for name in curves)}."
        return cls(ax_=ax, alt=alt, curves=drawn)


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedDisplay(Display):
    """Predicted against observed values, with the interval of every prediction."""

    inside: Array  # does the interval hold the observation? for all rows, also those not drawn
    caption: str = (
        "Every bar is one prediction with its interval; it should reach the dashed line about as often as "
        "its level says. Orange triangles mark the cases whose interval misses the observation."
    )

    @classmethod
    def from_predictions(
        cls,
        observed: ArrayLike,
        mean: ArrayLike,
        low: ArrayLike,
        high: ArrayLike,
        *,
        level: float = 0.9,
        name: str = "",
        ax: Axes | None = None,
    ) -> Self:
        """Draw the predictions (N,) with their intervals; `name` is the target with its unit."""
        y, mean, low, high = pen.vectors(observed=observed, mean=mean, low=low, high=high)
        inside = (low <= y) & (y <= high)
        share = f"{inside.sum():,} of {inside.size:,} inside"
        shown = pen.spread(y, mean, low, high, inside)
        ends = [np.min(shown[:2]), np.max(shown[:2])]
        with pen.style():
            ax = ax or pen.new_axes(5.6, 4.6)[0]
            equal = "predicted = observed"
            ax.plot(ends, ends, color=pen.GREY, ls=pen.DASHED, lw=1.2, zorder=2.5, label=equal)
            hit, missed = ([values[rows] for values in shown[:4]] for rows in (shown[4], ~shown[4]))
            pen.draw_intervals(ax, hit, pen.BLUE, "o", f"{percent(level)} interval: {share}")
            pen.draw_intervals(ax, missed, pen.VERMILLION, "^", "outside")
            if len(shown[0]) < len(y):
                ax.set_title(f"{len(shown[0]):,} of {len(y):,} cases drawn")
            ax.set(xlabel=plain(f"observed {name}"), ylabel=plain(f"predicted {name}"))
            ax.legend(loc="upper left")
        alt = f"Predicted against {plain(f'observed {name}')}: {share} their {percent(level)} interval."
        return cls(ax_=ax, alt=alt, inside=inside)


@dataclass(frozen=True, eq=False, kw_only=True)
class UncertaintyErrorDisplay(Display):
    """Mean error of the most certain cases, as fewer and fewer are kept."""

    kept: Array  # share of the cases kept
    error: Array  # their mean error
    best: Array  # the same, had the cases been sorted by their true error
    caption: str = (
        "The most uncertain cases are set aside first. The curve should fall to the left: then the "
        "uncertainty knows where the errors are. A flat curve means that it does not; the dotted line is the "
        "best that any order of the cases could do."
    )

    @classmethod
    def from_predictions(
        cls,
        error: ArrayLike,
        uncertainty: ArrayLike,
        *,
        name: str = "mean absolute error",
        ax: Axes | None = None,
    ) -> Self:
        """Sort the errors (N,), absolute or 0 and 1, by the uncertainty (N,) and draw their running mean."""
        e, u = pen.vectors(error=error, uncertainty=uncertainty)
        n = np.arange(1, e.size + 1)
        curves = [np.cumsum(e[np.argsort(key, kind="stable")]) / n for key in (u, e)]  # 2 × (N,)
        start = min(max(10, e.size // 20), e.size) - 1  # the mean of a handful of cases is noise
        kept, error, best = pen.spread(*(v[start:] for v in (n / e.size, *curves)), most=100)
        with pen.style():
            ax = ax or pen.new_axes(5.6, 3.6)[0]
            ax.plot(kept, error, color=pen.BLUE, label="most certain first")
            ax.axhline(float(e.mean()), color=pen.GREY, ls=pen.DASHED, lw=1.2, label="all cases")
            ax.plot(kept, best, color=pen.INK, ls=":", lw=1.4, label="best possible")
            ax.set(xlim=(0, 1.02), ylim=(0, None))
            pen.finish(ax, ("share of cases kept", name))
        alt = f"{plain(name)} against the share of cases kept, the most certain first."
        return cls(ax_=ax, alt=alt, kept=kept, error=error, best=best)
