"""What BALI chooses from the training rows alone, and how.

1. Races, for N_eff and with labels for α: candidates train as members of one short run on most of the rows.
   The first candidate is taken, unless the other rows are more likely under another by more than one
   standard error. (Short runs favour a large α in regression, where 0.5 serves all: it does not race.)
   Several starts take turns with the two best N_eff: what a short run prefers may not be best in the end,
   and the mixture of both is seldom worse than the better one.
2. Rehearsals: the run with these, of one length after another, on most of the rows again, until more steps
   are not worth it. The other rows choose the length and the temperature, the scale of Σ: what several starts
   leave unexplained together is less than what each leaves, and where the functions drawn spread they explain
   a part of the noise, so that Σ mostly says too much.
3. In regression a short rehearsal with straight starts: networks whose kinks lie outside the data. They are
   taken if the held-out rows are more likely under them, as with few rows for each column, where a bent
   function is fitted to noise.
4. The run itself, on all rows, with what was chosen.

Data splits that train together choose each for itself: no row of one split has a say in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayeswise.linalg import NumericalError
from bayeswise.methods.accounts import words
from bayeswise.methods.choosing import (
    at,
    clearly_best,
    for_each,
    for_members,
    largest,
    means_of,
    taken,
    where_won,
    worth_it,
)
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.members import Each, each
from bayeswise.methods.protocol import Trials
from bayeswise.networks import Network
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import Layerwise, Mixture

if TYPE_CHECKING:
    from bayeswise.methods.bali import BALI

WORDS = {
    "effective": "share of rows that count",
    "step_size": "step size",
    "steps": "steps",
}
LARGER = (8, 4, 2)  # the parts of the most steps that a larger network trains for
CUT = 1.6  # a length is left out where the last is not so many times as long
STRIDES = (4, 2, 1)  # between the temperatures that are tried at first, then, and in the end
TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(-14, 9))  # 1/128 … 16


@dataclass(frozen=True)
class Tuning:
    """How BALI chooses: what is compared, and how much work a run is.

    A network of at most `small` weights trains for one of the `lengths`, in steps, as far as it sees no more
    than `rows` rows; a larger one for an eighth, a quarter or a half of these rows. Up to `medium` weights it
    gets `members` starts instead of one. `shares` and `step_sizes` are the candidates for N_eff / N and α, of
    each the first where nothing speaks for another; they race for the shortest length. In classification the
    last layer moves by α as well: `label_step_sizes` are smaller, and `label_shares` do without the largest.
    `finalists` of the shares train in the end, where there are so many starts. `rehearsal` is how many of the
    starts choose length and temperature, and `worth` what a longer run must gain: held-out log-likelihood per
    row, with labels `label_worth`. Straight starts have biases `straight` times as wide, one of the
    `straight_shares`, and train for `straight_steps`; without such shares, or with more than `straight_rows`,
    they are not tried.
    """

    lengths: tuple[int, ...] = (625, 5_000)
    rows: int = 2_560_000
    members: int = 4
    small: int = 50_000
    medium: int = 100_000
    shares: tuple[float, ...] = (1.0, 4.0, 16.0, 0.25, 0.0625, 0.015625)
    label_shares: tuple[float, ...] = (1.0, 4.0, 0.25, 0.0625, 0.015625)
    finalists: int = 2
    straight_shares: tuple[float, ...] = (1.0, 0.0625)
    straight: float = 100.0
    straight_steps: int = 100
    straight_rows: int = 2_000
    step_sizes: tuple[float, ...] = (0.5,)
    label_step_sizes: tuple[float, ...] = (0.5, 0.25, 0.1)
    rehearsal: int = 2
    worth: float = 0.003
    label_worth: float = 0.001

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        for name in (
            "rows",
            "members",
            "small",
            "medium",
            "finalists",
            "straight_steps",
            "straight_rows",
            "rehearsal",
        ):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Tuning: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("lengths", "shares", "label_shares", "step_sizes", "label_step_sizes"):
            if not getattr(self, name):
                raise ValueError(f"Tuning: {name} needs at least one number")
        for name in (
            "lengths",
            "shares",
            "label_shares",
            "straight_shares",
            "step_sizes",
            "label_step_sizes",
        ):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(value > 0 for value in values):
                raise ValueError(f"Tuning: {name} is a tuple of positive numbers, not {values}")
        if list(self.lengths) != sorted(self.lengths):
            raise ValueError(f"Tuning: lengths go from the shortest to the longest, not {self.lengths}")
        if not self.straight > 0:
            raise ValueError(f"Tuning: straight is a positive scale of the biases, not {self.straight}")
        for name in ("worth", "label_worth"):
            if not getattr(self, name) >= 0:
                what = "is a log-likelihood per row, not negative, not"
                raise ValueError(f"Tuning: {name} {what} {getattr(self, name)}")

    def steps(self, network: Network, batch: int) -> tuple[int, ...]:
        """The lengths that are compared, in steps of so many rows; the last may be cut."""
        most = max(1, self.rows // batch)
        if weights(network) > self.small:
            return tuple(max(1, most // part) for part in LARGER)
        *shorter, longest = self.lengths
        last = min(longest, most)
        return (*(length for length in shorter if length * CUT < last), last)

    def candidates(self, problem: Problem) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Those for N_eff / N and those for α."""
        if problem.is_regression:
            return self.shares, self.step_sizes
        return self.label_shares, self.label_step_sizes

    def starts(self, network: Network) -> int:
        """How many starts are worth their time."""
        return self.members if weights(network) <= self.medium else 1


