"""The sections of the results page, one function per task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bayeswise.bench import figures, findings, scenes, tables
from bayeswise.bench.reading import Stored
from bayeswise.bench.summary import Line
from bayeswise.bench.tables import Marked, Run, label, long, wide
from bayeswise.report.html import Picture, Section, Table

TITLES = {
    "synthetic": "Synthetic data",
    "uci": "UCI regression",
    "classification": "Classification",
    "convergence": "Convergence",
    "ood": "Out of distribution",
    "reparametrisation": "Reparametrisation",
}


def sections(stored: Stored) -> list[Section]:
    """All tasks in the paper's order, then tasks that the paper does not have, then the settings."""
    extra = sorted({str(line["task"]) for line in stored.lines} - set(TITLES))
    builders = {
        "synthetic": synthetic,
        "uci": uci,
        "classification": classification,
        "convergence": convergence,
        "ood": ood,
        "reparametrisation": reparametrisation,
    }
    found: list[Section] = []
    for task, build in builders.items():
        done = tables.runs(map(with_ratios, stored.of(task)))
        found += build(done) if done else [Section(TITLES[task], findings.missing(task, done))]
    found += [_plain(task, tables.runs(stored.of(task))) for task in extra]
    return [*found, settings(stored)] if stored.lines else found


def with_ratios(line: Line) -> Line:
    """The line with the two ratios that the synthetic task is judged by, where it has their parts."""
    metrics: dict[str, Any] = dict(line["metrics"])
    for name, (top, bottom) in RATIOS.items():
        if metrics.get(top) is not None and metrics.get(bottom):
            metrics[name] = metrics[top] / metrics[bottom]
    return {**line, "metrics": metrics}


RATIOS = {"rmse_over_noise": ("rmse_train", "noise"), "gap_over_data": ("std_gap", "std_data")}


