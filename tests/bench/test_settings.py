"""Recipes: steps, priors, batches and the values of baselines, each from where it is written down."""

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

import bayeswise as bw
from bayeswise.bench import settings
from bayeswise.bench.datasets import Dataset
from bayeswise.bench.settings import recipe

ODD: dict[str, Any] = {
    "mc_dropout": dict(rate=0.37, learning_rate=0.011, precision=0.13, steps=123, noise=2.5),
    "bbb": dict(learning_rate=0.012, kl_weight=0.7, variance=3.0, steps=234),
}
COUNTING = ("bali", "map", "mc_dropout")  # what the paper trains on classes


def numbers(name: str, rows: int = 60) -> Dataset:
    x = np.zeros((rows, 8))
    return Dataset(name, "regression", x, x[:, 0], (np.arange(rows),), (np.arange(9),), "digest", "drawn")


def classes(name: str, rows: int = 60) -> Dataset:
    x, y = np.zeros((rows, 8)), np.arange(rows) % 2
    return Dataset(name, "classification", x, y, (np.arange(rows),), (np.arange(9),), "digest", "drawn")


def steps_of(name: str) -> list[int]:
    made: list[Any] = [recipe(classes(name), method, "paper").method for method in COUNTING]
    return [method.steps for method in made]


def bali(data: Dataset, name: str = "paper") -> bw.BALI:
    method = recipe(data, "bali", name).method
    assert isinstance(method, bw.BALI)
    return method


# --------------------------------------------------------------------------------------------------- how long


@pytest.mark.parametrize("name, steps", [("diabetes", 3000), ("mnist", 10_000), ("fashion_mnist", 10_000)])
def test_large_sets_of_classes_have_a_budget_of_steps(name: str, steps: int):
    assert steps_of(name) == [steps] * 3


@pytest.mark.parametrize("name", ["spambase", "magic"])
def test_small_tables_of_classes_train_as_long_as_the_papers(name: str):
    assert steps_of(name) == [20_000] * 3


def test_a_data_set_of_ones_own_takes_batches_of_1024_rows():
    assert recipe(numbers("mine", rows=5000), "map", "default").batch == 1024
    assert recipe(classes("mine", rows=5000), "bali", "default", steps=7).batch == 1024


# ----------------------------------------------------------------------------------------------------- BALI's


@pytest.mark.parametrize("name, variance", [("spambase", 10), ("magic", 8), ("diabetes", 10)])
def test_tables_of_classes_have_the_first_prior_as_printed(name: str, variance: int):
    method = bali(classes(name))
    assert method.first_prior == bw.Isotropic(variance) and method.prior == bw.FanIn(variance)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_images_divide_the_first_prior_by_their_inputs(name: str):
    method = bali(classes(name))
    assert method.first_prior is None and method.prior == bw.FanIn(10)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_images_reproduce_with_the_printed_rows_and_the_square_of_the_printed_variance(name: str):
    method = bali(classes(name), "reproduction")
    assert method.effective == 1 / 50 and method.prior == bw.FanIn(100) and method.first_prior is None
    assert bali(classes(name)).effective == 0.2 and bali(classes(name), "printed").effective == 1 / 50


def test_numbers_reproduce_with_a_longer_step_and_tables_of_classes_as_they_are():
    assert bali(numbers("concrete"), "reproduction").step_size == 0.5
    assert bali(classes("magic"), "reproduction") == bali(classes("magic"))


@pytest.mark.parametrize("name, floor", [("paper", 1e-4), ("printed", 0.01)])
def test_the_noise_floor_holds_for_hidden_layers_too(name: str, floor: float):
    method = bali(numbers("concrete"), name)
    assert method.noise_floor == floor and method.hidden_noise_floor == floor


def test_the_printed_floor_is_for_regression_only():
    method = bali(classes("magic"), "printed")
    assert method.noise_floor == 1e-4 and method.hidden_noise_floor == 1e-4


# ------------------------------------------------------------------------------------------------- baselines'


@pytest.fixture
def odd(monkeypatch) -> None:
    """Chosen values that are nobody's defaults."""
    monkeypatch.setattr(settings, "_chosen", lambda: {k: {"concrete": own} for k, own in ODD.items()})


@pytest.mark.usefixtures("odd")
def test_dropout_in_regression_has_the_chosen_values():
    found = recipe(numbers("concrete"), "mc_dropout", "paper")
    assert found.method == bw.MCDropout(0.37, bw.Cosine(0.011), precision=0.13, steps=123)


@pytest.mark.usefixtures("odd")
def test_dropout_in_regression_knows_the_chosen_noise():
    assert recipe(numbers("concrete"), "mc_dropout", "paper").likelihood == bw.Gaussian(2.5)


@pytest.mark.usefixtures("odd")
def test_bayes_by_backprop_in_regression_has_the_chosen_values():
    found = recipe(numbers("concrete"), "bbb", "paper")
    prior = bw.Isotropic(3.0)
    assert found.method == bw.BayesByBackprop(bw.Cosine(0.012), kl_weight=0.7, prior=prior, steps=234)
    assert found.likelihood == bw.Gaussian()


@pytest.mark.parametrize("method", ["mc_dropout", "bbb"])
def test_values_are_those_of_the_stored_file(method: str):
    stored = json.loads(files("bayeswise.bench").joinpath("chosen.json").read_text(encoding="utf-8"))
    own, found = stored[method]["concrete"], recipe(numbers("concrete"), method, "paper")
    trained: Any = found.method
    assert (trained.steps, trained.learning_rate) == (own["steps"], bw.Cosine(own["learning_rate"]))
    assert getattr(found.likelihood, "noise", None) == own.get("noise")
