"""What every task writes down of a posterior whose answers are known."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bayeswise as bw
from bayeswise.bench import scores
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks import TASKS, classification, convergence, ood, synthetic
from bayeswise.bench.watch import Watch
from bayeswise.predictive import KeptDraws, Predictive
from bayeswise.report.problems import Curve, Plane

S, C = 11, 3


@dataclass
class Known:
    """A posterior that answers by a function of the rows, and remembers what it was asked."""

    answer: Callable[[Tensor], Any]

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def predict(self, x: Tensor, n: int) -> Any:
        self.asked.append((len(x), n))
        return self.answer(x)


def known(answer: Callable[[Tensor], Any]) -> Any:
    return Known(answer)


# ----------------------------------------------------------------------------------------------------- curves

EDGES = torch.tensor([-1.01, -0.51, 0.49, 0.99])  # data, gap, data: none of them on the grid
GRID = np.linspace(-2, 2, 301)
COUNTS = (75, 37, 75, 38, 76)  # points of the grid before, between and behind the edges
ERROR, EPISTEMIC, STD = (5.0, 0.25, 5.0, 0.25, 5.0), (0.7, 0.1, 0.5, 0.2, 0.6), (3.0, 1.0, 2.0, 1.5, 4.0)


def by_region(values: tuple[float, ...], x: Tensor) -> Tensor:
    return torch.tensor(values)[torch.bucketize(x, EDGES)]


def on_grid(values: tuple[float, ...]) -> np.ndarray:
    return np.repeat(values, COUNTS)


def regions(x: Tensor) -> SimpleNamespace:
    mean = x.square() + by_region(ERROR, x)
    return SimpleNamespace(mean=mean, std=by_region(STD, x), epistemic=by_region(EPISTEMIC, x))


def curve(*seen: tuple[float, float]) -> Curve:
    x = torch.tensor([[-0.75], [0.5]])
    y = x.square() + 0.25 + torch.tensor([[0.3], [-0.4]])
    given: dict[str, Any] = {"held_x": x, "held_y": y, "likelihood": bw.Gaussian(), "noise": 0.1}
    return Curve("Square", x, y, truth=torch.square, seen=seen, shown=(-2.0, 2.0), **given)


def scored_curve() -> dict[str, Any]:
    return synthetic._curve(curve((-1.01, -0.51), (0.49, 0.99)), known(regions), 5)


def test_a_curve_is_scored_at_the_data_in_the_gap_and_outside():
    assert scored_curve()["metrics"] == pytest.approx(
        {
            "rmse_train": 0.125**0.5,  # of targets, which are off by 0.3 and -0.4
            "rmse_function": 0.25,  # of the truth, where there are data
            "noise": 0.1,
            "std_data": 1.25,
            "epistemic_data": 0.15,
            "std_outside": (75 * 3 + 76 * 4) / 151,
            "std_gap": 2.0,
            "epistemic_gap": 0.5,
        },
        rel=1e-6,
    )


def test_a_curve_is_drawn_with_what_was_predicted():
    expected = {
        "x": GRID,
        "mean": GRID**2 + on_grid(ERROR),
        "epistemic": on_grid(EPISTEMIC),
        "std": on_grid(STD),
        "truth": GRID**2,
        "x_train": [-0.75, 0.5],
        "y_train": [1.1125, 0.1],
    }
    picture = scored_curve()["picture"]
    assert list(picture) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(picture[name], values, rtol=0, atol=1e-4, err_msg=name)


def test_a_curve_without_a_gap_has_no_score_of_one():
    found = synthetic._curve(curve((-1.01, 0.99)), known(regions), 5)["metrics"]
    assert "std_gap" not in found and "epistemic_gap" not in found
    assert found["std_outside"] == pytest.approx((75 * 3 + 76 * 4) / 151, rel=1e-6)


def test_a_curve_asks_for_the_training_rows_and_the_grid():
    posterior = known(regions)
    synthetic._curve(curve((-1.01, 0.99)), posterior, 5)
    assert posterior.asked == [(2, 5), (301, 5)]


# ----------------------------------------------------------------------------------------------------- planes

POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.5, 1.0]])
HELD = torch.tensor([[-3.0, 0.0], [-1.0, 1.0], [2.0, 0.0], [4.0, 1.0]])


def by_distance(x: Tensor) -> SimpleNamespace:
    """The right half is class 1; entropy is the distance to the nearest point."""
    entropy = torch.cdist(x, POINTS).amin(1)
    mean = torch.where(x[:, :1] > 0, 0.875, 0.25)
    return SimpleNamespace(mean=mean, entropy=lambda: entropy, log_prob=lambda y: -torch.arange(4.0))


def scored_plane() -> dict[str, Any]:
    labels = torch.tensor([0, 1, 1, 1])  # the second is on the wrong side
    given: Any = ("Points", POINTS, torch.tensor([0, 1, 0]), HELD, labels, bw.Bernoulli())
    return synthetic._plane(Plane(*given, shown=((-2.0, 3.0), (-4.0, 5.0))), known(by_distance), 5)


def test_a_plane_is_scored_on_held_out_points():
    found = scored_plane()["metrics"]
    assert found["acc"] == 0.75 and found["nll"] == 1.5


def test_the_entropy_of_a_plane_is_taken_at_the_data_and_at_distance_two():
    found = scored_plane()["metrics"]
    assert found["entropy_data"] == pytest.approx(0, abs=1e-3)
    assert found["entropy_far"] == pytest.approx(2, abs=0.01)


def test_a_ring_is_as_far_from_the_nearest_point_as_asked():
    nearest = torch.cdist(synthetic._ring(POINTS, 1.5), POINTS).amin(1)
    assert len(nearest) > 100 and float((nearest - 1.5).abs().max()) < 0.05


def test_a_plane_is_drawn_row_by_row():
    picture, side = scored_plane()["picture"], synthetic.SIDE
    x1, x2 = np.linspace(-2, 3, side), np.linspace(-4, 5, side)
    np.testing.assert_allclose(picture["x1"], x1, atol=1e-4)
    np.testing.assert_allclose(picture["x2"], x2, atol=1e-4)
    probability = np.tile(np.where(x1 > 0, 0.875, 0.25), (side, 1))
    np.testing.assert_allclose(picture["probability"], probability, atol=1e-4)
    corners = [picture["entropy"][row][column] for row in (0, -1) for column in (0, -1)]
    distances = [np.hypot(2, 4), np.hypot(2, 4.5), np.hypot(1.5, 4), np.hypot(2, 4.5)]
    assert corners == pytest.approx(distances, abs=1e-4)
    assert picture["x_train"] == POINTS.tolist() and picture["y_train"] == [0, 1, 0]


# ------------------------------------------------------------------------------------------------- real tasks


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Dark digits, bright clothes, and a table of classes."""
    rng = np.random.default_rng(0)
    y = np.arange(61) % C
    for name, low, test in (("mnist", 0, 20), ("fashion_mnist", 200, 11)):
        x = rng.integers(low, low + 50, (61, 2, 2)).astype(np.uint8)
        parts = {"x_train": x[:-test], "x_test": x[-test:], "y_train": y[:-test], "y_test": y[-test:]}
        np.savez(tmp_path / f"{name}.npz", **parts)
    x = rng.normal(size=(60, 3))
    np.savez(tmp_path / "cls_spambase.npz", X=x, y=(x.sum(1) > 0).astype(np.uint8))
    return tmp_path


