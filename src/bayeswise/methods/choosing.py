"""Choices by the likelihoods of held-out rows, each data split for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from bayeswise.methods.members import Each

N = TypeVar("N", int, float)


def worth_it(found: Tensor, worth: float) -> Tensor:
    """How far (…,) to go along the lengths of (L, …, R): as long as the next gains so much per row."""
    chosen = torch.zeros(found.shape[1:-1], dtype=torch.int64, device=found.device)
    for k in range(1, len(found)):
        better = found[k].mean(-1) > found[k - 1].mean(-1) + worth
        chosen = torch.where((chosen == k - 1) & better, k, chosen)
    return chosen


def clearly_best(found: Tensor) -> Tensor:
    """The candidate under which rows (C, …, R) are most likely; the first, if no other is so by one error."""
    gain = found - found[:1]
    error = gain.std(-1) / gain.shape[-1] ** 0.5  # of the mean of paired differences
    clear = (gain.mean(-1) > error) | ~found[:1].mean(-1).isfinite()  # or the first broke down
    clear[0] = True
    return largest(torch.where(clear, found.mean(-1), -torch.inf))


def largest(found: Tensor) -> Tensor:
    """Where the largest of (C, …) is; what is no number is never taken."""
    return torch.where(found.isfinite(), found, -torch.inf).argmax(0)


def for_each(values: Sequence[float], best: Tensor) -> Each:
    """The value at a place: one where there are no splits, else one for each."""
    return values[int(best)] if best.dim() == 0 else tuple(values[i] for i in best.reshape(-1).tolist())


def for_members(value: N | tuple[N, ...], members: int) -> tuple[N, ...]:
    """A setting for each of so many members; those of several splits repeat."""
    own = value if isinstance(value, tuple) else (value,)
    return own * (members // len(own))


def at(best: Tensor, candidates: int) -> Tensor:
    """Where in (C, …, 1) the best (…,) are."""
    index = torch.arange(candidates, device=best.device).reshape(-1, *[1] * best.dim())
    return (index == best)[..., None]


def taken(found: Tensor, best: Tensor) -> Tensor:
    """Of (C, …, R) what the best (…,) have: (…, R)."""
    return found.gather(0, best[None, ..., None].expand(1, *found.shape[1:]))[0]


def where_won(wins: Tensor, one: N | tuple[N, ...], other: N | tuple[N, ...]) -> N | tuple[N, ...]:
    """One setting in the splits (…,) where it wins, the other elsewhere."""
    if wins.dim() == 0:
        return one if bool(wins) else other
    ones, others = for_members(one, wins.numel()), for_members(other, wins.numel())
    return tuple(a if w else b for w, a, b in zip(wins.tolist(), ones, others, strict=True))


def means_of(names: Sequence[float | str], found: Tensor) -> str:
    """The mean of every candidate over rows and splits (C, …, R)."""
    means = found.flatten(1).mean(1).tolist()
    texts = (name if isinstance(name, str) else f"{name:.3g}" for name in names)
    return ", ".join(f"{text}: {one:.3f}" for text, one in zip(texts, means, strict=True))
