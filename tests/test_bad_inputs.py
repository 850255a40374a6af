"""Whatever comes in: a finite answer, or an error that names the culprit; never a half-fitted object."""

import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sparse
import torch
from sklearn.exceptions import NotFittedError
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bayeswise as bw
from bayeswise.estimators import BayesianClassifier, BayesianRegressor

FEW = bw.BALI(steps=20)
ANSWER = None  # what a kind expects when it expects no error
ESTIMATORS = (BayesianRegressor, BayesianClassifier)
DTYPES = (np.float32, np.float64)


def table(estimator: type, dtype: Any, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 5)).astype(dtype)
    y = (x[:, 0] + 0.1 * rng.normal(size=n)).astype(dtype)
    return x, y if estimator is BayesianRegressor else (y > 0).astype(int)


def put(values: np.ndarray, where: Any, value: Any) -> np.ndarray:
    values = values.astype(float) if values.dtype.kind in "ib" else values.copy()
    values[where] = value
    return values


def frame(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=list("abcde"))


def tiny(x: np.ndarray) -> np.ndarray:
    """Negative zeros and the smallest number there is."""
    kind = x.dtype.type
    return np.where(x > 0, kind(-0.0), np.nextafter(kind(0), kind(1))).astype(x.dtype)


TEXT = "X: could not convert string to float"
Change = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]

