"""The figures show the numbers that were put in."""

import os
import subprocess
import sys
from collections.abc import Iterator
from math import comb
from statistics import NormalDist

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayeswise.report import (
    BandDisplay,
    ConvergenceDisplay,
    CoverageDisplay,
    Display,
    PredictedDisplay,
    ReliabilityDisplay,
    SurfaceDisplay,
    UncertaintyErrorDisplay,
    drawing,
)


@pytest.fixture
def numbers() -> np.random.Generator:
    return np.random.default_rng(0)


def line(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The data of the line whose legend entry starts with the label."""
    [found] = [drawn for drawn in ax.lines if str(drawn.get_label()).startswith(label)]
    return np.asarray(found.get_xdata(), float), np.asarray(found.get_ydata(), float)


def band(ax: Axes, label: str) -> np.ndarray:
    """The corners (points, 2) of the band whose legend entry starts with the label."""
    [found] = [drawn for drawn in ax.collections if str(drawn.get_label()).startswith(label)]
    return found.get_paths()[0].vertices


def heights(corners: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.array([np.ptp(corners[corners[:, 0] == place, 1]) for place in x])


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


# --- one input ---------------------------------------------------------------------------------------


def regression(numbers: np.random.Generator) -> tuple[np.ndarray, ...]:
    x = numbers.permutation(np.linspace(-1, 2, 7))
    mean, epistemic = numbers.normal(size=7), numbers.uniform(0.1, 1, 7)
    return x, mean, epistemic, np.hypot(epistemic, 0.3)


def test_band_draws_mean_and_both_bands(numbers: np.random.Generator) -> None:
    x, mean, epistemic, std = regression(numbers)
    truth, data = np.cos(x), (np.array([0.5, -0.5]), np.array([1.0, 3.0]))
    display = BandDisplay.from_predictions(x, mean, epistemic, std, data=data, truth=truth, level=0.8)
    order = np.argsort(x)
    np.testing.assert_array_equal(line(display.ax_, "mean"), (x[order], mean[order]))
    np.testing.assert_array_equal(line(display.ax_, "truth"), (x[order], truth[order]))
    np.testing.assert_array_equal(line(display.ax_, "data"), data)
    for label, deviation in (("epistemic, 80%", epistemic), ("total, 80%", std)):
        width = heights(band(display.ax_, label), x[order])
        np.testing.assert_allclose(width, 2 * NormalDist().inv_cdf(0.9) * deviation[order], rtol=1e-12)
    np.testing.assert_allclose((display.total[0] + display.total[1]) / 2, mean[order], rtol=1e-12, atol=1e-12)


def test_band_draws_the_narrow_band_over_the_wide_one(numbers: np.random.Generator) -> None:
    display = BandDisplay.from_predictions(*regression(numbers))
    inner, outer = display.ax_.collections
    assert outer.get_zorder() < inner.get_zorder() < display.ax_.lines[0].get_zorder()
    assert not np.array_equal(inner.get_facecolor(), outer.get_facecolor())


def test_band_takes_exact_intervals(numbers: np.random.Generator) -> None:
    x, mean, epistemic, std = regression(numbers)
    display = BandDisplay.from_predictions(x, mean, epistemic, std, interval=(mean - 1.0, mean + 3.0))
    np.testing.assert_allclose(heights(band(display.ax_, "total"), np.sort(x)), np.full(7, 4.0), rtol=1e-12)


def test_tensors_and_columns_are_vectors_too(numbers: np.random.Generator) -> None:
    columns = [torch.from_numpy(values)[:, None] for values in regression(numbers)]
    display = BandDisplay.from_predictions(*columns)
    np.testing.assert_array_equal(display.x, np.linspace(-1, 2, 7))


# --- two inputs --------------------------------------------------------------------------------------


def surface(numbers: np.random.Generator) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    columns, rows = np.linspace(-1, 1, 5), np.linspace(0, 1, 7)
    p = np.broadcast_to((columns + 1.2) / 2.4, (7, 5))  # one half at column 0
    return (columns, rows), p, numbers.uniform(0, 0.6, (7, 5))


def test_surface_draws_both_maps_and_the_boundary(numbers: np.random.Generator) -> None:
    grid, p, u = surface(numbers)
    points, labels = numbers.uniform(size=(11, 2)), np.arange(11) % 2
    display = SurfaceDisplay.from_predictions(grid, p, u, data=(points, labels), classes=("no", "yes"))
    for ax, values in ((display.ax_, p), (display.uncertainty_ax_, u)):
        np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), values)
        assert ax.images[0].origin == "lower"
        boundary = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
        np.testing.assert_allclose(boundary[:, 0], 0, atol=1e-12)
        np.testing.assert_array_equal(line(ax, "class no"), points[labels == 0].T)
        np.testing.assert_array_equal(line(ax, "class yes"), points[labels == 1].T)
    assert display.ax_.images[0].get_clim() == (0, 1)
    assert display.ax_.images[0].get_extent() == pytest.approx([-1.25, 1.25, -1 / 12, 13 / 12])


def test_surface_without_a_boundary_draws_none(numbers: np.random.Generator) -> None:
    grid, p, u = surface(numbers)
    display = SurfaceDisplay.from_predictions(grid, 0.4 * p, 0 * u)
    assert not display.ax_.collections
    assert display.uncertainty_ax_.images[0].get_clim() == (0, 1)


# --- calibration -------------------------------------------------------------------------------------


def test_reliability_by_hand() -> None:
    probability = np.array([[0.9, 0.1], [0.85, 0.15], [0.3, 0.7], [0.35, 0.65]])
    display = ReliabilityDisplay.from_predictions(probability, np.array([0, 1, 1, 1]), bins=5)
    np.testing.assert_allclose(display.confidence, [0.675, 0.875])
    np.testing.assert_allclose(display.accuracy, [1.0, 0.5])
    assert display.counts.tolist() == [2, 2]
    assert display.ece == pytest.approx(0.5 * 0.325 + 0.5 * 0.375)
    np.testing.assert_allclose(line(display.ax_, "cases"), (display.confidence, display.accuracy))
    assert "0.350" in display.ax_.get_title("left") and "4 cases" in display.ax_.get_title("left")
    [strip] = display.ax_.child_axes
    assert [text.get_text() for text in strip.texts] == ["2", "2"]


@pytest.mark.parametrize("outputs", [2, 3])
def test_reliability_title_is_the_metric(numbers: np.random.Generator, outputs: int) -> None:
    metrics = pytest.importorskip("bayeswise.metrics")
    p = numbers.dirichlet(np.ones(outputs), size=211)
    p[:15] = np.eye(outputs)[0] * 0.6 + (1 - np.eye(outputs)[0]) * 0.4 / (outputs - 1)  # on the edge of a bin
    labels = numbers.integers(0, outputs, 211)
    display = ReliabilityDisplay.from_predictions(p, labels)
    curve = metrics.calibration_curve(torch.from_numpy(p), torch.from_numpy(labels))
    assert display.counts.tolist() == curve.count.tolist()
    assert display.ece == pytest.approx(float(metrics.ece(torch.from_numpy(p), torch.from_numpy(labels))))


def test_reliability_of_one_probability_is_that_of_two(numbers: np.random.Generator) -> None:
    p, labels = numbers.uniform(size=101), numbers.integers(0, 2, 101)
    one = ReliabilityDisplay.from_predictions(p, labels)
    two = ReliabilityDisplay.from_predictions(np.stack([1 - p, p], 1), labels)
    assert one.ece == two.ece and one.counts.tolist() == two.counts.tolist()


def test_wilson_solves_its_equation() -> None:
    rate, counts = np.array([0.0, 0.3, 1.0]), np.array([1, 10, 7])
    z = NormalDist().inv_cdf(0.975)
    low, high = drawing.wilson(rate, counts)
    for bound in (low, high):  # |rate - p| = z sqrt(p (1 - p) / n), or the end of the range
        distance = np.abs(rate - bound)
        np.testing.assert_allclose(distance, z * np.sqrt(bound * (1 - bound) / counts), atol=1e-12)
    assert np.all(high - low > 0.2)


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
def test_binomial_band_is_exact(p: float) -> None:
    n = 37
    [low], [high] = drawing.binomial_band(np.array([p]), n)
    pmf = np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    low, high = round(low * n), round(high * n)
    assert pmf[:low].sum() < 0.025 <= pmf[: low + 1].sum()
    assert pmf[high + 1 :].sum() <= 0.025 + 1e-12 < pmf[high:].sum()


def test_binomial_band_ends_and_large_samples() -> None:
    low, high = drawing.binomial_band(np.array([0.0, 0.5, 1.0]), 10_000)
    np.testing.assert_allclose(low, [0, 0.4902, 1], atol=1e-4)
    np.testing.assert_allclose(high, [0, 0.5098, 1], atol=1e-4)


def test_coverage_counts_the_cases_inside(numbers: np.random.Generator) -> None:
    y, half = np.arange(1.0, 11.0), np.array([[3.0], [7.0], [20.0]])
    levels = np.array([0.3, 0.6, 0.99])
    display = CoverageDisplay.from_predictions(y, -half + 0 * y, half + 0 * y, levels)
    np.testing.assert_allclose(display.coverage, [0.3, 0.7, 1.0])
    np.testing.assert_allclose(line(display.ax_, "this model"), (levels, [0.3, 0.7, 1.0]))
    low, high = drawing.binomial_band(np.array([0.5]), 10)
    assert heights(band(display.ax_, "chance"), np.array([0.5])) == pytest.approx(high - low)


# --- training and tables -----------------------------------------------------------------------------


def test_convergence_draws_the_curves(numbers: np.random.Generator) -> None:
    steps, values = np.arange(7) * 50.0, numbers.uniform(0.1, 9, 7)
    display = ConvergenceDisplay.from_history({"held out": (steps, values)}, yscale="log")
    np.testing.assert_array_equal(line(display.ax_, "held out"), (steps, values))
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.yaxis.get_major_formatter()(0.05, 0) == "0.05"


def test_long_curves_are_averaged_and_say_so(numbers: np.random.Generator) -> None:
    values = numbers.normal(size=1003)
    display = ConvergenceDisplay.from_history({"training": (np.arange(1003), values)})
    steps, means = display.curves["training"]
    assert len(steps) <= drawing.MOST_POINTS and steps[0] == 2.0
    np.testing.assert_allclose(means[:2], values[:10].reshape(2, 5).mean(1))
    assert means[-1] == pytest.approx(values[1000:].mean())
    assert legend(display.ax_) == ["training (means of 5 values)"]


def test_predicted_marks_what_lies_outside() -> None:
    y, mean = np.array([1.0, 2.0, 3.0]), np.array([1.1, 2.9, 3.2])
    display = PredictedDisplay.from_predictions(y, mean, mean - 0.5, mean + 0.5, name="price")
    assert display.inside.tolist() == [True, False, True]
    np.testing.assert_array_equal(line(display.ax_, "90% interval: 2 of 3 inside"), (y[[0, 2]], mean[[0, 2]]))
    np.testing.assert_array_equal(line(display.ax_, "outside"), ([2.0], [2.9]))
    bars = display.ax_.lines[1].get_ydata()
    np.testing.assert_allclose(bars, [0.6, 1.6, np.nan, 2.7, 3.7, np.nan])
    assert display.ax_.get_xlabel() == "observed price"


def test_large_tables_show_a_selection_and_count_all(numbers: np.random.Generator) -> None:
    y = numbers.normal(size=1000)
    display = PredictedDisplay.from_predictions(y, y, y - 1, np.where(y > 0, y + 1, y - 0.5))
    assert legend(display.ax_)[1] == f"90% interval: {np.sum(y > 0)} of 1,000 inside"
    assert display.ax_.get_title("left") == "250 of 1,000 cases drawn"
    assert sum(len(drawn.get_xdata()) for drawn in display.ax_.lines if drawn.get_marker() in "o^") == 250


def test_rejection_curve_by_hand(numbers: np.random.Generator) -> None:
    error = np.arange(20.0)
    perfect = UncertaintyErrorDisplay.from_predictions(error, error)
    np.testing.assert_allclose(perfect.error, perfect.best)
    np.testing.assert_allclose(perfect.error, (20 * perfect.kept - 1) / 2)
    worst = UncertaintyErrorDisplay.from_predictions(error, -error)
    np.testing.assert_allclose(worst.error[[0, -1]], [14.5, 9.5])
    assert perfect.kept[[0, -1]].tolist() == [0.5, 1.0]


# --- all of them -------------------------------------------------------------------------------------


def every_display(numbers: np.random.Generator, name: str = "x") -> Iterator[Display]:
    y, p = numbers.normal(size=11), numbers.uniform(size=11)
    yield BandDisplay.from_predictions(*regression(numbers), labels=(name, name))
    yield SurfaceDisplay.from_predictions(*surface(numbers), measure=name, labels=(name, name))
    yield ReliabilityDisplay.from_predictions(p, numbers.integers(0, 2, 11))
    yield CoverageDisplay.from_predictions(y, -np.ones((1, 11)), np.ones((1, 11)), [0.7])
    yield ConvergenceDisplay.from_history({name: (np.arange(11), y)}, ylabel=name)
    yield PredictedDisplay.from_predictions(y, y, y - 1, y + 1, name=name)
    yield UncertaintyErrorDisplay.from_predictions(np.abs(y), p, name=name)


def test_every_figure_has_axes_labels_caption_and_alternative_text(numbers: np.random.Generator) -> None:
    for display in every_display(numbers):
        assert display.figure_ is display.ax_.figure
        assert display.ax_.get_ylabel() and len(display.caption) > 80 and len(display.alt) > 15
        assert display.ax_.get_xlabel() or display.ax_.child_axes[0].get_xlabel()


def test_figures_go_into_the_axes_of_the_caller(numbers: np.random.Generator) -> None:
    ax = Figure().add_subplot()
    assert BandDisplay.from_predictions(*regression(numbers), ax=ax).ax_ is ax
    left, right = Figure().subplots(1, 2)
    display = SurfaceDisplay.from_predictions(*surface(numbers), ax=(left, right))
    assert display.ax_ is left and display.uncertainty_ax_ is right


def test_the_settings_of_the_caller_stay(numbers: np.random.Generator) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    list(every_display(numbers))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("_hidden", "\u2009_hidden"),
        ("a\n b\x00\tc", "a b c"),
        ("x" * 99, "x" * 79 + "…"),
        ("\ud800", "?"),
        (" ", "\u2009"),
    ],
)
def test_plain_text(text: str, shown: str) -> None:
    assert drawing.plain(text) == shown


def test_errors_name_the_culprit(numbers: np.random.Generator) -> None:
    x, mean, epistemic, std = regression(numbers)
    with pytest.raises(ValueError, match=r"x \(7,\), mean \(6,\)"):
        BandDisplay.from_predictions(x, mean[:6], epistemic, std)
    with pytest.raises(ValueError, match="std: 1 of 7 values are NaN or infinite"):
        BandDisplay.from_predictions(x, mean, epistemic, np.where(x > 1.9, np.nan, std))
    with pytest.raises(ValueError, match=r"uncertainty \(5, 7\) must be .* \(7, 5\)"):
        SurfaceDisplay.from_predictions(surface(numbers)[0], np.ones((7, 5)), np.ones((5, 7)))
    with pytest.raises(ValueError, match=r"probability \(7, 3\) and labels \(6,\)"):
        ReliabilityDisplay.from_predictions(np.full((7, 3), 1 / 3), np.zeros(6))
    with pytest.raises(ValueError, match=r"low \(7,\) .* \(2, 7\)"):
        CoverageDisplay.from_predictions(x, x, x, [0.5, 0.9])
    with pytest.raises(ValueError, match="no curves"):
        ConvergenceDisplay.from_history({})


def test_matplotlib_is_loaded_late_and_pyplot_never() -> None:
    code = (
        "import io, sys, bayeswise.report as r\n"
        "assert 'matplotlib' not in sys.modules and 'jinja2' not in sys.modules\n"
        "r.ConvergenceDisplay.from_history({'a': ([0, 1], [1, 2])}).figure_.savefig(io.BytesIO())\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
