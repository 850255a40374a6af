"""What BALI chooses from the training rows alone, and in which order.

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
4. The run itself, on all rows. The starts of a small network have rehearsed, some on each part of the rows:
   they go on from there. Larger ones train afresh with what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING

from bayeswise.data import BATCH
from bayeswise.linalg import NumericalError
from bayeswise.methods.accounts import words
from bayeswise.methods.bali_state import SMALL, WIDE, resumed
from bayeswise.methods.members import widened
from bayeswise.methods.protocol import Chosen, Trials
from bayeswise.methods.rehearsals import (
    WORDS,
    Draft,
    raced_shares,
    raced_step_size,
    rehearsed,
    straightened,
)
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.networks import Network
from bayeswise.problem import Problem

if TYPE_CHECKING:
    from bayeswise.methods.bali import BALI

Choose = Callable[[Draft], tuple[Draft, str]]

LARGER = (8, 4, 2)  # the parts of all rows that a larger network trains for


@dataclass(frozen=True)
class Tuning:
    """How BALI chooses: what is compared, and how much work a run is.

    A network of at most `small` weights takes a step with a `part` of the rows, `least` to 1,024 of them (of
    a small table with `little` of its rows, at least `fewest`), trains for one of the `lengths`, in steps,
    and then for `more` times this length on all rows; in float64, and for `few_steps` at first, if there are
    `few` rows, with labels `label_few`, or `few_each` for each input. Longer runs than the first are tried
    with more than `long_rows`, if it gained `steep` per held-out row on the race. A larger one sees an
    eighth, a quarter or a half of so many `rows`. A small one has `small_members` starts, one of up to
    `medium` weights `members`, a larger one has one.

    `shares` and `step_sizes` are the candidates for N_eff / N and α, of each the first where nothing speaks
    for another; they race for `race` steps. In regression starts have priors `prior_scales` times as wide,
    equally many each. In classification the last layer moves by α as well: `label_step_sizes` are smaller,
    and `label_shares` do without the largest. `finalists` of the shares train in the end, where there are so
    many starts. `rehearsal` is how many of the starts choose length and temperature where the run begins
    afresh, and `worth` what a longer run must gain: held-out log-likelihood per row, with labels
    `label_worth`. Straight starts have biases `straight` times as wide, one of the `straight_shares`, and
    train for `straight_steps`; without such shares, or with more than `straight_rows`, they are not tried.
    """

    lengths: tuple[int, ...] = (5_000, 20_000)
    long_rows: int = 2_000
    steep: float = 0.4
    more: float = 0.1
    rows: int = 2_560_000
    part: float = 0.0625
    least: int = 256
    little: float = 0.25
    fewest: int = 64
    small_members: int = 8
    members: int = 4
    small: int = SMALL
    few: int = 500
    label_few: int = 2_000
    few_each: int = 20
    few_steps: int = 3_000
    medium: int = 100_000
    shares: tuple[float, ...] = (1.0, 4.0, 16.0, 0.25, 0.0625, 0.015625)
    label_shares: tuple[float, ...] = (1.0, 4.0, 0.25, 0.0625, 0.015625)
    race: int = 312
    prior_scales: tuple[float, ...] = (1.0, 10.0)
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
        counts = "long_rows rows least fewest small_members members small few label_few few_each few_steps"
        counts += " medium race finalists rehearsal straight_steps straight_rows"
        for name in counts.split():
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
            "prior_scales",
            "step_sizes",
            "label_step_sizes",
        ):
            values = getattr(self, name)
            if not isinstance(values, tuple) or not all(value > 0 for value in values):
                raise ValueError(f"Tuning: {name} is a tuple of positive numbers, not {values}")
        if list(self.lengths) != sorted(self.lengths):
            raise ValueError(f"Tuning: lengths go from the shortest to the longest, not {self.lengths}")
        for name in ("straight", "more", "part", "little"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Tuning: {name} must be positive, not {getattr(self, name)}")
        for name in ("worth", "label_worth", "steep"):
            if not getattr(self, name) >= 0:
                what = "is a log-likelihood per row, not negative, not"
                raise ValueError(f"Tuning: {name} {what} {getattr(self, name)}")

    def steps(self, problem: Problem, batch: int) -> tuple[int, ...]:
        """The lengths that are compared, in steps of so many rows."""
        if not self.is_small(problem.network):
            return tuple(max(1, self.rows // (batch * part)) for part in LARGER)
        first, *longer = self.lengths
        first = min(first, self.few_steps) if self.is_little(problem) else first
        return (first, *longer) if problem.n > self.long_rows else (first,)

    def candidates(self, problem: Problem) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Those for N_eff / N and those for α."""
        if problem.is_regression:
            return self.shares, self.step_sizes
        return self.label_shares, self.label_step_sizes

    def starts(self, network: Network) -> int:
        """How many starts are worth their time."""
        if self.is_small(network):
            return self.small_members
        return self.members if weights(network) <= self.medium else 1

    def batch(self, network: Network, n: int) -> int:
        """How many of n rows a step takes."""
        if not self.is_small(network):
            return BATCH
        least = min(self.least, max(self.fewest, int(self.little * n)))
        return min(BATCH, max(least, int(self.part * n)))

    def is_small(self, network: Network) -> bool:
        """Whether a run costs little."""
        return weights(network) <= self.small

    def is_little(self, problem: Problem) -> bool:
        """Whether few rows, or few for each input, are all there is to choose by."""
        few = self.few if problem.is_regression else self.label_few
        inputs = max((view.inputs for view in problem.network.layers[:1]), default=0)
        return self.is_small(problem.network) and problem.n <= max(few, self.few_each * inputs)