def weights(network: Network) -> int:
    """How many weights are inferred."""
    return sum(view.size for view in network.layers)


def tuned(method: BALI, problem: Problem, trials: Trials | None, batch: int) -> tuple[BALI, tuple[str, ...]]:
    """The method with nothing left open, and what was chosen why."""
    own, network, notes = method.tuning, problem.network, ()
    lengths = own.steps(network, batch)
    one_rate = isinstance(method.update, MeanUpdate) and problem.members is not None  # for all members
    lengths = lengths[:1] if one_rate else lengths
    method = replace(method, steps=lengths[0], members=method.members or own.starts(network))
    if trials is None:
        method = replace(method, steps=lengths[min(1, len(lengths) - 1)])
        return method, ("no rows could be held out: N_eff, steps and temperature are rules of thumb",)
    shares, sizes = own.candidates(problem)
    worth = own.worth if problem.is_regression else own.label_worth
    draft = Draft(method)
    choices: dict[str, Callable[[Draft], tuple[Draft, str]]] = {
        "effective": lambda draft: raced_shares(draft, shares, trials),
        "step_size": lambda draft: raced_step_size(draft, sizes, trials),
        "steps": lambda draft: rehearsed(draft, lengths, worth, trials),
        "bias_scale": lambda draft: straightened(draft, method.temperature, trials),
    }
    few = problem.n <= own.straight_rows and not one_rate
    if not (few and problem.is_regression and method.start == "draw" and network.layers[0].bias):
        del choices["bias_scale"]
    for name, choose in choices.items():
        if name != "steps" and getattr(method, name) is not None:
            continue
        if name == "steps" and method.temperature is not None and len(lengths) == 1:
            continue
        try:
            draft, note = choose(draft)
        except NumericalError as error:  # a candidate broke down: the run itself need not
            why = f"a rule of thumb, because the candidates could not be compared ({error})"
            note = f"{WORDS[name]}: {why}" if name in WORDS else ""  # bent starts need no excuse
        notes += (note,) if note else ()
    return draft.run(method.starts, problem.members or 1), notes


@dataclass(frozen=True)
class Draft:
    """A method while it is being chosen; the finalists for N_eff / N take turns from start to start."""

    method: BALI
    shares: tuple[Each, ...] = ()
    rows: Tensor | None = None  # the likelihoods of held-out rows (…, R) under it, once it was rehearsed

    def run(self, starts: int, members: int) -> BALI:
        """The method with so many starts, for a problem with so many members."""
        own = tuple(for_members(share, members) for share in self.shares[:starts])
        turns = tuple(share for start in range(starts) for share in own[start % len(own)]) if own else None
        alike = turns is None or len(set(turns)) == 1
        effective = self.method.effective if turns is None else turns[0] if alike else turns
        return replace(self.method, members=starts, effective=effective)


