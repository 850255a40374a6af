"""The estimators are scikit-learn's kind, and their numbers are those of the posterior."""

import copy
import io
import pickle
from dataclasses import dataclass, is_dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import bayeswise as bw
from bayeswise.estimators import BayesianClassifier, BayesianRegressor, load_estimator
from bayeswise.estimators.network import SETTINGS
from bayeswise.estimators.scaling import Scaling
from bayeswise.methods import METHODS
from bayeswise.saving import SavedModelError
from bayeswise.storage import read_extra

FEW = bw.BALI(steps=100)
SHORT = bw.BALI(tuning=bw.Tuning(lengths=(20,)))
SKIPPED = "check_array_api_input"  # runs only where SCIPY_ARRAY_API is set


def table(n=40, inputs=5, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, inputs))
    return x.astype(dtype), (np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=n)).astype(dtype)


def regressor(**settings):
    x, y = table()
    return BayesianRegressor(**{"method": bw.BALI(steps=40), **settings}).fit(x, 10 * y + 3)


def classifier(**settings):
    x, y = table()
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [-0.7, 0.7])]
    return BayesianClassifier(**{"method": bw.BALI(steps=40), **settings}).fit(x, labels)


def test_laplace_trains_the_new_network_first():
    """Held-out rows: the estimator's network starts at random, and a `first` that is given is kept."""
    x, y = table(150)
    named = bw.Laplace(first=bw.MAP())
    found = [
        BayesianRegressor((10,), method=method).fit(x[:100], y[:100]) for method in (bw.Laplace(), named)
    ]
    assert found[0].score(x[100:], y[100:]) > 0.8
    assert found[0].n_iter_ == 2000 and found[0].method == bw.Laplace()
    np.testing.assert_array_equal(found[0].predict(x), found[1].predict(x))
    short = BayesianRegressor((10,), method=bw.Laplace(first=bw.MAP(steps=7))).fit(x, y)
    assert short.n_iter_ == 7
    labels = BayesianClassifier((10,), method=bw.Laplace(subset="last")).fit(x[:100], y[:100] > 0)
    assert labels.score(x[100:], y[100:] > 0) > 0.8


# ---------------------------------------------------------------------------------- scikit-learn's own suite


