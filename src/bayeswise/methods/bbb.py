"""Bayes by Backprop: independent Gaussian weights by gradients of the evidence bound (arXiv 1505.05424).

    q(w) = N(w; μ, σ²),  σ = softplus(ρ)
    minimise  -mean_n log p(y_n | f(x_n; w)) + κ / N · KL(q | p)      with one draw w ~ q a step

    w = μ + σ ε                                                       one network for the batch, or
    z = xμ + sqrt(x² σ²) ε                                            row by row (arXiv 1506.02557)

    KL = Σ log(s / σ) + (σ² + μ²) / (2 s²) - 1/2                      of a Gaussian prior N(0, s²), exact
    KL = Σ log q(w) - log p(w)                                        of a scale mixture, at the draw

μ `mean`, ρ `rho`, κ `kl_weight`. All parameters that require a gradient lie in one vector, in train mode. The
noise of a Gaussian likelihood is the one that maximises the bound: the moving average of E_q (y - f)(y - f)ᵀ,
estimated with the draw of each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Size, Tensor

from bayeswise.methods.forward import Forward, LocalReparametrisation, WeightNoise
from bayeswise.methods.gradient import (
    Descent,
    GradientMethod,
    all_values,
    bare,
    check_settings,
    descend,
    fan_ins,
    fresh_,
    outputs,
    starting_values,
    training_notes,
)
from bayeswise.methods.protocol import Batch, Data, Info
from bayeswise.methods.schedules import Cosine, Schedule
from bayeswise.networks import Network, Params, noise_keys, row_counts
from bayeswise.posterior import Posterior
from bayeswise.priors import Isotropic, Prior, ScaleMixture
from bayeswise.problem import Problem
from bayeswise.weights import MeanField


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the vector of all that train."""

    shapes: dict[str, Size]

    @property
    def size(self) -> int:
        """P."""
        return sum(shape.numel() for shape in self.shapes.values())

    def join(self, params: Params, lead: int) -> Tensor:
        """One vector (…, P) from parameters with so many leading dimensions."""
        parts = (params[name] for name in self.shapes)
        return torch.cat([part.reshape(*part.shape[:lead], -1) for part in parts], -1)

    def split(self, vector: Tensor) -> Params:
        """The parameters (…) by name."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()], -1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape(vector.shape[:-1] + shape) for (name, shape), part in named}


@dataclass(frozen=True)
class Noise:
    """The standard normal numbers of one step, drawn before the pass."""

    weights: Tensor | None  # ε (…, P); None where no weight is drawn
    rows: dict[str, Tensor]  # ε (…, R, O) of the layers whose outputs are drawn


@dataclass(frozen=True)
class BayesByBackprop(GradientMethod):
    """Independent Gaussian weights, fitted by the gradient of the evidence bound.

    `forward` is `WeightNoise()`, one network for each batch, or `LocalReparametrisation()`, where chosen
    layers draw their outputs row by row. `prior` may be a `bayeswise.priors.ScaleMixture`. `start` "model"
    begins with the module's own weights as means, "draw" with fresh ones.
    """

    learning_rate: Schedule = field(default=Cosine(0.005))
    kl_weight: float = 1.0
    prior: Prior | ScaleMixture = field(default=Isotropic(1.0))
    forward: Forward = field(default=LocalReparametrisation())
    initial_std: float = 0.02
    start: Literal["model", "draw"] = "model"
    steps: int = 2000

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        check_settings(self)
        if type(self.forward) not in NOISES:
            raise TypeError(
                "BayesByBackprop: forward draws weights or outputs, so it must be bw.WeightNoise() or "
                f"bw.LocalReparametrisation(), not {self.forward!r}"
            )
        if isinstance(self.prior, type) or not (
            hasattr(self.prior, "scale") or hasattr(self.prior, "log_prob")
        ):
            raise TypeError(
                f"BayesByBackprop: prior is a prior, not {self.prior!r}; use bw.Isotropic(variance)"
            )
        if not (self.kl_weight >= 0 and self.initial_std > 0):
            given = f"{self.kl_weight}, {self.initial_std}"
            raise ValueError(
                f"BayesByBackprop: kl_weight must not be negative and initial_std positive, not {given}"
            )
        if self.start not in ("draw", "model"):
            raise ValueError(f'BayesByBackprop: start is "model" or "draw", not {self.start!r}')

    @property
    def starts_from_model(self) -> bool:
        """The first means are the module's or drawn."""
        return self.start == "model"

    def init(self, problem: Problem, data: Data, rng: Generator) -> Descent:
        """Means as `start` says, all with the same small standard deviation."""
        network, lead = problem.network, problem.lead
        params, buffers = starting_values(self, network, lead)
        params = fresh_(params, network, rng) if self.start == "draw" else params
        mean = _layout(network).join(params, len(lead))
        rho = torch.full_like(mean, math.log(math.expm1(self.initial_std)))
        return Descent.start({"mean": mean, "rho": rho}, buffers, network, lead)

    def step(self, problem: Problem, state: Descent, batch: Batch, rng: Generator) -> tuple[Descent, Info]:
        """One step of Adam on μ and ρ."""
        (x, y), lead = batch, len(problem.lead)
        noise = NOISES[type(self.forward)](self, problem, x, rng)

        def run(params: Params) -> tuple[Tensor, Tensor]:
            mean, std = params["mean"], F.softplus(params["rho"])
            w = mean if noise.weights is None else torch.addcmul(mean, std, noise.weights)
            values = _values(problem.network, mean, std, w, noise.rows)
            f = outputs(problem.network, values, state.buffers, x, lead, lead)
            return f, self.kl_weight / problem.n * self.divergence(problem.network, mean, std, w)

        return descend(self, problem, state, y, rng, run)

    def divergence(self, network: Network, mean: Tensor, std: Tensor, w: Tensor) -> Tensor:
        """KL(q | p), summed over all weights (…, P): exact, or at the draw w of a scale mixture."""
        if isinstance(self.prior, ScaleMixture):
            log_q = -std.log() - 0.5 * ((w - mean) / std).square() - 0.5 * math.log(2 * math.pi)
            return (log_q - self.prior.log_prob(w)).sum()
        s2 = self._prior_variance(network)  # (P,)
        return (0.5 * ((mean.square() + std.square()) / s2 + s2.log() - 1) - std.log()).sum()

    def posterior(self, problem: Problem, state: Descent, data: Data) -> Posterior:
        """Independent Gaussians, with the noise of the last steps."""
        values = all_values(self, state)
        layout = _layout(problem.network)
        mean, std = (values.pop(name) for name in ("mean", "rho"))
        std = {name: value.clone() for name, value in layout.split(F.softplus(std)).items()}
        mean = {name: value.clone() for name, value in layout.split(mean).items()}
        weights = MeanField(mean | values, std, state.noise.clone() if problem.infers_noise else None)
        notes = training_notes(problem, state, "independent Gaussians in place")
        return Posterior(bare(problem), weights, "Bayes by Backprop", notes)

    def _prior_variance(self, network: Network) -> Tensor:
        """s² of every weight (P,): of a layer by its inputs, of what has none as it stands."""
        key = (BayesByBackprop, self.prior)
        if key not in network.cache:
            prior, layout = self.prior, _layout(network)
            assert not isinstance(prior, ScaleMixture)
            inputs = fan_ins(network) | {name: v.inputs for v in network.layers for name in v.parameters}
            values = {
                name: torch.full(
                    shape, prior.variance * prior.scale(inputs.get(name, 1)), dtype=network.dtype
                )
                for name, shape in layout.shapes.items()
            }
            network.cache[key] = layout.join(values, 0).to(network.device)
        return network.cache[key]


