"""The results page: figures, what is missing, and files that need nothing else."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from bayeswise.bench import figures, findings, scenes
from bayeswise.bench.page import write_report
from bayeswise.bench.reading import read
from bayeswise.bench.results import ResultsError
from bayeswise.bench.tables import runs
from tests.bench.lines import curve, line, splits, store

# ------------------------------------------------------------------------------------------------ the figures


def test_curves_are_averaged_where_all_have_a_step():
    a, b = curve(0.1), curve(0.2)
    b = {name: values[1:] for name, values in b.items()}
    (run,) = runs([line(curve=a), line(split=1, curve=b)])
    mean = figures.mean_curve(run)
    assert mean is not None and mean["step"].tolist() == [10, 100, 1000]
    assert mean["test_nll"][0] == pytest.approx(0.3 + math.exp(-1) + math.exp(-2), rel=1e-12)


def test_labels_keep_their_distance():
    placed = figures.apart({"a": 0.5, "b": 0.5, "c": 0.9}, 0.1)
    assert placed["c"] == pytest.approx(0.9) and sorted((placed["a"], placed["b"])) == pytest.approx(
        [0.45, 0.55]
    )
    crowded = sorted(figures.apart(dict.fromkeys("abcde", 1.0), 0.1).values())
    assert np.diff(crowded).min() > 0.099 and crowded[-1] <= 1.0 + 1e-9


def test_every_method_of_a_figure_has_its_own_look():
    keys = [("bali", "paper"), ("bali", "default"), ("map", "paper"), ("mc_dropout", "paper"), ("new", "x")]
    found = figures.looks(keys)
    assert len({look.color for look in found.values()}) == len({look.marker for look in found.values()}) == 5
    assert figures.looks(keys[2:3])["map", "paper"].color == found["map", "paper"].color
    assert figures.short(keys[:3])["map", "paper"] == "MAP"
    assert figures.short(keys[:3])["bali", "paper"] == "BALI, paper"


def test_dots_stand_at_the_scores():
    found = runs(splits([0.6, 0.7, 0.5], [-0.9, -0.8, -0.7]))
    left, right = _dots("yacht", found).figure.axes
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names[0] == "paper: BALI" and names[-1] == "ours: BALI, paper" and len(names) == 7
    dots = {mark.get_ydata()[0]: mark.get_xdata()[0] for mark in left.lines if mark.get_marker() != "None"}
    assert dots[0] == 0.642 and dots[6] == pytest.approx(0.6)
    bars = {mark.get_ydata()[0]: mark.get_xdata() for mark in right.lines if mark.get_marker() == "None"}
    assert bars[6] == pytest.approx([-0.8 - 0.2 / 3**0.5, -0.8 + 0.2 / 3**0.5])


def _dots(dataset: str, found) -> figures.Drawing:
    drawing = figures.dots(dataset, found)
    assert drawing is not None
    return drawing


def test_dots_of_a_data_set_of_ones_own_speak_of_nothing_that_is_not_there():
    failed = {"rmse": 2.0, "ll": None}
    drawing = _dots("foo", runs([line("foo", metrics=failed), line("foo", metrics=failed, method="map")]))
    assert len(drawing.figure.axes) == 1 and "paper" not in drawing.caption + drawing.alt
    assert "pale green" in _dots("yacht", runs(splits([0.6], [-0.9]))).caption
    assert figures.dots("foo", runs([line("foo", metrics={"ll": None})])) is None


def test_a_mean_far_outside_is_an_arrow_and_does_not_stretch_the_axis():
    lines = [
        *splits([0.6, 0.7, 0.5], [-0.9, -0.8, -0.7]),
        *splits([0.6] * 3, [-30.0, -40.0, -35.0], method="swag"),
    ]
    _, right = _dots("yacht", runs(lines)).figure.axes
    assert right.get_xlim()[0] > -5
    assert [mark.get_ydata()[0] for mark in right.lines if mark.get_marker() == "<"] == [7]
    assert [text.get_text() for text in right.texts] == ["−35.000 ± 2.887"]


def test_means_that_are_almost_equal_are_drawn_to_scale():
    lines = [line("foo", settings=f"{k}", metrics={"rmse": 0.501 if k == 4 else 0.5}) for k in range(5)]
    (ax,) = _dots("foo", runs(lines)).figure.axes
    drawn = [mark.get_xdata()[0] for mark in ax.lines if mark.get_marker() not in ("None", "<", ">")]
    assert sorted(drawn) == [0.5, 0.5, 0.5, 0.5, 0.501]


def test_the_picture_is_that_of_the_first_seed():
    x = [0.0, 1.0]
    picture = {"x": x, "mean": x, "epistemic": x, "std": [1.0, 2.0], "x_train": x, "y_train": x}
    found = runs([line("sinc", seed=k, picture=picture | {"mean": [k, k]}) for k in (1, 0)])
    drawing = scenes.scene(found)
    assert drawing is not None
    means = [mark.get_ydata().tolist() for mark in drawing.figure.axes[0].lines]
    assert [0, 0] in means and [1, 1] not in means


def test_the_operating_curve_counts_rows_below_every_edge():
    shown = {"edges": [0, 1, 2, 3], "inside": [6, 3, 1], "outside": [0, 1, 4]}
    more = {"edges": [0, 1, 2, 3], "inside": [10, 0, 0], "outside": [0, 0, 5]}
    (run,) = runs([line(histogram=shown), line(seed=1, histogram=more)])
    true, false = scenes.roc(run) or ([], [])
    assert true == pytest.approx([0, 0.8, 0.95, 1]) and false == pytest.approx([0, 0, 0.1, 1])
    curves = [
        {"known": [0, 0.5, 1], "entropy": [0, 0.1, 0.4]},
        {"known": [0, 0.5, 1], "entropy": [0, 0.3, 1]},
    ]
    lines = [line(seed=k, histogram=shown, roc=curve) for k, curve in enumerate(curves)]
    true, false = scenes.roc(runs(lines)[0]) or ([], [])
    assert true == pytest.approx([0, 0.5, 1]) and false == pytest.approx([0, 0.2, 0.7])


def test_reliability_pools_bins_by_their_cases():
    a = {"confidence": [0.61, 0.92, 1.0], "accuracy": [0.5, 0.9, 1.0], "count": [1, 4, 6]}
    b = {"confidence": [0.34, 0.65], "accuracy": [0.2, 1.0], "count": [2, 3]}  # its bins: 6, 10
    found = runs([line(reliability=a), line(seed=1, reliability=b)])
    picture = figures.reliability(found)
    assert picture is not None
    drawn = picture.figure.axes[0].lines[-1]
    assert drawn.get_xdata() == pytest.approx([0.34, 0.64, 0.92, 1.0])
    assert drawn.get_ydata() == pytest.approx([0.2, 0.875, 0.9, 1.0])
    assert figures.reliability(runs([line(reliability=a), line(seed=1)])) is None  # older lines have none


# -------------------------------------------------------------------------------------------------- the files


class Page(HTMLParser):
    """Collects the tags with their attributes, the text and what is bold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.strong, self._inside = "", [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "strong"

    def handle_data(self, data):
        self.text += data
        self.strong += [data] if self._inside else []

    def handle_endtag(self, tag):
        self._inside = False


def everything() -> dict[str, list[dict]]:
    """Invented lines of every task, as small as can be."""
    x = np.linspace(-1, 1, 7)
    band = {"x": x, "mean": x**2, "epistemic": 0.1 + x**2, "std": 0.2 + x**2, "truth": x**2}
    band = {name: values.tolist() for name, values in band.items()} | {
        "x_train": [-0.5, 0.5],
        "y_train": [0.2, 0.3],
    }
    plane = {
        "x1": [0, 1, 2],
        "x2": [0, 1],
        "probability": [[0.1, 0.5, 0.9]] * 2,
        "entropy": [[0.3, 0.7, 0.3]] * 2,
    }
    plane |= {"x_train": [[0, 0], [2, 1]], "y_train": [[0.0], [1.0]]}
    histogram = {"edges": [0.0, 0.5, 1.0, 2.0], "inside": [90, 8, 2], "outside": [10, 30, 60]}
    foreign = {"auroc_entropy": 0.95, "auroc_mutual_information": 0.97}
    images = {"acc": 0.9, "nll": 0.3, "ece": 0.01, "brier": 0.1, "auc": 0.95}
    return {
        "uci": splits([0.6, 0.7, 0.5], [-0.9, -0.8, -0.7]),
        "classification": [line("mnist", 0, images, task="classification", seed=s) for s in range(3)],
        "convergence": [line("mnist", 0, images, task="convergence", curve=curve(0.1))],
        "reparametrisation": [
            line("mnist", 0, images, task="reparametrisation", settings=s, curve=curve(r, -0.1))
            for s, r in (("weight", 0.1), ("local", 0.2))
        ],
        "ood": [line("mnist", 0, foreign, task="ood", other="fashion_mnist", histogram=histogram)],
        "synthetic": [
            line("sinc", 0, {"rmse_train": 0.1, "noise": 0.1}, task="synthetic", picture=band),
            line("two_moons", 0, {"acc": 0.97}, task="synthetic", picture=plane),
        ],
        "later": [line("a|b<i>", 0, {"odd_score": 1.5}, task="later", method="new$", settings="*x*")],
        "step_cost": [{"ms": 3.0}],
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("report")
    for name, lines in everything().items():
        store(folder / "results", lines, name)
    return folder, write_report(folder / "results", folder / "docs", folder / "out" / "report.html")


def test_the_report_writes_a_page_its_figures_and_one_html_file(written):
    folder, files = written
    names = {file.relative_to(folder).as_posix() for file in files}
    pictures = "convergence_mnist reparametrisation_mnist ood_mnist ood_roc uci_yacht"
    pictures += " synthetic_sinc synthetic_two_moons"
    expected = {f"docs/results/{name}.png" for name in pictures.split()}
    assert names == expected | {"docs/results.md", "out/report.html"}
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} >= names
    assert not list(folder.rglob("*.tmp"))
    for file in files:
        assert file.suffix != ".png" or file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_markdown_has_the_numbers_and_names_every_figure(written):
    folder, files = written
    text = (folder / "docs" / "results.md").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "| Yacht | 0.642 ± 0.042 ≈ |" in text and "**0.600 ± 0.058 ✓ (3 of 20)**" in text
    assert "BALI, paper: 0 of 14 cells reproduced (14 not run on all splits yet)." in text
    assert "| −0.800 ± 0.058 ✓ (3 of 20) |" in text
    linked = set(re.findall(r"!\[[^\]]+\]\(results/([\w-]+\.png)\)", text))
    assert linked == {file.name for file in files if file.suffix == ".png"}
    assert "step\\_cost.jsonl (1)" in text
    assert "## Task later" in text and "a\\|b\\<i\\>" in text and "1.500" in text
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert all(row.endswith("|") for row in rows)


def test_the_html_needs_nothing_else(written):
    folder, _ = written
    text = (folder / "out" / "report.html").read_text(encoding="utf-8")
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found.tags}
    addresses = [
        v for _, a in found.tags for k, v in a.items() if k in ("src", "href", "xlink:href", "srcset")
    ]
    assert addresses and all(str(v).startswith(("#", "data:image/")) for v in addresses)
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert "0.600 ± 0.058 ✓ (3 of 20)" in found.strong and "0.642 ± 0.042 ≈" not in found.strong
    assert sum(tag == "svg" for tag, _ in found.tags) == 7
    assert "a|b<i>" in found.text and "*x*" in found.text and ("i", {}) not in found.tags