@parametrize_with_checks([BayesianRegressor(method=FEW), BayesianClassifier(method=FEW)])
@pytest.mark.filterwarnings("ignore")  # the suite passes badly shaped data on purpose
def test_scikit_learn_checks(estimator, check):
    if getattr(check, "func", check).__name__ == SKIPPED:
        pytest.skip("needs SCIPY_ARRAY_API=1 before SciPy is imported")
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [BayesianRegressor(method=SHORT), BayesianClassifier(method=SHORT)])
def test_scikit_learn_checks_with_choices_made(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {SKIPPED}


# ----------------------------------------------------------------------------------------------- the numbers


def test_a_linear_network_with_known_answer():
    """Without hidden layers the posterior mean is ridge regression on scaled data."""
    x, noise = table()
    y = 3 * x[:, 0] - x[:, 1] + 7 + 0.01 * noise
    model = BayesianRegressor(hidden=(), draws=4000, method=bw.BALI(steps=5, prior=bw.FanIn(6.0))).fit(x, y)
    z, t = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    features = np.column_stack([z, np.ones(len(z))])  # (N, I + 1)
    ridge = np.linalg.solve(features.T @ features + np.eye(6), features.T @ t)  # R0 = 6 / (I + 1) · I
    error = model.predict(x) - (features @ ridge * y.std() + y.mean())
    epistemic = model.predict_dist(x).epistemic[:, 0].numpy()
    assert np.all(np.abs(error) < 5 * epistemic / np.sqrt(4000))


def test_learns_and_knows_how_sure_it_is():
    x, y = table(200)
    model = BayesianRegressor(method=bw.BALI(steps=300)).fit(x[:150], y[:150])
    assert model.score(x[150:], y[150:]) > 0.85
    low, high = model.predict_interval(x[150:], 0.9)
    assert 0.75 < np.mean((low < y[150:]) & (y[150:] < high)) <= 1.0
    near, far = model.predict(x[:50], return_std=True)[1], model.predict(x[:50] * 10, return_std=True)[1]
    assert far.mean() > 2 * near.mean()


def test_predictions_agree_with_the_posterior():
    model = regressor()
    x = table()[0][:7]
    dist = model.predict_dist(x)
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_array_equal(mean, dist.mean[:, 0].numpy())
    np.testing.assert_array_equal(std, dist.std[:, 0].numpy())
    z = torch.from_numpy((x - table()[0].mean(0)) / table()[0].std(0))
    by_hand = model.posterior_.predict(z, 256)
    torch.testing.assert_close(by_hand.mean, dist.mean, rtol=1e-10, atol=1e-10)


def test_covariance_between_rows():
    model = regressor()
    x = table()[0][:7]
    mean, cov = model.predict(x, return_cov=True)
    std = model.predict(x, return_std=True)[1]
    f = model.predict_dist(x).draws[..., 0].numpy()  # (S, B)
    expected = np.cov(f.T, bias=True) + np.diag(std**2 - f.var(0))
    np.testing.assert_allclose(cov, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.diag(cov), std**2, rtol=1e-10)
    assert np.linalg.eigvalsh(cov).min() > 0
    with pytest.raises(ValueError, match="return_std and return_cov"):
        model.predict(x, return_std=True, return_cov=True)


def test_covariance_between_rows_of_a_linearised_network():
    """Exact, with the spread that `return_std` gives; samples are coherent, so they have it too."""
    x, y = table()
    both = np.column_stack([y, 10 * y**2])
    model = BayesianRegressor(method=bw.Laplace(first=bw.MAP(steps=100))).fit(x, both)
    rows = x[:5]
    cov, std = model.predict(rows, return_cov=True)[1], model.predict(rows, return_std=True)[1]  # (B, B, O)
    np.testing.assert_allclose(np.diagonal(cov).T, std**2, rtol=1e-10)
    samples = model.sample_y(rows, 20_000, random_state=0)  # (B, O, n)
    for output in range(2):
        found, scale = np.cov(samples[:, output]), np.outer(std[:, output], std[:, output])
        assert np.abs((found - cov[..., output]) / scale).max() < 0.04
        assert np.abs(cov[..., output] / scale)[~np.eye(5, dtype=bool)].min() < 0.5  # not all the same


def test_several_outputs_keep_their_units():
    x, y = table()
    targets = np.stack([y, 1000 * y + 5, -y], 1)
    model = BayesianRegressor(method=bw.BALI(steps=60)).fit(x, targets)
    mean, std = model.predict(x[:7], return_std=True)
    assert mean.shape == std.shape == (7, 3)
    np.testing.assert_allclose(mean[:, 1], 1000 * mean[:, 0] + 5, atol=150)
    assert 300 < (std[:, 1] / std[:, 0]).mean() < 3000
    assert model.predict(x[:7], return_cov=True)[1].shape == (7, 7, 3)
    assert model.sample_y(x[:7], 11).shape == (7, 3, 11)
    assert BayesianRegressor(method=FEW).fit(x, y[:, None]).predict(x[:7]).shape == (7, 1)


def test_scaling_of_inputs_and_targets_changes_nothing():
    x, y = table()
    one = BayesianRegressor(method=bw.BALI(steps=40)).fit(x, y).predict(x[:7], return_std=True)
    shift, scale = np.array([0, 5, -3, 1e3, 0.0]), np.array([1, 1e-20, 1e20, 3, 7])
    other = BayesianRegressor(method=bw.BALI(steps=40)).fit((x + shift) * scale, 1e6 * y - 4)
    mean, std = other.predict((x[:7] + shift) * scale, return_std=True)
    np.testing.assert_allclose((mean + 4) / 1e6, one[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(std / 1e6, one[1], rtol=1e-6)


def test_samples_have_the_predictive_moments():
    model = regressor()
    x = table()[0][:7]
    mean, std = model.predict(x, return_std=True)
    samples = model.sample_y(x, 8000, random_state=1)  # (B, n)
    assert np.all(np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(8000))
    np.testing.assert_allclose(samples.std(1), std, rtol=0.06)
    np.testing.assert_array_equal(model.sample_y(x, 3), model.sample_y(x, 3))
    assert not np.array_equal(model.sample_y(x, 3, 1), model.sample_y(x, 3, 2))


def test_classes_probabilities_and_labels():
    model = classifier()
    x = table()[0][:7]
    assert model.classes_.tolist() == ["high", "low", "middle"]
    p = model.predict_proba(x)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(x), model.classes_[p.argmax(1)])
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), p, rtol=1e-9)
    samples = model.sample_y(x, 4000, random_state=0)  # (B, n)
    shares = np.stack([(samples == label).mean(1) for label in model.classes_], 1)
    np.testing.assert_allclose(shares, p, atol=0.05)