def weights(network: Network) -> int:
    """How many weights are inferred."""
    return sum(view.size for view in network.layers)


def tuned(method: BALI, problem: Problem, trials: Trials | None, batch: int) -> Chosen:
    """The method with nothing left open, what was chosen why, and where its run begins."""
    own, network, notes = method.tuning, problem.network, ()
    lengths = own.steps(problem, batch)
    method = replace(method, steps=lengths[0], members=method.members or own.starts(network))
    method = replace(method, update=method.rule(problem))  # of all trials, however many they compare
    if trials is None:
        middle = 0 if own.is_small(network) else min(1, len(lengths) - 1)
        method = replace(method, steps=lengths[middle])
        return Chosen(method, ("no rows could be held out: N_eff, steps and temperature are rules of thumb",))
    scales = own.prior_scales if problem.is_regression and method.prior_scale is None else ()
    draft = Draft(method, scales=scales, goes_on=_goes_on(method, problem, trials))
    for name, choose in _choices(method, problem, trials, lengths).items():
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
    return _finished(draft, problem, trials, notes)


def _choices(method: BALI, problem: Problem, trials: Trials, lengths: tuple[int, ...]) -> dict[str, Choose]:
    """What there is to choose, in this order."""
    own, network = method.tuning, problem.network
    shares, sizes = own.candidates(problem)
    worth = own.worth if problem.is_regression else own.label_worth
    steep = own.steep if own.is_small(network) else -inf
    choices: dict[str, Choose] = {
        "effective": lambda draft: raced_shares(draft, shares, trials),
        "step_size": lambda draft: raced_step_size(draft, sizes, trials),
        "steps": lambda draft: _rehearsed(draft, lengths, worth, steep, trials),
        "bias_scale": lambda draft: straightened(draft, method.temperature, trials),
    }
    few, has_bias = problem.n <= own.straight_rows, any(view.bias for view in network.layers[:1])
    if not (few and problem.is_regression and method.start == "draw" and has_bias):
        del choices["bias_scale"]
    return choices


def _rehearsed(
    draft: Draft, lengths: tuple[int, ...], worth: float, steep: float, trials: Trials
) -> tuple[Draft, str]:
    """The rehearsal; if it breaks down, with one prior for all: a wide one lets rounding errors grow."""
    try:
        return rehearsed(draft, lengths, worth, steep, trials)
    except NumericalError:
        if not draft.scales:
            raise
        return rehearsed(replace(draft, scales=()), lengths, worth, steep, trials)


def _goes_on(method: BALI, problem: Problem, trials: Trials) -> bool:
    """Whether the starts can rehearse, equally many on each part of the rows, and go on from there.

    Where the first layer's products are taken beforehand they belong to those rows: no.
    """
    narrow = all(view.inputs < WIDE for view in problem.network.layers[:1])
    kept = (narrow or isinstance(method.rule(problem), NaturalUpdate)) and method.start == "draw"
    return kept and method.tuning.is_small(problem.network) and method.starts % trials.folds == 0


def _finished(draft: Draft, problem: Problem, trials: Trials, notes: tuple[str, ...]) -> Chosen:
    """The run itself: afresh, or on from the rehearsal. Wide priors have to have stood one."""
    starts = draft.method.starts
    draft = draft if draft.rows is not None else replace(draft, scales=())
    if draft.state is None:
        return Chosen(draft.run(starts, problem.members or 1), notes)
    run = replace(draft.run(draft.rehearsing(trials), trials.members), members=starts)
    lengths = run.steps if isinstance(run.steps, tuple) else (run.length,)
    more = tuple(ceil(run.tuning.more * length) for length in lengths)
    run = replace(run, steps=more if isinstance(run.steps, tuple) else more[0])
    note = f"{words(run.steps or 0)} more steps on all rows, from where the rehearsal ended"
    wide = widened(problem, starts)
    return Chosen(run, (*notes, note), resumed(draft.state, wide, isinstance(run.steps, tuple)))
