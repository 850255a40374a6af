"""The report is one HTML file that needs nothing else and believes no one."""

import base64
import io
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
from matplotlib.figure import Figure
from PIL import Image

from bayeswise.report import (
    BandDisplay,
    ConvergenceDisplay,
    Picture,
    PredictedDisplay,
    Report,
    Section,
    SurfaceDisplay,
    Table,
    html,
    render,
    write_report,
)

HOSTILE = "</text></title></style></svg><script>alert('1')</script> \"price\" & $x^$ <img src=x onerror=y>"
EMPTY_ELEMENTS = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that elements close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in EMPTY_ELEMENTS:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, key: str) -> list[str]:
        return [value for _, name, value in self.attributes if name == key]


def band(points: int = 80, name: str = "x") -> BandDisplay:
    numbers = np.random.default_rng(0)
    x = np.linspace(-3, 3, 200)
    epistemic = 0.05 + x**2 / 9
    data = numbers.uniform(-3, 3, (2, points))
    labels = (name, name)
    std = np.hypot(epistemic, 0.2)
    return BandDisplay.from_predictions(
        x, np.sin(3 * x), epistemic, std, data=(data[0], data[1]), truth=np.sin(3 * x), labels=labels
    )


def moons() -> SurfaceDisplay:
    numbers = np.random.default_rng(0)
    columns, rows = np.linspace(-2, 2, 60), np.linspace(-1, 1, 50)
    p = 1 / (1 + np.exp(-3 * columns - 5 * np.sin(3 * rows[:, None])))
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    data = (numbers.uniform(-1, 1, (200, 2)), numbers.integers(0, 2, 200))
    return SurfaceDisplay.from_predictions((columns, rows), p, entropy, data=data)


def report(name: str = "x") -> Report:
    table = Table((name, "RMSE"), ((name, 0.123456), ("MAP", None)), caption=name)
    pictures = (Picture.of(band(name=name)), Picture.of(moons()))
    first = Section(name, f"{name}\n\nsecond {name}", pictures, table)
    return Report(name, name, (first, Section("Nothing here")))


def test_page_parses_and_holds_everything() -> None:
    page = Page(render(report("plain words")))
    assert page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] == 2
    assert page.tags["section"] == page.tags["h2"] == 2 and page.tags["h1"] == 1
    assert page.tags["style"] == 1 and not page.tags["metadata"]  # a figure's own rules would reach the page
    for words in ("plain words", "second plain words", "0.1235", "–", "epistemic, 90%", "The blue band is"):
        assert words in page.text


def test_navigation_leads_to_every_section() -> None:
    page = Page(render(report()))
    links = [value for tag, key, value in page.attributes if tag == "a" and key == "href"]
    sections = [value for tag, key, value in page.attributes if tag == "section" and key == "id"]
    assert links == [f"#{name}" for name in sections] == ["#section-1", "#section-2"]


def test_page_needs_nothing_from_outside() -> None:
    text = render(report())
    page = Page(text)
    assert "http" not in text and "src=" not in text and "@import" not in text and "xlink" not in text
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in page.values("href"))
    assert all("url(" not in value or "url(#" in value for value in page.values("style"))


def test_ids_are_unique_and_every_reference_has_one() -> None:
    one = Picture.of(band())
    text = render(Report("r", "", (Section("a", figures=(one, one)), Section("b", figures=(one,)))))
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids)) > 10
    wanted = re.findall(r'(?:url\(|href=")#([^")]+)', text)
    assert len(wanted) > 100 and set(wanted) <= set(ids)


def test_figures_are_described_and_text_stays_text() -> None:
    page = Page(render(report()))
    drawn = [dict(part) for part in [[(k, v) for t, k, v in page.attributes if t == "svg"]]][0]
    assert drawn["role"] == "img" and "probability of class 1" in drawn["aria-label"]
    assert "x against x: mean" in page.values("aria-label")[1]
    assert page.tags["text"] > 30


def test_figures_have_their_own_width() -> None:
    page = Page(render(report()))
    widths = [value for tag, key, value in page.attributes if tag == "figure" and key == "style"]
    assert widths == ["width: calc(461pt + 1.3rem)", "width: calc(605pt + 1.3rem)"]


def test_hostile_names_stay_words() -> None:
    page = Page(render(report(HOSTILE)))
    assert not {"script", "img"} & set(page.tags) and page.tags["svg"] == 2
    assert not any(key.startswith("on") for _, key, _ in page.attributes)
    assert page.text.count(HOSTILE) >= 6  # heading, title, texts, table
    short = HOSTILE[:79] + "…"  # in a figure
    assert page.text.count(short) == 2 and any(short in value for value in page.values("aria-label"))