# What the data become, and what a regressor and a classifier make of them: an answer, or an error like this.
FIT: dict[str, tuple[Change, str | None, str | None]] = {
    "NaN in X": (lambda x, y: (put(x, (3, 2), np.nan), y), "X contains NaN", "X contains NaN"),
    "inf in X": (lambda x, y: (put(x, (3, 2), np.inf), y), "X contains infinity", "X contains infinity"),
    "-inf in X": (lambda x, y: (put(x, (3, 2), -np.inf), y), "X contains infinity", "X contains infinity"),
    "NaN in y": (lambda x, y: (x, put(y, 3, np.nan)), "y contains NaN", "y contains NaN"),
    "inf in y": (lambda x, y: (x, put(y, 3, np.inf)), "y contains infinity", "y contains infinity"),
    "no rows": (lambda x, y: (x[:0], y[:0]), r"X: .* 0 sample", r"X: .* 0 sample"),
    "1 row": (lambda x, y: (x[:1], y[:1]), r"X: .* 1 sample", r"X: .* 1 sample"),
    "2 rows": (lambda x, y: (x[np.argsort(y)[[0, -1]]], np.sort(y)[[0, -1]]), ANSWER, ANSWER),
    "no columns": (lambda x, y: (x[:, :0], y), r"X: .* 0 feature", r"X: .* 0 feature"),
    "1 column": (lambda x, y: (x[:, :1], y), ANSWER, ANSWER),
    "constant column": (lambda x, y: (put(x, (slice(None), 1), 0.1), y), ANSWER, ANSWER),
    "all constant": (lambda x, y: (np.full_like(x, 0.3), y), ANSWER, ANSWER),
    "huge constant": (lambda x, y: (np.full_like(x, 1.1e30), y), ANSWER, ANSWER),
    "all zero": (lambda x, y: (0 * x, y), ANSWER, ANSWER),
    "nearly constant": (lambda x, y: (1e9 + 1e-3 * x.astype(float), y), ANSWER, ANSWER),
    "duplicate columns": (lambda x, y: (x[:, [0, 0, 0, 1, 1]], y), ANSWER, ANSWER),
    "duplicate rows": (lambda x, y: (np.tile(x[:2], (10, 1)), np.tile([0, 1], 10)), ANSWER, ANSWER),
    "more columns than rows": (lambda x, y: (np.tile(x, (1, 30)), y), ANSWER, ANSWER),
    "X of size 1e30": (lambda x, y: (x * x.dtype.type(1e30), y), ANSWER, ANSWER),
    "X of size 1e-30": (lambda x, y: (x * x.dtype.type(1e-30), y), ANSWER, ANSWER),
    "X of all sizes": (
        lambda x, y: (x * np.array([1e30, 1e-30, 1, 1e10, 1e-10], x.dtype), y),
        ANSWER,
        ANSWER,
    ),
    "largest numbers": (lambda x, y: (np.sign(x) * np.finfo(x.dtype).max, y), ANSWER, ANSWER),
    "one largest number": (lambda x, y: (put(x, (0, 0), np.finfo(x.dtype).max), y), ANSWER, ANSWER),
    "denormals": (lambda x, y: (tiny(x), y), ANSWER, ANSWER),
    "y of size 1e30": (lambda x, y: (x, y * 1e30), ANSWER, "y: Unknown label type: continuous"),
    "y of size 1e-30": (lambda x, y: (x, y * 1e-30), ANSWER, "y: Unknown label type: continuous"),
    "y of size 1e300": (lambda x, y: (x, y.astype(float) * 1e300), "y has values up to", "y: Unknown label"),
    "y of size 1e-300": (
        lambda x, y: (x, y.astype(float) * 1e-300),
        "y has .* spread of",
        "y: Unknown label",
    ),
    "outlier in y": (lambda x, y: (x, put(y, 0, 1e25)), ANSWER, "y: Unknown label type: continuous"),
    "constant y": (lambda x, y: (x, 0 * y + 3), ANSWER, "y holds 1 class, 3; a classifier needs at least 2"),
    "y all zero": (lambda x, y: (x, 0 * y), ANSWER, "y holds 1 class, 0"),
    "huge constant y": (
        lambda x, y: (x, np.full(20, 10**18)),
        ANSWER,
        "y holds 1 class, 1000000000000000000",
    ),
    "one-dimensional X": (lambda x, y: (x[:, 0], y), "X: Expected 2D array", "X: Expected 2D array"),
    "three-dimensional X": (
        lambda x, y: (x[None], y),
        "X: Found array with dim 3",
        "X: Found array with dim 3",
    ),
    "scalar X": (lambda x, y: (3.0, y), "X: Expected 2D array", "X: Expected 2D array"),
    "ragged X": (lambda x, y: ([[1, 2], [3]], y[:2]), "X: .*inhomogeneous", "X: .*inhomogeneous"),
    "three-dimensional y": (
        lambda x, y: (x, y[:, None, None]),
        "y: Found array with dim 3",
        "y: Found array",
    ),
    "scalar y": (lambda x, y: (x, 1), "y: .* at least 1 dim", "y: .* at least 1 dim"),
    "y without columns": (lambda x, y: (x, np.zeros((20, 0))), "y: .* 0 feature", "y: .* 0 feature"),
    "y with 2 columns": (lambda x, y: (x, np.stack([y, y + 1], 1)), ANSWER, "y should be a 1d array"),
    "short y": (lambda x, y: (x, y[:-1]), r"X and y: .*\[20, 19\]", r"X and y: .*\[20, 19\]"),
    "text in X": (lambda x, y: (np.full(x.shape, "a"), y), TEXT, TEXT),
    "bytes in X": (lambda x, y: (np.full(x.shape, b"a"), y), TEXT, TEXT),
    "numbers as text": (lambda x, y: (x.astype(str), y), ANSWER, ANSWER),
    "a text as X": (lambda x, y: ("abc", y), TEXT, TEXT),
    "a dict as X": (lambda x, y: ({"a": 1}, y), "X: .* not 'dict'", "X: .* not 'dict'"),
    "a generator as X": (lambda x, y: (iter(x), y), "X: float", "X: float"),
    "objects": (lambda x, y: (x.astype(object), y), ANSWER, ANSWER),
    "objects with None": (lambda x, y: (put(x.astype(object), (0, 0), None), y), "X contains", "X contains"),
    "X is None": (lambda x, y: (None, y), "table X is None", "table X is None"),
    "y is None": (lambda x, y: (x, None), "target y is None", "target y is None"),
    "sparse X": (lambda x, y: (sparse.csr_matrix(x), y), "Sparse data was passed for X", "Sparse .* for X"),
    "sparse y": (lambda x, y: (x, sparse.csr_matrix(y[:, None])), "Sparse .* for y", "Sparse .* for y"),
    "bool X": (lambda x, y: (x > 0, y), ANSWER, ANSWER),
    "int X": (lambda x, y: ((10 * x).astype(int), y), ANSWER, ANSWER),
    "largest ints": (lambda x, y: (np.where(x > 0, 2**63 - 1, -(2**63)), y), ANSWER, ANSWER),
    "ints beyond 64 bits": (lambda x, y: ((10 * x).astype(int).astype(object) * 2**70, y), ANSWER, ANSWER),
    "ints beyond floats": (
        lambda x, y: ((10 * x).astype(int).astype(object) * 10**400, y),
        "X: int too large",
        "X: int too large",
    ),
    "complex X": (lambda x, y: (x + 1j, y), "X: Complex data", "X: Complex data"),
    "complex y": (lambda x, y: (x, y + 1j), "y: Complex data", "y: Complex data"),
    "masked X": (lambda x, y: (np.ma.masked_greater(x, 1), y), "X has 20 masked", "X has 20 masked"),
    "masked y": (lambda x, y: (x, np.ma.masked_greater(y, 0.5)), "y has 2 masked", "y has 9 masked"),
    "nothing masked": (lambda x, y: (np.ma.array(x), np.ma.array(y)), ANSWER, ANSWER),
    "lists": (lambda x, y: (x.tolist(), y.tolist()), ANSWER, ANSWER),
    "tensors": (lambda x, y: (torch.tensor(x, requires_grad=True), torch.tensor(y)), ANSWER, ANSWER),
    "half precision": (lambda x, y: (x.astype(np.float16), y), ANSWER, ANSWER),
    "other byte order": (lambda x, y: (x.astype(x.dtype.newbyteorder(">")), y), ANSWER, ANSWER),
    "backwards view": (lambda x, y: (x[::-1], y[::-1]), ANSWER, ANSWER),
    "structured array": (lambda x, y: (np.zeros(20, [("a", float)]), y), "X: ", "X: "),
    "categories in X": (lambda x, y: (frame(x).assign(a=pd.Categorical(["u", "v"] * 10)), y), TEXT, TEXT),
    "dates in X": (
        lambda x, y: (frame(x).assign(a=pd.date_range("2020", periods=20)), y),
        r"X: column 'a' holds dates \(datetime64\[..\]\); give numbers",
        r"X: column 'a' holds dates \(datetime64\[..\]\); give numbers",
    ),
    "nullable X": (lambda x, y: (frame(x).astype("Float64"), y), ANSWER, ANSWER),
    "NA in X": (lambda x, y: (frame(x).astype("Float64").mask(x > 1), y), "X contains NaN", "X contains NaN"),
    "nullable y": (lambda x, y: (x, pd.Series(y).convert_dtypes()), ANSWER, ANSWER),
    "NA in y": (lambda x, y: (x, pd.Series(y).astype("Float64").mask(y > 0.5)), "y contains", "y contains"),
    "text in y": (lambda x, y: (x, np.where(y > 0, "u", "v")), "y: could not convert string", ANSWER),
    "categories in y": (lambda x, y: (x, pd.Series(["u", "v"] * 10, dtype="category")), "y: could", ANSWER),
    "mixed labels": (
        lambda x, y: (x, np.array(["u", 1] * 10, dtype=object)),
        "y: could not convert string",
        "y: '<' not supported between instances of 'int' and 'str'",
    ),
    "None in y": (
        lambda x, y: (x, np.array([1.0, None] * 10, dtype=object)),
        "y contains NaN",
        "y: Unknown label type",
    ),
    "bool y": (lambda x, y: (x, y > 0), ANSWER, ANSWER),
    "a class of one row": (lambda x, y: (x, np.arange(20) == 7), ANSWER, ANSWER),
}

