"""What a method is: four verbs on a frozen value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Generator, Tensor

from bayeswise.networks import Network
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Steps:
    """The plan of a method that trains: n steps over reshuffled data."""

    n: int


@dataclass(frozen=True)
class Passes:
    """The plan of a method that looks: every row once, in order, n times."""

    n: int


Plan = Steps | Passes


@dataclass(frozen=True)
class Info:
    """What a person may want to plot of a step; nothing is computed before it is asked for."""

    log_lik: Tensor  # the mean over the batch, (…,) in the network's units
    details: Callable[[], Mapping[str, float]] = field(default=dict)


class Data(Protocol):
    """The training rows, prepared: they can be iterated again."""

    @property
    def n(self) -> int:
        """The number of rows."""
        ...

    @property
    def example(self) -> Batch:
        """One batch."""
        ...

    def ordered(self) -> Iterator[Batch]:
        """Every row once, in order."""
        ...


@dataclass(frozen=True)
class Trial:
    """A method trained on some of the rows."""

    state: Any  # the last
    posterior: Posterior


class Trials(Protocol):
    """Some of the training rows to train on, and others to judge by: for choices before the run itself."""

    @property
    def n(self) -> int:
        """How many rows judge."""
        ...

    @property
    def members(self) -> int:
        """How many runs one trial of a method is: data splits, each parted in several ways."""
        ...

    @property
    def folds(self) -> int:
        """In how many ways each data split is parted."""
        ...

    def trial(self, method: Method[Any], what: str) -> Trial:
        """Train; `what` names the progress bar."""
        ...

    def log_lik(self, posterior: Posterior) -> Tensor:
        """The log-likelihood of the rows that judge, (…, R) with those of each data split."""
        ...


@dataclass(frozen=True)
class Chosen:
    """A method with nothing left open, why it is so, and where its run begins if not afresh."""

    method: Method[Any]
    notes: tuple[str, ...] = ()
    state: Any = None


@runtime_checkable
class Tunes(Protocol):
    """A method that makes choices before its run."""

    @property
    def open(self) -> bool:
        """Whether something is left to choose."""
        ...

    def tuned(self, problem: Problem, trials: Trials | None, batch: int) -> Chosen:
        """What is chosen, with steps of so many rows; without trials by rules of thumb."""
        ...


@runtime_checkable
class Renews(Protocol):
    """A method that looks at all rows now and then between its steps."""

    def due(self, step: int) -> bool:
        """Whether it looks after so many steps."""
        ...

    def renewed(self, problem: Problem, state: Any, data: Data) -> Any:
        """The state after a look."""
        ...


@runtime_checkable
class Batches(Protocol):
    """A method that knows how many rows a step should take."""

    def batch(self, network: Network, n: int) -> int:
        """How many, of n rows."""
        ...


@runtime_checkable
class Refines(Protocol):
    """A method that may train in float64, whatever the precision of the model and its rows."""

    def refines(self, problem: Problem) -> bool:
        """Whether this problem is worth it."""
        ...


S = TypeVar("S")


class Method(Protocol[S]):
    """How a posterior is found. Fields are hyper-parameters; a state holds tensors only."""

    @property
    def standardises(self) -> bool:
        """Whether regression targets may be standardised: not for a model trained in its own units."""
        ...

    @property
    def infers_all(self) -> bool:
        """Whether all parameters are inferred, and not only those of the chosen layers."""
        ...

    @property
    def starts_from_model(self) -> bool:
        """Whether the run depends on the chosen layers' present weights."""
        ...

    def plan(self, problem: Problem) -> Plan:
        """How the data are to be gone through."""
        ...

    def init(self, problem: Problem, data: Data, rng: Generator) -> S:
        """The state before the first step."""
        ...

    def step(self, problem: Problem, state: S, batch: Batch, rng: Generator) -> tuple[S, Info]:
        """One step; it consumes its state: who wants the old one clones it."""
        ...

    def posterior(self, problem: Problem, state: S, data: Data) -> Posterior:
        """What is known after these steps; may pass over the data again."""
        ...


def is_open(method: Any) -> bool:
    """Whether a method has choices to make before its run."""
    return isinstance(method, Tunes) and method.open
