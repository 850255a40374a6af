"""What README says of the published results follows from the stored lines."""

from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from bayeswise.bench import findings
from bayeswise.bench.reading import read
from bayeswise.bench.tables import Run, runs

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@cache
def stored(task: str) -> tuple[Run, ...]:
    return tuple(runs(read(ROOT / "benchmarks" / "results").of(task)))


def sentences(task: str) -> str:
    return " ".join(getattr(findings, task)(stored(task)))


def scores(task: str, name: str, key: tuple[str, str]) -> dict[str, float]:
    return {run.place: run.summary[name] for run in stored(task) if run.key == key}


def test_regression_without_settings():
    text = sentences("uci")
    assert "BALI, default: 13 of 14 cells reproduced." in text and "12 better, 10 the best of its six" in text
    assert "reproduces 13 of the paper's 14 cells" in README
    assert "in 10 it is the best of the six methods that the paper prints" in README


@pytest.mark.parametrize("settings", ["default", "reproduction"])
def test_classes_are_better_calibrated_than_mc_dropouts_on_four_of_five(settings):
    assert "as accurate as MC dropout, with a lower calibration error on four of the five" in README
    theirs, own = (("mc_dropout", "paper"), ("bali", settings))
    for name in ("ece", "acc"):
        dropout = scores("classification", name, theirs)
        bali = scores("classification", name, ("bali", "paper")) | scores("classification", name, own)
        assert len(bali) == len(dropout) == 5
        if name == "ece":
            assert [place for place in dropout if bali[place] >= dropout[place]] == ["Spambase"]
        else:
            assert min(bali[place] - dropout[place] for place in dropout) > -0.005


def test_foreign_images():
    auroc, place = "auroc_mutual_information", "MNIST → FashionMNIST"
    bali = scores("ood", auroc, ("bali", "reproduction"))[place]
    dropout = scores("ood", auroc, ("mc_dropout", "paper"))[place]
    assert f"with an AUROC of {bali:.3f}; MC dropout has {dropout:.3f}." in README