def by_place(found: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of every data set, or pair of data sets."""
    places: dict[str, list[Run]] = {}
    for run in found:
        places.setdefault(run.place, []).append(run)
    return places


def _pictures(pictures: Iterable[Picture | None]) -> tuple[Picture, ...]:
    return tuple(picture for picture in pictures if picture is not None)


def _text(*paragraphs: str) -> str:
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _standing(task: str, found: Sequence[Run]) -> str:
    """What is missing, and what to know before rows are compared."""
    return " ".join(filter(None, [findings.missing(task, found), *findings.reservations(found)]))


def uci(found: Sequence[Run]) -> Iterator[Section]:
    """Tables 1 and 7 with our columns, further scores, and dots for every data set."""
    title = TITLES["uci"]
    known = "The paper's columns are its Tables 1 and 7; ours are named by method and settings."
    summary = " ".join(findings.uci(found))
    rmse = wide(found, "rmse", "Test RMSE, lower is better (the paper's Table 1).")
    text = _text(known, tables.REPRODUCTION, summary, _standing("uci", found))
    yield Section(f"{title}: RMSE", text, (), rmse)
    ll = wide(found, "ll", "Test log likelihood per row, higher is better (the paper's Table 7).")
    yield Section(f"{title}: log likelihood", "LL is that of the mixture over all draws.", (), ll)
    rest = long(found, without=("rmse", "ll"), caption="Further scores and the cost of every column.")
    pictures = [figures.dots(runs[0].dataset, runs) for runs in by_place(found).values()]
    text = (
        "LL, one Gaussian, is that of the Gaussian with the mixture's mean and variance. Coverage is bold "
        "where it is nearest to 90 %. Seconds are those of training all splits of a row."
    )
    yield Section(f"{title}: further scores, cost and figures", text, _pictures(pictures), rest)


def classification(found: Sequence[Run]) -> Iterator[Section]:
    """All scores of the five data sets, and reliability where lines carry it."""
    text = (
        "The paper's Table 2 compares BALI with MC dropout and MAP; its figures are not at hand, so these "
        "rows are ours alone. ECE has 15 equal bins of the top probability."
    )
    summary = " ".join(findings.classification(found))
    pictures = _pictures(figures.reliability(runs) for runs in by_place(found).values())
    text = _text(text, summary, _standing("classification", found))
    yield Section(TITLES["classification"], text, pictures, long(found))


def convergence(found: Sequence[Run]) -> Iterator[Section]:
    """Negative log likelihood over training, against steps and seconds (Fig. 2)."""
    text = "As the paper's Fig. 2, also against seconds. The table has the scores after the last step."
    yield _curves("convergence", text, found)


def reparametrisation(found: Sequence[Run]) -> Iterator[Section]:
    """BALI with weight, local and no sampling over training (Fig. 7)."""
    text = (
        "As the paper's Fig. 7: weights drawn once a batch (weight), outputs drawn row by row (local), or "
        "the mean weights (deterministic). The table has the scores after the last step."
    )
    yield _curves("reparametrisation", text, found)


def _curves(task: str, text: str, found: Sequence[Run]) -> Section:
    pictures = _pictures(figures.curves(runs, task) for runs in by_place(found).values())
    return Section(TITLES[task], _text(text, _standing(task, found)), pictures, long(found))


def ood(found: Sequence[Run]) -> Iterator[Section]:
    """Foreign rows told from known ones by entropy and by mutual information (Fig. 3)."""
    text = (
        "Trained on the first data set, shown the second. AUROC: the share of pairs in which the foreign row "
        "is the less certain one. FPR95: foreign rows taken for known where 95 % of the known ones are."
    )
    pictures = [scenes.operating_curves(found), *map(scenes.histograms, by_place(found).values())]
    text = _text(text, *findings.ood(found), _standing("ood", found))
    yield Section(TITLES["ood"], text, _pictures(pictures), long(found))


def synthetic(found: Sequence[Run]) -> Iterator[Section]:
    """A section per data set: BALI (Fig. 1) beside Bayes by Backprop at three KL weights (Fig. 4 to 6)."""
    state = _standing("synthetic", found)
    for place, runs in by_place(found).items():
        text = _text(*findings.synthetic(runs), state)
        yield Section(f"{TITLES['synthetic']}: {place}", text, _pictures([scenes.scene(runs)]), long(runs))
        state = ""


def _plain(task: str, found: Sequence[Run]) -> Section:
    """A task that this page knows nothing about."""
    return Section(f"Task {task}", "", (), long(found))


# ----------------------------------------------------------------------------------------------- the settings


def settings(stored: Stored) -> Section:
    """With which configuration, code and day every row was made; data sets with the same share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for task in dict.fromkeys(str(line["task"]) for line in stored.lines):
        for run in tables.runs(stored.of(task)):
            rows.setdefault((task, label(run.key), *_made(run.lines)), []).append(run.place)
    columns = ("Task", "Method, settings", "Data sets", "Configuration", "Draws", "Threads", "Commit", "Date")
    cells = [(row[0], Marked.of(row[1]), ", ".join(places), *row[2:]) for row, places in rows.items()]
    table = Table(columns, tuple(cells))
    return Section("Settings of all runs", "", (), table)


def _made(lines: Sequence[Line]) -> tuple[str, ...]:
    keys = ("draws", "threads", "commit", "date")
    return (_seen(map(_configuration, lines)), *(_seen(line.get(key) for line in lines) for key in keys))


def _seen(values: Iterable[object]) -> str:
    """All different values in the order of their first."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _configuration(line: Line) -> str:
    layers = "-".join(map(str, line.get("network") or ()))
    made = {key: value for key, value in (line.get("configuration") or {}).items() if key != "kind"}
    return _items({"network": layers or None, "batch": line.get("batch"), **made})


def _items(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_value(value)}" for key, value in values.items() if value is not None)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{value.get('kind', '')}({_items({k: v for k, v in value.items() if k != 'kind'})})"
    return f"{value:g}" if isinstance(value, float) else str(value)