def raced_shares(draft: Draft, values: tuple[float, ...], trials: Trials) -> tuple[Draft, str]:
    """The best N_eff / N, and those that come next as long as there are starts for them."""
    runs = raced(draft.method, "effective", values, trials)
    found = torch.stack([trials.log_lik(run) for run in runs])  # (C, …, R)
    note = f"{_by(trials)} ({means_of(values, found)})"
    places = min(draft.method.starts, draft.method.tuning.finalists, len(values))
    best, shares = clearly_best(found), []
    for _ in range(places):
        shares.append(for_each(values, best))
        found = found.masked_fill(at(best, len(values)), -torch.inf)
        best = largest(found.mean(-1))
    chosen = " and ".join(words(share) for share in shares) + (" in turn" if places > 1 else "")
    method = replace(draft.method, effective=shares[0])
    return Draft(method, tuple(shares)), f"{WORDS['effective']} {chosen} chosen {note}"


def raced_step_size(draft: Draft, values: tuple[float, ...], trials: Trials) -> tuple[Draft, str]:
    """The best α; one candidate needs no race."""
    if len(values) == 1:
        return replace(draft, method=replace(draft.method, step_size=values[0])), ""
    runs = raced(draft.method, "step_size", values, trials)
    found = torch.stack([trials.log_lik(run) for run in runs])  # (C, …, R)
    chosen = for_each(values, clearly_best(found))
    method = replace(draft.method, step_size=chosen)
    note = f"{WORDS['step_size']} {words(chosen)} chosen {_by(trials)} ({means_of(values, found)})"
    return replace(draft, method=method), note


def raced(
    method: BALI, name: Literal["effective", "step_size"], values: tuple[float, ...], trials: Trials
) -> list[Posterior]:
    """Short runs with each of the values."""
    candidates = replace(
        method,
        members=len(values),
        temperature=1.0,
        **{name: tuple(value for value in values for _ in range(trials.members))},
    )
    posterior = trials.posterior(candidates, f"choosing the {WORDS[name]}")
    parts = posterior.weights.parts if isinstance(posterior.weights, Mixture) else (posterior.weights,)
    return [replace(posterior, weights=part) for part in parts]


def rehearsed(draft: Draft, lengths: tuple[int, ...], worth: float, trials: Trials) -> tuple[Draft, str]:
    """Length and temperature by the held-out likelihood of whole runs."""
    method = draft.method
    run = draft.run(min(method.starts, method.tuning.rehearsal), trials.members)
    stages: list[tuple[Tensor, Tensor]] = []  # rows (…, R) at the best temperature (…,), of each length
    for length in lengths:
        stages.append(_rehearsal(replace(run, steps=length), trials, f"rehearsing {length} steps"))
        chosen = worth_it(torch.stack([rows for rows, _ in stages]), worth)  # (…,)
        if not bool((chosen == len(stages) - 1).any()):
            break
    warm = torch.stack([best for _, best in stages]).gather(0, chosen[None])[0]  # (…,)
    steps = for_each(lengths, chosen)
    temperature = method.temperature or for_each(TEMPERATURES, warm)
    shown = ", ".join(f"{n}: {rows.mean():.3f}" for n, (rows, _) in zip(lengths, stages, strict=False))
    warmth = f" and temperature {words(temperature)}" if method.temperature is None else ""
    why = f"{words(steps)} steps{warmth} chosen {_by(trials)} ({shown})"
    rows = taken(torch.stack([rows for rows, _ in stages]), chosen)
    return replace(draft, method=replace(method, steps=steps, temperature=temperature), rows=rows), why


