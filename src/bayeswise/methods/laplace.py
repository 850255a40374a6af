r"""The Laplace approximation: a Gaussian around trained weights, as wide as the curvature there says.

    w* = argmax  Σ_n log p(y_n | f(x_n; w)) - ½ Σ_l δ_l |w_l|²          trained before, or by `first`
    q(w) = N(w*, (G / T + δ)⁻¹),  G = Σ_n J_nᵀ H_n J_n                  in the form of the structure
    f(x; w) ≈ f(x; w*) + J(x)(w - w*)                                   linearised predictions

δ `precision` of each layer l, T `temperature`, J = ∂f/∂w, H the Hessian of -log p(y | f).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayeswise.linalg import NumericalError
from bayeswise.linearised import Link, MonteCarlo
from bayeswise.methods.continuing import Before, check_before
from bayeswise.methods.evidence import (
    Adjustable,
    Evidence,
    Fit,
    Fixed,
    Validation,
    doubted,
    in_units,
    judged,
    tuned,
)
from bayeswise.methods.members import Each, each
from bayeswise.methods.memory import Memory, estimated
from bayeswise.methods.online import Online, OnlineState, alternating, check_training, looks_taken
from bayeswise.methods.policy import fixed_layers
from bayeswise.methods.protocol import Batch, Chosen, Data, Info, Method, Passes, Plan, Trials
from bayeswise.methods.structures import Columns, Kronecker, Structure, require_layers
from bayeswise.methods.subsets import Subset, is_mask, layer_names
from bayeswise.networks import Params, Select, evaluating
from bayeswise.networks.curvature import Curvature, GaussNewton, backward
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem


@dataclass(frozen=True)
class LaplaceState:
    """Sums over the rows seen so far."""

    rows: Tensor  # seen so far, in all passes
    sums: Params  # of the curvature, at noise Σ₀
    log_lik: Tensor  # Σ log p(y | f) (…,) over one pass, at noise Σ₀
    noise: Tensor  # Σ₀ (…, O, O) in the network's units


@dataclass(frozen=True)
class Laplace:
    """A Gaussian around the weights of a trained model.

    `first` trains it before, `MAP()` for one; None takes the model's weights as they are. `subset` None takes
    every layer that can be, "last" the one whose output is the model's, else names of layers, a function of
    name and module, or True or False by name. `precision` is a number, one for each layer by name, one for
    each data split in a tuple, `Evidence()`, `Online()` or `Validation()`. `link` says how labels are
    predicted from linearised outputs; None draws networks instead. `before` is the posterior of earlier rows
    that takes the place of the prior: `fit(…, prior=posterior)` sets it.
    """

    structure: Structure = field(default=Kronecker())
    curvature: Curvature = field(default=GaussNewton())
    subset: Subset = None
    precision: Each | Mapping[str, float] | Evidence | Validation = field(default=Evidence())
    temperature: float = 1.0
    link: Link | None = field(default=MonteCarlo())
    first: Method[Any] | None = None
    before: Before | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuse settings that have no meaning."""
        if not self.temperature > 0:
            raise ValueError(f"Laplace: temperature must be positive, not {self.temperature}")
        if isinstance(self.structure, type) or not hasattr(self.structure, "gaussian"):
            raise TypeError(f"Laplace: structure is a value such as bw.Kronecker(), not {self.structure!r}")
        if isinstance(self.subset, Sequence) and not isinstance(self.subset, str):
            object.__setattr__(self, "subset", tuple(self.subset))
        _check_precision(self.precision)
        _ = self._training  # a training that cannot be tuned is refused
        check_training(self.first)
        check_before(self.before)
        if self.first is None and self._holds_out:
            raise ValueError(
                "Laplace: a trained model has fitted its rows already, so they cannot judge: use "
                "Laplace(first=bw.MAP()), or give other rows: bw.Validation(x, y)"
            )

    @property
    def standardises(self) -> bool:
        """A model that was trained before keeps its units."""
        return self.first is not None and self.first.standardises

    @property
    def infers_all(self) -> bool:
        """Parameters outside the chosen layers stay as they are."""
        return False

    @property
    def infers_elementwise(self) -> bool:
        """Norms and embeddings are inferred too, where the subset has them."""
        return True

    @property
    def starts_from_model(self) -> bool:
        """The module's weights are the centre."""
        return self.first is None or self.first.starts_from_model

    @property
    def steps(self) -> int:
        """Those of the training."""
        return 0 if self.first is None else int(getattr(self.first, "steps", 0))

    def plan(self, problem: Problem) -> Plan:
        """Every row once, or as often as the structure needs; or the training's plan."""
        return Passes(self.structure.passes) if self.first is None else self.first.plan(problem)

    @property
    def _training(self) -> Method[Any] | None:
        online = self.precision
        return alternating(online, self.first) if isinstance(online, Online) else self.first

    def init(self, problem: Problem, data: Data, rng: Generator) -> Any:
        """Empty sums, or the training's start."""
        own = self._chosen(problem)
        require_layers(own.network)
        if self.before is not None:
            self.before.check(own)
        if self._training is not None:
            return self._training.init(problem, data, rng)
        return self._empty(own, data)

    def step(self, problem: Problem, state: Any, batch: Batch, rng: Generator) -> tuple[Any, Info]:
        """Add the curvature of a batch, or train."""
        if self._training is not None:
            return self._training.step(problem, state, batch, rng)
        return self._added(self._chosen(problem), state, batch, rng)

    def due(self, step: int) -> bool:
        """Whether the evidence is asked after this step of the training."""
        return isinstance(self.precision, Online) and self.precision.due(step, self.steps)

    def renewed(self, problem: Problem, state: OnlineState, data: Data) -> OnlineState:
        """The training goes on under the prior and noise that the evidence chooses at its present weights."""
        training: Any = self._training
        own = self._chosen(_trained(problem, training.posterior(problem, state, data)))
        fit = self._fit(own, self._all_rows(own, data))
        assert isinstance(self.precision, Evidence)
        return training.moved(state, tuned(fit, fit.gaussian(self.link), self.precision))

    def estimate_memory(
        self,
        model: nn.Module,
        x: Any,
        batch_size: int | None = None,
        select: Select = None,
        free: int | None = None,
    ) -> Memory:
        """Bytes of a fit to rows like x (B, …), with advice where `free`, those of the machine, are fewer."""
        return estimated(self, model, x, batch_size, select, free)

    def after(self, old: Posterior) -> Laplace:
        """The method whose prior is an old posterior; `first` is drawn towards that too."""
        unused = None if self.precision == Evidence() else self.precision
        before = Before.of(old, self.structure, unused)
        if self.first is not None and not hasattr(self.first, "towards"):
            kind = type(self.first).__name__
            raise TypeError(f"Laplace: first={kind}() cannot start from a posterior; use first=bw.MAP()")
        first: Any = self.first and self.first.towards(before)  # type: ignore[attr-defined]
        return replace(self, before=before, first=first, precision=Evidence())

    @property
    def _holds_out(self) -> bool:
        return isinstance(self.precision, Validation) and not self.precision.has_rows

    @property
    def open(self) -> bool:
        """Whether rows are to be held out, or a mask is to become names."""
        return self._holds_out or is_mask(self.subset)

    def tuned(self, problem: Problem, trials: Trials | None, batch: int) -> Chosen:
        """The precision under which held-out rows are most likely, from one trial; names for a mask."""
        method, network = self, problem.network.with_elementwise()
        if is_mask(self.subset):
            method = replace(self, subset=layer_names(self.subset, network, "Laplace"))
        if not method._holds_out or not isinstance(method.precision, Validation):
            return Chosen(method)
        if trials is None:
            method = replace(method, precision=Evidence(shared=True))
            return Chosen(method, ("no rows could be held out: the prior precision is the evidence's",))
        found = trials.trial(method, "choosing the prior precision").posterior
        assert isinstance(found, Adjustable) and found.under is not None
        under = found.under
        own = method.precision.candidates
        chosen, why = judged(
            own, lambda value: trials.log_lik(replace(under(value), seed=found.seed)).mean(-1), trials.n
        )
        return Chosen(replace(method, precision=chosen), (why,))

    def posterior(self, problem: Problem, state: Any, data: Data) -> Posterior:
        """The Gaussian, with precision and noise as given, as the evidence says, or as other rows say."""
        trained, looks = self._training, looks_taken(self.precision, state)
        if trained is not None:
            problem = _trained(problem, trained.posterior(problem, state, data))
            state = self._all_rows(self._chosen(problem), data)
        else:
            require_trained(problem, float(state.log_lik.sum()), data)
        own = self._chosen(problem)
        params, fit = present(own), self._fit(own, state)
        base = fit.gaussian(self.link)
        inferred = {name for view in own.network.layers for name in view.parameters}
        fixed = {name: value.clone() for name, value in params.items() if name not in inferred}
        about = f"{own.n} rows, {self.structure}, {self.curvature}"
        left_out = fixed_layers(problem, own.network, data)
        every = own if self.before is None else replace(own, n=own.n + self.before.problem.n)

        def under(prior: Evidence | Fixed, *why: str) -> Posterior:
            found = tuned(fit, base, prior) if self.before is None else self.before.tuned(fit, base)
            weights = replace(
                found.weights, fixed=fixed, covariance=found.noise if own.infers_noise else None
            )
            notes = (about, *looks, *why, *found.notes, *left_out)
            evidence = in_units(found.log_evidence, own.units, own.n, self.temperature)
            return Posterior(every, weights, "Laplace", notes, 0, 0, evidence)

        return doubted(self._judged(own, under), self.precision, fit, data)

    def _fit(self, own: Problem, state: LaplaceState) -> Fit:
        """The chosen layers' weights with the curvature around them."""
        params = present(own)
        means = {view.name: view.matrix(params).double().contiguous() for view in own.network.layers}
        return Fit(own, self.structure, state.sums, means, state.log_lik, state.noise, self.temperature)

    def _judged(self, problem: Problem, under: Callable[..., Posterior]) -> Posterior:
        """The posterior under the prior that is asked for."""
        given = self.precision

        def at(precision: Each) -> Posterior:
            return under(_fixed(precision, problem))

        if not isinstance(given, Validation):
            return under(given if isinstance(given, Evidence) else _fixed(given, problem))
        if given.has_rows:
            rows = len(given.y) if problem.members is None else len(given.y) * len(given.y[0])
            chosen, why = judged(given.candidates, lambda value: given.log_lik(at(value)), rows)
            return under(_fixed(chosen, problem), why)
        found = under(Evidence(shared=True))
        return Adjustable(**{f.name: getattr(found, f.name) for f in fields(found)}, under=at)

    # ----------------------------------------------------------------------------- the pass over the rows

    def _empty(self, problem: Problem, data: Data) -> LaplaceState:
        network = problem.network
        rows = torch.zeros((), dtype=torch.int64, device=network.device)
        log_lik = torch.zeros(problem.lead, dtype=torch.float64, device=network.device)
        sums = self.structure.empty(network, problem.lead)
        return LaplaceState(rows, sums, log_lik, residual_noise(problem, data))

    def _added(
        self, problem: Problem, state: LaplaceState, batch: Batch, rng: Generator
    ) -> tuple[LaplaceState, Info]:
        (x, y), network = batch, problem.network
        likelihood = problem.seen_likelihood(state.noise)
        done = backward(network, present(problem), x, len(problem.lead))
        log_lik = likelihood.log_prob(done.output, y)  # (…, B)
        if not bool(log_lik.isfinite().all()):
            raise NumericalError("Laplace: the model's outputs are not finite on the training rows")
        columns = self.curvature.columns(likelihood, done.output, y, rng)
        known, rows = self.curvature.sum(likelihood, done.output), state.rows + log_lik.shape[-1]
        ends = int(rows) % problem.n == 0
        self.structure.add_(state.sums, Columns(done, columns, known, network.output_layer, ends))
        total = state.log_lik + log_lik.double().sum(-1) / self.structure.passes
        return replace(state, rows=rows, log_lik=total), Info(log_lik.mean(-1))

    def _all_rows(self, problem: Problem, data: Data) -> LaplaceState:
        """The whole pass, after the training."""
        rng = Generator(problem.network.device).manual_seed(0)
        with evaluating(problem.network.module):
            state = self._empty(problem, data)
            for batch in (batch for _ in range(self.structure.passes) for batch in data.ordered()):
                state, _ = self._added(problem, state, batch, rng)
        return state

    # -------------------------------------------------------------------------------- what is asked for

    def _chosen(self, problem: Problem) -> Problem:
        """The problem of the layers in the subset, norms and embeddings among them; found once."""
        network = problem.network.with_elementwise()
        if self.subset is None:
            return replace(problem, network=network)
        names = layer_names(self.subset, network, "Laplace")
        if ("laplace", names) not in network.cache:
            network.cache["laplace", names] = network.only(names)
        return replace(problem, network=network.cache["laplace", names])


