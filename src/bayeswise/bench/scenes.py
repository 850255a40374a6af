"""Figures of predictions: curves and two moons of the synthetic task, entropies inside and outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeswise.bench.figures import Drawing, looks, short
from bayeswise.bench.labels import dataset_name
from bayeswise.bench.summary import Line
from bayeswise.bench.tables import Run
from bayeswise.report import drawing as pen
from bayeswise.report.displays import BandDisplay, SurfaceDisplay
from bayeswise.report.drawing import Array, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# -------------------------------------------------------------------------------------------------- synthetic


def scene(found: Sequence[Run]) -> Drawing | None:
    """All runs on one synthetic data set, whichever kind of picture their lines carry."""
    shown = [run for run in found if _first(run).get("picture")]
    if not shown:
        return None
    return _moons(shown) if "probability" in _first(shown[0])["picture"] else _bands(shown)


def _first(run: Run) -> Line:
    """The line of the first seed."""
    return min(run.lines, key=lambda line: line.get("seed") or 0)


def _bands(found: Sequence[Run]) -> Drawing:
    names = short(run.key for run in found)
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    with pen.style():
        axes = _grid(rows, columns, (4.8 * columns, 2.9 * rows + 0.4))
        for ax, run in zip(axes, found, strict=False):
            p = _first(run)["picture"]
            data = (p["x_train"], p["y_train"])
            given: dict[str, Any] = {"data": data, "truth": p.get("truth"), "ax": ax}
            BandDisplay.from_predictions(p["x"], p["mean"], p["epistemic"], p["std"], **given)
            ax.set_title(plain(names[run.key]))
        _one_legend(axes, len(found))
        _one_range(axes[: len(found)], found)
    caption = (
        f"{found[0].place}: {BandDisplay.caption} Bands hold 90% each; all panels have the same axes. "
        "Shown is the first seed."
    )
    alt = f"Mean with epistemic and total band on {found[0].place}: {'; '.join(names.values())}."
    return Drawing(axes[0].figure, caption, alt, f"synthetic_{found[0].dataset}")


def _grid(rows: int, columns: int, size: tuple[float, float]) -> list[Axes]:
    from matplotlib.figure import Figure

    return list(Figure(figsize=size, layout="constrained").subplots(rows, columns, squeeze=False).flat)


def _one_legend(axes: Sequence[Axes], used: int) -> None:
    """One legend above the figure instead of one in every panel."""
    figure: Any = axes[0].figure
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=len(names) if used > 1 else 3)
    for ax in axes[:used]:
        legend = ax.get_legend()
        if legend:
            legend.remove()
    for ax in axes[used:]:
        ax.set_axis_off()


def _one_range(axes: Sequence[Axes], found: Sequence[Run]) -> None:
    """The range of the data, three times as high: beyond it a band is only wide."""
    targets = np.concatenate([np.asarray(_first(run)["picture"]["y_train"], float) for run in found])
    span = float(np.ptp(targets)) or 1.0
    low, high = (edges(ax.get_ylim()[n] for ax in axes) for n, edges in ((0, min), (1, max)))
    for ax in axes:
        ax.set_ylim(max(low, targets.min() - span), min(high, targets.max() + span))


def _moons(found: Sequence[Run]) -> Drawing:
    names = short(run.key for run in found)
    with pen.style():
        axes = _grid(len(found), 2, (8.8, 3.5 * len(found)))
        for number, run in enumerate(found):
            p, pair = _first(run)["picture"], (axes[2 * number], axes[2 * number + 1])
            data = (p["x_train"], np.ravel(p["y_train"]))
            SurfaceDisplay.from_predictions(
                (p["x1"], p["x2"]), p["probability"], p["entropy"], data=data, ax=pair
            )
            pair[0].set_title(plain(f"{names[run.key]}: probability of class 1"))
            pair[1].set_title("entropy (nats)")
            legend = pair[0].get_legend()
            if legend and run is not found[-1]:
                legend.remove()
    alt = f"Probability and entropy over the plane of {found[0].place}: {'; '.join(names.values())}."
    caption = f"{found[0].place}: {SurfaceDisplay.caption} Shown is the first seed."
    return Drawing(axes[0].figure, caption, alt, f"synthetic_{found[0].dataset}")


# ---------------------------------------------------------------------------------------- out of distribution


def pooled(run: Run) -> tuple[Array, Array, Array] | None:
    """Edges of the bins and the shares of rows inside and outside in each, over all seeds."""
    found = [line["histogram"] for line in run.lines if line.get("histogram")]
    if not found:
        return None
    same = [h for h in found if h["edges"] == found[0]["edges"]]
    inside, outside = (np.sum([h[side] for h in same], 0, float) for side in ("inside", "outside"))
    return np.asarray(found[0]["edges"], float), inside / inside.sum(), outside / outside.sum()


def histograms(found: Sequence[Run]) -> Drawing | None:
    """The entropy of rows of the learnt data set and of the other, a panel per method."""
    shown = [(run, bins) for run in found if (bins := pooled(run)) is not None]
    if not shown:
        return None
    names = short(run.key for run, _ in shown)
    with pen.style():
        axes = _grid(len(shown), 1, (7.6, 1.75 * len(shown) + 0.9))
        for ax, (run, bins) in zip(axes, shown, strict=True):
            _draw_histogram(ax, run, bins, names[run.key])
        axes[-1].set_xlabel("entropy of the prediction (nats)")
        axes[0].legend(loc="upper right")
    place = shown[0][0].place
    caption = (
        f"{place}: share of the rows by the entropy of their prediction. The fewer the two overlap, the "
        "better the foreign rows are told from the known ones."
    )
    alt = f"Histograms of entropy, {place}: {'; '.join(names.values())}."
    return Drawing(axes[0].figure, caption, alt, f"ood_{shown[0][0].dataset}")


def _draw_histogram(ax: Axes, run: Run, bins: tuple[Array, Array, Array], name: str) -> None:
    edges, inside, outside = bins
    names = [dataset_name(str(run.summary.get(key))) for key in ("dataset", "other")]
    ax.stairs(100 * inside, edges, fill=True, color=pen.SKY, alpha=0.75, label=f"{names[0]} (learnt)")
    ax.stairs(100 * inside, edges, color=pen.BLUE, lw=1.2)
    ax.stairs(100 * outside, edges, color=pen.VERMILLION, lw=1.8, label=f"{names[1]} (foreign)")
    score = run.score("auroc_entropy")
    ax.set_title(plain(name) + (f": AUROC {score.text}" if score else ""))
    ax.set_ylabel("% of rows")
    top = 100 * max(np.sort(inside)[-2:].min(), outside.max())  # one full bin may tower over all others
    ax.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.1 * top))
    if 100 * inside.max() > 1.1 * top:
        at = (edges[int(inside.argmax())] + edges[int(inside.argmax()) + 1]) / 2
        text: dict[str, Any] = {"textcoords": "offset points", "va": "top", "color": pen.BLUE, "fontsize": 9}
        box = {"fc": "white", "ec": "none", "pad": 1.0}
        ax.annotate(f"{100 * inside.max():.0f}%", (at, 1.07 * top), (9, -2), bbox=box, **text)


def operating_curves(found: Sequence[Run]) -> Drawing | None:
    """True against false positives when rows of low entropy are taken for known, a panel per direction."""
    shown = [(run, curve) for run in found if (curve := roc(run)) is not None]
    places = list(dict.fromkeys(run.place for run, _ in shown))
    if not places:
        return None
    keys = [run.key for run, _ in shown]
    look, names = looks(keys), short(keys)
    with pen.style():
        axes = pen.new_axes(4.6 * len(places), 4.0, columns=len(places))
        for ax, place in zip(axes, places, strict=True):
            for run, (known, foreign) in (pair for pair in shown if pair[0].place == place):
                score = run.score("auroc_entropy")
                note = f" {score.mean:.3f}" if score else ""
                ax.plot(foreign, known, color=look[run.key].color, label=names[run.key] + note)
            ax.set(title=plain(place), xlabel="foreign rows taken for known", xlim=(-0.01, 1), ylim=(0, 1.01))
            ax.legend(loc="lower right")
        axes[0].set_ylabel("known rows taken for known")
    caption = (
        "As the paper's Fig. 3: nearer to the upper left is better. The legend has the AUROC by entropy."
    )
    if any(not line.get("roc") for run, _ in shown for line in run.lines):
        caption += " A curve with a long straight piece is of older lines, which have coarse histograms only."
    return Drawing(axes[0].figure, caption, f"ROC curves by entropy: {'; '.join(places)}.", "ood_roc")


def roc(run: Run) -> tuple[Array, Array] | None:
    """Shares of known and of foreign rows taken for known, by entropy: the mean over all seeds.

    Lines without a curve have a histogram, whose bins give a coarser one.
    """
    curves = [line["roc"] for line in run.lines if line.get("roc")]
    if len(curves) == len(run.lines):
        foreign = np.mean([curve["entropy"] for curve in curves], 0)
        return np.asarray(curves[0]["known"], float), foreign
    bins = pooled(run)
    if bins is None:
        return None
    _, inside, outside = bins
    return np.append(0.0, np.cumsum(inside)), np.append(0.0, np.cumsum(outside))
