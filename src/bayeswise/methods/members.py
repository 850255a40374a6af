"""Several starts of one method in one run: they are members of a wider problem with the same rows for each.

A problem with S data splits becomes one with E·S members: those of the first start, then of the second, …
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor

from bayeswise.distributions import MatrixNormalInverseWishart
from bayeswise.likelihoods import Gaussian
from bayeswise.methods.protocol import Batch
from bayeswise.networks import vectorises
from bayeswise.problem import Problem, Units


def widened(problem: Problem, starts: int, example: Tensor | None = None) -> Problem:
    """The problem with so many starts of every split; itself for one.

    The first call, which has an example of the inputs, decides how members run.
    """
    if starts == 1:
        return problem
    cache, key = problem.network.cache, ("widened", starts, problem.n, problem.members)
    if key not in cache:
        network, units, likelihood = problem.network, problem.units, problem.likelihood
        if problem.members is None and network.vectorised and example is not None:
            own = vectorises(network, network.layer_parameters(), example, True)  # inputs have members now
            network = replace(network, vectorised=own)
        if problem.members is not None and units.shift.dim() > 1:  # each split has its own
            units = Units(*(t.repeat(starts, *[1] * (t.dim() - 1)) for t in (units.shift, units.scale)))
        noise = likelihood.noise if isinstance(likelihood, Gaussian) else None
        if isinstance(noise, Tensor) and noise.dim() > 2:  # each split has its own
            likelihood = likelihood.given(noise.repeat(starts, 1, 1))
        own = starts * (problem.members or 1)
        cache[key] = replace(problem, network=network, likelihood=likelihood, members=own, units=units)
    return cache[key]


Each = float | tuple[float, ...]  # a setting: one for all, or one for each member; they repeat


def all_positive(name: str, value: Each) -> bool:
    """Whether the setting of this name is a positive number, or one or more of them."""
    many = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(v, Real) for v in many):
        kind = type(value).__name__
        raise TypeError(
            f"{name} is the {kind} {value!r}; give one number for all, or a tuple with one for each"
        )
    return bool(many) and all(v > 0 for v in many)


def each(value: Each, problem: Problem, groups: int = 0) -> float | Tensor:
    """A setting as it is, or (E·S, 1, …): one for each member of a widened problem, and so many groups."""
    if not isinstance(value, tuple):
        return value
    cache, key = problem.network.cache, ("each", value, problem.members, groups)
    if key not in cache:
        cache[key] = spread(value, problem, groups)
    return cache[key]


def spread(value: tuple[float, ...], problem: Problem, groups: int = 0) -> Tensor:
    """One of several settings for each member (E·S, 1, …); they repeat."""
    members = problem.members or 1
    if members % len(value):
        raise ValueError(f"{len(value)} settings for {members} members: give one for all, or one for each")
    values = torch.tensor(value, dtype=torch.float64, device=problem.network.device)
    return values.repeat(members // len(value)).reshape(*problem.lead, *[1] * groups)


def repeated(problem: Problem, batch: Batch, starts: int) -> Batch:
    """The same rows for every start, (E·S, B, …)."""
    if starts == 1:
        return batch

    def wide(t: Tensor) -> Tensor:
        t = t.expand(starts, *t.shape)
        return t if problem.members is None else t.flatten(0, 1)

    return wide(batch[0]), wide(batch[1])


def of_start(problem: Problem, t: Tensor, start: int, starts: int) -> Tensor:
    """What one start has of a tensor (E·S, …): (S, …), or without a leading dimension where no splits are."""
    if starts == 1:
        return t
    own = t.unflatten(0, (starts, -1))[start]
    return own[0] if problem.members is None else own


def layer_of_start(
    problem: Problem, q: MatrixNormalInverseWishart, start: int, starts: int
) -> MatrixNormalInverseWishart:
    """One start's posterior of a layer, by itself."""
    parts = {name: of_start(problem, getattr(q, name), start, starts) for name in ("factor", "dof", "jitter")}
    return replace(q, factor=parts["factor"].contiguous(), dof=parts["dof"], jitter=parts["jitter"])
