"""What all figures share: the style, small drawing verbs, and the binomial statistics behind error bars."""

from __future__ import annotations

import math
import re
from contextlib import AbstractContextManager
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]
Pair = tuple[ArrayLike, ArrayLike]

# Okabe and Ito's palette stays apart for colour-blind readers; marker, dash or lightness differ as well.
INK, GREY, PALE = "#222222", "#767676", "#dadada"
BLUE, VERMILLION, GREEN, SKY = "#0072b2", "#d55e00", "#009e73", "#86c1e8"
DASHED = (0, (4, 3))
MOST_POINTS = 250  # markers in one figure: more make the file heavy and the picture unreadable

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a column name is a dollar
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "bayeswise",  # the same figure gives the same bytes
}


def style() -> AbstractContextManager[None]:
    """The look of all our figures, for drawing and for saving; the user's settings come back afterwards."""
    import matplotlib

    return matplotlib.rc_context(rc=cast(Any, STYLE))


def percent(share: float) -> str:
    """A share as a percentage without needless digits: 90%, 97.5%."""
    return f"{100 * share:.4g}%"


def new_axes(width: float, height: float, columns: int = 1) -> list[Axes]:
    """The axes of a new figure that belongs to nobody else, side by side; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return list(figure.subplots(1, columns, squeeze=False)[0])


def axes_with_room_below(width: float, height: float) -> Axes:
    """The axes of a new figure with room for a strip of counts, which automatic layout does not foresee."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height)).add_axes((0.13, 0.31, 0.84, 0.62))


def plain(text: object, limit: int = 80) -> str:
    """Text from a user's file made safe for a figure: one line, printable, of bounded length."""
    words = " ".join(str(text).encode("utf-8", "replace").decode().split())
    words = re.sub(r"[\x00-\x1f\x7f\ufffe\uffff]", "", words)
    words = words if len(words) <= limit else words[: limit - 1] + "…"
    hidden = not words or words.startswith("_")  # matplotlib would leave it out of a legend
    return "\u2009" + words if hidden else words


def vectors(**arrays: ArrayLike) -> list[Array]:
    """The named arrays as float vectors of one length, all finite; (B, 1) counts as (B,)."""
    flat = {name: np.asarray(values, float) for name, values in arrays.items()}
    flat = {name: v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v for name, v in flat.items()}
    shapes = ", ".join(f"{name} {v.shape}" for name, v in flat.items())
    if len({v.shape for v in flat.values()}) != 1 or any(v.ndim != 1 or v.size == 0 for v in flat.values()):
        raise ValueError(f"a figure needs vectors of one length, at least one row, not {shapes}")
    for name, v in flat.items():
        finite(name, v)
    return list(flat.values())


def finite(name: str, values: Array) -> Array:
    """The values themselves, or an error that counts what cannot be drawn."""
    bad = int(np.sum(~np.isfinite(values)))
    if bad:
        raise ValueError(f"{name}: {bad} of {values.size} values are NaN or infinite; leave those rows out")
    return values


def grid_map(name: str, values: ArrayLike, rows: Array, columns: Array) -> Array:
    """A map over the grid, (H, W), all finite."""
    array, wanted = np.asarray(values, float), (rows.size, columns.size)
    if array.shape != wanted or min(wanted) < 2:
        raise ValueError(f"{name} {array.shape} must be (rows, columns) of the grid, {wanted}, two at least")
    return finite(name, array)


def spread(*arrays: Array, most: int = MOST_POINTS) -> tuple[Array, ...]:
    """At most `most` evenly spaced rows of every array, the same rows of each."""
    n = len(arrays[0])
    rows = np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
    return tuple(values[rows] for values in arrays)


def draw_points(ax: Axes, x: Array, y: Array, name: str, color: str = INK, marker: str = "o") -> None:
    """Scatter the points; where there are too many to see, an even selection, and the legend says so."""
    few = spread(x, y)
    note = f" ({len(few[0]):,} of {len(x):,})" if len(few[0]) < len(x) else ""
    edge: dict[str, Any] = {"mec": "white", "mew": 0.5}
    ax.plot(*few, marker=marker, ls="", ms=4.5, color=color, label=name + note, zorder=3, **edge)


def draw_classes(ax: Axes, data: Pair, names: tuple[str, str]) -> None:
    """Points (N, 2) with labels (N,) of 0 and 1, told apart by colour and marker."""
    points, labels = np.asarray(data[0], float), np.asarray(data[1])
    for label, color, marker in ((0, "#00456c", "o"), (1, "#8a3c00", "^")):
        x, y = points[labels == label].T
        if x.size:
            draw_points(ax, x, y, f"class {plain(names[label], 40)}", color, marker)


def draw_band(ax: Axes, x: Array, edges: tuple[Array, Array], color: str, name: str) -> None:
    """A band between two curves; of two bands the one drawn first stays on top."""
    height = 1.9 - 0.1 * len(ax.collections)
    edge = "#9c9c9c" if color == PALE else color
    ax.fill_between(x, edges[0], edges[1], fc=color, ec=edge, lw=0.6, zorder=height, label=name)


def draw_intervals(ax: Axes, rows: list[Array], color: str, marker: str, label: str) -> None:
    """Predictions against observations, each with its bar: rows are observed, mean, low, high."""
    y, mean, low, high = rows
    draw_bars(ax, y, low, high, color=color, lw=0.9, alpha=0.5)
    edge: dict[str, Any] = {"mec": "white", "mew": 0.5}
    ax.plot(y, mean, marker=marker, ls="", ms=5, color=color, zorder=3, label=label, **edge)