FORMS = ("reparametrisation", "spambase")


def jobs(data_dir: Path, task: str, dataset: str, method: str = "bali", **changes) -> list[Job]:
    asked = Request(task, method, data_dir / "out", data_dir, (dataset,), **changes)
    return list(TASKS[task].jobs(asked))


def test_bayes_by_backprop_has_three_weights_of_the_divergence_and_5000_steps(data_dir):
    found = jobs(data_dir, "synthetic", "sinc", "bbb")
    expected = [bw.BayesByBackprop(kl_weight=k, initial_std=0.002, steps=5000) for k in (1.0, 0.1, 0.001)]
    assert [job.recipe.method for job in found] == expected
    assert [job.settings for job in found] == ["kl=1", "kl=0.1", "kl=0.001"]


def test_each_form_has_its_name(data_dir):
    forms: dict[str, Any] = {job.settings: job.recipe.method for job in jobs(data_dir, *FORMS)}
    assert {name: method.forward for name, method in forms.items()} == {
        "weight": bw.WeightNoise(),
        "local": bw.LocalReparametrisation(),
        "deterministic": bw.Deterministic(),
    }


def test_forms_differ_in_nothing_else(data_dir):
    methods: list[Any] = [job.recipe.method for job in jobs(data_dir, *FORMS)]
    assert {replace(method, forward=bw.WeightNoise()) for method in methods} == {methods[0]}


def test_classes_are_asked_by_128_draws():
    assert (classification.DRAWS, convergence.DRAWS, ood.DRAWS) == (128, 128, 128)


def test_images_train_from_three_seeds_and_tables_on_five_splits(data_dir):
    images, table = (jobs(data_dir, "classification", name) for name in ("mnist", "spambase"))
    assert (classification.SPLITS, classification.SEEDS) == (5, 3)
    assert [(job.seed, job.splits) for job in images] == [(0, (0,)), (1, (0,)), (2, (0,))]
    assert [split for job in table for split in job.splits] == [0, 1, 2, 3, 4]
    assert [job.seed for job in jobs(data_dir, "ood", "mnist")] == [0, 1, 2]


# --------------------------------------------------------------------------------------------- known, foreign


def sure_of_dark(x: Tensor) -> Predictive:
    """Every draw is sure of a class where the row is dark, and of none where it is bright."""
    logits = torch.where(x.mean(1, keepdim=True) < 5, torch.tensor([90.0, 0.0, 0.0]), torch.zeros(C))
    return Predictive(bw.Categorical(), KeptDraws(logits.double().expand(S, -1, -1)))


