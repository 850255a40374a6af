"""Settings are the paper's, scores are the metrics' definitions, and every task runs with every method."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayeswise as bw
from bayeswise.bench import results, runner, scores
from bayeswise.bench.datasets import Dataset
from bayeswise.bench.jobs import Request
from bayeswise.bench.npz import Kind
from bayeswise.bench.settings import recipe
from bayeswise.bench.tasks import TASKS, convergence, ood, synthetic
from bayeswise.bench.watch import Watch, spread
from bayeswise.methods import METHODS
from bayeswise.predictive import KeptDraws, Predictive
from bayeswise.saving import newest_checkpoint

S, K, B, C = 11, 3, 7, 4


def dataset(
    name: str, kind: Kind = "regression", rows: int = 60, columns: int = 5, classes: int = 2
) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    y = rng.normal(size=rows) if kind == "regression" else np.arange(rows) % classes
    order = rng.permutation(rows)
    return Dataset(name, kind, x, y, (order[:-9],), (order[-9:],), "digest", "drawn")


def test_the_papers_settings_are_the_tables():
    wine = recipe(dataset("wine_red", rows=1600, columns=11), "bali", "paper")
    assert wine.method == bw.BALI(
        step_size=0.3,
        update_rate=bw.StepDecay(0.2),
        steps=20_000,
        effective=1.0,
        prior=bw.FanIn(40),
        first_prior=bw.Isotropic(40),
        forward=bw.WeightNoise(),
    )
    assert (wine.sizes, wine.activation, wine.batch) == ((11, 50, 1), "relu", 1024)
    protein = recipe(dataset("protein", rows=3000, columns=9), "bali", "paper")
    assert protein.sizes == (9, 100, 1) and protein.method.steps == 30_000 and protein.batch == 2048  # pyright: ignore
    mnist = recipe(dataset("mnist", "classification", 100, 784, 10), "bali", "paper")
    assert isinstance(mnist.method, bw.BALI) and mnist.method.first_prior is None
    assert mnist.method.effective == 0.2 and mnist.sizes == (784, 256, 256, 10)
    spam = recipe(dataset("spambase", "classification", 100, 57), "bali", "paper").method
    assert isinstance(spam, bw.BALI) and spam.first_prior == bw.Isotropic(10)
    assert spam.first_initial_scale is None  # as in regression: the prior as printed, the start divided
    printed = recipe(dataset("mnist", "classification", 100, 784, 10), "bali", "printed").method
    assert isinstance(printed, bw.BALI) and printed.effective == 0.02 and printed.noise_floor == 1e-4
    bold = recipe(dataset("wine_red", rows=1600, columns=11), "bali", "reproduction").method
    assert bold == replace(wine.method, step_size=0.5)  # pyright: ignore
    digits = recipe(dataset("mnist", "classification", 100, 784, 10), "bali", "reproduction").method
    assert digits == replace(mnist.method, effective=0.02, prior=bw.FanIn(100))
    assert recipe(dataset("spambase", "classification", 100, 57), "bali", "reproduction").method == spam
    floor = recipe(dataset("yacht"), "bali", "printed").method
    assert isinstance(floor, bw.BALI) and floor.noise_floor == 0.01


def test_dropout_and_map_have_the_papers_rate_and_decay():
    data = dataset("mnist", "classification", 109, 784, 10)  # 100 training rows
    dropout, plain = (recipe(data, name, "paper").method for name in ("mc_dropout", "map"))
    assert isinstance(dropout, bw.MCDropout) and isinstance(plain, bw.MAP)
    assert dropout.rate == 0.1 and dropout.learning_rate == bw.Constant(0.002)
    assert dropout.precision == plain.precision == pytest.approx(1e-4 * 100)  # λ / (2N) |w|² = decay / 2 |w|²
    assert dropout.steps == plain.steps


def test_a_new_table_gets_the_usual_network():
    plain = recipe(dataset("mine", columns=3), "bali", "default", steps=12)
    assert plain.method == bw.BALI(steps=12) and plain.sizes == (3, 50, 1) and plain.batch == 51
    assert recipe(dataset("mine", columns=3), "bali", "single").method == bw.BALI(members=1)
    with pytest.raises(ValueError, match="settings single are BALI's"):
        recipe(dataset("mine", columns=3), "map", "single")
    classes = recipe(dataset("mine", "classification", classes=3), "map", "default")
    assert classes.sizes == (5, 256, 256, 3) and classes.activation == "leaky_tanh"


def predictive(f: torch.Tensor, likelihood) -> Predictive:
    return Predictive(likelihood, KeptDraws(f))


def test_regression_scores_are_their_definitions():
    rng = torch.Generator().manual_seed(0)
    f = torch.randn(S, K, B, 1, generator=rng, dtype=torch.float64)
    y = torch.randn(K, B, 1, generator=rng, dtype=torch.float64)
    variance = torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64)
    found = scores.regression(predictive(f, bw.Gaussian(variance[:, None, None])), y)
    for k in range(K):
        mean, v = f[:, k].mean(0), variance[k]
        log_p = -0.5 * (y[k] - f[:, k]).square() / v - 0.5 * torch.log(2 * math.pi * v)
        assert found[k]["rmse"] == pytest.approx(float((mean - y[k]).square().mean().sqrt()), rel=1e-12)
        assert found[k]["ll"] == pytest.approx(float((log_p.logsumexp(0) - math.log(S)).mean()), rel=1e-10)
        total = v + f[:, k].var(0, correction=0)
        normal = torch.distributions.Normal(mean, total.sqrt())
        assert found[k]["ll_gaussian"] == pytest.approx(float(normal.log_prob(y[k]).mean()), rel=1e-10)
        crps = bw.metrics.crps_mixture(f[:, k], v.sqrt().expand_as(f[:, k]), y[k]).mean()
        assert found[k]["crps"] == pytest.approx(float(crps), rel=1e-12)
        low, high = predictive(f[:, k], bw.Gaussian(float(v))).interval(0.9)
        inside = ((low <= y[k]) & (y[k] <= high)).double().mean()
        assert found[k]["coverage_90"] == float(inside)


@pytest.mark.parametrize("noise", [0.25, torch.tensor([[0.25]], dtype=torch.float64)])
def test_known_noise_is_the_same_for_all(noise):
    rng = torch.Generator().manual_seed(1)
    f = torch.randn(S, K, B, 1, generator=rng, dtype=torch.float64)
    y = f.mean(0)
    each = bw.Gaussian(torch.full((K, 1, 1), 0.25, dtype=torch.float64))
    for a, b in zip(
        scores.regression(predictive(f, bw.Gaussian(noise)), y),
        scores.regression(predictive(f, each), y),
        strict=True,
    ):
        assert a == pytest.approx(b, rel=1e-10)


def test_one_split_alone_has_the_same_scores():
    rng = torch.Generator().manual_seed(1)
    f = torch.randn(S, 1, B, 1, generator=rng, dtype=torch.float64)
    y = torch.randn(1, B, 1, generator=rng, dtype=torch.float64)
    (batched,) = scores.regression(predictive(f, bw.Gaussian(0.3)), y)
    (alone,) = scores.regression(predictive(f[:, 0], bw.Gaussian(0.3)), y[0])
    assert alone == pytest.approx(batched, rel=1e-12)


def test_classification_scores():
    probs = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.2, 0.8], [0.9, 0.1]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    log_prob = probs[torch.arange(4), labels].log()
    found = scores.classification(probs, log_prob, labels)
    assert found["acc"] == 0.5 and found["nll"] == pytest.approx(-float(log_prob.mean()))
    assert found["auc"] == pytest.approx(1 / 4)  # P(1): positives 0.6 and 0.1, negatives 0.3 and 0.8
    assert found["brier"] == pytest.approx(2 * (0.09 + 0.16 + 0.64 + 0.81) / 4)
    three = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]] * 0.7 + 0.1
    assert scores.classification(three, three.amax(1).log(), torch.tensor([0, 1, 2, 0]))["auc"] == 1.0


def test_calibration_has_fifteen_bins_of_the_top_probability():
    top = torch.tensor([0.96, 0.94, 0.92, 0.70, 0.69, 0.55], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0, 1, 1])
    found = scores.classification(torch.stack([top, 1 - top], 1), top.log(), labels)
    bins = [
        (0.96 + 0.94 - 2),
        (0.92 - 0),
        (0.70 + 0.69 - 1),
        (0.55 - 0),
    ]  # from 14/15, 13/15, 10/15 and 8/15 on
    assert found["ece"] == pytest.approx(sum(map(abs, bins)) / 6, rel=1e-12)


def test_rows_whose_probability_rounds_to_one_are_still_ranked():
    logits = torch.tensor([[0.0, 30.0], [0.0, 40.0], [0.0, 50.0], [0.0, 20.0]])
    p, labels = logits.softmax(1), torch.tensor([0, 1, 1, 0])
    assert (p[:3, 1] == 1).all()
    assert scores.classification(p, p[:, 0].log(), labels)["auc"] == 1.0
    three = torch.cat([p, torch.zeros(4, 1)], 1)
    assert scores.classification(three, p[:, 0].log(), labels)["auc"] == 1.0


def test_foreign_rows_are_told_apart_by_doubt():
    sure = torch.zeros(S, B, C)
    sure[..., 0] = 9.0
    unsure = torch.randn(S, B, C, generator=torch.Generator().manual_seed(0))
    found = scores.separation(predictive(sure, bw.Categorical()), predictive(unsure, bw.Categorical()))
    assert found == {
        "auroc_entropy": 1.0,
        "fpr95_entropy": 0.0,
        "auroc_mutual_information": 1.0,
        "fpr95_mutual_information": 0.0,
    }


def test_the_area_under_the_operating_curve_is_the_auroc(rng):
    """Known and foreign rows overlap: the latter have smaller logits, which differ more between draws."""

    def logits(rows: int, size: float, spread: float) -> torch.Tensor:
        base = size * torch.randn(rows, C, generator=rng)
        return base + spread * torch.randn(S, rows, C, generator=rng)

    pair = [predictive(f, bw.Categorical()) for f in (logits(401, 4.0, 0.3), logits(57, 1.5, 0.5))]
    found, curve = scores.separation(*pair), scores.operating(*pair)
    known = torch.tensor(curve["known"], dtype=torch.float64)
    assert known[0] == 0 and known[-1] == 1 and len(known) == scores.SHARES
    for name in ("entropy", "mutual_information"):
        foreign = torch.tensor(curve[name], dtype=torch.float64)
        area = float(torch.trapezoid(1 - foreign, known))  # P(a foreign row has more doubt than a known one)
        assert 0.6 < found[f"auroc_{name}"] < 0.99 and area == pytest.approx(
            found[f"auroc_{name}"], abs=0.005
        )
        at95 = float(foreign[round(0.95 * (scores.SHARES - 1))])
        assert at95 == pytest.approx(found[f"fpr95_{name}"], abs=1e-12)


def test_rows_of_the_same_doubt_are_taken_together():
    """One network, which has no mutual information, and no doubt at all about some rows."""
    known = torch.tensor([0.0, 0.0, 0.0, 1.0, 3.0, 8.0, 8.0])
    pair = [
        predictive(torch.stack([200 - 199.9 * h / 9, 0 * h], -1)[None], bw.Categorical())
        for h in (known, torch.tensor([0.0, 0.0, 2.0, 8.5, 8.9]))
    ]
    found, curve = scores.separation(*pair), scores.operating(*pair)
    shares = np.asarray(curve["known"])
    assert found["auroc_mutual_information"] == 0.5
    np.testing.assert_allclose(curve["mutual_information"], shares, atol=1e-12)  # the diagonal
    area = float(np.trapezoid(1 - np.asarray(curve["entropy"]), shares))
    assert area == pytest.approx(found["auroc_entropy"], abs=0.01) and 0.6 < area < 0.8


def test_foreign_images_are_scaled_by_the_known_ones():
    rng = np.random.default_rng(0)

    def images(high: int) -> Dataset:
        x = rng.integers(0, high, (12, 6)).astype(np.uint8)
        split = ((np.arange(8),), (np.arange(8, 12),))
        return Dataset("a", "classification", x, np.arange(12) % 3, *split, "digest", "published")

    known, foreign = images(50), images(250)
    mean, std = known.x[:8].mean(), known.x[:8].std()
    assert np.allclose(ood.seen_by(known, foreign).numpy(), (foreign.x[8:] - mean) / std, atol=1e-5)


def test_the_steps_of_a_curve():
    steps = spread(3000, 10, 16)
    assert steps[0] == 10 and steps[-1] == 3000 and len(steps) == 16
    ratios = np.diff(np.log(steps))
    assert ratios.max() < 1.4 * ratios.min()
    assert spread(5, 10, 16) == [5]


def test_a_watch_goes_on_after_an_interruption():
    watch = Watch()
    watch.history[:] = [(100.0, 5), (3, 7.5, {"nll": 0.5})]
    assert watch.seconds == 100.0
    assert watch.curve() == {"step": [3], "seconds": [7.5], "nll": [0.5]}


@pytest.fixture
def small(monkeypatch, tmp_path) -> Path:
    """Every task at the size of a test: small networks, few points, two small image sets."""
    rng = np.random.default_rng(0)
    for name in ("mnist", "fashion_mnist"):
        x = rng.integers(0, 256, (70, 4, 4)).astype(np.uint8)
        y = (np.arange(70) % 3).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", x_train=x[:50], y_train=y[:50], x_test=x[50:], y_test=y[50:])
    x = rng.normal(size=(60, 3))
    np.savez(tmp_path / "uci_yacht.npz", X=x, y=x.sum(1))
    np.savez(tmp_path / "cls_spambase.npz", X=x, y=(x.sum(1) > 0).astype(np.uint8))
    monkeypatch.setattr(synthetic, "HIDDEN", (6, 6))
    monkeypatch.setattr(convergence, "LOOKS", 3)
    for task in ("synthetic", "classification", "convergence", "ood", "reparametrisation"):
        monkeypatch.setattr(f"bayeswise.bench.tasks.{task}.DRAWS", 5)
    return tmp_path


CASES = {
    "synthetic": "sines_trend",
    "uci": "yacht",
    "classification": "spambase",
    "convergence": "spambase",
    "ood": "mnist",
    "reparametrisation": "spambase",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_takes_every_method(task: str, method: str, small: Path):
    request = Request(
        task, method, small / "out", small, (CASES[task],), "default", splits=2, steps=6, progress=False
    )
    found = runner.run(request, lambda _: None)
    assert all(one["method"] == method and one["n_splits"] == 2 for one in found)
    expected = {"reparametrisation": 3 if method == "bali" else 2 if method == "bbb" else 1}
    assert len(found) == expected.get(task, 1)
    for line in results.read(small / "out" / f"{task}.jsonl"):
        assert all(math.isfinite(value) for value in line["metrics"].values()), line["metrics"]
        if task in ("convergence", "reparametrisation"):
            assert line["curve"]["step"][-1] == 6 and line["curve"]["test_nll"][-1] == pytest.approx(
                line["metrics"]["nll"], abs=1e-4
            )


def test_bayes_by_backprop_has_three_weights_of_the_divergence(small: Path):
    made = Request("synthetic", "bbb", small / "out", small, ("two_moons",), steps=6, progress=False)
    assert [one["settings"] for one in runner.run(made, lambda _: None)] == ["kl=1", "kl=0.1", "kl=0.001"]
    with pytest.raises(ValueError, match="no paper settings for map; use --settings default"):
        runner.run(replace(made, method="map"), lambda _: None)


def test_forms_with_other_settings_than_the_papers_have_names_of_their_own(small: Path):
    made = Request("reparametrisation", "bali", small / "out", small, ("spambase",), steps=6)
    names = [
        [job.settings for job in TASKS[made.task].jobs(replace(made, settings=s))]
        for s in ("paper", "default")
    ]
    assert names[0] == ["weight", "local", "deterministic"]
    assert names[1] == ["weight, default", "local, default", "deterministic, default"]


def test_tasks_share_a_trained_network(small: Path, monkeypatch):
    made = Request(
        "classification", "bali", small / "out", small, ("mnist",), "default", 1, 6, progress=False
    )
    runner.run(made, lambda _: None)
    monkeypatch.setattr(bw.BALI, "step", lambda *_: pytest.fail("trained again"))
    other = Request("ood", "bali", small / "out", small, ("mnist",), "default", 1, 6, progress=False)
    assert len(runner.run(other, lambda _: None)) == 1


@pytest.mark.parametrize("method", ["map", "mc_dropout", "bali", "bbb"])
def test_a_network_that_was_looked_at_serves_a_task_that_does_not_look(method, small: Path, monkeypatch):
    made = Request("convergence", method, small / "out", small, ("mnist",), "default", 1, 6, progress=False)
    runner.run(replace(made, out=small / "alone", task="classification"), lambda _: None)
    runner.run(made, lambda _: None)
    looked = next((small / "out" / runner.TRAINED).iterdir())
    own = looked.with_name(looked.name[:16])
    own.mkdir()  # of a run that was killed before its first checkpoint
    (small / "out" / "convergence.jsonl").unlink()
    monkeypatch.setattr(METHODS[method], "step", lambda *_: pytest.fail("trained again"))
    runner.run(replace(made, task="classification"), lambda _: None)
    (line,), (alone,) = (results.read(small / o / "classification.jsonl") for o in ("out", "alone"))
    assert line["metrics"] == alone["metrics"] and line["run"] == alone["run"]
    assert not list(own.iterdir())


def test_a_run_that_is_not_finished_serves_no_other_task(small: Path, monkeypatch):
    made = Request("convergence", "map", small / "out", small, ("mnist",), "default", 1, 6, progress=False)
    step, left = METHODS["map"].step, iter(range(4))

    def killed(*given):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return step(*given)

    with monkeypatch.context() as patched:
        patched.setattr("bayeswise.bench.jobs.CHECKPOINT_SECONDS", 0.0)
        patched.setattr(METHODS["map"], "step", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run(made, lambda _: None)
    (looked,) = (small / "out" / runner.TRAINED).iterdir()
    saved = newest_checkpoint(looked)
    assert saved is not None and 0 < saved[0]["step"] < 6
    runner.run(replace(made, task="classification"), lambda _: None)
    assert len(list((small / "out" / runner.TRAINED).iterdir())) == 2


@pytest.mark.parametrize("method", ["map", "bali"])
def test_lines_of_a_curve_serve_the_tasks_that_ask_the_same(method, small: Path, monkeypatch):
    out, words = small / "out", []
    made = Request("convergence", method, out, small, ("spambase",), "default", 2, 6, progress=False)
    runner.run(replace(made, out=small / "alone", task="classification"), lambda _: None)
    runner.run(made, lambda _: None)
    shutil.rmtree(out / runner.TRAINED)
    forward = METHODS[method].step
    monkeypatch.setattr(METHODS[method], "step", lambda *_: pytest.fail("trained again"))
    runner.run(replace(made, task="classification"), words.append)
    assert len(words) == 2 and all(word.endswith("convergence.jsonl") for word in words)
    lines, alone = (results.read(o / "classification.jsonl") for o in (out, small / "alone"))
    for line, own in zip(lines, alone, strict=True):
        assert line | {"seconds": 0} == own | {"seconds": 0, "date": line["date"]}
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        runner.run(replace(made, task="classification", steps=7), lambda _: None)
    monkeypatch.setattr(METHODS[method], "step", forward)
    runner.run(replace(made, task="reparametrisation"), words.append)
    curves = results.read(out / "convergence.jsonl")
    forms = results.read(out / "reparametrisation.jsonl")
    same = [f for f in forms if f["configuration"] == curves[0]["configuration"]]
    assert [f["curve"] for f in same] == [c["curve"] for c in curves]
    assert sum(word.endswith("convergence.jsonl") for word in words) == 4


def test_a_curve_of_one_seed_serves_no_other(small: Path, monkeypatch):
    out, words = small / "out", []
    made = Request("convergence", "map", out, small, ("mnist",), "default", 1, 6, progress=False)
    runner.run(made, lambda _: None)
    shutil.rmtree(out / runner.TRAINED)
    runner.run(replace(made, task="classification", splits=2), words.append)
    assert [word.endswith("convergence.jsonl") for word in words] == [True, False]
    first, second = results.read(out / "classification.jsonl")
    assert (first["seed"], second["seed"]) == (0, 1) and first["metrics"] != second["metrics"]


def test_other_foreign_images_are_another_run_of_the_same_networks(small: Path):
    made = Request("ood", "map", small / "out", small, ("mnist",), "default", 1, 6, progress=False)
    (job,) = TASKS["ood"].jobs(made)
    with np.load(small / "fashion_mnist.npz") as found:
        np.savez(small / "fashion_mnist.npz", **{**found, "x_test": 255 - found["x_test"]})
    (other,) = TASKS["ood"].jobs(made)
    assert job.run != other.run and job.training(Watch()) == other.training(Watch())


def test_foreign_rows_of_another_kind_are_refused(small: Path):
    made = Request("ood", "map", small / "out", small, ("mnist",), "default", 1, 6, progress=False)
    with np.load(small / "fashion_mnist.npz") as found:
        np.savez(
            small / "fashion_mnist.npz", **{**found, **{k: found[k] / 255 for k in ("x_train", "x_test")}}
        )
    with pytest.raises(ValueError, match="but they have 16 columns of uint8 and 16 columns of float64"):
        list(TASKS["ood"].jobs(made))