def test_the_rules_are_said_on_the_page(written):
    text = (written[0] / "docs" / "results.md").read_text(encoding="utf-8")
    assert "not worse than the paper's mean by more than two of the paper's standard errors" in text
    assert "not worse than the best by more than the best's own standard error" in text


def test_nothing_run_gives_a_page_that_says_so(tmp_path):
    store(tmp_path / "results", [])
    (file,) = write_report(tmp_path / "results", None, tmp_path / "report.html")
    text = Page(file.read_text(encoding="utf-8")).text
    for task in findings.EXPECTED:
        assert f"Not run yet: bayeswise bench run {task}." in text


def test_only_what_is_asked_for_is_written(tmp_path):
    store(tmp_path / "results", [line("foo", task="later")])
    (file,) = write_report(tmp_path / "results", tmp_path / "docs", None)
    assert file == tmp_path / "docs" / "results.md"
    assert "Not run yet: bayeswise bench run uci." in file.read_text(encoding="utf-8")


def test_the_same_lines_give_the_same_bytes(tmp_path):
    store(tmp_path / "results", everything()["uci"])
    for folder in ("a", "b"):
        write_report(tmp_path / "results", tmp_path / folder, tmp_path / folder / "report.html")
    names = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert len(names) == 3
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


# -------------------------------------------------------------------------------------------------- bad lines


