r"""How the time of a BALI step grows with the width of a network and with the batch, beside an Adam step.

    OMP_NUM_THREADS=1 python benchmarks/growth.py --out benchmarks/results/scripts/growth.jsonl
    python benchmarks/growth.py --out benchmarks/results/scripts/growth.jsonl --page docs/cost.md

256-width-width-10, classification. `exact` averages statistics and factorises at every step, `default` is
BALI as it is, `adam` a plain PyTorch loop. Their steps alternate; a figure is the median over blocks of ten
steps, because the default moves its noise every ten, in processor seconds, which other work spoils less.
A pair of width and batch that is already in the file is not measured again. The second form writes the
tables and the figure of the page anew, with the complexity formula of the paper, its two constants fitted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from common import arguments, keep, kept, put_table
from step_cost import adam_step, bali_step, network, seconds_of

import bayeswise as bw
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.report import drawing as pen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INPUTS, OUTPUTS, TASK = 256, 10, "classification"
WIDTHS, BATCHES = (64, 128, 256, 512, 1024, 2048), (256, 512, 1024, 2048, 4096, 8192)
WIDTH, BATCH = 256, 1024  # of one while the other grows
BLOCKS = {1024: 2, 2048: 1}  # blocks of ten steps; 5 where a step takes little time
SIDES: dict[str, dict] = {"exact": {"update": NaturalUpdate()}, "default": {}}
LOOKS = {"exact": (pen.BLUE, "o"), "default": (pen.VERMILLION, "s"), "adam": (pen.GREEN, "^")}
WORDS = {"exact": "BALI, exact", "default": "BALI, default", "adam": "Adam"}


def points() -> list[tuple[int, int]]:
    """Width and batch of everything that is measured."""
    found = [(width, BATCH) for width in WIDTHS] + [(WIDTH, batch) for batch in BATCHES]
    return list(dict.fromkeys(found))


def layers(width: int) -> list[tuple[int, int]]:
    """D_x, with the column of ones, and D_y of every layer."""
    sizes = (INPUTS, width, width, OUTPUTS)
    return [(inputs + 1, outputs) for inputs, outputs in zip(sizes, sizes[1:], strict=False)]


def formula(width: int, batch: int) -> tuple[float, float]:
    """The two parts of the paper's complexity: products with the rows of a batch, and what has none of them.

    (D_x² + D_x D_y + D_y²) B and D_x³ + D_y³ + D_x² D_y + D_x D_y², summed over the layers.
    """
    rows = sum((x * x + x * y + y * y) * batch for x, y in layers(width))
    rest = sum(x**3 + y**3 + x * x * y + x * y * y for x, y in layers(width))
    return float(rows), float(rest)


def fit(parts: Sequence[tuple[float, float]], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds per operation of each part: not negative, and with the least squared relative error."""
    f = np.array(parts) / np.array(seconds)[:, None]  # (P, 2): f c ≈ 1
    both = np.linalg.lstsq(f, np.ones(len(f)), rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    alone = f.sum(0) / (f * f).sum(0)  # the best of each where the other is zero
    first = ((f[:, 0] * alone[0] - 1) ** 2).sum() <= ((f[:, 1] * alone[1] - 1) ** 2).sum()
    return (float(alone[0]), 0.0) if first else (0.0, float(alone[1]))


# ------------------------------------------------------------------------------------------------ measurement


def measured(width: int, batch: int, seed: int) -> dict:
    """Milliseconds of a step of every side."""
    sizes, rng = (INPUTS, width, width, OUTPUTS), torch.Generator().manual_seed(seed)
    x = torch.randn(batch, INPUTS, generator=rng)
    y = torch.randint(OUTPUTS, (batch,), generator=rng)
    sides = {"adam": adam_step(network(sizes, TASK), x, y, TASK)}
    for side, own in SIDES.items():
        method = bw.BALI(steps=1_000_000, effective=0.25, **own)
        sides[side] = bali_step(network(sizes, TASK), x, y, TASK, method)
    repeats = 10 * BLOCKS.get(width, 5)
    seconds = seconds_of(sides, repeats, warm_up=3, clock=time.process_time)
    line = {"width": width, "batch": batch, "inputs": INPUTS, "outputs": OUTPUTS, "steps": repeats}
    return line | {f"ms_{side}": round(1e3 * value, 3) for side, value in seconds.items()}


# --------------------------------------------------------------------------------------------------- the page


def fits(lines: list[dict]) -> dict[str, tuple[float, float]]:
    """The constants of every side of BALI, in nanoseconds."""
    parts = [formula(line["width"], line["batch"]) for line in lines]
    return {side: fit(parts, [1e6 * line[f"ms_{side}"] for line in lines]) for side in SIDES}


def predicted(line: dict, constants: tuple[float, float]) -> float:
    """The formula in milliseconds."""
    return (
        sum(c * part for c, part in zip(constants, formula(line["width"], line["batch"]), strict=True)) / 1e6
    )


def shown(ms: float) -> str:
    """Three digits at most, or whole milliseconds."""
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def table(lines: list[dict]) -> list[list[str]]:
    """A row for every pair of width and batch."""
    head = [
        "width",
        "batch",
        "Adam",
        "exact",
        "formula",
        "default",
        "formula",
        "exact / Adam",
        "default / Adam",
    ]
    rows, constants = [head], fits(lines)
    for line in lines:
        adam, row = line["ms_adam"], [f"{line['width']:,}", f"{line['batch']:,}", shown(line["ms_adam"])]
        for side in SIDES:
            row += [shown(line[f"ms_{side}"]), shown(predicted(line, constants[side]))]
        rows.append([*row, *(f"{line[f'ms_{side}'] / adam:.2f}" for side in SIDES)])
    return rows


def fit_table(lines: list[dict]) -> list[list[str]]:
    """The constants, and how far the formula is off."""
    rows = [["update", "with B (ns)", "without B (ns)", "largest miss", "median miss"]]
    for side, constants in fits(lines).items():
        off = [abs(predicted(line, constants) / line[f"ms_{side}"] - 1) for line in lines]
        miss = [f"{100 * value:.0f} %" for value in (max(off), statistics.median(off))]
        rows.append([side, *(f"{c:.4f}" for c in constants), *miss])
    return rows


def draw(lines: list[dict], out: Path) -> None:
    """Measured points and the formula, against width and against batch."""
    with pen.style():
        axes = pen.new_axes(9.6, 4.0, columns=2)
        _draw_growth(axes[0], "width", [line for line in lines if line["batch"] == BATCH], fits(lines))
        _draw_growth(axes[1], "batch", [line for line in lines if line["width"] == WIDTH], fits(lines))
        axes[0].set_title(f"batch {BATCH:,}")
        axes[1].set_title(f"width {WIDTH:,}")
        axes[0].set_ylabel("milliseconds a step")
        axes[0].legend()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure: Any = axes[0].figure
        figure.savefig(out, dpi=110, metadata={"Software": None})


def _draw_growth(ax: Axes, grows: str, lines: list[dict], fitted: dict[str, tuple[float, float]]) -> None:
    lines = sorted(lines, key=lambda line: line[grows])
    sizes = [line[grows] for line in lines]
    for side, (color, marker) in LOOKS.items():
        times = [line[f"ms_{side}"] for line in lines]
        ax.plot(sizes, times, marker, color=color, ms=6, mec="white", mew=0.6, label=WORDS[side])
    for side, constants in fitted.items():
        curve, color = [predicted(line, constants) for line in lines], LOOKS[side][0]
        ax.plot(sizes, curve, ls=pen.DASHED, color=color, lw=1.2, label=f"formula, {side}")
    ax.set(xscale="log", yscale="log", xlabel=grows, xticks=sizes)
    ax.set_xticklabels([f"{size:,}" for size in sizes])
    ax.tick_params(axis="x", which="minor", length=0, labelbottom=False)
    ax.yaxis.set_major_formatter(lambda ms, _: shown(ms))


def main() -> None:
    """Every pair of width and batch, or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = [line for line in kept(options) if (line["width"], line["batch"]) in points()]
    if options.page:
        put_table(options.page, table(lines), "growth")
        put_table(options.page, fit_table(lines), "fit")
        draw(lines, options.page.parent / "images" / "growth.png")
        return
    done = {(line["width"], line["batch"]) for line in lines}
    for width, batch in points():
        if (width, batch) not in done:
            keep(options, measured(width, batch, options.seed))


if __name__ == "__main__":
    main()