# What a fitted estimator is asked, and its error; it was fitted on the data frame.
PREDICT: dict[str, tuple[Callable[[pd.DataFrame], Any], str | None]] = {
    "reordered columns": (lambda f: f[list("bacde")], "feature names should match"),
    "missing column": (lambda f: f[list("abcd")], r"feature names(.|\n)*missing:\n- e"),
    "extra column": (lambda f: f.assign(z=1.0), r"feature names(.|\n)*unseen at fit time:\n- z"),
    "renamed column": (lambda f: f.rename(columns={"a": "q"}), r"feature names(.|\n)*- q"),
    "NaN": (lambda f: f.mask(f > 1), "X contains NaN"),
    "infinite": (lambda f: f.replace(f.iloc[0, 0], np.inf), "X contains infinity"),
    "no rows": (lambda f: f[:0], "X: .* 0 sample"),
    "None": (lambda f: None, "table X is None"),
    "1 row": (lambda f: f[:1], ANSWER),
    "far away": (lambda f: 1e6 * f, ANSWER),
    "out of range": (lambda f: f.astype(float) * 1e200, "X: row 0, column 'a' is .* standard deviations"),
    "text": (lambda f: f.assign(a="u"), TEXT),
    "objects": (lambda f: f.astype(object), ANSWER),
}

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no width": ({"hidden": (0,)}, "hidden must be"),
    "width as number": ({"hidden": 50}, "hidden must be"),
    "width as text": ({"hidden": "50"}, "hidden must be"),
    "width as fraction": ({"hidden": (2.5,)}, "hidden must be"),
    "activation": ({"activation": "rleu"}, "activation 'rleu' is unknown; there are relu"),
    "method by name": ({"method": "bali"}, "method must be"),
    "method as class": ({"method": bw.BALI}, "method must be"),
    "no draws": ({"draws": 0}, "draws must be"),
    "batch size": ({"batch_size": 0}, "batch_size must be"),
    "batch size as text": ({"batch_size": "8"}, "batch_size must be"),
    "random state": ({"random_state": "x"}, "cannot be used to seed"),
    "device": ({"device": "nowhere"}, "device 'nowhere' cannot be used"),
}


