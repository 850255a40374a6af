"""What regression and classification share: settings, scaling, the fit, saving."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from bayeswise import linearised, priors
from bayeswise.estimators.scaling import Array, Scaling
from bayeswise.fitting import fit as fit_posterior
from bayeswise.likelihoods import Likelihood
from bayeswise.methods import (
    METHODS,
    Method,
    evidence,
    forward,
    mean_update,
    online,
    schedules,
    structures,
    trained_first,
    tuning,
    updates,
)
from bayeswise.networks import curvature
from bayeswise.plain import finite
from bayeswise.posterior import DRAWS, Posterior
from bayeswise.predictive import Predictive
from bayeswise.randomness import global_rng
from bayeswise.saving import SavedModelError, from_config, to_config
from bayeswise.storage import load as load_posterior
from bayeswise.storage import read_extra, save_posterior
from bayeswise.training import Progress

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
}
SEEDS = 2**31 - 1
DATES = {  # by the kind of their type: what they are, and a way to numbers
    "M": ("dates", 'days from a fixed start: (dates - start) / np.timedelta64(1, "D")'),
    "m": ("durations", 'days: durations / np.timedelta64(1, "D")'),
}
FLOATS = [np.float64, np.float32]  # what X stays in; all else becomes the first
SHARED = (schedules, forward, updates, mean_update, structures, evidence, online, tuning)
SETTINGS: dict[str, type] = {  # what a saved method may be made of, beside the methods that are registered
    name: kind
    for module in (priors, linearised, curvature, *SHARED)
    for name, kind in vars(module).items()
    if is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__
}

EstimatorT = TypeVar("EstimatorT", bound="BayesianNetwork")


class BayesianNetwork(BaseEstimator):
    """What regression and classification share: settings, scaling, the fit, saving."""

    posterior_: Posterior
    architecture_: tuple[tuple[int, ...], str]  # hidden and activation of the fitted network

    def __init__(
        self,
        hidden: Sequence[int] = (50,),
        activation: str = "relu",
        method: Method[Any] | None = None,
        draws: int = DRAWS,
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
        device: str = "cpu",
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.method = method
        self.draws = draws
        self.batch_size = batch_size
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    def fit(self: EstimatorT, X: ArrayLike, y: ArrayLike) -> EstimatorT:
        """Infer the posterior of the network's weights; a fit that fails leaves the estimator as it was."""
        with _unchanged_on_error(self):
            self._check_settings()
            x = self._checked_rows(X, reset=True, ensure_min_samples=2)
            y = self._checked_targets(y)
            with naming("X and y"):
                check_consistent_length(x, y)
            targets, outputs, likelihood = self._seen_targets(y, x.dtype)
            self.scaling_ = Scaling.of(x)
            self.architecture_ = tuple(map(int, self.hidden)), self.activation
            self._infer(self._scaled(x, x.dtype), targets, outputs, likelihood)
        return self

    def predict_dist(self, X: ArrayLike) -> Predictive:
        """The predictive distribution of every row, in the units of y; the same networks at every call."""
        check_is_fitted(self)
        x = self._checked_rows(X, reset=False)
        return self.posterior_.predict(self._scaled(x, self._dtype()), self.draws)

    def save(self, path: str | Path, extra: dict[str, Any] | None = None) -> None:
        """Write a directory that `load` reads; `extra` is JSON for `bayeswise.storage.read_extra`."""
        check_is_fitted(self)
        about = {"kind": type(self).__name__, "settings": self._settings_config(), **self._fitted_config()}
        save_posterior(self.posterior_, path, {**(extra or {}), "estimator": about})

    @classmethod
    def load(cls: type[EstimatorT], path: str | Path) -> EstimatorT:
        """Read a saved estimator of this class."""
        config = read_extra(path).get("estimator")
        if not isinstance(config, dict):
            raise SavedModelError(f"{path} holds no estimator; read it with bayeswise.load(path, model)")
        if config.get("kind") != cls.__name__:
            raise SavedModelError(f"{path} holds a {config.get('kind')}, not a {cls.__name__}")
        try:
            return cls._restored(config, path)
        except KeyError as missing:
            raise SavedModelError(f"{path}: {missing} is missing; another version wrote it") from None

    # ----------------------------------------------------------------------------------- what tasks differ in

    def _checked_targets(self, y: Any) -> Array:
        """The user's targets as finite numbers (N, O), or as labels (N,)."""
        raise NotImplementedError

    def _seen_targets(self, y: Array, dtype: np.dtype) -> tuple[Array, int, Likelihood]:
        """Targets as the network sees them, its number of outputs, and the likelihood."""
        raise NotImplementedError

    def _in_user_units(self, posterior: Posterior) -> Posterior:
        return posterior

    def _outputs(self) -> int:
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------- the pieces

    def _checked_rows(self, X: Any, **conditions: Any) -> Array:
        X = as_data(X, "X")
        with naming("X"):
            return cast(Array, validate_data(self, X, dtype=FLOATS, order="C", **conditions))

    def _infer(self, x: Array, targets: Array, outputs: int, likelihood: Likelihood) -> None:
        seed = 0 if self.random_state is None else int(check_random_state(self.random_state).randint(SEEDS))
        curve: list[float] = []

        def record(progress: Progress) -> None:
            curve.append(float(progress.info.log_lik))

        posterior = fit_posterior(
            self._network(x.shape[1], outputs, seed),
            (torch.from_numpy(x), torch.from_numpy(targets)),
            likelihood,
            trained_first(self.method),
            batch_size=_whole(self.batch_size),
            standardise=False,
            seed=seed,
            progress=self.verbose > 0,
            callbacks=(record,),
        )
        self.posterior_ = self._in_user_units(posterior)
        self.log_likelihood_ = np.array(curve)
        self.n_iter_ = len(curve)

    def _network(self, inputs: int, outputs: int, seed: int) -> nn.Module:
        hidden, activation = self.architecture_
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        with global_rng(seed):
            for before, after in zip(widths, hidden, strict=False):
                layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
            layers.append(nn.Linear(widths[-1], outputs))
        return nn.Sequential(*layers).to(self.device)

    def _check_settings(self) -> None:
        hidden = self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not all(map(is_count, hidden)):
            raise ValueError(f"hidden must be the widths of layers, such as (50,) or (), not {hidden!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is unknown; there are {', '.join(ACTIVATIONS)}")
        if not is_count(self.draws):
            raise ValueError(f"draws must be a number from 1 on, not {self.draws!r}")
        if self.batch_size is not None and not is_count(self.batch_size):
            raise ValueError(f"batch_size must be None or a number from 1 on, not {self.batch_size!r}")
        if self.method is not None and (isinstance(self.method, type) or not hasattr(self.method, "plan")):
            raise TypeError(f"method must be None or a method such as BALI(), not {self.method!r}")
        _check_device(self.device)

    def _scaled(self, x: Array, dtype: np.dtype) -> Array:
        """Rows as the network sees them; values too far from the training data for numbers are refused."""
        z = self.scaling_(x)
        limit = float(np.finfo(dtype).max) ** 0.25
        bad = np.argwhere(~(np.abs(z) <= limit))
        if len(bad):
            row, column = bad[0]
            name = getattr(self, "feature_names_in_", range(x.shape[1]))[column]
            raise ValueError(
                f"X: row {row}, column {name!r} is {x[row, column]}, more than {limit:.0e} standard "
                f"deviations from the training data; that cannot be computed in {np.dtype(dtype).name}"
            )
        return z.astype(dtype)

    def _dtype(self) -> np.dtype:
        dtype = self.posterior_.problem.network.dtype
        return np.dtype(np.float64 if dtype == torch.float64 else np.float32)

    def _array(self, values: Tensor) -> Array:
        return values.cpu().numpy().astype(self._dtype())

    def _sample(self, X: ArrayLike, n: int, random_state: Any) -> Tensor:
        """Targets (n, B, …) in the user's units or as positions in the classes."""
        dist = self.predict_dist(X)
        if not is_count(n):
            raise ValueError(f"n_samples must be a number from 1 on, not {n!r}")
        if random_state is None:
            return dist.sample(n)
        seed = int(check_random_state(random_state).randint(SEEDS))
        return dist.sample(n, torch.Generator(self.posterior_.problem.network.device).manual_seed(seed))

    # ------------------------------------------------------------------------------------------------- saving

    def _settings_config(self) -> dict[str, Any]:
        seed, (hidden, activation) = self.random_state, self.architecture_
        return {
            "hidden": list(hidden),
            "activation": activation,
            "method": None if self.method is None else to_config(self.method),
            "draws": int(self.draws),
            "batch_size": _whole(self.batch_size),
            "random_state": int(seed) if isinstance(seed, numbers.Integral) else None,
            "verbose": int(self.verbose),
        }

    def _fitted_config(self) -> dict[str, Any]:
        names = getattr(self, "feature_names_in_", None)
        return {
            "scaling": self.scaling_.config(),
            "feature_names": None if names is None else names.tolist(),
            "log_likelihood": finite(self.log_likelihood_.tolist()),
        }

    @classmethod
    def _restored(cls: type[EstimatorT], config: dict[str, Any], path: str | Path) -> EstimatorT:
        settings: dict[str, Any] = dict(config["settings"])
        method = settings["method"]
        known = SETTINGS | {kind.__name__: kind for kind in METHODS.values()}
        settings["method"] = None if method is None else from_config(method, known)
        settings["hidden"] = tuple(settings["hidden"])
        estimator = cls(**settings)
        estimator._restore_fitted(config, path)
        return estimator

    def _restore_fitted(self, config: dict[str, Any], path: str | Path) -> None:
        self.architecture_ = tuple(self.hidden), self.activation
        self.scaling_ = Scaling.restore(config["scaling"])
        self.n_features_in_ = len(self.scaling_.size)
        if config["feature_names"] is not None:
            self.feature_names_in_ = np.array(config["feature_names"], dtype=object)
        self.log_likelihood_ = np.array(config["log_likelihood"], dtype=float)
        self.n_iter_ = len(self.log_likelihood_)
        self.posterior_ = load_posterior(path, self._network(self.n_features_in_, self._outputs(), 0))


