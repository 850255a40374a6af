"""What a run trains: the paper's networks, batches and settings, or a method's own defaults.

`paper` is what the paper prints, with our decisions where it leaves something open (docs/decisions.md):
noise floor 0.01², the first layer as printed for tables, N_eff = 0.2 N on MNIST and FashionMNIST.
`printed` takes the printed floor in regression and the printed N_eff on images. `reproduction` has one
change, chosen on validation rows (docs/reproduction.md says why): step size 0.5 instead of `paper`'s in
regression; on images the tables' σ_r² read as σ_r, with the printed N_eff. `default` is the method
without arguments on the same network, `single` the same with one start where BALI would have several.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from bayeswise.bench.datasets import Dataset
from bayeswise.bench.paper import bali_hyperparameters, dropout_hyperparameters
from bayeswise.likelihoods import Categorical, Gaussian, Likelihood
from bayeswise.methods import BALI, MAP, METHODS, Method, fresh
from bayeswise.methods.forward import WeightNoise
from bayeswise.methods.protocol import is_open
from bayeswise.methods.schedules import Constant, Cosine, StepDecay
from bayeswise.priors import FanIn, Isotropic

BUDGET = {"diabetes": 3000, "mnist": 10_000, "fashion_mnist": 10_000}  # steps, instead of the paper's 30,000
IMAGES_EFFECTIVE = {"mnist": 0.2, "fashion_mnist": 0.2}  # N_eff / N; the printed 1/50 wants another prior
REPRODUCTION_STEP = 0.5  # in regression
AS_PRINTED = ("spambase", "magic", "diabetes")  # their first prior is not divided (docs/reproduction.md)
BATCH = 1024  # rows of a step where the paper has no figure


@dataclass(frozen=True)
class Paper:
    """The paper's line for a data set (Tables 4, 5 and 6)."""

    step_size: float
    rate: float
    variance: float  # σ_r²
    floor: float  # σ_u² / N_eff in our reading
    floor_printed: float
    effective: float  # N_eff / N
    batch: int | None  # None: all rows
    steps: int
    hidden: tuple[int, ...]
    activation: str
    divided: bool  # the first layer's inputs, too


@dataclass(frozen=True, eq=False)
class Recipe:
    """All that training needs beside the rows."""

    sizes: tuple[int, ...]
    activation: str
    batch: int | None  # None: the method decides
    method: Method[Any]
    likelihood: Likelihood


def recipe(dataset: Dataset, method: str, settings: str, steps: int | None = None) -> Recipe:
    """The recipe of a method on a data set; `steps` overrides how long it trains."""
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; there are {', '.join(METHODS)}")
    if settings not in SETTINGS:
        raise ValueError(f"there are no settings {settings!r}; there are {', '.join(SETTINGS)}")
    n = len(dataset.train[0])
    chosen, likelihood = SETTINGS[settings](dataset, method, n)
    if steps is not None:
        chosen = with_steps(chosen, method, steps)
    paper, outputs = _paper().get(dataset.name), _outputs(dataset)
    hidden = paper.hidden if paper else (50,) if dataset.kind == "regression" else (256, 256)
    activation = paper.activation if paper else "relu" if dataset.kind == "regression" else "leaky_tanh"
    batch = (paper.batch or n) if paper else BATCH
    sizes = (dataset.x[0].size, *hidden, outputs)
    batch = None if is_open(chosen) else min(batch, n)
    return Recipe(sizes, activation, batch, chosen, likelihood)


def _defaults(dataset: Dataset, method: str, n: int) -> tuple[Method[Any], Likelihood]:
    """The method without arguments."""
    return fresh(method), _likelihood(dataset)


def _single(dataset: Dataset, method: str, n: int) -> tuple[Method[Any], Likelihood]:
    """The defaults with one start."""
    chosen, likelihood = _defaults(dataset, method, n)
    if not isinstance(chosen, BALI):
        raise ValueError(f"settings single are BALI's; use --settings {_own(dataset, method)} for {method}")
    return replace(chosen, members=1), likelihood


def _papers(dataset: Dataset, method: str, n: int) -> tuple[Method[Any], Likelihood]:
    """The paper's figures, where it has them."""
    make = PUBLISHED.get((method, dataset.kind))
    paper = _paper().get(dataset.name)
    if make is None or paper is None:
        what = f"data set {dataset.name}" if make else f"{method} on {dataset.kind}"
        raise ValueError(f"the paper has no settings for {what}; use --settings default")
    return make(dataset, paper, n, _likelihood(dataset))


def _own(dataset: Dataset, method: str) -> str:
    """The settings that there are for a method."""
    known = (method, dataset.kind) in PUBLISHED and dataset.name in _paper()
    return "paper or default" if known else "default"


def _printed(dataset: Dataset, method: str, n: int) -> tuple[Method[Any], Likelihood]:
    """The same with N_eff as printed, and in regression σ_u²."""
    chosen, likelihood = _papers(dataset, method, n)
    if isinstance(chosen, BALI):
        paper = _paper()[dataset.name]
        floor = paper.floor_printed
        floors = {"noise_floor": floor, "hidden_noise_floor": floor} if dataset.kind == "regression" else {}
        chosen = replace(chosen, effective=paper.effective, **floors)
    return chosen, likelihood


