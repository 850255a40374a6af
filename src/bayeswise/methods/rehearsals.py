"""The trials by which BALI chooses: races, rehearsals, straight starts.

Each takes a draft of the method and gives back the next, with a sentence on what was chosen why. Data splits
that train together choose each for itself: no row of one split has a say in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayeswise.linalg import NumericalError
from bayeswise.methods.accounts import words
from bayeswise.methods.bali_state import BALIState, of_best
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
from bayeswise.methods.members import Each, each
from bayeswise.methods.protocol import Trials
from bayeswise.posterior import Posterior
from bayeswise.weights import Layerwise, Mixture

if TYPE_CHECKING:
    from bayeswise.methods.bali import BALI

WORDS = {
    "effective": "share of rows that count",
    "step_size": "step size",
    "steps": "steps",
}
STRIDES = (4, 2, 1)  # between the temperatures that are tried at first, then, and in the end
AT_ONCE = 160  # networks that race together: what more of them hold is slow to get from the system
TEMPERATURES = tuple(2.0 ** (k / 2) for k in range(-14, 9))  # 1/128 … 16


@dataclass(frozen=True)
class Draft:
    """A method while it is being chosen; the finalists for N_eff / N take turns from start to start.

    The first starts have the first of the prior's scales, the last the last. Where the networks of the
    rehearsal go on in the run itself, all starts rehearse, some on each part of the rows; else a few.
    """

    method: BALI
    shares: tuple[Each, ...] = ()
    scales: tuple[Each, ...] = ()
    goes_on: bool = False
    raced: Tensor | None = None  # the held-out likelihood per row (…,) of the winner of the race for N_eff
    rows: Tensor | None = None  # the likelihoods of held-out rows (…, R) under it, once it was rehearsed
    state: BALIState | None = None  # at the end of the rehearsal, where it goes on

    def rehearsing(self, trials: Trials) -> int:
        """How many starts rehearse on each part of the rows."""
        starts = self.method.starts
        return starts // trials.folds if self.goes_on else min(starts, self.method.tuning.rehearsal)

    def run(self, starts: int, members: int) -> BALI:
        """The method with so many starts, for a problem with so many members."""
        shares, scales = self.shares[:starts], self.scales
        turns = tuple(shares[start % len(shares)] for start in range(starts)) if shares else ()
        parts = tuple(scales[start * len(scales) // starts] for start in range(starts)) if scales else ()
        method = replace(self.method, members=starts)
        method = replace(method, effective=_one_or_each(turns, members)) if turns else method
        return replace(method, prior_scale=_one_or_each(parts, members)) if parts else method


def _one_or_each(values: tuple[Each, ...], members: int) -> Each:
    """A setting of every start, for each of its members; one number where all are alike."""
    own = tuple(value for each in values for value in for_members(each, members))
    return own[0] if len(set(own)) == 1 else own


def raced_shares(draft: Draft, values: tuple[float, ...], trials: Trials) -> tuple[Draft, str]:
    """The best N_eff / N, and those that come next as long as there are starts for them."""
    runs = raced(draft.method, "effective", values, trials)
    found = torch.stack([trials.log_lik(run) for run in runs])  # (C, …, R)
    note = f"{_by(trials)} ({means_of(values, found)})"
    places = min(draft.method.starts, draft.method.tuning.finalists, len(values))
    best, shares = clearly_best(found), []
    winner = taken(found, best).mean(-1)  # (…,)
    for _ in range(places):
        shares.append(for_each(values, best))
        found = found.masked_fill(at(best, len(values)), -torch.inf)
        best = largest(found.mean(-1))
    chosen = " and ".join(words(share) for share in shares) + (" in turn" if places > 1 else "")
    method = replace(draft.method, effective=shares[0])
    draft = replace(draft, method=method, shares=tuple(shares), raced=winner)
    return draft, f"{WORDS['effective']} {chosen} chosen {note}"


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
    """Short runs with each of the values, several at once."""
    size = max(1, AT_ONCE // trials.members)
    parts = [values[k : k + size] for k in range(0, len(values), size)]
    return [run for part in parts for run in _race(method, name, part, trials)]


def _race(
    method: BALI, name: Literal["effective", "step_size"], values: tuple[float, ...], trials: Trials
) -> list[Posterior]:
    """One run, whose starts differ in a setting."""
    candidates = replace(
        method,
        members=len(values),
        steps=min(method.length, method.tuning.race),
        temperature=1.0,
        **{name: tuple(value for value in values for _ in range(trials.members))},
    )
    among = ", ".join(f"{value:g}" for value in values)
    posterior = trials.trial(candidates, f"choosing the {WORDS[name]} among {among}").posterior
    parts = posterior.weights.parts if isinstance(posterior.weights, Mixture) else (posterior.weights,)
    return [replace(posterior, weights=part) for part in parts]


def rehearsed(
    draft: Draft, lengths: tuple[int, ...], worth: float, steep: float, trials: Trials
) -> tuple[Draft, str]:
    """Length and temperature by the held-out likelihood of whole runs.

    Longer ones than the first are tried where it gained `steep` per row on the race.
    """
    method = draft.method
    run = draft.run(draft.rehearsing(trials), trials.members)
    stages: list[Rehearsal] = []  # one of each length
    for length in lengths:
        stages.append(_rehearsal(replace(run, steps=length), trials, f"rehearsing {length} steps"))
        chosen = worth_it(torch.stack([stage.rows for stage in stages]), worth)  # (…,)
        longer = _gained(draft, stages[0].rows) >= steep  # (…,)
        chosen = torch.where(longer, chosen, 0)
        if not bool((longer & (chosen == len(stages) - 1)).any()):
            break
    best = _best(stages, chosen, draft.goes_on)
    steps = lengths[0] if len(lengths) == 1 else for_each(lengths, chosen)
    temperature = method.temperature or for_each(TEMPERATURES, best.warm)
    shown = ", ".join(f"{n}: {one.rows.mean():.3f}" for n, one in zip(lengths, stages, strict=False))
    warmth = f" and temperature {words(temperature)}" if method.temperature is None else ""
    why = f"{words(steps)} steps{warmth} chosen {_by(trials)} ({shown})"
    method = replace(method, steps=steps, temperature=temperature)
    return replace(draft, method=method, rows=best.rows, state=best.state), why


def _gained(draft: Draft, rows: Tensor) -> Tensor:
    """How much more likely per row (…,) held-out rows (…, R) are than in the race, if there was one."""
    return torch.zeros(rows.shape[:-1]) if draft.raced is None else rows.mean(-1) - draft.raced


def straightened(draft: Draft, temperature: Each | None, trials: Trials) -> tuple[Draft, str]:
    """Straight starts, for the splits where held-out rows are more likely under them."""
    bent, own = draft.method, draft.method.tuning
    if draft.rows is None or not draft.shares or not own.straight_shares:
        return draft, ""
    best, straight = _straight_rehearsal(draft, temperature, trials)
    both = torch.stack([draft.rows, straight.rows])  # (2, …, R)
    wins = largest(both.mean(-1)) == 1  # (…,)
    if not bool(wins.any()):
        return draft, ""
    share = for_each(own.straight_shares, best)
    warmth = temperature or for_each(TEMPERATURES, straight.warm)
    method = replace(
        bent,
        effective=where_won(wins, share, draft.shares[0]),
        bias_scale=where_won(wins, own.straight, 1.0),
        steps=where_won(wins, own.straight_steps, bent.steps or bent.length),
        temperature=where_won(wins, warmth, bent.temperature or 1.0),
    )
    shares = tuple(where_won(wins, share, other) for other in draft.shares)
    scales = tuple(where_won(wins, 1.0, other) for other in draft.scales)
    state = of_best([draft.state, straight.state], wins.long()) if draft.goes_on else None
    where = "" if bool(wins.all()) else f" in {int(wins.sum())} of {wins.numel()} splits"
    what = f"share {words(share)}, {own.straight_steps} steps and temperature {words(warmth)}"
    shown = means_of(("bent", "straight"), both)
    note = f"a straight start instead{where}, {what} chosen {_by(trials)} ({shown})"
    rows = taken(both, wins.long())
    return replace(draft, method=method, shares=shares, scales=scales, rows=rows, state=state), note


def _straight_rehearsal(draft: Draft, temperature: Each | None, trials: Trials) -> tuple[Tensor, Rehearsal]:
    """Which of the shares is best with straight starts (…,), and its rehearsal."""
    own = draft.method.tuning
    straight = replace(
        draft.method,
        bias_scale=own.straight,
        steps=own.straight_steps,
        temperature=temperature,
        members=draft.rehearsing(trials),
    )
    found = [
        _rehearsal(
            replace(straight, effective=share), trials, f"rehearsing a straight start with share {share:g}"
        )
        for share in own.straight_shares
    ]
    best = largest(torch.stack([one.rows for one in found]).mean(-1))
    return best, _best(found, best, draft.goes_on)


@dataclass(frozen=True)
class Rehearsal:
    """A whole run on most of the rows."""

    rows: Tensor  # the likelihoods of held-out rows (…, R)
    warm: Tensor  # at which of the temperatures (…,)
    state: BALIState | None


def _best(rehearsals: Sequence[Rehearsal], best: Tensor, goes_on: bool) -> Rehearsal:
    """Of several rehearsals the best (…,) in every split; with its state where networks go on from it."""
    rows = taken(torch.stack([one.rows for one in rehearsals]), best)
    warm = torch.stack([one.warm for one in rehearsals]).gather(0, best[None])[0]
    return Rehearsal(rows, warm, of_best([one.state for one in rehearsals], best) if goes_on else None)


def _rehearsal(method: BALI, trials: Trials, what: str) -> Rehearsal:
    """A run, at the best of the temperatures or at the one given."""
    trial, given = trials.trial(replace(method, temperature=1.0), what), method.temperature
    scales = TEMPERATURES if given is None else (each(given, trial.posterior.problem),)
    return Rehearsal(*_tempered(trial.posterior, scales, trials), trial.state)


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
