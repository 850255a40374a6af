"""What the figures draw: every line, area and name where its number is."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from bayeswise.bench import figures, scenes
from bayeswise.bench.tables import Run, runs
from tests.bench.lines import curve, line, splits

SHOWN = {"known": [0, 0.25, 0.5, 1], "entropy": [0, 0.1, 0.2, 1], "mutual_information": [0, 0.4, 0.6, 1]}
COUNTS = {"edges": [0.0, 0.5, 1.0, 2.0], "inside": [90, 8, 2], "outside": [10, 60, 130]}
FOREIGN = {"auroc_entropy": 0.95, "auroc_mutual_information": 0.97}


def axes_of(drawing: figures.Drawing | None):
    assert drawing is not None
    return drawing.figure.axes


def foreign(**changes) -> list[Run]:
    return runs([line("mnist", 0, FOREIGN, task="ood", other="fashion_mnist", **changes)])


# ----------------------------------------------------------------------------------- where BALI is reproduced


def reproduced_at(which: int) -> tuple[list[float], list[float]]:
    """The edges of the region, and those of the axis."""
    ax = axes_of(figures.dots("yacht", runs(splits([0.6, 0.7, 0.5], [-0.9, -0.8, -0.7]))))[which]
    (region,) = ax.patches
    return list(region.get_extents().transformed(ax.transData.inverted()).intervalx), list(ax.get_xlim())


def test_errors_are_reproduced_up_to_two_standard_errors_above_the_papers():
    region, axis = reproduced_at(0)
    assert region == pytest.approx([axis[0], 0.642 + 2 * 0.042], abs=1e-6)
    assert axis[0] < 0.642 - 2 * 0.042


def test_likelihoods_are_reproduced_from_two_standard_errors_below_the_papers():
    region, axis = reproduced_at(1)
    assert region == pytest.approx([-0.745 - 2 * 0.033, axis[1]], abs=1e-6)
    assert axis[1] > -0.745 + 2 * 0.033


def test_a_data_set_that_the_paper_has_not_has_no_region():
    assert [list(ax.patches) for ax in axes_of(figures.dots("foo", runs([line("foo")])))] == [[], []]


# ----------------------------------------------------------------------------------------------------- curves


def test_curves_are_drawn_against_steps_and_against_seconds():
    left, right = axes_of(figures.curves(runs([line(curve=curve(0.1))]), "convergence"))
    assert [list(drawn.get_xdata()) for drawn in left.lines] == [[1, 10, 100, 1000]] * 2
    assert [list(drawn.get_xdata()) for drawn in right.lines] == [[0.01, 0.1, 1, 10]] * 2
    assert (left.get_xlabel(), right.get_xlabel()) == ("step", "seconds of training")


def test_test_rows_are_solid_and_training_rows_dashed():
    shown = curve(0.1)
    for ax in axes_of(figures.curves(runs([line(curve=shown)]), "convergence")):
        solid, dashed = ax.lines
        assert list(solid.get_ydata()) == shown["test_nll"] and solid.get_linestyle() == "-"
        assert list(dashed.get_ydata()) == shown["train_nll"] and dashed.get_linestyle() != "-"


# ------------------------------------------------------------------------------------------ known and foreign


def test_operating_curves_have_foreign_rows_below_and_known_rows_at_the_side():
    (ax,) = axes_of(scenes.operating_curves(foreign(roc=SHOWN)))
    (drawn,) = ax.lines
    assert list(drawn.get_xdata()) == SHOWN["entropy"] and list(drawn.get_ydata()) == SHOWN["known"]
    assert ax.get_xlabel() == "foreign rows taken for known"
    assert ax.get_ylabel() == "known rows taken for known"


def test_operating_curves_are_named_with_the_score_by_entropy():
    (ax,) = axes_of(scenes.operating_curves(foreign(roc=SHOWN)))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["BALI 0.950"]


def test_histograms_have_the_share_of_known_and_of_foreign_rows():
    (ax,) = axes_of(scenes.histograms(foreign(histogram=COUNTS)))
    known, outline, others = (patch.get_data() for patch in ax.patches)
    assert list(known.values) == pytest.approx([90, 8, 2]) == list(outline.values)
    assert list(others.values) == pytest.approx([5, 30, 65])
    assert list(known.edges) == COUNTS["edges"] == list(others.edges)


def test_histograms_name_what_is_learnt_and_what_is_foreign():
    (ax,) = axes_of(scenes.histograms(foreign(histogram=COUNTS)))
    known, _, others = ax.patches
    names = ["MNIST (learnt)", "FashionMNIST (foreign)"]
    assert [known.get_label(), others.get_label()] == names
    assert [text.get_text() for text in ax.get_legend().get_texts()] == names
    assert ax.get_title(loc="left") == "BALI: AUROC 0.9500"


# -------------------------------------------------------------------------------------------------- synthetic


def drawn_by(display: type, monkeypatch) -> list[tuple]:
    """What a display is given, which it still draws."""
    given, draw = [], display.from_predictions  # type: ignore[attr-defined]

    def remembered(*values, **words):
        given.append((values, words))
        return draw(*values, **words)

    monkeypatch.setattr(display, "from_predictions", remembered)
    return given


def test_bands_are_given_mean_epistemic_and_total(monkeypatch):
    x = np.linspace(-1, 1, 7)
    band = {"x": x, "mean": x**3, "epistemic": 0.1 + x**2, "std": 0.5 + x**2, "truth": x**4}
    shown = {name: values.tolist() for name, values in band.items()}
    data = {"x_train": [-0.5, 0.5], "y_train": [0.2, 0.3]}
    given = drawn_by(scenes.BandDisplay, monkeypatch)
    scenes.scene(runs([line("sinc", 0, {"noise": 0.1}, task="synthetic", picture=shown | data)]))
    ((values, words),) = given
    assert values == tuple(shown[name] for name in ("x", "mean", "epistemic", "std"))
    assert words["data"] == ([-0.5, 0.5], [0.2, 0.3]) and words["truth"] == shown["truth"]


def test_planes_are_given_probability_and_entropy(monkeypatch):
    plane = {"x1": [0, 1, 2], "x2": [0, 1], "x_train": [[0, 0], [2, 1]], "y_train": [0, 1]}
    plane |= {"probability": [[0.1, 0.5, 0.9]] * 2, "entropy": [[0.3, 0.7, 0.4]] * 2}
    given = drawn_by(scenes.SurfaceDisplay, monkeypatch)
    scenes.scene(runs([line("two_moons", 0, {"acc": 0.97}, task="synthetic", picture=plane)]))
    (((grid, probability, entropy), words),) = given
    assert grid == ([0, 1, 2], [0, 1])
    assert probability == [[0.1, 0.5, 0.9]] * 2 and entropy == [[0.3, 0.7, 0.4]] * 2
    assert words["data"][0] == plane["x_train"] and list(words["data"][1]) == [0, 1]
