"""What tables and figures call data sets, methods, settings and metrics, and which way a metric is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DATASETS = {
    "yacht": "Yacht",
    "concrete": "Concrete",
    "energy": "Energy",
    "wine_red": "Red wine",
    "kin8nm": "Kin8nm",
    "power": "Power plant",
    "protein": "Protein",
    "spambase": "Spambase",
    "magic": "Telescope",
    "telescope": "Telescope",
    "diabetes": "Diabetes",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "sinc": "Sinc",
    "sines_trend": "Sines-trend",
    "two_moons": "Two moons",
}
METHODS = {
    "bali": "BALI",
    "mc_dropout": "MC dropout",
    "map": "MAP",
    "bbb": "BBB",
    "ensemble": "Ensemble",
    "laplace": "Laplace",
    "swag": "SWAG",
}
# In this order, others behind.
SETTINGS = ("paper", "reproduction", "printed", "default", "single")
SETTINGS += ("weight", "local", "deterministic", "kl=1", "kl=0.1", "kl=0.001")


@dataclass(frozen=True)
class Metric:
    """How a metric is called and printed; `badness` is less for the better value, or None."""

    label: str
    decimals: int = 3
    badness: Callable[[float], float] | None = None


def lower(value: float) -> float:
    """Lower is better."""
    return value


def higher(value: float) -> float:
    """Higher is better."""
    return -value


def near_90(value: float) -> float:
    """Nearer to the promised 90 % is better."""
    return abs(value - 0.9)


METRICS = {
    "rmse": Metric("RMSE", 3, lower),
    "ll": Metric("LL", 3, higher),
    "ll_gaussian": Metric("LL, one Gaussian", 3, higher),
    "coverage_90": Metric("90 % coverage", 3, near_90),
    "crps": Metric("CRPS", 3, lower),
    "acc": Metric("Accuracy", 4, higher),
    "nll": Metric("NLL", 4, lower),
    "ece": Metric("ECE", 4, lower),
    "brier": Metric("Brier", 4, lower),
    "auc": Metric("AUC", 4, higher),
    "auroc_entropy": Metric("AUROC, entropy", 4, higher),
    "auroc_mutual_information": Metric("AUROC, mutual information", 4, higher),
    "fpr95_entropy": Metric("FPR95, entropy", 4, lower),
    "fpr95_mutual_information": Metric("FPR95, mutual information", 4, lower),
    "rmse_train": Metric("RMSE at the data"),
    "rmse_function": Metric("RMSE to the function"),
    "noise": Metric("Noise"),
    "std_data": Metric("Std at the data"),
    "std_gap": Metric("Std in the gap"),
    "std_outside": Metric("Std outside"),
    "epistemic_data": Metric("Epistemic at the data"),
    "epistemic_gap": Metric("Epistemic in the gap"),
    "rmse_over_noise": Metric("RMSE at the data / noise", 2),
    "gap_over_data": Metric("Std in the gap / at the data", 2),
    "entropy_data": Metric("Entropy at the data"),
    "entropy_far": Metric("Entropy far away"),
}


def dataset_name(name: str) -> str:
    """The data set's name for people."""
    return DATASETS.get(name, name)


def method_name(name: str) -> str:
    """The method's name for people."""
    return METHODS.get(name, name)


def metric(name: str) -> Metric:
    """A metric's looks; one that nobody described has its own name and no best."""
    return METRICS.get(name, Metric(name.replace("_", " ")))


def method_rank(method: str, settings: str) -> tuple[int, int, str, str]:
    """The place of a method with its settings among the columns: BALI first, the paper's settings first."""
    places = list(METHODS).index(method) if method in METHODS else len(METHODS)
    return places, SETTINGS.index(settings) if settings in SETTINGS else len(SETTINGS), method, settings


def dataset_rank(dataset: str) -> tuple[int, str]:
    """The place of a data set among the rows: as in the paper, others behind."""
    return list(DATASETS).index(dataset) if dataset in DATASETS else len(DATASETS), dataset