@pytest.mark.parametrize("bad", ['{"task": "uci", ', "[1, 2]", "nonsense"])
def test_a_broken_line_is_named_with_file_and_number(tmp_path, bad):
    store(tmp_path, [line(), line(split=1)])
    file = tmp_path / "uci.jsonl"
    file.write_text(file.read_text() + bad + "\n")
    with pytest.raises(ResultsError, match=r"uci\.jsonl, line 3.*remove that line") as raised:
        write_report(tmp_path, tmp_path / "docs", None)
    assert "\n" not in str(raised.value) and not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": [0]}, '"split" must be a whole number'),
        ({"n_splits": "20"}, '"n_splits" must be a whole number or null'),
        ({"seconds": "long"}, '"seconds" must be a number or null'),
        ({"metrics": [0.7]}, '"metrics" must be an object'),
        ({"metrics": {"rmse": "0.7"}}, 'the values of "metrics" must be numbers or null'),
        ({"versions": "2.13"}, '"versions" must be an object'),
        ({"splits_there": "five"}, '"splits_there" must be a whole number or null'),
        ({"other": ["mnist"]}, '"other" must be a text or null'),
        ({"histogram": [1]}, '"histogram" must be an object or null'),
        (
            {"curve": {"step": [1, 2], "test_nll": [0.3]}},
            '"curve" must hold step, lists of numbers of one length',
        ),
        ({"curve": {"step": 1}}, '"curve" must hold step, '),
        ({"curve": {"test_nll": [0.3]}}, '"curve" must hold step, '),
        ({"curve": {"step": ["one"]}}, '"curve" must hold step, '),
        (
            {"reliability": {"confidence": [0.9], "count": [1]}},
            '"reliability" must hold confidence and accuracy',
        ),
    ],
)
def test_what_cannot_be_averaged_or_drawn_is_named(tmp_path, change, message):
    store(tmp_path, [line(), line(split=1, seconds=None, steps=None), line(split=2) | change])
    with pytest.raises(ResultsError, match=f"uci\\.jsonl, line 3: {message}.*; repair or remove that line"):
        read(tmp_path)