@pytest.mark.parametrize("labels", [[False, True], [-3, 8], [0.0, 2.0], ["a", "b"]])
def test_any_labels(labels):
    x, y = table()
    expected = np.array(labels)[(y > 0).astype(int)]
    model = BayesianClassifier(method=bw.BALI(steps=60)).fit(x, expected)
    assert model.predict(x).dtype == expected.dtype
    assert model.score(x, expected) > 0.9
    frame = BayesianClassifier(method=bw.BALI(steps=60)).fit(x, pd.Series(expected).astype("category"))
    np.testing.assert_array_equal(frame.predict(x), model.predict(x))


def test_log_probabilities_stay_finite_where_probabilities_vanish():
    model = classifier(hidden=())
    p, log_p = model.predict_proba(table()[0] * 1e4), model.predict_log_proba(table()[0] * 1e4)
    assert p.min() < 1e-100 and np.isfinite(log_p).all()


# ---------------------------------------------------------------------------- draws, precision, global state


@pytest.mark.parametrize("make", [regressor, classifier])
def test_a_row_does_not_know_its_neighbours(make):
    model = make(draws=64)
    x = np.repeat(table()[0], 15, 0)  # 600 rows
    answer = model.predict if make is regressor else model.predict_proba
    together = answer(x)
    for rows in (slice(0, 1), slice(77, 84), slice(200, 599)):
        np.testing.assert_allclose(answer(x[rows]), together[rows], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(answer(x[::-1])[::-1], together, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(answer(x), together)


@pytest.mark.parametrize("make", [regressor, classifier])
def test_blocks_of_rows_change_nothing(make):
    model = make()
    x = table()[0]
    kept = model.predict_dist(x)
    again = model.posterior_.predict(model._scaled(x, x.dtype), model.draws, memory=50_000)
    assert kept.kept and not again.kept
    torch.testing.assert_close(again.mean, kept.mean, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(again.std, kept.std, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_follows_x(dtype):
    x, y = table(dtype=dtype)
    model = BayesianRegressor(method=bw.BALI(steps=40)).fit(x, y.astype(np.float64))
    assert str(model.posterior_.problem.network.dtype) == f"torch.{np.dtype(dtype).name}"
    assert all(part.dtype == dtype for part in model.predict(x[:7], return_std=True))
    labels = BayesianClassifier(method=bw.BALI(steps=40)).fit(x, y > 0)
    assert labels.predict_proba(x[:7]).dtype == dtype
    tensors = BayesianRegressor(method=bw.BALI(steps=40)).fit(torch.tensor(x), torch.tensor(y))
    np.testing.assert_array_equal(tensors.predict(x[:7]), model.predict(x[:7]))


@pytest.mark.parametrize("make", [regressor, classifier])
def test_same_seed_same_bits_and_global_state_untouched(make, capsys):
    np.random.seed(3)
    torch.manual_seed(3)
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().clone()
    first, second, other = make(random_state=7), make(random_state=7), make(random_state=8)
    assert np.random.get_state()[1].tobytes() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    x = table()[0][:7]
    assert torch.equal(first.predict_dist(x).draws, second.predict_dist(x).draws)
    assert torch.equal(make().predict_dist(x).draws, make().predict_dist(x).draws)
    assert not torch.equal(first.predict_dist(x).draws, other.predict_dist(x).draws)
    assert capsys.readouterr() == ("", "")


def test_map_and_mini_batches():
    x, y = table(100)
    model = BayesianRegressor(method=bw.MAP(steps=300), batch_size=25, activation="tanh").fit(x, y)
    assert model.score(x, y) > 0.8 and model.n_iter_ == 300 == len(model.log_likelihood_)
    assert model.log_likelihood_[-20:].mean() > model.log_likelihood_[:20].mean()
    np.testing.assert_allclose(model.predict_dist(x).epistemic.numpy(), 0, atol=1e-12)


# -------------------------------------------------------------------------------------- copies, files, tools


def copies(model, tmp_path):
    import joblib

    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    buffer.seek(0)
    model.save(tmp_path / "model")
    yield pickle.loads(pickle.dumps(model))
    yield joblib.load(buffer)
    yield copy.deepcopy(model)
    yield type(model).load(tmp_path / "model")
    yield load_estimator(tmp_path / "model")


@pytest.mark.parametrize("make", [regressor, classifier])
def test_copies_answer_with_the_same_bits(make, tmp_path):
    model = make(activation="tanh", hidden=(7, 3), method=bw.BALI(steps=30, prior=bw.FanIn(5.0)))
    x = table()[0][:7]
    for other in copies(model, tmp_path):
        assert torch.equal(other.predict_dist(x).draws, model.predict_dist(x).draws)
        np.testing.assert_array_equal(other.predict(x), model.predict(x))
        assert other.get_params() == model.get_params()
        assert {name for name in vars(model)} == {name for name in vars(other)}
    with pytest.raises(NotFittedError):
        clone(model).predict(x)


@pytest.mark.parametrize(
    "labels", [[False, True], [-3, 8], [0.0, 2.0], ["a", "b"], np.array(["a", "b"], object)]
)
def test_labels_come_back_from_a_file(labels, tmp_path):
    x, y = table()
    labels = np.array(labels)[(y > 0).astype(int)]
    BayesianClassifier(method=bw.BALI(steps=5)).fit(x, labels).save(tmp_path / "model")
    loaded = BayesianClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.classes_, np.unique(labels))
    assert loaded.classes_.dtype == np.unique(labels).dtype


def test_every_public_setting_comes_back_from_a_file(tmp_path):
    no_settings = {"Bernoulli", "Categorical", "Checkpoints", "EarlyStopping", "Gaussian", "Posterior"}
    public = {name for name in bw.__all__ if is_dataclass(getattr(bw, name))}
    assert public - no_settings <= SETTINGS.keys() | {kind.__name__ for kind in METHODS.values()}
    model = regressor(method=bw.Laplace(precision=bw.Online(), first=bw.MAP(steps=5)))
    model.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert again.method == model.method
    np.testing.assert_array_equal(again.predict(table()[0]), model.predict(table()[0]))


def test_a_saved_network_is_the_fitted_one(tmp_path):
    """Settings that were changed after the fit do not describe the network that is saved."""
    model = regressor(activation="relu")
    x = table()[0][:7]
    expected = model.predict(x)
    model.set_params(activation="tanh", hidden=(3,)).save(tmp_path / "model", {"columns": ["a"]})
    np.testing.assert_array_equal(BayesianRegressor.load(tmp_path / "model").predict(x), expected)
    assert read_extra(tmp_path / "model")["columns"] == ["a"]


def test_a_learning_curve_with_a_gap_is_saved(tmp_path):
    model = regressor()
    model.log_likelihood_[1] = np.nan
    model.save(tmp_path / "model")
    found = BayesianRegressor.load(tmp_path / "model").log_likelihood_
    np.testing.assert_array_equal(found, model.log_likelihood_)


def test_files_of_another_kind_are_refused(tmp_path):
    model = regressor()
    model.save(tmp_path / "model")
    with pytest.raises(SavedModelError, match="holds a BayesianRegressor, not a BayesianClassifier"):
        BayesianClassifier.load(tmp_path / "model")
    model.posterior_.save(tmp_path / "posterior")
    with pytest.raises(SavedModelError, match="holds no estimator"):
        load_estimator(tmp_path / "posterior")
    with pytest.raises(NotFittedError):
        BayesianRegressor().save(tmp_path / "other")


def test_data_frames():
    x, y = table()
    frame = pd.DataFrame(x, columns=list("abcde"))
    model = BayesianRegressor(method=bw.BALI(steps=20)).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == list("abcde") and model.n_features_in_ == 5
    np.testing.assert_array_equal(
        model.predict(frame), BayesianRegressor(method=bw.BALI(steps=20)).fit(x, y).predict(x)
    )


def test_texts_among_numbers_get_a_remedy():
    pd = pytest.importorskip("pandas")
    table, y = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["p", "q", "r"]}), np.arange(3.0)
    regressor = bw.BayesianRegressor(method=bw.MAP(steps=1))
    with pytest.raises(ValueError, match=r"X: .*'p'; encode columns of text first"):
        regressor.fit(table, y)
    with pytest.raises(ValueError, match=r"y: .*'p'.*; labels are for BayesianClassifier"):
        regressor.fit(table[["a"]], np.array(["p", "q", "r"]))


def test_pipelines_and_searches():
    x, y = table()
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), regressor())
    assert cross_val_score(pipeline, x, y, cv=2).shape == (2,)
    search = GridSearchCV(BayesianRegressor(), {"method": [bw.BALI(steps=5), bw.BALI(steps=60)]}, cv=2)
    assert search.fit(x, y).best_params_ == {"method": bw.BALI(steps=60)}


