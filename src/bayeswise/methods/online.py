r"""Prior precision and noise by the evidence while the network trains: looks at all rows between its steps.

    w  ← so many steps on  -Σ_n log p(y_n | f(x_n; w), Σ) + ½ Σ_l δ_l |w_l|²
    δ, Σ ← what makes log Z largest at these weights                  `evidence.tuned`

At rest w is the maximum under the very δ and Σ that the evidence chooses there. For a linear model and a
structure that is exact for it, this is where ∂ log Z / ∂δ = ∂ log Z / ∂Σ = 0. A network's G moves with its
weights, so log Z may fall: then half of the way is taken back, and later moves are half as long.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.methods.evidence import Evidence, Tuned
from bayeswise.methods.gradient import Descent
from bayeswise.methods.protocol import Batch, Data, Info, Method, Plan
from bayeswise.networks import LayerView, Params
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights.curved import summed

SLACK = 0.01  # log Z may be so much below the best: training that is not at rest makes it waver


@dataclass(frozen=True)
class Online(Evidence):
    """The prior precision that makes log Z largest, found anew every so many steps of the training.

    The share `warmup` of the steps trains under the prior of `first`: weights that have learned nothing yet
    would be taken for ones that should be small. With a precision for each layer, one layer may shrink while
    another grows, at no gain in log Z: one for all is the default here.
    """

    shared: bool = True
    every: int = 50
    warmup: float = 0.2

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        object.__setattr__(self, "every", operator.index(self.every))  # numpy's integers are welcome
        if self.every < 1 or not 0 <= self.warmup < 1:
            given = f"{self.every}, {self.warmup}"
            raise ValueError(f"Online: every must be at least 1 and warmup a share in [0, 1), not {given}")

    def due(self, step: int, steps: int) -> bool:
        """Whether a look follows this step; after the last one the posterior looks anyway."""
        return self.warmup * steps <= step < steps and step % self.every == 0


@dataclass(frozen=True)
class Hyper:
    """What the evidence chooses."""

    precision: Params  # δ (…,) by layer
    noise: Tensor  # Σ (…, O, O)

    def towards(self, other: Hyper, share: Tensor) -> Hyper:
        """Part of the way (…,): δ by its logarithm; layers that the other does not know stay."""
        mixed = {
            name: (d.log() + share * (other.precision.get(name, d) / d).log()).exp()
            for name, d in self.precision.items()
        }
        return Hyper(mixed, torch.lerp(self.noise, other.noise, share[..., None, None]))

    def where(self, chosen: Tensor, other: Hyper) -> Hyper:
        """This one in the splits (…,) that are chosen."""
        mixed = {name: torch.where(chosen, d, other.precision[name]) for name, d in self.precision.items()}
        return Hyper(mixed, torch.where(chosen[..., None, None], self.noise, other.noise))


@dataclass(frozen=True)
class OnlineState:
    """Where the weights are, under what they train, and what was best so far."""

    training: Descent
    present: Hyper
    best: Hyper  # that under which the weights with the largest log Z trained
    log_evidence: Tensor  # log Z of these (…,)
    share: Tensor  # of the way to the evidence's choice that a look goes (…,)
    looks: Tensor  # so far; before the first the noise is the training's own

    def held(self) -> Hyper:
        """The present prior and noise."""
        own = self.present.noise
        return replace(self.present, noise=torch.where(self.looks > 0, own, self.training.noise))


@dataclass(frozen=True, eq=False)
class LayerPrior:
    """N(0, δ_l⁻¹) for the weights of each layer, and one precision for all others."""

    layers: tuple[LayerView, ...]
    precision: Mapping[str, Tensor]  # δ (…,)
    others: float

    @property
    def names(self) -> frozenset[str]:
        """The parameters of these layers."""
        return frozenset(name for view in self.layers for name in view.parameters)

    def start(self) -> Params:
        """Where the training is: this prior has no values of its own."""
        return {}

    def penalty(self, params: Params) -> Tensor:
        """½ Σ_l δ_l |w_l|² (…,)."""
        own = {name: self.precision[view.name] for view in self.layers for name in view.parameters}
        lead = next(iter(self.precision.values())).dim()
        parts = [own.get(name, self.others) * summed(w.square(), lead) for name, w in params.items()]
        return 0.5 * torch.stack(parts).sum(0)


@dataclass(frozen=True)
class Alternating:
    """A method that trains under a prior of its own, as it does under one that may change between steps."""

    first: Any

    @property
    def standardises(self) -> bool:
        """As the training does."""
        return self.first.standardises

    @property
    def infers_all(self) -> bool:
        """As the training does."""
        return self.first.infers_all

    @property
    def starts_from_model(self) -> bool:
        """As the training does."""
        return self.first.starts_from_model

    def plan(self, problem: Problem) -> Plan:
        """That of the training."""
        return self.first.plan(problem)

    def init(self, problem: Problem, data: Data, rng: Generator) -> OnlineState:
        """The training's start and prior."""
        training = self.first.init(problem, data, rng)
        one = torch.ones(problem.lead, dtype=torch.float64, device=problem.network.device)
        precision = {view.name: one * self.first.precision for view in problem.network.layers}
        start = Hyper(precision, training.noise.clone())
        looks = torch.zeros((), dtype=torch.int64, device=one.device)
        return OnlineState(training, start, start, -torch.inf * one, one, looks)

    def step(
        self, problem: Problem, state: OnlineState, batch: Batch, rng: Generator
    ) -> tuple[OnlineState, Info]:
        """One step of the training under the present prior and noise."""
        held = state.held()
        prior = LayerPrior(problem.network.layers, held.precision, self.first.precision)
        training = replace(state.training, noise=held.noise)
        training, info = self.first.towards(prior).step(problem, training, batch, rng)
        return replace(state, training=training), info

    def moved(self, state: OnlineState, found: Tuned) -> OnlineState:
        """Go on towards what the evidence chose; half-way back to the best where log Z has fallen."""
        held, value = state.held(), state.log_evidence
        up = found.log_evidence >= value - SLACK  # (…,)
        share = torch.where(up, state.share, state.share / 2)
        best = held.where(up, state.best)
        half = torch.full_like(share, 0.5)
        onward = held.towards(Hyper(dict(found.precision), found.noise), share)
        present = onward.where(up, best.towards(held, half))
        value = torch.maximum(value, found.log_evidence)
        return replace(
            state, present=present, best=best, log_evidence=value, share=share, looks=state.looks + 1
        )

    def posterior(self, problem: Problem, state: OnlineState, data: Data) -> Posterior:
        """That of the training."""
        return self.first.posterior(problem, state.training, data)