def scored_images(data_dir: Path) -> dict[str, Any]:
    job = jobs(data_dir, "ood", "mnist")[0]
    (line,) = TASKS["ood"].score(job, known(sure_of_dark), Watch())
    return line


def test_the_histogram_counts_entropies_of_known_and_of_foreign_rows(data_dir):
    shown = scored_images(data_dir)["histogram"]
    assert shown["inside"] == [20] + [0] * 39 and shown["outside"] == [0] * 39 + [11]
    assert shown["edges"] == pytest.approx([k * np.log(C) / 40 for k in range(41)], abs=1e-4)


def test_foreign_rows_are_told_by_entropy_and_not_by_what_draws_agree_on(data_dir):
    assert scored_images(data_dir)["metrics"] == {
        "auroc_entropy": 1.0,
        "fpr95_entropy": 0.0,
        "auroc_mutual_information": 0.5,
        "fpr95_mutual_information": 1.0,
    }


def test_the_operating_curve_is_stored_by_both_scores(data_dir):
    roc = scored_images(data_dir)["roc"]
    shares = [round(k / 100, 4) for k in range(101)]
    assert roc["known"] == shares and roc["mutual_information"] == shares
    assert roc["entropy"] == [0.0] * 100 + [1.0]


def test_foreign_rows_and_known_ones_are_asked_once(data_dir):
    job, posterior = jobs(data_dir, "ood", "mnist")[0], known(sure_of_dark)
    TASKS["ood"].score(job, posterior, Watch())
    assert posterior.asked == [(20, 128), (11, 128)]


def drawn(logits: Tensor) -> Predictive:
    return Predictive(bw.Categorical(), KeptDraws(logits))


def test_draws_that_differ_by_rounding_have_nothing_in_mutual_information(rng):
    def rows(count: int) -> Predictive:
        base = torch.randn(count, C, generator=rng, dtype=torch.float64)
        return drawn(base + 1e-8 * torch.randn(S, count, C, generator=rng, dtype=torch.float64))

    found = scores.separation(rows(23), rows(17))
    assert found["auroc_mutual_information"] == 0.5 and found["fpr95_mutual_information"] == 1.0
    assert found["auroc_entropy"] != 0.5


def test_a_small_mutual_information_counts():
    apart = torch.tensor([[0.0, 0.09], [0.0, -0.09]], dtype=torch.float64)[:, None]  # (2, 1, 2)
    foreign, same = drawn(apart.expand(-1, 5, -1)), drawn(torch.zeros(2, 7, 2, dtype=torch.float64))
    assert float(foreign.mutual_information().max()) == pytest.approx(1e-3, rel=0.02)
    assert scores.separation(same, foreign)["auroc_mutual_information"] == 1.0


# ------------------------------------------------------------------------------------------------ along a run


def first_column(x: Tensor) -> SimpleNamespace:
    """The log-likelihood of a row is its first number."""
    return SimpleNamespace(log_prob=lambda y: x[:, 0] - 3)


@pytest.mark.parametrize("task", ["convergence", "reparametrisation"])
def test_a_look_tells_training_rows_from_test_rows(data_dir, task):
    job = jobs(data_dir, task, "spambase")[0]
    watch = TASKS[task].watch(job)
    assert watch.look is not None
    expected = {"train_nll": 3 - float(job.x[:, 0].mean()), "test_nll": 3 - float(job.x_test[:, 0].mean())}
    assert watch.look(known(first_column)) == pytest.approx(expected, abs=1e-5)
    assert abs(expected["train_nll"] - expected["test_nll"]) > 0.01


def test_a_look_takes_10000_training_rows_and_128_draws(data_dir):
    job = jobs(data_dir, "convergence", "spambase")[0]
    large = replace(job, x=torch.zeros(12_000, 3), y=torch.zeros(12_000))
    posterior, watch = known(first_column), TASKS["convergence"].watch(large)
    assert watch.look is not None
    watch.look(posterior)
    assert posterior.asked == [(10_000, 128), (len(job.x_test), 128)]


def test_a_look_takes_rows_at_random_by_the_seed(data_dir):
    rows = torch.arange(36_000.0).reshape(12_000, 3)
    job = replace(jobs(data_dir, "convergence", "spambase")[0], x=rows, y=torch.zeros(12_000))
    looks = [TASKS["convergence"].watch(replace(job, seed=seed)).look for seed in (0, 0, 1)]
    found = [look(known(first_column))["train_nll"] for look in looks if look is not None]
    assert found[0] == found[1] != found[2] and found[0] == pytest.approx(3 - 18_000, abs=300)


def test_there_are_sixteen_looks_at_a_run(data_dir):
    at = sorted(TASKS["convergence"].watch(jobs(data_dir, "convergence", "spambase")[0]).at)
    assert len(at) == 16 and at[0] == 10 and at[-1] == 20_000