def check_answer(model: Any, x: Any) -> None:
    """Everything finite, variances not negative, probabilities that sum to 1."""
    if isinstance(model, BayesianRegressor):
        mean, std = model.predict(x, return_std=True)
        low, high = model.predict_interval(x)
        assert all(np.isfinite(part).all() for part in (mean, std, low, high, model.sample_y(x)))
        assert (std > 0).all() and (low <= high).all()
    else:
        p = model.predict_proba(x)
        assert np.isfinite(model.predict_log_proba(x)).all() and (p >= 0).all()
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-5)
        assert np.isin(model.predict(x), model.classes_).all()
    dist = model.predict_dist(x)
    assert all(torch.isfinite(part).all() and (part >= 0).all() for part in (dist.epistemic, dist.aleatoric))


@pytest.fixture(scope="module")
def fitted() -> dict[tuple[type, Any], Any]:
    """Estimators that were fitted on good data."""
    return {(e, d): e(method=FEW).fit(*table(e, d)) for e in ESTIMATORS for d in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", FIT)
def test_fit(kind, estimator, dtype, fitted):
    change, *expected = FIT[kind]
    error = expected[ESTIMATORS.index(estimator)]
    x, y = table(estimator, dtype)
    bad_x, bad_y = change(x, y)
    began = time.process_time()
    fresh, used = estimator(method=FEW), fitted[estimator, dtype]
    if error is ANSWER:
        check_answer(fresh.fit(bad_x, bad_y), bad_x)
    else:
        before, attributes = used.predict(x), dict(vars(used))
        with pytest.raises((ValueError, TypeError), match=error):
            fresh.fit(bad_x, bad_y)
        with pytest.raises((ValueError, TypeError)):
            used.fit(bad_x, bad_y)
        with pytest.raises(NotFittedError):
            fresh.predict(x)
        assert vars(fresh) == vars(estimator(method=FEW)) and vars(used) == attributes
        np.testing.assert_array_equal(used.predict(x), before)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", PREDICT)
def test_predict(kind, estimator, dtype):
    change, error = PREDICT[kind]
    x, y = table(estimator, dtype)
    model = estimator(method=FEW).fit(frame(x), y)
    if error is ANSWER:
        check_answer(model, change(frame(x)))
        return
    with pytest.raises((ValueError, TypeError), match=error):
        model.predict(change(frame(x)))
    check_answer(model, frame(x))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_predict_with_another_width_or_before_fit(estimator, fitted):
    x, _ = table(estimator, np.float64)
    with pytest.raises(ValueError, match="X has 4 features, but .* is expecting 5"):
        fitted[estimator, np.float64].predict(x[:, :4])
    for ask in ("predict", "predict_dist", "sample_y"):
        with pytest.raises(NotFittedError):
            getattr(estimator(), ask)(x)
    with pytest.raises(ValueError, match="n_samples must be"):
        fitted[estimator, np.float64].sample_y(x, 0)


def test_score_of_labels_that_were_not_there(fitted):
    x, y = table(BayesianClassifier, np.float64)
    model = fitted[BayesianClassifier, np.float64]
    known = float((model.predict(x) == y).mean())
    assert model.score(x, np.where(np.arange(20) < 10, 7, y)) <= known
    assert model.score(x, np.full(20, 7)) == 0.0


def test_an_interrupted_fit_leaves_the_estimator_as_it_was(monkeypatch):
    x, y = table(BayesianRegressor, np.float64)
    model = BayesianRegressor(method=FEW).fit(x, y)
    before = model.predict(x)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bw.BALI, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:, :3], -y)
    np.testing.assert_array_equal(model.predict(x), before)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_settings(kind, estimator):
    settings, error = SETTINGS[kind]
    model = estimator(**{"method": FEW, **settings})
    with pytest.raises((ValueError, TypeError), match=error):
        model.fit(*table(estimator, np.float64))
    assert not model.__sklearn_is_fitted__()


