"""What the lines say in plain sentences: cells reproduced, baselines against the paper's, what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bayeswise import methods
from bayeswise.bench import paper
from bayeswise.bench.labels import DATASETS, dataset_name
from bayeswise.bench.tables import Run, label, reproduction_counts
from bayeswise.identity import configuration
from bayeswise.saving.files import canonical

PAPER = "paper"
BALI, DROPOUT, MAP, BBB = (("bali", PAPER), ("mc_dropout", PAPER), ("map", PAPER), ("bbb", PAPER))
REPRODUCTION = ("bali", "reproduction")
KL = tuple(("bbb", f"kl={weight}") for weight in ("1", "0.1", "0.001"))
IMAGES = ("mnist", "fashion_mnist")
# What the paper shows: task ↦ data sets (none where any will do) and methods with their settings.
EXPECTED: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "synthetic": (("sinc", "sines_trend", "two_moons"), (BALI, *KL)),
    "uci": (paper.uci_datasets(), (BALI, DROPOUT, BBB)),
    "classification": (("spambase", "magic", "diabetes", *IMAGES), (BALI, DROPOUT, MAP)),
    "convergence": ((), (BALI, DROPOUT, MAP)),
    "ood": (IMAGES, (BALI, DROPOUT, MAP)),
    "reparametrisation": ((), (("bali", "weight"), ("bali", "local"))),
}
# A baseline is real when its RMSE is not above the paper's column by more than this share.
BARS = {DROPOUT: ("DO", 0.10), BBB: ("BBB", 0.15)}


def missing(task: str, found: Sequence[Run]) -> str:
    """What of the paper's experiment has no line yet, as a sentence; empty when nothing is missing."""
    if not found:
        return f"Not run yet: bayeswise bench run {task}."
    datasets, keys = EXPECTED.get(task, ((), ()))
    wanted = {dataset_name(d) for d in datasets} or {dataset_name(run.dataset) for run in found}
    done = {(dataset_name(run.dataset), run.key) for run in found}
    open_ = {key: [d for d in _ordered(wanted) if (d, key) not in done] for key in keys}
    parts = [f"{label(key)}: {_which(left, wanted)}" for key, left in open_.items() if left]
    return f"Not run yet: {'; '.join(parts)}." if parts else ""


def reservations(found: Sequence[Run]) -> Iterator[str]:
    """What to know before rows are compared: defaults of long ago, steps that were chosen, other splits."""
    old = _by_label(run for run in found if _is_outdated(run))
    if old:
        parts = [f"{name}: {', '.join(places)}" for name, places in old.items()]
        yield f"Made with earlier defaults, which the end of the page shows: {'; '.join(parts)}."
    chosen = _by_label(run for run in found if _chose_steps(run))
    if chosen:
        whose = " and ".join(chosen)
        yield (
            f"Steps of {whose} are those of the last run, on all rows; the runs by which it chose came "
            "before and count in the seconds."
        )
    unused = [f"{label(run.key)} on {run.place} ({run.newer})" for run in found if run.newer]
    if unused:
        yield f"Newer lines that do not count, being fewer or of shorter runs: {', '.join(unused)}."
    uneven = [place for place in dict.fromkeys(run.place for run in found) if _is_uneven(place, found)]
    if uneven:
        where = ", ".join(uneven)
        yield f"Not all rows of {where} are means over the same splits or seeds: they compare loosely."


def _by_label(runs: Iterable[Run]) -> dict[str, list[str]]:
    """The places of every method and settings."""
    places: dict[str, list[str]] = {}
    for run in runs:
        places.setdefault(label(run.key), []).append(run.place)
    return places


def _is_outdated(run: Run) -> bool:
    """Whether some line was made with other defaults than those of today; not where steps were given."""
    name, settings = run.key
    if settings not in ("default", "single") or name not in methods.METHODS:
        return False
    today: Any = methods.fresh(name) if settings == "default" else methods.BALI(members=1)
    now = json.loads(canonical(configuration(today)))
    own = [line.get("configuration") or {} for line in run.lines]
    return any(one != now and _steps(one) == _steps(now) for one in own)


def _steps(own: Mapping[str, Any]) -> Any:
    """How long a method trains, or the one that trains before it."""
    return own.get("steps") or (own.get("first") or {}).get("steps")


def _chose_steps(run: Run) -> bool:
    own = [line.get("configuration") or {} for line in run.lines]
    return any("steps" in one and one["steps"] is None for one in own)


def _is_uneven(place: str, found: Sequence[Run]) -> bool:
    """Whether the runs of a place have different splits or seeds."""
    here = [run for run in found if run.place == place]
    return len({frozenset((line.get("split"), line.get("seed")) for line in run.lines) for run in here}) > 1


def _which(left: Sequence[str], wanted: set[str]) -> str:
    return "all data sets" if len(left) == len(wanted) > 1 else ", ".join(left)


def _ordered(names: Iterable[str]) -> list[str]:
    order = list(DATASETS.values())
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def uci(found: Sequence[Run]) -> Iterator[str]:
    """How many cells are reproduced with each of BALI's settings, and whether the baselines are real."""
    cells = 2 * len(paper.uci_datasets())
    for settings, (good, done) in reproduction_counts(found).items():
        rest = "" if done == cells else f" ({cells - done} not run on all splits yet)"
        yield f"{label(('bali', settings))}: {good} of {cells} cells reproduced{rest}."
    yield from _against_the_paper(found)
    for key, (column, share) in BARS.items():
        ours = {run.dataset: run.summary.get("rmse") for run in found if run.key == key}
        pairs = _beside(ours, column)
        if pairs:
            good = sum(mine <= (1 + share) * theirs for mine, theirs in pairs)
            bar = f"at most {100 * share:.0f} % above the paper's {column} column"
            yield f"{label(key)}: RMSE {bar} on {good} of {len(pairs)} data sets."