def test_a_line_may_hold_what_other_programs_take_for_its_end(tmp_path):
    (tmp_path / "uci.jsonl").write_text(json.dumps(line(note="a\u2028b"), ensure_ascii=False), "utf-8")
    assert [one["note"] for one in read(tmp_path).lines] == ["a\u2028b"]


@pytest.mark.parametrize("key", ["dataset", "method", "settings", "split", "metrics"])
def test_a_line_that_lacks_a_key_is_named(tmp_path, key):
    short = {name: value for name, value in line().items() if name != key}
    store(tmp_path, [line(), short])
    with pytest.raises(ResultsError, match=rf'uci\.jsonl, line 2: "{key}" must be'):
        read(tmp_path)


def test_what_a_killed_writer_left_of_a_line_is_not_read(tmp_path):
    store(tmp_path, [line()])
    file = tmp_path / "uci.jsonl"
    file.write_text(file.read_text() + '{"task": "uci", "dat')
    assert len(read(tmp_path).lines) == 1


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ResultsError, match='no folder ".*nowhere"; name the one'):
        write_report(tmp_path / "nowhere", tmp_path, None)


def test_a_curve_that_ran_away_does_not_stop_the_report():
    wild = curve(0.1)
    wild["test_nll"][2] = None
    picture = figures.curves(runs([line(curve=wild)]), "convergence")
    assert picture is not None and np.isnan(picture.figure.axes[0].lines[0].get_ydata()[2])
