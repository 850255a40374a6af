"""What BALI chooses from the training rows alone, and how.

1. Two races, for N_eff and for α: candidates train as members of one run on most of the rows; the one whose
   predictions of the other rows are most likely is taken, for each data split by itself.
2. A rehearsal: the run with these and all its starts, on most of the rows again. The other rows choose
   the temperature, the scale of Σ: a layer's Σ is measured while the weights of all layers jitter, and what
   several starts leave unexplained together is less than what each leaves, so that Σ mostly says too much.
3. The run itself, on all rows, with what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayeswise.linalg import NumericalError
from bayeswise.methods.accounts import words
from bayeswise.methods.members import Each
from bayeswise.methods.protocol import Trials
from bayeswise.networks import Network
from bayeswise.problem import Problem
from bayeswise.weights import Layerwise, Mixture

if TYPE_CHECKING:
    from bayeswise.methods.bali import BALI

WORDS = {"effective": "share of rows that count", "step_size": "step size", "temperature": "temperature"}
LEAST_BATCH = 256  # rows of a step where layers are narrow
TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(-14, 5))  # 1/128 … 4


@dataclass(frozen=True)
class Tuning:
    """How BALI chooses: what is compared, and how much work a run is.

    `rows` is how many rows a run sees, all its steps together. A network of at most `small` weights gets
    `members` starts instead of one, and sees the data `passes` times if that is more, up to four times as
    many rows. `shares` and `step_sizes` are the candidates for N_eff / N and α; `race` the share of the steps
    after which they are compared.
    """

    rows: int = 640_000
    passes: int = 100
    members: int = 4
    small: int = 50_000
    shares: tuple[float, ...] = (1.0, 0.25, 0.0625, 0.015625)
    step_sizes: tuple[float, ...] = (1.0, 0.5, 0.2)
    race: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        for name in ("rows", "passes", "members", "small"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Tuning: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("shares", "step_sizes"):
            values = getattr(self, name)
            if not values or not all(value > 0 for value in values):
                raise ValueError(f"Tuning: {name} are candidates, one or more positive numbers, not {values}")
        if not 0 < self.race <= 1:
            raise ValueError(f"Tuning: race is a share of the steps, between 0 and 1, not {self.race}")

    def steps(self, problem: Problem, batch: int) -> int:
        """How many steps of so many rows a run is."""
        more = min(self.passes * problem.n, 4 * self.rows) if self.is_small(problem.network) else 0
        return max(1, round(max(self.rows, more) / max(batch, LEAST_BATCH)))

    def starts(self, network: Network) -> int:
        """How many starts are worth their time."""
        return self.members if self.is_small(network) else 1

    def is_small(self, network: Network) -> bool:
        """Whether a run costs little."""
        return sum(view.size for view in network.layers) <= self.small

    def batch(self, network: Network, most: int) -> int:
        """Rows of a step, at most so many, else factorisations cost more than products."""
        widest = max((view.inputs + view.outputs for view in network.layers), default=most)
        return min(most, max(LEAST_BATCH, 2 * widest))


def tuned(method: BALI, problem: Problem, trials: Trials | None, batch: int) -> tuple[BALI, tuple[str, ...]]:
    """The method with nothing left open, and what was chosen why."""
    own, notes = method.tuning, ()
    method = replace(
        method, steps=own.steps(problem, batch), members=method.members or own.starts(problem.network)
    )
    if trials is None:
        return method, ("no rows could be held out: N_eff and temperature are rules of thumb",)
    choices: dict[str, Callable[[BALI], tuple[BALI, str]]] = {
        "effective": lambda method: raced(method, "effective", own.shares, trials),
        "step_size": lambda method: raced(method, "step_size", own.step_sizes, trials),
        "temperature": lambda method: rehearsed(method, trials),
    }
    for name, choose in choices.items():
        if getattr(method, name) is not None:
            continue
        try:
            method, note = choose(method)
        except NumericalError as error:  # a candidate broke down: the run itself need not
            note = f"{WORDS[name]}: a rule of thumb, because the candidates could not be compared ({error})"
        notes += (note,)
    return method, notes


def raced(
    method: BALI, name: Literal["effective", "step_size"], values: tuple[float, ...], trials: Trials
) -> tuple[BALI, str]:
    """The value of a setting by the held-out likelihood of short runs."""
    candidates = replace(
        method,
        members=len(values),
        steps=max(1, round(method.tuning.race * method.length)),
        temperature=1.0,
        **{name: tuple(value for value in values for _ in range(trials.members))},
    )
    posterior = trials.posterior(candidates, f"choosing the {WORDS[name]}")
    parts = posterior.weights.parts if isinstance(posterior.weights, Mixture) else (posterior.weights,)
    found = torch.stack([trials.log_lik(replace(posterior, weights=part)) for part in parts])  # (C, …)
    chosen = _best(values, found)
    mean = found.reshape(len(values), -1).mean(1).tolist()  # over the splits
    shown = ", ".join(f"{value:.3g}: {one:.3f}" for value, one in zip(values, mean, strict=True))
    why = f"{WORDS[name]} {words(chosen)} chosen {_by(trials)} ({shown})"
    return replace(method, **{name: chosen}), why


def rehearsed(method: BALI, trials: Trials) -> tuple[BALI, str]:
    """The temperature by the held-out likelihood of a whole run."""
    posterior = trials.posterior(replace(method, temperature=1.0), "choosing the temperature")
    assert isinstance(posterior.weights, Layerwise | Mixture)
    tempered = [replace(posterior, weights=posterior.weights.tempered(t)) for t in TEMPERATURES]
    found = torch.stack([trials.log_lik(one) for one in tempered])  # (C, …)
    chosen = _best(TEMPERATURES, found)
    best, plain = float(found.amax(0).mean()), float(found[TEMPERATURES.index(1.0)].mean())
    why = f"temperature {words(chosen)} chosen {_by(trials)} ({best:.3f}, and {plain:.3f} at 1)"
    return replace(method, temperature=chosen), why


def _best(values: Sequence[float], found: Tensor) -> Each:
    """The value with the largest figure (C, …): one where there are no splits, else one for each."""
    known = torch.where(found.isfinite(), found, -torch.inf)
    best = [values[i] for i in known.argmax(0).reshape(-1).tolist()]
    return best[0] if found.dim() == 1 else tuple(best)


def _by(trials: Trials) -> str:
    return f"by the log-likelihood of {trials.n} held-out rows"