def _against_the_paper(found: Sequence[Run]) -> Iterator[str]:
    """BALI by itself beside the paper's table, at the paper's number of digits."""
    for settings in ("default", "single"):
        pairs = [
            (run.summary[name], name, run.dataset)
            for run in found
            if run.key == ("bali", settings) and run.dataset in paper.uci_datasets()
            for name in ("rmse", "ll")
            if run.summary.get(name) is not None
        ]
        if not pairs:
            continue
        within, better, best = (sum(said) for said in zip(*(_beats(*pair) for pair in pairs), strict=True))
        yield (
            f"{label(('bali', settings))}, beside the paper's tables at their number of digits: "
            f"of {len(pairs)} cells {within} at most one of its standard errors worse than its BALI, "
            f"{better} better, {best} the best of its six columns."
        )


def _beats(ours: float, name: str, dataset: str) -> tuple[bool, bool, bool]:
    """Within an error of the paper's BALI, better than it, as good as all of the paper's columns."""
    sign = 1 if name == "ll" else -1
    scores = {m: s for m in paper.METHODS if (s := paper.uci_scores().get((dataset, name, m))) is not None}
    bali = scores["BALI"]
    gain = sign * (round(ours, bali.decimals) - bali.mean)
    best = all(sign * (round(ours, s.decimals) - s.mean) >= 0 for s in scores.values())
    return gain >= -bali.error * (1 + 1e-9), gain > 1e-9, best


def _beside(ours: Mapping[str, float | None], column: str) -> list[tuple[float, float]]:
    scores = {dataset: paper.uci_scores().get((dataset, "rmse", column)) for dataset in ours}
    return [(mine, s.mean) for d, mine in ours.items() if mine is not None and (s := scores[d]) is not None]


def classification(found: Sequence[Run]) -> Iterator[str]:
    """BALI against MC dropout: accuracy within half a point, and the lower calibration error."""
    yield from _against_dropout(label(BALI), _pairs(found, (BALI,)))
    if any(run.key == REPRODUCTION for run in found):
        pairs = _pairs(found, (REPRODUCTION, BALI))
        rest = (
            f" (where it was run, else {label(BALI)})" if any(ours.key == BALI for ours, _ in pairs) else ""
        )
        yield from _against_dropout(label(REPRODUCTION) + rest, pairs)


def _against_dropout(name: str, pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    accuracy, error = _both(pairs, "acc"), _both(pairs, "ece")
    if accuracy:
        gains = [round(mine - theirs, 6) for mine, theirs in accuracy]
        good, above = sum(abs(gain) <= 0.005 for gain in gains), sum(gain > 0.005 for gain in gains)
        note = f" and higher by more on {above}" if above else ""
        places = f"{good} of {len(accuracy)} data sets{note}"
        yield f"{name}: accuracy within 0.5 points of MC dropout's on {places}."
    if error:
        good = sum(mine < theirs for mine, theirs in error)
        yield f"{name}: lower ECE than MC dropout's on {good} of {len(error)} data sets."
    uneven = [a.place for a, b in pairs if a.lines[0].get("steps") != b.lines[0].get("steps")]
    if uneven:
        yield f"On {', '.join(uneven)} the two trained for different numbers of steps."


def _both(pairs: Sequence[tuple[Run, Run]], name: str) -> list[tuple[float, float]]:
    """A score of the pairs that have it."""
    scores = [(a.summary.get(name), b.summary.get(name)) for a, b in pairs]
    return [(mine, theirs) for mine, theirs in scores if mine is not None and theirs is not None]


def _pairs(found: Sequence[Run], ours: Sequence[tuple[str, str]]) -> list[tuple[Run, Run]]:
    """The first of ours that was run at a place, and MC dropout, for all places with both."""
    runs = {(run.place, run.key): run for run in found}
    mine = {place: [runs[place, key] for key in ours if (place, key) in runs] for place, _ in runs}
    return [(mine[run.place][0], run) for run in found if run.key == DROPOUT and mine[run.place]]


SCORES = {"auroc_entropy": "entropy", "auroc_mutual_information": "mutual information"}


def ood(found: Sequence[Run]) -> Iterator[str]:
    """The better of the two scores of every method, by direction."""
    for place in dict.fromkeys(run.place for run in found):
        best = {label(run.key): _better(run) for run in found if run.place == place}
        parts = [f"{name} {value:.4f} by {score}" for name, (value, score) in best.items() if score]
        if parts:
            yield f"{place}, the better AUROC: {'; '.join(parts)}."


def _better(run: Run) -> tuple[float, str]:
    """The larger AUROC with the name of its score; an empty name where there is none."""
    found = [(run.summary[key], name) for key, name in SCORES.items() if run.summary.get(key) is not None]
    return max(found, default=(0.0, ""))


def synthetic(found: Sequence[Run]) -> Iterator[str]:
    """Bayes by Backprop's uncertainty in the gap beside BALI's, by KL weight."""
    bali = next((run.summary for run in found if run.key == BALI), None)
    if bali is None or not bali.get("std_gap"):
        return
    shares = {run.key: run.summary.get("std_gap") for run in found if run.key[0] == "bbb"}
    parts = [f"{key[1]}: {gap / bali['std_gap']:.2f}" for key, gap in shares.items() if gap is not None]
    if parts:
        yield f"Std in the gap as a share of BALI's, Bayes by Backprop at {'; '.join(parts)}."