def _check_precision(given: Any) -> None:
    """Refuse what is no precision."""
    if isinstance(given, Evidence | Validation):
        return
    many = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else [given]
    if not all(isinstance(d, Real) for d in many):
        raise TypeError(
            "Laplace: precision is a number, numbers by layer, bw.Evidence(), bw.Online() or "
            f"bw.Validation(), not {given!r}"
        )
    if not all(d > 0 for d in many):
        raise ValueError(f"Laplace: precision must be positive, not {given}")


def _fixed(given: Each | Mapping[str, float], problem: Problem) -> Fixed:
    """The precision of every layer."""
    names = [layer.name for layer in problem.network.layers]
    if not isinstance(given, Mapping):
        return Fixed(dict.fromkeys(names, each(given, problem)))
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f'Laplace: precision has no number for layer "{missing[0]}"; there are {names}')
    return Fixed({name: float(given[name]) for name in names})


def _trained(problem: Problem, found: Posterior) -> Problem:
    """The problem at the weights that training found."""
    values = getattr(found.weights, "params", None)
    if values is None or found.weights.distinct != 1:
        raise ValueError(f"Laplace: first={found.method} does not end in one network; use MAP()")
    return replace(problem, network=problem.network.at(values))


def present(problem: Problem) -> Params:
    """All values of a pass, with the dimension of members where they have none of their own."""
    module, values = problem.network.module, problem.network.present()
    if not problem.lead:
        return values
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        k: v if v.dim() > own[k].dim() else v.expand((*problem.lead, *v.shape)) for k, v in values.items()
    }