def _reproduction(dataset: Dataset, method: str, n: int) -> tuple[Method[Any], Likelihood]:
    """With the one change that validation rows prefer; none for tables of classes."""
    if method != "bali":
        raise ValueError(
            f"settings reproduction are BALI's; use --settings {_own(dataset, method)} for {method}"
        )
    chosen, likelihood = _papers(dataset, method, n)
    assert isinstance(chosen, BALI)
    if dataset.kind == "regression":
        return replace(chosen, step_size=REPRODUCTION_STEP), likelihood
    if dataset.name not in IMAGES_EFFECTIVE:
        return chosen, likelihood
    paper = _paper()[dataset.name]
    return replace(chosen, effective=paper.effective, prior=FanIn(paper.variance**2)), likelihood


SETTINGS: dict[str, Callable[[Dataset, str, int], tuple[Method[Any], Likelihood]]] = {
    "paper": _papers,
    "default": _defaults,
    "single": _single,
    "printed": _printed,
    "reproduction": _reproduction,
}


# ------------------------------------------------------------------------------ the paper's, method by method

Made = tuple[Method[Any], Likelihood]


def _bali(dataset: Dataset, paper: Paper, n: int, likelihood: Likelihood) -> Made:
    divided = paper.divided and dataset.name not in AS_PRINTED
    method = BALI(
        step_size=paper.step_size,
        update_rate=StepDecay(paper.rate),
        steps=BUDGET.get(dataset.name, paper.steps),
        effective=IMAGES_EFFECTIVE.get(dataset.name, paper.effective),
        prior=FanIn(paper.variance),
        first_prior=None if divided else Isotropic(paper.variance),
        noise_floor=paper.floor,
        hidden_noise_floor=paper.floor,
        forward=WeightNoise(),
    )
    return method, likelihood


def _dropout_classifier(dataset: Dataset, paper: Paper, n: int, likelihood: Likelihood) -> Made:
    row = dropout_hyperparameters()[dataset.name]
    rate, decay = float(row["learning_rate"]), float(row["weight_decay"])
    steps = BUDGET.get(dataset.name, paper.steps)
    method = METHODS["mc_dropout"](
        rate=float(row["dropout"]), learning_rate=Constant(rate), precision=decay * n, steps=steps
    )
    return method, likelihood


def _map_classifier(dataset: Dataset, paper: Paper, n: int, likelihood: Likelihood) -> Made:
    row = dropout_hyperparameters()[dataset.name]
    rate, decay = float(row["learning_rate"]), float(row["weight_decay"])
    return MAP(Constant(rate), decay * n, BUDGET.get(dataset.name, paper.steps)), likelihood


def _dropout_regressor(dataset: Dataset, paper: Paper, n: int, likelihood: Likelihood) -> Made:
    """Gal's protocol: rate p and precision τ of the noise, chosen on validation rows of split 0."""
    own = _chosen()["mc_dropout"][dataset.name]
    method = METHODS["mc_dropout"](
        rate=own["rate"],
        learning_rate=Cosine(own["learning_rate"]),
        precision=own["precision"],
        steps=own["steps"],
    )
    return method, Gaussian(own["noise"])


def _bbb_regressor(dataset: Dataset, paper: Paper, n: int, likelihood: Likelihood) -> Made:
    own = _chosen()["bbb"][dataset.name]
    method = METHODS["bbb"](
        learning_rate=Cosine(own["learning_rate"]),
        kl_weight=own["kl_weight"],
        prior=Isotropic(own["variance"]),
        steps=own["steps"],
    )
    return method, likelihood


PUBLISHED: dict[tuple[str, str], Callable[[Dataset, Paper, int, Likelihood], Made]] = {
    ("bali", "regression"): _bali,
    ("bali", "classification"): _bali,
    ("map", "classification"): _map_classifier,
    ("mc_dropout", "classification"): _dropout_classifier,
    ("mc_dropout", "regression"): _dropout_regressor,
    ("bbb", "regression"): _bbb_regressor,
}


# ---------------------------------------------------------------------------------------------------- helpers


def _likelihood(dataset: Dataset) -> Likelihood:
    return Gaussian() if dataset.kind == "regression" else Categorical()


def _outputs(dataset: Dataset) -> int:
    return 1 if dataset.kind == "regression" else int(dataset.y.max()) + 1


def with_steps(method: Any, name: str, steps: int) -> Any:
    """The method with another number of steps; they may be those of the training before it."""
    if getattr(method, "first", None) is not None:
        return replace(method, first=with_steps(method.first, name, steps))
    if "steps" not in {f.name for f in dataclasses.fields(method)}:
        raise ValueError(f"{name} has no number of steps; leave --steps out")
    return replace(method, steps=steps)


@cache
def _paper() -> dict[str, Paper]:
    return {name: _line(row) for name, row in bali_hyperparameters().items()}


def _line(row: dict[str, str]) -> Paper:
    return Paper(
        step_size=float(row["step_size"]),
        rate=float(row["update_rate"]),
        variance=float(row["sigma_r2"]),
        floor=float(row["sigma_u2_over_neff_ours"]),
        floor_printed=float(row["sigma_u2_over_neff_printed"]),
        effective=float(row["neff_over_n_train"]),
        batch=None if row["batch"] == "full" else int(row["batch"]),
        steps=int(row["iterations"]),
        hidden=tuple(int(width) for width in row["hidden"].split("x")),
        activation=row["activation"],
        divided=row["first_layer"] == "divided",
    )


@cache
def _chosen() -> dict[str, Any]:
    """What was chosen on validation rows by `benchmarks/choose_baselines.py`."""
    return json.loads((resources.files("bayeswise.bench") / "chosen.json").read_text("utf-8"))