@contextmanager
def _unchanged_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Put all attributes back when anything goes wrong."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say which of X and y is at fault, where the message does not; sums of huge values are no fault."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except (ValueError, TypeError, OverflowError) as error:
        if re.search(r"\b[Xy]\b", str(error)):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{what}: {error}{_encoded(what, str(error))}") from error


def _encoded(what: str, message: str) -> str:
    """What to do about texts, where the message speaks of them."""
    if "string to float" not in message:
        return ""
    if what == "y":
        return "; labels are for BayesianClassifier"
    return "; encode columns of text first, by OneHotEncoder or pandas.get_dummies"


def as_data(values: Any, what: str) -> Any:
    """What scikit-learn would misread: nothing, masked values, tensors, dates."""
    if values is None:
        noun = "target" if what == "y" else "table"
        raise ValueError(f"the estimator requires {what} to be passed, but the {noun} {what} is None")
    if np.ma.is_masked(values):
        count = int(np.ma.count_masked(values))
        raise ValueError(f"{what} has {count} masked values; fill them or remove those rows")
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    _check_no_dates(values, what)
    return values


def _check_no_dates(values: Any, what: str) -> None:
    """Refuse what would become numbers in the unit it happens to have."""
    for name, dtype in _dtypes(values, what):
        if getattr(dtype, "kind", "") in DATES:
            held, way = DATES[dtype.kind]
            labels = "; as labels, give strings" if what == "y" else ""
            raise TypeError(f"{name} holds {held} ({dtype}); give numbers, such as {way}{labels}")


def _dtypes(values: Any, what: str) -> Iterable[tuple[str, Any]]:
    """What the columns of a table are, or what everything in an array is."""
    if not hasattr(values, "iloc"):
        with naming(what):
            array = np.asarray(values)
        if array.dtype != object:
            return [(what, array.dtype)]
        return [(what, cell.dtype) for cell in array.flat if isinstance(cell, np.generic)]
    if values.ndim == 1:
        return [(what, values.dtype)]
    names = (f"{what}: column {name!r}" for name in values.columns)
    return zip(names, values.dtypes, strict=True)


def checked_targets(y: Any, dtype: str | None) -> Array:
    """Finite targets as an array of one or two dimensions; without a dtype they keep their own."""
    y = as_data(y, "y")
    with naming("y"):
        return check_array(y, dtype=dtype, order="C", ensure_2d=False, input_name="y")  # type: ignore[arg-type]


def is_count(value: Any) -> bool:
    """Whether this is a whole number from 1 on."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _whole(count: int | None) -> int | None:
    """A count as Python's own number, where it may be one of numpy's."""
    return None if count is None else int(count)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