def _layout(network: Network) -> Layout:
    """All parameters that require a gradient; found once for a network."""
    key = (BayesByBackprop, "layout")
    if key not in network.cache:
        own = network.module.named_parameters()
        network.cache[key] = Layout({name: p.shape for name, p in own if p.requires_grad})
    return network.cache[key]


def _values(network: Network, mean: Tensor, std: Tensor, w: Tensor, rows: dict[str, Tensor]) -> Params:
    """Parameters for one pass: drawn ones, and means beside their variances where outputs are drawn."""
    layout = _layout(network)
    values = layout.split(w)
    if not rows:
        return values
    means, variances = layout.split(mean), layout.split(std.square())
    for view in network.layers:
        if view.name in rows:
            variance, noise = noise_keys(view.name)
            values |= {name: means[name] for name in view.parameters}
            values |= {variance: view.matrix(variances), noise: rows[view.name]}
    return values


# ------------------------------------------------------------------------------------ two forms of a forward


def _weight_noise(method: BayesByBackprop, problem: Problem, x: Tensor, rng: Generator) -> Noise:
    """Every weight is drawn, once for the batch."""
    return Noise(_normal(problem, rng, _layout(problem.network).size), {})


def _row_noise(method: BayesByBackprop, problem: Problem, x: Tensor, rng: Generator) -> Noise:
    """Chosen layers draw their outputs; other weights are drawn, and all of them for a scale mixture."""
    network, layout = problem.network, _layout(problem.network)
    local = [view for view in network.layers if all(name in layout.shapes for name in view.parameters)]
    counts = row_counts(network, x, len(problem.lead))
    rows = {v.name: _normal(problem, rng, *v.groups, counts[v.name], v.outputs) for v in local}
    covered = sum(len(v.parameters) for v in local) == len(layout.shapes)
    if covered and not isinstance(method.prior, ScaleMixture):
        return Noise(None, rows)
    return Noise(_normal(problem, rng, layout.size), rows)


NOISES: dict[type, Callable[[BayesByBackprop, Problem, Tensor, Generator], Noise]] = {
    WeightNoise: _weight_noise,
    LocalReparametrisation: _row_noise,
}


def _normal(problem: Problem, rng: Generator, *shape: int) -> Tensor:
    network = problem.network
    return torch.randn((*problem.lead, *shape), generator=rng, dtype=network.dtype, device=network.device)
