"""The results page from the stored lines: Markdown with figures for the docs, one HTML file for all."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from bayeswise.bench import reading, tables
from bayeswise.bench.figures import Drawing
from bayeswise.bench.reading import Stored
from bayeswise.bench.sections import sections
from bayeswise.bench.tables import Marked
from bayeswise.report import drawing, html
from bayeswise.report.html import Cell, Picture, Report, Section, Table

TITLE = "The paper's experiments"
NAME = "results"  # of the page in the docs, and of the folder with its figures
NEEDED = {"matplotlib": "matplotlib", "jinja2": "jinja2"}


def write_report(results: Path, docs: Path | None, html: Path | None) -> list[Path]:
    """Write `docs`/results.md with its figures in `docs`/results/, and the file `html`; the files written."""
    require()
    report = page(reading.read(results))
    written = [] if docs is None else write_markdown(report, docs)
    return written if html is None else [*written, write_html(report, html)]


def require() -> None:
    """Refuse to start where an optional package is missing."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise ModuleNotFoundError(f"the report needs {names}: pip install 'bayeswise[all]'", name=missing[0])


def page(stored: Stored) -> Report:
    """The whole page with its figures."""
    return Report(TITLE, "\n\n".join(_intro(stored)), tuple(sections(stored)))


def _intro(stored: Stored) -> Iterable[str]:
    yield (
        "BALI and its baselines on the experiments of the BALI paper (arXiv 2411.12102), beside the paper's "
        "numbers where it prints them. This page is made by bayeswise bench report from "
        f"{len(stored.lines):,} stored lines, one per split or seed. Of several runs of a row that with "
        "most lines counts, of equals the longest."
    )
    yield tables.RULES
    versions = [f"{name} {seen}" for name in ("bayeswise", "torch") if (seen := _versions(stored, name))]
    if versions:
        yield f"Made with {', '.join(versions)}. Seconds are those of training, on {_threads(stored)}."
    if stored.left_out:
        counts = ", ".join(f"{name} ({count})" for name, count in stored.left_out.items())
        yield f"Lines of other records, which have no task, are left out: {counts}."


def _versions(stored: Stored, package: str) -> str:
    return _seen((line.get("versions") or {}).get(package) for line in stored.lines)


def _threads(stored: Stored) -> str:
    threads = _seen(line.get("threads") for line in stored.lines)
    return f"{threads or 'an unknown number of'} thread{'' if threads == '1' else 's'}"


def _seen(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def write_html(report: Report, path: Path) -> Path:
    """Write the page as one HTML file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return html.write_report(report, path)


# ---------------------------------------------------------------------------------------------- the docs page


def write_markdown(report: Report, docs: Path) -> list[Path]:
    """Write the page as Markdown, its figures first: a page never names a figure that is not there."""
    from bayeswise.saving.files import write_bytes

    folder = docs / NAME
    folder.mkdir(parents=True, exist_ok=True)
    names = file_names(report)
    written: list[Path] = []
    for section in report.sections:
        for picture in section.figures:
            written.append(folder / names[id(picture)])
            write_bytes(written[-1], png(picture))
    write_bytes(docs / f"{NAME}.md", markdown(report).encode("utf-8", "replace"))
    return [*written, docs / f"{NAME}.md"]


def png(picture: Picture, dpi: int = 110) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    stream = io.BytesIO()
    with drawing.style():
        picture.figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
        picture.figure.set_layout_engine("none")  # what is placed stays: the HTML need not place it again
    return stream.getvalue()


def file_names(report: Report) -> dict[int, str]:
    """A file name of its own for every picture, by the picture's identity."""
    names: dict[int, str] = {}
    for picture in (picture for section in report.sections for picture in section.figures):
        wish = picture.name if isinstance(picture, Drawing) else "figure"
        stem = re.sub(r"[^a-z0-9_-]+", "_", wish.lower()).strip("_") or "figure"
        taken = sum(name.removesuffix(".png").rstrip("0123456789-") == stem for name in names.values())
        names[id(picture)] = f"{stem}-{taken + 1}.png" if f"{stem}.png" in names.values() else f"{stem}.png"
    return names


def markdown(report: Report) -> str:
    """The page for Sphinx and any other reader of Markdown; every word is escaped."""
    names = file_names(report)
    blocks = [f"# {escaped(report.title)}", *_paragraphs(report.intro)]
    for section in report.sections:
        blocks += _section(section, names)
    return "\n\n".join(blocks) + "\n"


def _section(section: Section, names: dict[int, str]) -> Iterable[str]:
    yield f"## {escaped(section.title)}"
    yield from _paragraphs(section.text)
    if section.table is not None:
        if section.table.caption:
            yield escaped(section.table.caption)
        yield table(section.table)
    for picture in section.figures:
        yield f"![{escaped(picture.alt)}]({NAME}/{names[id(picture)]})"
        yield escaped(picture.caption)


def _paragraphs(text: str) -> list[str]:
    return [escaped(part) for part in re.split(r"\n\s*\n", text) if part.strip()]


def table(content: Table) -> str:
    """A pipe table, the columns of numbers at the right."""
    cells = [[cell_text(cell) for cell in row] for row in content.rows]
    numbers = [all(re.match(NUMBER, row[n]) for row in cells) for n in range(len(content.columns))]
    rule = ["---:" if number else "---" for number in numbers]
    rows = [[escaped(column) for column in content.columns], rule, *cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


NUMBER = r"(\*\*)?[−\d]|–$"  # how a cell with a number begins; a dash for none


def cell_text(cell: Cell) -> str:
    """A cell in Markdown: the best is bold, spaces do not break."""
    if not isinstance(cell, Marked):
        return escaped(html.show(cell))
    text = escaped(str.__str__(cell)).replace(" ", "\u00a0")
    return f"**{text}**" if cell.strong else text


def escaped(text: str) -> str:
    """Text without meaning for Markdown, in one line."""
    return re.sub(r"([\\`*_\[\]<>|$#~{}])", r"\\\1", " ".join(text.split()))
