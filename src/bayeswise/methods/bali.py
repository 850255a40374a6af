"""BALI, Bayesian layerwise inference: every layer is a Bayesian linear regression (arXiv 2411.12102).

One step, for each layer with rows x, outputs z and gradients g = ∂ log p(y | f) / ∂z of a batch (R rows):

    γ    = β_t / b_t,  b_t = β_t + (1 - β_t) b_{t-1}                  the bias correction as a rate
    Ψgg  = (1 - γ) Ψgg + γ mean(g²)                                   eq. 19
    y    = z + α g / sqrt(Ψgg)                                        eq. 20, or the true targets
    data = (1 - γ) data + γ (N_eff / R) stats(x, y)                   eq. 17
    q    = from_stats(prior + data)                                   eq. 16
    Σ    = U / (u + O + 1)                                            eq. 21
    W    = M + L_R A L_Σᵀ                                             eq. 22, for the next step

α `step_size`, β `update_rate`, N_eff / N `effective`, R0 `prior`, U0 = `noise_floor`·N_eff·I, u0 `dof`,
Ψgg `gg`; averages are kept bias-corrected, so that no division by b is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from bayeswise.data import BATCH
from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats
from bayeswise.methods.accounts import about_layer, about_output, layer_figures, step_figures, words
from bayeswise.methods.bali_state import (
    SMALL,
    WIDE,
    BALIState,
    LayerSetting,
    LayerState,
    Pass,
    drawn_start,
    empty,
    grouped,
    informed,
    known_factor,
    known_inputs,
    last_layer,
    moved_,
    rates,
    residual_posterior,
    shape_of,
)
from bayeswise.methods.forward import Deterministic, Forward, Layers, Weights
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.members import Each, all_positive, each, layer_of_start, repeated, widened
from bayeswise.methods.protocol import Batch, Chosen, Data, Info, Steps, Trials
from bayeswise.methods.schedules import Cosine, Schedule, require_schedule
from bayeswise.methods.tuning import Tuning, tuned, weights
from bayeswise.methods.updates import NaturalUpdate, Targets, Update, empty_stats, mean_squares, step_scale
from bayeswise.networks import LayerView, LocalNoise, Network, layer_signals
from bayeswise.posterior import Posterior
from bayeswise.priors import FanIn, Isotropic, Prior
from bayeswise.problem import Problem
from bayeswise.weights import Layerwise, LayerwiseDrawn, Mixture

Find = Callable[[DiagonalPrior, Any, str], MatrixNormalInverseWishart]
STEPS, STEP_SIZE = 2000, 0.5  # where nobody chose
NARROW = 16  # inputs of a first layer up to which its features are not divided by their root
POSITIVE = "step_size steps noise_floor hidden_noise_floor initial_scale first_initial_scale members".split()


@dataclass(frozen=True)
class BALI:
    """Bayesian layerwise inference. Every default stands here and nowhere else.

    `prior` None means FanIn(40) for regression and FanIn(10) for classification, Isotropic for a first layer
    of at most 16 inputs (bias included); `first_prior` and `last_prior` None mean `prior`; `prior_scale`
    times its variance is what counts, for all or for each member. `effective` None is N_eff = N below 1,000
    rows and 0.25 N above. `start` "draw" begins with random weights of std `initial_scale` / sqrt(inputs),
    the first layer's may have their own, "model" with the module's weights; `bias_scale` is how many times
    wider than its weights the first layer's biases are drawn: with 100 a network of ReLUs starts as a
    straight line, because no kink lies among the data. `noise` "mode" keeps Σ at its mode, "drawn" draws it
    wherever weights are drawn. `members` posteriors from as many starts train in one run; predictions are
    their mixture. `temperature` multiplies Σ once the run is over: of the output layer of a regression, and
    so the noise; else of every layer.

    `steps` None means that `tuning` chooses how long to train, and step size, N_eff, the scales, members and
    temperature where they are None, from the training rows alone (see methods/tuning.py). With a number of
    steps None means a rule of thumb: step size 0.5, N_eff as above, both scales 1, one member, temperature 1.
    """

    step_size: Each | None = None
    update_rate: Schedule = field(default=Cosine(0.3))
    steps: int | tuple[int, ...] | None = None
    effective: Each | None = None
    prior: Prior | None = None
    first_prior: Prior | None = None
    last_prior: Prior | None = None
    prior_scale: Each | None = None
    noise_floor: float = 1e-4
    hidden_noise_floor: float = 1e-4
    dof: float = 0.0
    initial_scale: float = 1.0
    first_initial_scale: float | None = None
    bias_scale: Each | None = None
    start: Literal["draw", "model"] = "draw"
    forward: Forward = field(default=Deterministic())
    noise: Literal["mode", "drawn"] = "mode"
    update: Update[Any] | None = None
    members: int | None = None
    temperature: Each | None = None
    tuning: Tuning = field(default=Tuning())

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        require_schedule("BALI: update_rate", self.update_rate)
        if not getattr(self.update_rate, "rate", 1.0) <= 1:
            raise ValueError(f"BALI: update_rate must be at most 1, not {self.update_rate}")
        for name in ("prior", "first_prior", "last_prior"):
            prior = getattr(self, name)
            if prior is not None and (isinstance(prior, type) or not hasattr(prior, "variance")):
                number = prior if isinstance(prior, Real) else "variance"
                raise TypeError(f"BALI: {name} is a prior, not {prior!r}; use bw.FanIn({number})")
        for name in (*POSITIVE, "prior_scale", "bias_scale", "temperature"):
            if getattr(self, name) is not None and not all_positive(f"BALI: {name}", getattr(self, name)):
                raise ValueError(f"BALI: {name} must be positive, not {getattr(self, name)}")
        if self.effective is not None and not all_positive("BALI: effective", self.effective):
            raise ValueError(f"BALI: effective is N_eff / N and must be positive, not {self.effective}")
        if self.dof < 0:
            raise ValueError(f"BALI: dof is u0 and must not be negative, not {self.dof}")
        for name, (one, two) in {"start": ("draw", "model"), "noise": ("mode", "drawn")}.items():
            if getattr(self, name) not in (one, two):
                raise ValueError(f'BALI: {name} is "{one}" or "{two}", not {getattr(self, name)!r}')

    @property
    def standardises(self) -> bool:
        """A network that starts from its own weights keeps its own units."""
        return self.start == "draw"

    @property
    def infers_all(self) -> bool:
        """Parameters outside the chosen layers stay as they are."""
        return False

    @property
    def starts_from_model(self) -> bool:
        """The first weights are the module's or drawn."""
        return self.start == "model"

    def plan(self, problem: Problem) -> Steps:
        """So many steps over reshuffled data."""
        return Steps(self.length)

    @property
    def length(self) -> int:
        """How many steps a run has: the most that a member has."""
        return max(self.steps) if isinstance(self.steps, tuple) else self.steps or STEPS

    @property
    def alpha(self) -> Each:
        """The step size."""
        return STEP_SIZE if self.step_size is None else self.step_size

    @property
    def starts(self) -> int:
        """How many starts a run has."""
        return self.members or 1

    def tuned(self, problem: Problem, trials: Trials | None, batch: int) -> Chosen:
        """This method with nothing left open."""
        return tuned(self, problem, trials, batch)

    def batch(self, network: Network, n: int) -> int:
        """How many of n rows a step takes."""
        return self.tuning.batch(network, n) if self.open else BATCH

    @property
    def open(self) -> bool:
        """Whether something is left to choose: not where a number of steps is given."""
        return self.steps is None

    def refines(self, problem: Problem) -> bool:
        """What is chosen from few rows, and trained, is in float64: choices hang on what rounding leaves."""
        return self.open and self.tuning.is_little(problem)

    def init(self, problem: Problem, data: Data, rng: Generator) -> BALIState:
        """Zero averages, and starting weights."""
        given, problem = problem, widened(problem, self.starts, data.example[0])
        network = problem.network
        if not network.layers:
            raise ValueError(
                "BALI found no layer to infer: the model calls none that is supported and selected"
            )
        step = torch.zeros((), dtype=torch.int64, device=network.device)
        start, rule = self._start(problem, rng), self.rule(problem)
        layers = {v.name: empty(v, problem, rule) for v in network.layers}
        first = network.layers[0]
        if first.inputs >= WIDE and isinstance(rule, MeanUpdate):
            n_eff, prior = problem.effective_rows(self.fraction(problem)), self.layer_prior(problem, first)
            mean = known_inputs(given, self.starts, first, data)
            layers[first.name] = informed(first, problem, rule, prior, mean, n_eff)
        apart = problem.is_regression and network.output_layer is None  # no layer has the noise
        residual = empty_stats(shape_of(problem, (), 0, network.outputs)) if apart else None
        lengths = problem.lead if isinstance(self.steps, tuple) else ()  # each member may have its own
        bias = torch.zeros(lengths, dtype=torch.float64, device=network.device)
        return BALIState(step, bias, layers, start, residual, step.clone())

    def step(
        self, problem: Problem, state: BALIState, batch: Batch, rng: Generator
    ) -> tuple[BALIState, Info]:
        """Signals at q_{t-1}, then targets and statistics of every layer."""
        x, y = repeated(problem, batch, self.starts)
        lead, problem = problem.lead, widened(problem, self.starts)
        settings, rule = self.settings(problem), self.rule(problem)
        posteriors = self._posteriors(problem, settings, state, rule.current)
        weights, noise = self._forward(problem, state, posteriors, x, rng)
        params = {k: v for s in settings for k, v in s.view.split(weights[s.view.name]).items()}
        likelihood = problem.seen_likelihood(self._noise(problem, state, posteriors))
        signals = layer_signals(
            problem.network, params, x, lambda f: likelihood.log_prob(f, y), len(problem.lead), noise
        )
        bias, rate = rates(self.update_rate, self.steps or STEPS, state, problem)  # b_t, γ
        done = Pass(weights, noise, signals, y, rate)
        layers = {
            s.view.name: self._updated(problem, s, rule, state.layers[s.view.name], done) for s in settings
        }
        residual = self._updated_residual(problem, state.residual, y, signals.output, rate)
        rescues = sum((q.jitter.count_nonzero() for q in posteriors.values()), start=state.rescues)
        new = BALIState(state.step + 1, bias, layers, state.start, residual, rescues)
        log_lik = signals.log_lik.mean(-1)  # (E·S,) or ()
        log_lik = log_lik if self.starts == 1 else log_lik.reshape(self.starts, *lead).mean(0)
        return new, self._info(problem, posteriors, log_lik, rescues, rate)

    def posterior(self, problem: Problem, state: BALIState, data: Data) -> Posterior:
        """The posterior of every layer, exact for its statistics; of several starts their mixture."""
        wide = widened(problem, self.starts)
        found = self._posteriors(wide, self.settings(wide), state, self.rule(wide).exact)
        if not found:
            raise ValueError("BALI has made no step yet, so there is no posterior; run at least one step")
        residual = self._residual(wide, state)
        parts = tuple(self._part(problem, found, residual, start) for start in range(self.starts))
        weights = parts[0] if self.starts == 1 else Mixture(parts)
        if self.temperature is not None:
            weights = weights.tempered(each(self.temperature, problem))
        rescues = int(state.rescues) + sum(int((q.jitter > 0).sum()) for q in found.values())
        return Posterior(problem, weights, "BALI", self._notes(problem, state, found), rescues=rescues)

    def _part(
        self, problem: Problem, found: Layers, residual: MatrixNormalInverseWishart | None, start: int
    ) -> Layerwise:
        """The layers of one start."""
        layers = {name: layer_of_start(problem, q, start, self.starts) for name, q in found.items()}
        kind = Layerwise if self.noise == "mode" else LayerwiseDrawn
        noise_layer = problem.network.output_layer if problem.is_regression else None
        own = residual if residual is None else layer_of_start(problem, residual, start, self.starts)
        return kind(layers, noise_layer, own)

    # ---------------------------------------------------------------------------- what is fixed for a problem

    def fraction(self, problem: Problem, groups: int = 0) -> float | Tensor:
        """N_eff / N; where members differ (…, 1, …), with so many groups of a layer."""
        if self.effective is not None:
            return each(self.effective, problem, groups)
        return 1.0 if problem.n < 1000 else 0.25

    def rule(self, problem: Problem) -> Update[Any]:
        """How layers move: by their means where that is cheaper, wide first layers or many small networks."""
        if self.update is not None:
            return self.update
        wide = any(view.inputs >= WIDE for view in problem.network.layers[:1])
        many = self.starts > 1 and weights(problem.network) <= SMALL
        cheaper = (wide or many) and isinstance(self.forward, Deterministic)
        return MeanUpdate(every=10) if cheaper else NaturalUpdate()

    def settings(self, problem: Problem) -> tuple[LayerSetting, ...]:
        """Every layer with its prior and its part; found once for a problem."""
        cache, facts = problem.network.cache, (problem.n, problem.members, problem.is_regression)
        known = cache.get("settings")  # of the last method: comparing it is cheaper than hashing it
        if known is None or known[0] is not self or known[1] != facts:
            known = (self, facts, tuple(self._setting(problem, view) for view in problem.network.layers))
            cache["settings"] = known
        return known[2]

    def layer_prior(self, problem: Problem, view: LayerView) -> DiagonalPrior:
        """R0, U0 and u0 of a layer."""
        prior = self._prior(problem, view)
        floor = self.noise_floor if view.name == last_layer(problem) else self.hidden_noise_floor
        variance = each(self.prior_scale or 1.0, problem, len(view.groups)) * prior.variance
        variance = variance * prior.scale(view.inputs)
        n_eff = problem.effective_rows(self.fraction(problem, len(view.groups)))
        return DiagonalPrior(variance, floor * n_eff, self.dof, view.inputs, view.outputs)

    def _setting(self, problem: Problem, view: LayerView) -> LayerSetting:
        first = view.name == problem.network.layers[0].name
        scale = (self.first_initial_scale if first else None) or self.initial_scale
        std = scale / view.inputs**0.5  # σ_init / sqrt(inputs), whatever the prior
        regresses = problem.is_regression and view.name == problem.network.output_layer
        return LayerSetting(view, self.layer_prior(problem, view), std, regresses)

    def _prior(self, problem: Problem, view: LayerView) -> Prior:
        if view.name == problem.network.layers[0].name and self.first_prior is not None:
            return self.first_prior
        if view.name == last_layer(problem) and self.last_prior is not None:
            return self.last_prior
        if self.prior is not None:
            return self.prior
        narrow = view.name == problem.network.layers[0].name and view.inputs <= NARROW
        kind = Isotropic if narrow else FanIn
        return kind(40.0 if problem.is_regression else 10.0)

    # -------------------------------------------------------------------- the pieces, in the order of a step

    def _start(self, problem: Problem, rng: Generator) -> dict[str, Tensor]:
        network = problem.network
        if self.start == "model":
            own = network.layer_parameters()
            first = {v.name: v.matrix(own) for v in network.layers}
            return {name: w.expand(*problem.lead, *w.shape).clone() for name, w in first.items()}
        first = self.settings(problem)[0].view
        bias_scale = each(self.bias_scale or 1.0, problem, len(first.groups) + 1)
        return drawn_start(self.settings(problem), problem, bias_scale, rng)

    def _posteriors(
        self, problem: Problem, settings: tuple[LayerSetting, ...], state: BALIState, find: Find
    ) -> Layers:
        """q_{t-1} of every layer, as the update finds it; none before the first step."""
        if not bool(state.bias.any()):
            return {}
        layers = {s.view.name: find(s.prior, state.layers[s.view.name].data, s.title) for s in settings}
        output = problem.network.output_layer
        if problem.is_regression and not problem.infers_noise and output is not None:
            layers[output] = layers[output].given(known_factor(problem))
        return layers

    def _forward(
        self, problem: Problem, state: BALIState, posteriors: Layers, x: Tensor, rng: Generator
    ) -> tuple[Weights, dict[str, LocalNoise]]:
        """Weights and noise of the pass; before there is a posterior the starting weights."""
        if not posteriors:
            return state.start, {}
        if self.noise == "drawn" and not isinstance(self.forward, Deterministic):
            posteriors = {k: q.given(q.draw_noise_factor(1, rng)[0]) for k, q in posteriors.items()}
        return self.forward(posteriors, problem.network, x, rng)

    def _residual(self, problem: Problem, state: BALIState) -> MatrixNormalInverseWishart | None:
        """The noise, where no layer has it."""
        if state.residual is None:
            return None
        n_eff = problem.effective_rows(self.fraction(problem))
        return residual_posterior(state.residual, self.noise_floor * n_eff, self.dof)

    def _noise(self, problem: Problem, state: BALIState, posteriors: Layers) -> Tensor:
        """Σ_L of q_{t-1} (…, O, O); before the first step that of standardised targets."""
        if not problem.is_regression or not posteriors:
            return torch.eye(problem.network.outputs, dtype=torch.float64, device=problem.network.device)
        source = posteriors.get(problem.network.output_layer or "") or self._residual(problem, state)
        assert source is not None  # init made a residual where no layer has the noise
        return source.noise

    def _updated(
        self, problem: Problem, setting: LayerSetting, rule: Update[Any], old: LayerState, done: Pass
    ) -> LayerState:
        """Ψgg, y = z + α g / sqrt(Ψgg), and the statistics of x and y."""
        signal, w, e = done.layer(setting.view.name)
        groups = len(setting.view.groups)
        rate = grouped(done.rate, groups)  # γ
        if setting.regresses:
            gg, batch = old.gg, Targets(signal.x, w, signal.z, done.y - signal.z, setting.title)
        else:
            sums = rule.sums(old.data, signal.x, signal.g) if e is None else None
            gg = moved_(old.gg, mean_squares(signal.g, sums), grouped(rate, 1))
            scale = step_scale(each(self.alpha, problem, groups + 1), gg, signal.g.dtype)
            batch = Targets(signal.x, w, signal.z, signal.g, setting.title, scale, sums)
        batch = batch if e is None else batch.around(e)
        weight = problem.row_weight(signal.x.shape[-2], self.fraction(problem, groups))  # N_eff / R
        return LayerState(rule(setting.prior, old.data, batch, rate, weight), gg)

    def _updated_residual(
        self, problem: Problem, old: RegressionStats | None, y: Tensor, f: Tensor, rate: float | Tensor
    ) -> RegressionStats | None:
        if old is None:
            return None
        r = y - f  # (…, B, O)
        weight = problem.row_weight(r.shape[-2], self.fraction(problem))
        return old.move_(rate, RegressionStats.of(r[..., :0], r), weight)

    def _info(
        self, problem: Problem, posteriors: Layers, log_lik: Tensor, rescues: Tensor, rate: float | Tensor
    ) -> Info:
        def details() -> dict[str, float]:
            priors = {s.view.name: s.prior for s in self.settings(problem)}
            return step_figures(rescues, rate) | layer_figures(priors, posteriors, problem.lead)

        return Info(log_lik, details)

    def _notes(self, problem: Problem, state: BALIState, layers: Layers) -> tuple[str, ...]:
        wide = widened(problem, self.starts)
        n_eff = words(problem.effective_rows(self.fraction(wide)))
        of = "" if self.starts == 1 else f" of {self.starts} starts, mixed"
        taken = words(self.steps) if isinstance(self.steps, tuple) else int(state.step)
        how = f"{taken} steps{of}, {problem.n} rows counted as {n_eff}, step size {words(self.alpha)}"
        how += "" if self.temperature is None else f", temperature {words(self.temperature)}"
        told = (about_layer(s.view, s.prior, layers[s.view.name]) for s in self.settings(wide))
        return (how, *told, *about_output(problem))