def _outputs(problem: Problem, data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs and targets, batch by batch."""
    params, lead = present(problem), len(problem.lead)
    with torch.no_grad():
        for x, y in data.ordered():
            yield problem.network(params, x, lead, lead), y


def residual_noise(problem: Problem, data: Data) -> Tensor:
    """Σ₀ (…, O, O): the covariance of the residuals, where the noise is to be inferred."""
    network = problem.network
    eye = torch.eye(network.outputs, dtype=torch.float64, device=network.device)
    if not problem.infers_noise:
        return eye.expand(*problem.lead, *eye.shape)
    total, rows = torch.zeros((), dtype=torch.float64, device=network.device), 0
    for f, y in _outputs(problem, data):
        r = (y - f).double()
        total, rows = total + r.mT @ r, rows + r.shape[-2]
    if not bool(total.isfinite().all()):
        raise NumericalError("Laplace: the model's outputs are not finite on the training rows")
    return total / rows + torch.finfo(network.dtype).eps * eye


def require_trained(problem: Problem, log_lik: float, data: Data) -> None:
    """Refuse a model that explains its rows worse than one answer for all of them.

    Where all targets are alike, one answer is perfect and says nothing.
    """
    targets = torch.cat([y for _, y in data.ordered()], -2 if problem.likelihood.event_dim else -1)
    axis = -1 - problem.likelihood.event_dim
    if bool((targets == targets.narrow(axis, 0, 1)).all(axis).all()):
        return
    best = _constant_log_lik(problem, targets)
    rows = problem.n * max(1, problem.members or 1)
    if not log_lik > best:
        raise ValueError(
            f"Laplace: the model is not trained: its log-likelihood is {log_lik / rows:.3g} per row, one "
            f"answer for all rows has {best / rows:.3g}; train it, or use Laplace(first=bw.MAP())"
        )


def _constant_log_lik(problem: Problem, y: Tensor) -> float:
    """The log-likelihood of the best constant output."""
    if not y.is_floating_point():
        counts = torch.nn.functional.one_hot(y, problem.network.outputs).double().sum(-2)  # (…, O)
        return float(torch.special.xlogy(counts, counts / counts.sum(-1, keepdim=True)).sum())
    if not problem.is_regression:
        p, y = y.double().mean(-2, keepdim=True), y.double()
        return float((torch.special.xlogy(y, p) + torch.special.xlogy(1 - y, 1 - p)).sum())
    r = (y - y.mean(-2, keepdim=True)).double()
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    noise = r.mT @ r / r.shape[-2] + torch.finfo(r.dtype).eps * eye
    return float(problem.seen_likelihood(noise).log_prob(torch.zeros_like(r), r).sum())