def draw_counts(ax: Axes, confidence: Array, bins: int, xlabel: str) -> None:
    """A histogram below the axes, with the count over every column."""
    strip = ax.inset_axes((0.0, -0.30, 1.0, 0.22), sharex=ax)
    index, counts = np.unique(bin_index(confidence, bins), return_counts=True)
    centres = (index + 0.5) / bins
    strip.bar(centres, counts, width=0.9 / bins, color=GREY)
    for x, count in zip(centres, counts, strict=True):
        strip.text(x, count, f"{count:,}", ha="center", va="bottom", fontsize=7.5)
    strip.set(ylim=(0, 1.35 * counts.max()), yticks=[], ylabel="cases", xlabel=xlabel)
    strip.grid(False)
    ax.tick_params(labelbottom=False)


def draw_bars(ax: Axes, x: Array, low: Array, high: Array, **looks: Any) -> None:
    """Vertical error bars as one broken line, which keeps the file small."""
    gap = np.full(len(x), np.nan)
    ax.plot(np.stack([x, x, gap], 1).ravel(), np.stack([low, high, gap], 1).ravel(), **looks)


def draw_surface(
    ax: Axes, grid: tuple[Array, Array], values: Array, colors: tuple[str, ...], top: float
) -> None:
    """A map (H, W) from 0 to `top` in sixteen steps of colour, with its scale."""
    from matplotlib.colors import LinearSegmentedColormap

    columns, rows = grid
    steps = LinearSegmentedColormap.from_list("steps", colors, N=16)
    dx, dy = (columns[1] - columns[0]) / 2, (rows[1] - rows[0]) / 2
    edges = (columns[0] - dx, columns[-1] + dx, rows[0] - dy, rows[-1] + dy)
    looks: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear"}
    image = ax.imshow(values, cmap=steps, vmin=0.0, vmax=top, extent=edges, zorder=0, **looks)
    scale = ax.figure.colorbar(image, ax=ax, shrink=0.9, pad=0.02, ticks=np.linspace(0, top, 5))
    scale.ax.set_yticklabels([f"{tick:.2g}" for tick in np.linspace(0, top, 5)], fontsize=9)
    scale.outline.set_visible(False)  # type: ignore[operator]
    ax.grid(False)


def finish(ax: Axes, labels: tuple[str, str]) -> None:
    """Axis labels, and a legend above the axes where it hides nothing."""
    ax.set_xlabel(plain(labels[0]))
    ax.set_ylabel(plain(labels[1]))
    sizes = [len(name) + 6 for name in ax.get_legend_handles_labels()[1]]  # in letters; 90 fit in a row
    columns = len(sizes) if sum(sizes) <= 90 else max(1, 90 // max(sizes))
    looks: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
    ax.legend(ncols=columns, **looks)


def set_scale(ax: Axes, scale: Literal["linear", "log"]) -> None:
    """Set the scale of the y axis, with plain numbers on it."""
    ax.set_yscale(scale)
    if scale == "log":
        from matplotlib.ticker import LogLocator, NullFormatter

        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())


def block_means(steps: Array, values: Array, most: int = MOST_POINTS) -> tuple[Array, Array]:
    """At most `most` points of a curve: means over blocks of neighbouring steps, the last may be shorter."""
    every = -(-len(steps) // most)
    starts = np.arange(0, len(steps), every)
    sizes = np.diff(np.append(starts, len(steps)))
    return np.add.reduceat(steps, starts) / sizes, np.add.reduceat(values, starts) / sizes


def bin_index(confidence: Array, bins: int) -> Array:
    """Which of the bins (k/bins, (k+1)/bins] holds each confidence; zero belongs to the first."""
    return np.searchsorted(np.arange(1, bins) / bins, confidence)


def binned(confidence: Array, hit: Array, bins: int) -> tuple[Array, Array, Array]:
    """Mean confidence, mean hit and count of the bins that are not empty."""
    index = bin_index(confidence, bins)  # (N,)
    counts = np.bincount(index, minlength=bins)
    full = counts > 0
    sums = [np.bincount(index, weights=values, minlength=bins)[full] for values in (confidence, hit)]
    return sums[0] / counts[full], sums[1] / counts[full], counts[full]


def wilson(rate: Array, counts: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Wilson's interval for a binomial rate: never empty, also at rates 0 and 1."""
    z2 = NormalDist().inv_cdf(0.5 + level / 2) ** 2
    centre = (rate + z2 / (2 * counts)) / (1 + z2 / counts)
    half = np.sqrt(z2 * (rate * (1 - rate) / counts + z2 / (4 * counts**2))) / (1 + z2 / counts)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def binomial_band(probability: Array, n: int, level: float = 0.95) -> tuple[Array, Array]:
    """The central `level` of k/n for k ~ Binomial(n, p), by exact quantiles, for every p."""
    k = np.arange(n + 1)
    factorial = np.append(0.0, np.cumsum(np.log(k[1:])))
    choose = factorial[-1] - factorial - factorial[::-1]
    tail = (1 - level) / 2
    edges = [_quantiles(choose, k, p, tail) for p in probability]
    return np.array([low for low, _ in edges]) / n, np.array([high for _, high in edges]) / n


def _quantiles(choose: Array, k: Array, p: float, tail: float) -> tuple[int, int]:
    n = len(k) - 1
    if p <= 0 or p >= 1:
        return (0, 0) if p <= 0 else (n, n)
    cdf = np.cumsum(np.exp(choose + k * math.log(p) + (n - k) * math.log1p(-p)))
    return min(int(np.searchsorted(cdf, tail)), n), min(int(np.searchsorted(cdf, 1 - tail)), n)