def alternating(online: Online, first: Method[Any] | None) -> Alternating:
    """The training with looks at the evidence; refuse one that cannot have them."""
    if first is None:
        raise ValueError("Laplace: Online() chooses while the network trains: give first=bw.MAP()")
    if not hasattr(first, "towards"):
        kind = type(first).__name__
        raise TypeError(
            f"Laplace: first={kind}() has no prior that Online() could change; use first=bw.MAP()"
        )
    return Alternating(first)


def check_training(first: Any) -> None:
    """Refuse what does not end in one network: of this package all but MAP; others show it at their end."""
    if first is None or hasattr(first, "towards") and not isinstance(first, type):
        return
    if isinstance(first, type) or not hasattr(first, "step"):
        raise TypeError(f"Laplace: first is a method that trains, such as bw.MAP(), not {first!r}")
    if type(first).__module__.startswith("bayeswise."):
        kind = type(first).__name__
        raise ValueError(f"Laplace: first={kind}() does not end in one network; use first=bw.MAP()")


def looks_taken(given: Any, state: Any) -> tuple[str, ...]:
    """How often the evidence was asked while the network trained, for `summary()`."""
    if not isinstance(given, Online):
        return ()
    return (f"prior and noise chosen by the evidence {int(state.looks)} times while training",)