# --------------------------------------------------------------------------------------------------- bw.fit


class NaNAt(Dataset):
    """Rows of which one is not a number."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((5,), float("nan") if i == self.row else 0.1 * i), torch.tensor(0.1 * i)


class Stream(IterableDataset):
    """A stream that has dried up."""

    def __iter__(self) -> Any:
        return iter(())


def net(outputs: int = 3, inputs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


class Cube(nn.Module):
    """A model whose output is no table."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[:, None, :]


X = torch.arange(35.0).reshape(7, 5) / 10
Y = torch.arange(21.0).reshape(7, 3) / 10
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])
GAUSSIAN, CLASSES, BITS = bw.Gaussian(), bw.Categorical(), bw.Bernoulli()

CORE: dict[str, tuple[Callable[[], Any], Any, Any, str]] = {
    "loader without rows": (net, DataLoader(Stream(), batch_size=4), GAUSSIAN, "yields no batch"),
    "empty dataset": (net, TensorDataset(X[:0], Y[:0]), GAUSSIAN, "the Dataset has no rows"),
    "NaN at batch 7": (
        lambda: net(1),
        DataLoader(NaNAt(29), batch_size=4),
        GAUSSIAN,
        "batch 7: 5 of 20 inputs",
    ),
    "loader of single tensors": (net, DataLoader(X.numpy(), batch_size=4), GAUSSIAN, r"pairs \(x, y\)"),
    "no rows": (net, (X[:0], Y[:0]), GAUSSIAN, "no rows"),
    "NaN in x": (net, (X / 0 * 0, Y), GAUSSIAN, "35 of 35 inputs are NaN"),
    "NaN in y": (net, (X, Y / 0 * 0), GAUSSIAN, "21 of 21 targets are NaN"),
    "other number of rows": (net, (X, Y[:6]), GAUSSIAN, r"\(7, 5\) and y \(6, 3\)"),
    "wrong width of x": (net, (X[:, :4], Y), GAUSSIAN, r"x of shape \(7, 4\)"),
    "outputs mismatch": (lambda: net(2), (X, Y), GAUSSIAN, r"\(7, 3\).*2"),
    "one column for three outputs": (net, (X, Y[:, 0]), GAUSSIAN, r"\(7,\).*3"),
    "label out of range": (lambda: net(2), (X, LABELS), CLASSES, "2"),
    "negative label": (net, (X, LABELS - 1), CLASSES, "-1"),
    "fractional label": (net, (X, LABELS + 0.5), CLASSES, "label|class"),
    "neither yes nor no": (net, (X, Y), BITS, "0|1"),
    "no layer to infer": (lambda: nn.Sequential(nn.Flatten()), (X, X), GAUSSIAN, "no layer"),
    "only an activation": (nn.ReLU, (X, X), GAUSSIAN, "no layer"),
    "output is no table": (Cube, (X, Y), GAUSSIAN, r"\(7, 1, 3\)|\(1, 3\)"),
    "not a module": (lambda: "net", (X, Y), GAUSSIAN, "model must be a torch.nn.Module, not str"),
    "data is None": (net, None, GAUSSIAN, "data is a NoneType"),
    "data is a frame": (net, pd.DataFrame({"a": [1.0]}), GAUSSIAN, "data is a DataFrame"),
    "text": (net, (np.full((7, 5), "a"), Y), GAUSSIAN, "x is a ndarray"),
}


@pytest.mark.parametrize("kind", CORE)
def test_core(kind):
    make, data, likelihood, error = CORE[kind]
    model = make()
    before = {k: v.clone() for k, v in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    with pytest.raises((ValueError, TypeError)) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bw.fit(model, data, likelihood, FEW, progress=False)
    assert re.search(error, str(caught.value)), str(caught.value)
    if before:
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
