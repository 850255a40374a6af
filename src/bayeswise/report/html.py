"""The report: one self-contained HTML file with inline SVG and CSS, readable without scripts or a network."""

from __future__ import annotations

import base64
import io
import math
import os
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeswise.report import drawing
from bayeswise.report.displays import Display

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT_STYLE = "stroke-linejoin:round;stroke-linecap:butt;font-family:'DejaVu Sans',Verdana,Arial,sans-serif"

Cell = str | int | float | None


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure, what to look for in it, and what it shows for those who cannot see it."""

    figure: Any
    caption: str
    alt: str

    @classmethod
    def of(cls, display: Display, caption: str | None = None) -> Self:
        """The picture of a display, with its own caption or a better one."""
        return cls(display.figure_, display.caption if caption is None else caption, display.alt)


@dataclass(frozen=True)
class Table:
    """Columns and rows; numbers are rounded to four digits and stand at the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        """Check that every row has a cell for each column."""
        width = len(self.columns)
        for number, row in enumerate(self.rows):
            if len(row) != width:
                raise ValueError(f"row {number} of the table has {len(row)} cells for {width} columns")


@dataclass(frozen=True)
class Section:
    """One heading of the report; a blank line in the text starts a new paragraph."""

    title: str
    text: str = ""
    figures: tuple[Picture, ...] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    intro: str
    sections: tuple[Section, ...]


def write_report(report: Report, path: str | os.PathLike[str]) -> Path:
    """Write the page; a reader finds the old file or the complete new one, never a part."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    page = render(report).encode("utf-8", "replace")
    try:
        with partial.open("wb") as stream:
            stream.write(page)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def render(report: Report) -> str:
    """The page as text; every word of the caller is escaped."""
    import jinja2
    from markupsafe import Markup

    numbers = iter(range(1, 1_000_000))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters["svg"] = lambda picture: Markup(svg(picture, f"f{next(numbers)}"))
    environment.filters["paragraphs"] = lambda text: [p for p in re.split(r"\n\s*\n", text) if p.strip()]
    environment.filters["points"] = lambda picture: round(72 * picture.figure.get_figwidth())
    environment.filters["cell"] = show
    environment.tests["numeric"] = _numeric
    template = files("bayeswise.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(report=report)


def show(value: Cell) -> str:
    """A cell as text: four significant digits, thousands apart, a dash for nothing."""
    if value is None:
        return "–"
    if not _numeric(value):
        return str(value)
    number = float(value)
    if not math.isfinite(number) or number == 0 or float(number).is_integer() and abs(number) < 1e15:
        return f"{number:,.0f}".replace("-", "−")
    if not 1e-4 <= abs(number) < 1e7:
        return f"{number:.3e}".replace("-", "−")
    return f"{number:,.{max(0, 3 - math.floor(math.log10(abs(number))))}f}".replace("-", "−")


def _numeric(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)


def svg(picture: Picture, name: str) -> str:
    """The figure as SVG for the inside of an HTML page; all its ids start with `name`."""
    stream = io.StringIO()
    with drawing.style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's fonts have it
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        picture.figure.savefig(stream, format="svg", dpi=110, metadata=nothing)
    root = ElementTree.fromstring(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", stream.getvalue()))
    _forget_namespaces(root)
    _drop(root, {"metadata", "style"})
    _hoist_styles(root)
    _name_ids(root, name)
    _shorten(root)
    root.set("style", ROOT_STYLE)
    root.set("role", "img")
    root.set("aria-label", picture.alt)
    return ElementTree.tostring(root, encoding="unicode")


def _forget_namespaces(root: ElementTree.Element) -> None:
    """An HTML page needs no namespaces, and `href` stands for `xlink:href`."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        element.tail = None


def _drop(root: ElementTree.Element, tags: set[str]) -> None:
    """Remove elements: matplotlib's style rule would reach the whole page, metadata hold addresses."""
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)


def _hoist_styles(root: ElementTree.Element) -> None:
    """Say the common style of many markers once, on their group."""
    for group in root.iter("g"):
        styles = {child.get("style") for child in group if child.tag == "use"}
        if len(group) > 1 and len(styles) == 1 and all(child.tag == "use" for child in group):
            group.set("style", ";".join(filter(None, (group.get("style"), styles.pop()))))
            for child in group:
                child.attrib.pop("style", None)


def _name_ids(root: ElementTree.Element, name: str) -> None:
    """Keep the ids that something refers to, under short names of this figure's own."""
    used = dict.fromkeys(target for element in root.iter() for target in _targets(element))
    short = {old: f"{name}-{number}" for number, old in enumerate(used)}
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in short:
            element.set("id", short[old])
        for key in ("href", "clip-path", "style"):
            if key in element.attrib:
                element.set(key, _REFERENCE.sub(lambda m: m[1] + short[m[2]], element.attrib[key]))


_REFERENCE = re.compile(r"(^#|url\(#)([\w.-]+)")


def _targets(element: ElementTree.Element) -> Iterator[str]:
    for key in ("href", "clip-path", "style"):
        yield from (match[2] for match in _REFERENCE.finditer(element.get(key, "")))


def _shorten(root: ElementTree.Element) -> None:
    """Write numbers, paths, styles and images as briefly as the eye allows."""
    for element in root.iter():
        element.text = element.text if element.tag == "text" else None
        for key in {"d", "x", "y", "width", "height", "transform"} & element.attrib.keys():
            element.set(key, re.sub(r"-?\d+\.\d+", _rounded, element.attrib[key]))
        if "d" in element.attrib:
            element.set("d", _without_repeats(element.attrib["d"]))
        if "style" in element.attrib:
            look = re.sub(r"\s*([:;])\s*", r"\1", element.attrib["style"])
            element.set("style", look.replace("font-family:'DejaVu Sans';", ""))  # said once, at the root
        if element.tag == "image":
            element.set("href", _with_palette(element.attrib["href"]))


def _rounded(number: re.Match[str]) -> str:
    """A tenth of a point; a hundredth in small shapes such as markers."""
    value = float(number[0])
    return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")


def _without_repeats(path: str) -> str:
    """In a path, "L" followed by several points stands for several "L"."""
    words, command = [], ""
    for word in path.split():
        if word == command == "L":
            continue
        command = word if word.isalpha() else command
        words.append(word)
    return " ".join(words)


def _with_palette(address: str) -> str:
    """A PNG of at most 256 colours stored by colour number, without loss; any other stays as it is."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGBA"))
    colors, index = np.unique(pixels.reshape(-1, 4).view(np.uint32), return_inverse=True)  # (Q,), (H·W,)
    if len(colors) > 256:
        return address
    image = Image.fromarray(index.reshape(pixels.shape[:2]).astype(np.uint8))
    image.putpalette(colors.tobytes(), "RGBA")
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
