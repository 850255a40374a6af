"""The picture of the README: python -m bayeswise.report.picture docs/images/demo.png."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from bayeswise.report import drawing
from bayeswise.report.chapters import CurveView, PlaneView
from bayeswise.report.demo import Settings, learn_curve, learn_plane, one_thread, require
from bayeswise.report.problems import sinc, sines, two_moons


def main(arguments: list[str]) -> None:
    """Train the three synthetic problems of the demo and draw them together."""
    parser = ArgumentParser(prog="python -m bayeswise.report.picture", description=main.__doc__)
    parser.add_argument("out", type=Path, help="the PNG file to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    require()
    draw(options.out, options.seed, Settings())


def draw(out: Path, seed: int, settings: Settings, progress: bool = True) -> Path:
    """Train and write the picture; its folder is made."""
    s = settings
    with one_thread():
        curves = [
            learn_curve(curve, method, s, seed, progress)[1]
            for curve, method in ((sinc(seed), s.sinc), (sines(seed), s.sines))
        ]
        plane = learn_plane(two_moons(seed), s, seed, progress)[1]
        out.parent.mkdir(parents=True, exist_ok=True)
        figure = compose(curves, plane)
        with drawing.style():
            figure.savefig(out, dpi=100, metadata={"Software": None})
    return out


def compose(curves: list[CurveView], plane: PlaneView) -> Any:
    """Two curves above, a decision surface with its uncertainty below."""
    from matplotlib.figure import Figure

    with drawing.style():
        figure = Figure(figsize=(12.4, 8.2), layout="constrained")
        rows: Any = figure.subfigures(2, 1, hspace=0.05)
        above, below = rows
        for view, part in zip(curves, above.subfigures(1, 2), strict=True):
            legend = view.draw(part.subplots()).ax_.get_legend()
            for text in legend.get_texts() if legend else ():
                text.set_fontsize(8)  # in one row without squeezing the axes
        left, right = below.subplots(1, 2)
        plane.draw((left, right))
    return figure


if __name__ == "__main__":
    main(sys.argv[1:])