def straightened(draft: Draft, temperature: Each | None, trials: Trials) -> tuple[Draft, str]:
    """Straight starts, for the splits where held-out rows are more likely under them."""
    bent, own = draft.method, draft.method.tuning
    if draft.rows is None or not draft.shares or not own.straight_shares:
        return draft, ""
    rows, best, warm = _straight_rehearsals(replace(bent, temperature=temperature), trials)
    both = torch.stack([draft.rows, rows])  # (2, …, R)
    wins = largest(both.mean(-1)) == 1  # (…,)
    if not bool(wins.any()):
        return draft, ""
    share, warmth = for_each(own.straight_shares, best), temperature or for_each(TEMPERATURES, warm)
    shares = tuple(where_won(wins, share, other) for other in draft.shares)
    method = replace(
        bent,
        effective=shares[0],
        bias_scale=where_won(wins, own.straight, 1.0),
        steps=where_won(wins, own.straight_steps, bent.steps or bent.length),
        temperature=where_won(wins, warmth, bent.temperature or 1.0),
    )
    where = "" if bool(wins.all()) else f" in {int(wins.sum())} of {wins.numel()} splits"
    what = f"share {words(share)}, {own.straight_steps} steps and temperature {words(warmth)}"
    shown = means_of(("bent", "straight"), both)
    return Draft(method, shares), f"a straight start instead{where}, {what} chosen {_by(trials)} ({shown})"


def _straight_rehearsals(method: BALI, trials: Trials) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out rows (…, R) under the best of the shares; which that is, and at which temperature (…,)."""
    own = method.tuning
    starts = min(method.starts, own.rehearsal)
    straight = replace(method, bias_scale=own.straight, steps=own.straight_steps, members=starts)
    rows, warm = [], []
    for share in own.straight_shares:
        what = f"rehearsing a straight start with share {share:g}"
        found, temperature = _rehearsal(replace(straight, effective=share), trials, what)
        rows.append(found)
        warm.append(temperature)
    best = largest(torch.stack(rows).mean(-1))
    return taken(torch.stack(rows), best), best, torch.stack(warm).gather(0, best[None])[0]


def _rehearsal(method: BALI, trials: Trials, what: str) -> tuple[Tensor, Tensor]:
    """The likelihoods of held-out rows (…, R), at the best of the temperatures (…,) or at the one given."""
    posterior = trials.posterior(replace(method, temperature=1.0), what)
    given = method.temperature
    return _tempered(posterior, TEMPERATURES if given is None else (each(given, posterior.problem),), trials)


def _tempered(
    posterior: Posterior, scales: Sequence[float | Tensor], trials: Trials
) -> tuple[Tensor, Tensor]:
    """The likelihoods of held-out rows (…, R) at the best of the temperatures (…,).

    Every fourth is tried, then those between the best and its neighbours, nearer and nearer: of each split
    its own, whatever others try.
    """
    weights, size = posterior.weights, len(scales)
    assert isinstance(weights, Layerwise | Mixture)
    tried: dict[int, Tensor] = {}  # rows (…, R) by the temperature's place
    way: dict[int, Tensor | bool] = {}  # whether a split comes by that place (…,)
    best: Tensor | None = None
    for stride in STRIDES:
        for k in range(0, size, stride) if best is None else _beside(best, stride, size):
            if k not in tried:
                tried[k] = trials.log_lik(replace(posterior, weights=weights.tempered(scales[k])))
            way[k] = way.get(k, False) | (True if best is None else (best - k).abs() == stride)
        places = sorted(tried)
        found = torch.stack([tried[k] for k in places])  # (C, …, R)
        mean = found.mean(-1)  # (C, …)
        own = [torch.as_tensor(way[k], device=mean.device).expand(mean.shape[1:]) for k in places]
        chosen = largest(mean.where(torch.stack(own), -torch.inf))  # (…,)
        best = torch.tensor(places, device=chosen.device)[chosen]
    assert best is not None  # there are strides
    if not bool(mean.isfinite().any(0).all()):
        raise NumericalError("the held-out rows have no likelihood at any temperature")
    return taken(found, chosen), best


def _beside(best: Tensor, stride: int, size: int) -> list[int]:
    """The places so far on both sides of the best (…,), of so many places."""
    found = {k + step for k in best.unique().tolist() for step in (-stride, stride)}
    return sorted(found & set(range(size)))


def _by(trials: Trials) -> str:
    return f"by the log-likelihood of {trials.n} held-out rows"