@pytest.mark.parametrize(
    "name", ["$", "$\\frac{", "中文", "_", "a\x00b\x08", "\ud800", "", "\\", "%s {x} {{ x }}"]
)
def test_strange_names_give_a_page(name: str) -> None:
    history = ConvergenceDisplay.from_history({name: ([0, 1], [1.0, 2.0])}, ylabel=name)
    written = PredictedDisplay.from_predictions([0.0, 1.0], [0.0, 1.0], [-1.0, 0.5], [0.5, 1.5], name=name)
    pictures = (Picture.of(history), Picture.of(written, caption=name))
    table = Table((name,), ((name,),))
    page = Page(render(Report(name, name, (Section(name, name, pictures, table),))))
    assert page.tags["svg"] == 2


def test_figures_are_small() -> None:
    assert len(html.svg(Picture.of(band()), "f1").encode()) < 26_000
    assert len(html.svg(Picture.of(band(points=20_000)), "f1").encode()) < 33_000
    assert len(html.svg(Picture.of(moons()), "f1").encode()) < 52_000  # two maps
    y = np.random.default_rng(0).normal(size=(2, 20_000))
    table = PredictedDisplay.from_predictions(y[0], y[0] + y[1], y[0] + y[1] - 1.6, y[0] + y[1] + 1.6)
    assert len(html.svg(Picture.of(table), "f1").encode()) < 27_000
    steps = np.arange(20_000)
    curve = ConvergenceDisplay.from_history({"a": (steps, np.sin(steps)), "b": (steps, np.cos(steps))})
    assert len(html.svg(Picture.of(curve), "f1").encode()) < 16_000


def test_same_figure_same_bytes() -> None:
    assert html.svg(Picture.of(moons()), "f1") == html.svg(Picture.of(moons()), "f1")


def test_drawn_line_keeps_its_places() -> None:
    figure = Figure(figsize=(10, 5))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 720), ylim=(0, 360))
    ax.plot([1.26, 100, 333.33, 700.04], [5.5, 200, 20.02, 350], lw=3.21)
    text = html.svg(Picture(figure, "", "a line"), "f1")
    [path] = re.findall(r'<path d="([^"]+)"[^>]*stroke-width:3.21', text)
    assert path == "M 1.26 354.5 L 100 160 333.3 340 700 10"


def test_only_repeated_lines_are_left_out() -> None:
    assert (
        html._without_repeats("M 1 2 M 3 4 L 5 6\nL 7 8 z M 1 1 L 2 2")
        == "M 1 2 M 3 4 L 5 6 7 8 z M 1 1 L 2 2"
    )


def test_palette_loses_nothing() -> None:
    pixels = np.random.default_rng(0).integers(0, 3, (7, 5, 4)).astype(np.uint8) * 100
    again = html._with_palette(address(pixels))
    np.testing.assert_array_equal(picture(again), pixels)
    colourful = np.random.default_rng(0).integers(0, 255, (50, 50, 4)).astype(np.uint8)
    assert html._with_palette(address(colourful)) == address(colourful)


def address(pixels: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def picture(place: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(place.partition(",")[2]))).convert("RGBA"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        ("text", "text"),
        (True, "True"),
        (0, "0"),
        (20_000, "20,000"),
        (-3, "−3"),
        (0.123456, "0.1235"),
        (-12.3456, "−12.35"),
        (1234.56, "1,235"),
        (0.9, "0.9000"),
        (1.5e-7, "1.500e−07"),
        (2.5e9 + 0.5, "2.500e+09"),
        (float("nan"), "nan"),
        (float("-inf"), "−inf"),
        (np.float32(0.25), "0.2500"),
    ],
)
def test_cells(value: float | str | None, shown: str) -> None:
    assert html.show(value) == shown


def test_numbers_stand_at_the_right() -> None:
    table = Table(("method", "RMSE"), (("BALI", 0.5), ("MAP", None)))
    text = render(Report("r", "", (Section("s", table=table),)))
    assert '<th scope="col">method</th>' in text and '<th scope="col" class="number">RMSE</th>' in text
    assert "<td>BALI</td>" in text and '<td class="number">0.5000</td>' in text


def test_ragged_table_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 of the table has 1 cells for 2 columns"):
        Table(("a", "b"), ((1, 2), (1,)))


def test_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    first, second = Report("first", "", ()), Report("second", "", ())
    assert write_report(first, path) == path
    assert path.read_text(encoding="utf-8") == render(first)

    def stop(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(OSError, match="disk full"):
        write_report(second, path)
    assert os.listdir(tmp_path) == ["report.html"] and "first" in path.read_text(encoding="utf-8")
