"""What the paper prints (arXiv 2411.12102): scores of Tables 1 and 7, hyper-parameters of Tables 4 to 6."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

METHODS = ("BALI", "NNG-MVG", "VADAM", "BBB", "PBP", "DO")  # the columns of Tables 1 and 7, in their order

SPLITS = {"protein": 5, "spambase": 5, "magic": 5, "diabetes": 5, "mnist": 3, "fashion_mnist": 3}


@dataclass(frozen=True)
class Published:
    """A mean with its standard error and the number of decimals that the paper prints."""

    mean: float
    error: float
    decimals: int


@cache
def uci_scores() -> dict[tuple[str, str, str], Published]:
    """Tables 1 and 7: (dataset, "rmse" or "ll", method) ↦ score; empty cells of the paper are absent."""
    return {(row["dataset"], row["metric"], row["method"]): _score(row) for row in _rows("uci_regression")}


@cache
def uci_datasets() -> tuple[str, ...]:
    """The data sets of Tables 1 and 7, in their order."""
    return tuple(dict.fromkeys(dataset for dataset, _, _ in uci_scores()))


def n_splits(task: str, dataset: str) -> int:
    """Over how many standard splits or seeds a cell is averaged; 1 where there is no such cell."""
    if task == "uci" and dataset in uci_datasets():
        return SPLITS.get(dataset, 20)
    return SPLITS.get(dataset, 1) if task in ("classification", "ood") else 1


def steps(dataset: str) -> int:
    """How long the paper trains BALI on a data set; 0 where it does not say."""
    return int(bali_hyperparameters().get(dataset, {}).get("iterations", 0))


def bali_hyperparameters() -> dict[str, dict[str, str]]:
    """Tables 4 and 5 by data set; `_printed` as in the paper, `_ours` as we read it (see decisions)."""
    return {row["dataset"]: row for row in _rows("bali_hyperparameters")}


def dropout_hyperparameters() -> dict[str, dict[str, str]]:
    """Table 6 by data set; the paper's MAP has the same with dropout 0."""
    return {row["dataset"]: row for row in _rows("dropout_hyperparameters")}


def _score(row: dict[str, str]) -> Published:
    decimals = len(row["mean"].partition(".")[2])
    return Published(float(row["mean"]), float(row["stderr"]), decimals)


def _rows(name: str) -> list[dict[str, str]]:
    text = files("bayeswise.bench").joinpath(f"published/{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
