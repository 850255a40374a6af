"""BALI, Bayesian layerwise inference: every layer is a Bayesian linear regression (arXiv 2411.12102).

One step, for each layer with rows x, outputs z and gradients g = ∂ log p(y | f) / ∂z of a batch (R rows):

    γ    = β_t / b_t,  b_t = β_t + (1 - β_t) b_{t-1}                  the bias correction as a rate
    Ψgg  = (1 - γ) Ψgg + γ mean(g²)                                   eq. 19
    y    = z + α g / sqrt(Ψgg)                                        eq. 20; a regression's last layer: targets
    data = (1 - γ) data + γ (N_eff / R) stats(x, y)                   eq. 17
    q    = from_stats(prior + data)                                   eq. 16
    Σ    = U / (u + O + 1)                                            eq. 21
    W    = M + L_R A L_Σᵀ                                             eq. 22, for the next step

α `step_size`, β `update_rate`, N_eff / N `effective`, R0 `prior`, U0 = `noise_floor`·N_eff·I, u0 `dof`,
Ψgg `gg`; averages are kept bias-corrected, so that no division by b is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Generator, Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats
from bayeswise.linalg import condition, solve_lower, solve_lower_t
from bayeswise.methods.forward import Deterministic, Forward
from bayeswise.methods.protocol import Batch, Data, Info, Steps
from bayeswise.methods.schedules import Cosine, Schedule
from bayeswise.networks import LayerSignal, LayerView, call_shapes, layer_signals
from bayeswise.posterior import Posterior
from bayeswise.priors import FanIn, Prior
from bayeswise.problem import Problem
from bayeswise.weights import Layerwise, LayerwiseDrawn

FLOAT64_SIZE = 1200  # inputs and outputs of a layer up to which its averages are float64 whatever the data


@dataclass(frozen=True)
class LayerState:
    """The moving averages of one layer."""

    data: RegressionStats  # Ψxx, Ψxy, Ψyy / b
    gg: Tensor  # Ψgg / b (…, O)


@dataclass(frozen=True)
class BALIState:
    """The averages of all layers, and the weights of the first pass."""

    step: Tensor  # t
    bias: Tensor  # b_t
    layers: dict[str, LayerState]
    start: dict[str, Tensor]  # W (…, I, O) by layer, used before there is a posterior
    residual: RegressionStats | None  # of y - f, where no layer's output is the network's
    rescues: Tensor  # factorisations that needed jitter


@dataclass(frozen=True)
class NaturalUpdate:
    """Average the statistics (eq. 17): the definition."""

    def __call__(
        self, prior: DiagonalPrior, data: RegressionStats, x: Tensor, y: Tensor, rate: float, weight: float
    ) -> RegressionStats:
        """(1 - γ) data + γ·weight·stats(x, y)."""
        return data.move_(rate, RegressionStats.of(x, y), weight)


@dataclass(frozen=True)
class MeanUpdate:
    """Move the mean itself (eq. 74, with γ in place of β): the same numbers by another way."""

    def __call__(
        self, prior: DiagonalPrior, data: RegressionStats, x: Tensor, y: Tensor, rate: float, weight: float
    ) -> RegressionStats:
        """M ← M + γ R (R0⁻¹(M0 - M) + weight·xᵀ(y - xM)), where R is already the new one and M0 = 0."""
        mean = (
            MatrixNormalInverseWishart.from_stats(prior + data).mean
            if rate < 1
            else x.new_zeros(data.xy.shape)
        )
        mean = mean.to(data.joint)
        moved = data.move_(rate, RegressionStats.of(x, y), weight)  # its xy is not used
        total = prior + moved
        lower = torch.linalg.cholesky(total.xx)
        force = weight * (x.mT @ (y - x @ mean.to(x.dtype))).to(mean) - mean / prior.variance
        mean = mean + rate * solve_lower_t(lower, solve_lower(lower, force))
        xy = total.xx @ mean
        moved.xy.copy_(xy)
        moved.joint[..., moved.inputs :, : moved.inputs].copy_(xy.mT)
        return moved


Update = NaturalUpdate | MeanUpdate


@dataclass(frozen=True)
class BALI:
    """Bayesian layerwise inference. Every default stands here and nowhere else.

    `prior` None means FanIn(40) for regression and FanIn(10) for classification; `first_prior` and
    `last_prior` None mean `prior`. `effective` None means N_eff = N below 1,000 rows and 0.25 N above. `start` "draw"
    begins with random weights, "model" with the module's own. `noise` "mode" keeps Σ at its mode, "drawn"
    draws it with the weights of a prediction.
    """

    step_size: float = 0.5
    update_rate: Schedule = field(default=Cosine(0.3))
    steps: int = 2000
    effective: float | None = None
    prior: Prior | None = None
    first_prior: Prior | None = None
    last_prior: Prior | None = None
    noise_floor: float = 1e-4
    hidden_noise_floor: float = 1e-4
    dof: float = 0.0
    initial_scale: float = 1.0
    start: Literal["draw", "model"] = "draw"
    forward: Forward = field(default=Deterministic())
    noise: Literal["mode", "drawn"] = "mode"
    update: Update = field(default=NaturalUpdate())

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        for name in ("step_size", "steps", "noise_floor", "hidden_noise_floor", "initial_scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"BALI: {name} must be positive, not {getattr(self, name)}")
        if self.effective is not None and not self.effective > 0:
            raise ValueError(f"BALI: effective is N_eff / N and must be positive, not {self.effective}")
        if self.dof < 0:
            raise ValueError(f"BALI: dof is u0 and must not be negative, not {self.dof}")
        if self.start not in ("draw", "model") or self.noise not in ("mode", "drawn"):
            raise ValueError(
                f'BALI: start is "draw" or "model", noise "mode" or "drawn"; not {self.start!r}, {self.noise!r}'
            )

    @property
    def standardises(self) -> bool:
        """A network that starts from its own weights keeps its own units."""
        return self.start == "draw"

    def plan(self, problem: Problem) -> Steps:
        """So many steps over reshuffled data."""
        return Steps(self.steps)

    def init(self, problem: Problem, data: Data, rng: Generator) -> BALIState:
        """Zero averages, and starting weights."""
        network, device = problem.network, problem.network.device
        if not network.layers:
            raise ValueError("BALI found no layer to infer: the model calls no nn.Linear that was selected")
        number = torch.zeros((), dtype=torch.float64, device=device)
        layers = {view.name: _empty(view, problem) for view in network.layers}
        residual = None
        if problem.is_regression and network.output_layer is None:
            residual = _zero_stats(0, network.outputs, problem)
        start = self._start(problem, rng)
        step = torch.zeros((), dtype=torch.int64, device=device)
        return BALIState(step, number, layers, start, residual, step.clone())

    def step(
        self, problem: Problem, state: BALIState, batch: Batch, rng: Generator
    ) -> tuple[BALIState, Info]:
        """Signals at q_{t-1}, targets, statistics."""
        x, y = batch
        network = problem.network
        posteriors = self._posteriors(problem, state)
        weights, noise = self._forward(problem, state, posteriors, x, rng)
        params = {k: v for view in network.layers for k, v in view.split(weights[view.name]).items()}
        likelihood = problem.seen_likelihood(self._noise(problem, state, posteriors))
        signals = layer_signals(
            network, params, x, lambda f: likelihood.log_prob(f, y), len(problem.lead), noise
        )
        t = int(state.step)
        beta = self.update_rate(t, self.steps)
        bias = beta + (1 - beta) * float(state.bias)
        rate = beta / bias if bias > 0 else 0.0  # γ
        layers = {
            view.name: self._updated(
                problem, view, state.layers[view.name], signals.layers[view.name], y, rate
            )
            for view in network.layers
        }
        residual = state.residual
        if residual is not None:
            r = y - signals.output  # (…, B, O)
            residual = residual.move_(rate, RegressionStats.of(r[..., :0], r), self._row_weight(problem, r))
        rescues = state.rescues + sum(int((q.jitter > 0).sum()) for q in posteriors.values())
        new = BALIState(
            state.step + 1, torch.full_like(state.bias, bias), layers, state.start, residual, rescues
        )
        return new, self._info(problem, posteriors, signals.log_lik, rescues, rate)

    def posterior(self, problem: Problem, state: BALIState, data: Data) -> Posterior:
        """The posterior of every layer, exact for its statistics."""
        layers = {
            k: replace(q, factor=q.factor.contiguous()) for k, q in self._posteriors(problem, state).items()
        }
        if not layers:
            raise ValueError("BALI has made no step yet, so there is no posterior; run at least one step")
        kind = Layerwise if self.noise == "mode" else LayerwiseDrawn
        noise_layer = problem.network.output_layer if problem.is_regression else None
        weights = kind(layers, noise_layer, self._residual(problem, state))
        return Posterior(problem, weights, "BALI", self._notes(problem, state, layers))

    # ------------------------------------------------------------------ the pieces, in the order of a step

    def fraction(self, problem: Problem) -> float:
        """N_eff / N."""
        if self.effective is not None:
            return self.effective
        return 1.0 if problem.n < 1000 else 0.25

    def layer_prior(self, problem: Problem, view: LayerView) -> DiagonalPrior:
        """R0, U0 and u0 of a layer."""
        prior = self._prior(problem, view)
        last = view.name == _last(problem)
        floor = self.noise_floor if last else self.hidden_noise_floor
        n_eff = problem.effective_rows(self.fraction(problem))
        variance = prior.variance * prior.scale(view.inputs)
        return DiagonalPrior(variance, floor * n_eff, self.dof, view.inputs, view.outputs)

    def _prior(self, problem: Problem, view: LayerView) -> Prior:
        default = self.prior or FanIn(40.0 if problem.is_regression else 10.0)
        if view.name == problem.network.layers[0].name and self.first_prior is not None:
            return self.first_prior
        if view.name == _last(problem) and self.last_prior is not None:
            return self.last_prior
        return default

    def _start(self, problem: Problem, rng: Generator) -> dict[str, Tensor]:
        network = problem.network
        if self.start == "model":
            own = network.layer_parameters()
            return {v.name: v.matrix(own).expand(*problem.lead, -1, -1).clone() for v in network.layers}
        start = {}
        for view in network.layers:
            std = self.initial_scale * self._prior(problem, view).scale(view.inputs) ** 0.5
            shape = (*problem.lead, view.inputs, view.outputs)
            start[view.name] = std * torch.randn(
                shape, generator=rng, dtype=network.dtype, device=network.device
            )
        return start

    def _posteriors(self, problem: Problem, state: BALIState) -> dict[str, MatrixNormalInverseWishart]:
        """q_{t-1} of every layer; none before the first step."""
        if int(state.step) == 0:
            return {}
        return {
            view.name: MatrixNormalInverseWishart.from_stats(
                self.layer_prior(problem, view) + state.layers[view.name].data, f'layer "{view.name}"'
            )
            for view in problem.network.layers
        }

    def _forward(self, problem: Problem, state: BALIState, posteriors: dict, x: Tensor, rng: Generator):
        if not posteriors:
            return state.start, {}
        network = problem.network
        rows: dict[str, int] = {}
        if not isinstance(self.forward, Deterministic):
            shapes = call_shapes(network, x, len(problem.lead))
            rows = {name: sum(shape[:-1].numel() for shape in sizes) for name, sizes in shapes.items()}
        return self.forward(posteriors, rows, network.dtype, rng)

    def _residual(self, problem: Problem, state: BALIState) -> MatrixNormalInverseWishart | None:
        """Σ ~ IW(U0 + Σ r rᵀ, u0 + N_eff): a regression without inputs."""
        if state.residual is None:
            return None
        n_eff = problem.effective_rows(self.fraction(problem))
        prior = DiagonalPrior(1.0, self.noise_floor * n_eff, self.dof, 0, problem.network.outputs)
        return MatrixNormalInverseWishart.from_stats(prior + state.residual, "observation noise")

    def _noise(self, problem: Problem, state: BALIState, posteriors: dict) -> Tensor:
        """Σ_L of q_{t-1} (…, O, O); before the first step that of standardised targets."""
        if not problem.is_regression or not posteriors:
            return torch.eye(problem.network.outputs, dtype=torch.float64, device=problem.network.device)
        if problem.network.output_layer is not None:
            return posteriors[problem.network.output_layer].noise
        residual = self._residual(problem, state)
        assert residual is not None  # init made it: no layer has the noise
        return residual.noise

    def _row_weight(self, problem: Problem, rows: Tensor) -> float:
        return problem.row_weight(rows.shape[-2], self.fraction(problem))

    def _updated(
        self, problem: Problem, view: LayerView, old: LayerState, signal: LayerSignal, y: Tensor, rate: float
    ) -> LayerState:
        gg = old.gg.mul_(1 - rate).add_(signal.g.square().mean(-2), alpha=rate)
        if problem.is_regression and view.name == problem.network.output_layer:
            target = y
        else:
            target = self._target(signal, gg)
        prior = self.layer_prior(problem, view)
        weight = self._row_weight(problem, signal.x)
        return LayerState(self.update(prior, old.data, signal.x, target, rate, weight), gg)

    def _target(self, signal: LayerSignal, gg: Tensor) -> Tensor:
        """Z + α g / sqrt(Ψgg); a unit whose gradient was always zero keeps its z."""
        step = torch.where(gg > 0, self.step_size * gg.rsqrt(), 0.0).to(signal.z.dtype)  # (…, O)
        return torch.addcmul(signal.z, signal.g, step[..., None, :])

    def _info(
        self, problem: Problem, posteriors: dict, log_lik: Tensor, rescues: Tensor, rate: float
    ) -> Info:
        def details() -> dict[str, float]:
            values = {"rescues": float(rescues), "rate": rate}
            for name, q in posteriors.items():
                values[f"condition/{name}"] = float(condition(q.factor).max())
                values[f"evidence/{name}"] = float(self._evidence(problem, name, q).mean())
            return values

        return Info(log_lik.mean(-1), details)

    def _evidence(self, problem: Problem, name: str, q: MatrixNormalInverseWishart) -> Tensor:
        """The layer's log evidence with the smallest proper u0, max(u0, O)."""
        view = next(v for v in problem.network.layers if v.name == name)
        given = self.layer_prior(problem, view)
        dof = max(given.dof, float(view.outputs))
        proper = DiagonalPrior(given.variance, given.scale, dof, view.inputs, view.outputs)
        prior = MatrixNormalInverseWishart.from_stats(proper.stats(), name)
        posterior = MatrixNormalInverseWishart(
            q.factor.double(), q.dof.double() + dof - given.dof, q.inputs, q.jitter
        )
        return posterior.log_evidence(prior, name)

    def _notes(self, problem: Problem, state: BALIState, layers: dict) -> tuple[str, ...]:
        n_eff = problem.effective_rows(self.fraction(problem))
        lines = [
            f"{int(state.step)} steps, {problem.n} rows counted as {n_eff:g}, step size {self.step_size:g}"
        ]
        for view in problem.network.layers:
            prior, q = self.layer_prior(problem, view), layers[view.name]
            noise = q.noise.diagonal(dim1=-2, dim2=-1).mean().sqrt()
            lines.append(
                f'layer "{view.name}": {view.inputs} x {view.outputs}, prior variance {prior.variance:.3g}, '
                f"mean noise {float(noise):.3g}, condition {float(condition(q.factor).max()):.1e}"
            )
        if problem.is_regression and problem.network.output_layer is not None:
            lines.append(f'layer "{problem.network.output_layer}" is the output: it regresses on the targets')
        elif problem.is_regression:
            lines.append(
                "no layer's output is the model's output: all layers follow gradients, noise by residuals"
            )
        if int(state.rescues):
            lines.append(f"{int(state.rescues)} factorisations needed jitter")
        return tuple(lines)


def _last(problem: Problem) -> str:
    return problem.network.output_layer or problem.network.layers[-1].name


def _zero_stats(inputs: int, outputs: int, problem: Problem) -> RegressionStats:
    size = inputs + outputs
    dtype = torch.float64 if size <= FLOAT64_SIZE else problem.network.dtype
    joint = torch.zeros(*problem.lead, size, size, dtype=dtype, device=problem.network.device)
    return RegressionStats(joint, joint.new_zeros(problem.lead, dtype=torch.float64), inputs)


def _empty(view: LayerView, problem: Problem) -> LayerState:
    gg = torch.zeros(*problem.lead, view.outputs, dtype=torch.float64, device=problem.network.device)
    return LayerState(_zero_stats(view.inputs, view.outputs, problem), gg)