def test_whole_numbers_of_numpy_are_settings(tmp_path):
    x, y = table()
    sizes = {"batch_size": np.array([8, 16]), "draws": np.array([11]), "random_state": np.array([3])}
    search = GridSearchCV(BayesianRegressor(method=bw.BALI(steps=5)), sizes, cv=2)
    best = search.fit(x, y).best_estimator_
    plain = BayesianRegressor(
        method=bw.BALI(steps=5), batch_size=int(best.batch_size), draws=11, random_state=3
    ).fit(x, y)
    np.testing.assert_array_equal(best.predict(x), plain.predict(x))
    best.set_params(batch_size=np.int64(800)).save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    assert again.get_params() == plain.set_params(batch_size=800).get_params()


def test_scaling_is_exact_where_it_can_be():
    x = np.array([[1.0, 1e300, 5e-324, 3.0], [3.0, -1e300, 0.0, 3.0], [5.0, 1e300, 0.0, 3.0]])
    z = Scaling.of(x)(x)
    np.testing.assert_allclose(z[:, 0], [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(z[:, :3].std(0), 1, rtol=1e-12)
    np.testing.assert_array_equal(z[:, 3], 0)
    restored = Scaling.restore(Scaling.of(x).config())
    np.testing.assert_array_equal(restored(x), z)


def test_a_method_that_is_registered_later_is_loaded(tmp_path, monkeypatch):
    @dataclass(frozen=True)
    class Mine(bw.MAP):
        pass

    regressor = bw.BayesianRegressor(hidden=(3,), method=Mine(steps=5)).fit(
        np.eye(12)[:, :3], np.arange(12.0)
    )
    regressor.save(tmp_path / "model")
    with pytest.raises(SavedModelError, match="unknown kind 'Mine'; import the module that defines"):
        bw.BayesianRegressor.load(tmp_path / "model")
    monkeypatch.setitem(METHODS, "mine", Mine)
    again = bw.BayesianRegressor.load(tmp_path / "model")
    assert isinstance(again.method, Mine)
    np.testing.assert_array_equal(again.predict(np.eye(12)[:, :3]), regressor.predict(np.eye(12)[:, :3]))
