r"""An old posterior in the place of the prior: what was learned from rows that are gone (continual learning).

    q_old(w) = N(m, P⁻¹),  P = G_old + δ                              the old rows, and the prior before them
    w* = argmax  Σ_n log p(y_n | f(x_n; w)) - ½ (w - m)ᵀ P (w - m)    over the new rows
    q(w) = N(w*, (P + G / T)⁻¹)
    log p(new | old) = Σ_n log p(y_n | f_n) / T - ½ (w* - m)ᵀ P (w* - m) + ½ log |P| - ½ log |P + G / T|

Curvatures add and δ stays, so the form must be one whose sums have the same form: diagonal or full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bayeswise.distributions import DenseGaussian, DiagonalGaussian
from bayeswise.linalg import solve_lower
from bayeswise.methods.evidence import ROUNDS, TOLERANCE, Fit, Tuned, Weights, noise_scale, notes
from bayeswise.methods.structures import Diagonal, Full, Structure
from bayeswise.networks import Params
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import JointGaussian, LayerGaussians
from bayeswise.weights.curved import inner, summed


@dataclass(frozen=True, eq=False)
class Before:
    """The old posterior, N(m, P⁻¹)."""

    problem: Problem
    weights: Weights

    @classmethod
    def of(cls, old: Posterior, structure: Structure) -> Before:
        """Refuse forms that do not add, and forms that are not the same."""
        weights = old.weights
        if not isinstance(structure, Diagonal | Full):
            raise ValueError(
                f"Laplace: {structure} cannot go on from a posterior: two such matrices have no sum of that "
                "form; use structure=bw.Diagonal() or bw.Full() for the old and the new rows"
            )
        form = JointGaussian if isinstance(structure, Full) else LayerGaussians
        if not isinstance(weights, form) or not all(map(_adds, _parts(weights))):
            raise ValueError(
                f"Laplace: prior is a {old.method} posterior that is not {structure.word}; fit the old rows "
                f"with bw.Laplace(structure=bw.{type(structure).__name__}())"
            )
        return cls(old.problem, weights)

    @property
    def lead(self) -> int:
        """How many leading dimensions are data splits."""
        return len(self.problem.lead)

    def check(self, problem: Problem) -> None:
        """Refuse another network."""
        views = problem.network.layers
        shapes = {v.name: (*problem.lead, *v.groups, v.inputs, v.outputs) for v in views}
        old = {name: tuple(m.shape) for name, m in self.weights.means.items()}
        if list(shapes.items()) != list(old.items()):
            raise ValueError(f"Laplace: prior is a posterior of layers {old}; here are {shapes}")
        module = problem.network.module
        here = {*dict(module.named_parameters()), *dict(module.named_buffers())}
        other = next((name for name in self.start() if name not in here), None)
        if other is not None:
            raise ValueError(f'Laplace: prior is a posterior of a model with "{other}", which is not here')

    # ------------------------------------------------------------------------------------------- training

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it knows; all others stay as they were."""
        return frozenset(name for view in self.problem.network.layers for name in view.parameters)

    def start(self) -> Params:
        """Parameters and buffers (…) as the old rows left them."""
        network, lead = self.problem.network, self.problem.lead
        constants = {name: value.expand((*lead, *value.shape)) for name, value in network.constants.items()}
        return constants | self.weights.values(network)

    def penalty(self, params: Params) -> Tensor:
        """½ (w - m)ᵀ P (w - m) (…,) of parameters (…) by their names in the module."""
        own = {view.name: view.matrix(params) for view in self.problem.network.layers}
        return 0.5 * self.distance(own)

    # ---------------------------------------------------------------------------------------- the Gaussian

    def distance(self, means: Params) -> Tensor:
        """(w - m)ᵀ P (w - m) (…,) of matrices (…, I, O) by layer."""
        moves = {name: w - self.weights.means[name].to(w) for name, w in means.items()}
        if isinstance(self.weights, JointGaussian):
            flat = torch.cat([move.flatten(self.lead) for move in moves.values()], -1)  # (…, P)
            factor = _dense(self.weights).factor.to(flat)
            return (flat[..., None, :] @ factor).square().sum((-2, -1))
        parts = [
            summed((layer.eigenvalues + layer.precision).to(moves[name]) * moves[name].square(), self.lead)
            for name, layer in self.weights.layers.items()
        ]
        return torch.stack(parts).sum(0)

    def with_curvature(self, new: Weights, scale: Tensor) -> Weights:
        """The old curvature and the new one times a number (…,), around the new means."""
        if isinstance(new, JointGaussian):
            old = _dense(self.weights)
            total = old.curvature + _dense(new).curvature * scale[..., None, None]
            return replace(new, joint=DenseGaussian.of(total, old.precision))
        assert isinstance(self.weights, LayerGaussians) and isinstance(new, LayerGaussians)
        layers = {}
        for name, old in self.weights.layers.items():
            extra = new.layers[name].eigenvalues
            layers[name] = DiagonalGaussian(old.eigenvalues + extra * inner(scale, extra), old.precision)
        return replace(new, layers=layers)

    def gained(self, weights: Weights) -> Tensor:
        """γ of the new rows alone, (…,): P weights less tr P_old (P_old + G)⁻¹."""
        if isinstance(weights, JointGaussian):
            old, new = _dense(self.weights).factor, _dense(weights).factor
            return new.shape[-1] - solve_lower(new, old).square().sum((-2, -1))
        assert isinstance(self.weights, LayerGaussians) and isinstance(weights, LayerGaussians)
        parts = [
            summed(1 - (old.eigenvalues + old.precision) / (new.eigenvalues + new.precision), self.lead)
            for old, new in zip(self.weights.layers.values(), weights.layers.values(), strict=True)
        ]
        return torch.stack(parts).sum(0)

    def tuned(self, fit: Fit, base: Weights) -> Tuned:
        """The Gaussian after the new rows, with their own noise where that is inferred."""
        s = torch.ones_like(fit.log_lik)
        weights = self.with_curvature(base, 1 / (fit.temperature * s))
        for _ in range(ROUNDS if fit.problem.infers_noise else 0):
            old, s = s, noise_scale(fit, {"": self.gained(weights)})
            weights = self.with_curvature(base, 1 / (fit.temperature * s))
            if bool(((s / old).log().abs() < TOLERANCE).all()):
                break
        change = self.weights.log_det(self.lead) - weights.log_det(self.lead)
        log_evidence = fit.log_lik_at(s) / fit.temperature + 0.5 * (change - self.distance(fit.means))
        delta = {name: _mean(part, self.lead) for name, part in self._precisions().items()}
        about = f"the prior is the posterior of an earlier fit, of {self.problem.n} rows, precision and all"
        return Tuned(
            weights, fit.noise * s[..., None, None], log_evidence, (about, *notes(fit, weights, delta))
        )

    def _precisions(self) -> dict[str, Tensor]:
        """δ by layer."""
        if isinstance(self.weights, LayerGaussians):
            return {name: layer.precision for name, layer in self.weights.layers.items()}
        sizes = [view.size for view in self.problem.network.layers]
        return dict(zip(self.weights.means, self.weights.joint.precision.split(sizes, -1), strict=True))


def _dense(weights: Weights) -> DenseGaussian:
    assert isinstance(weights, JointGaussian) and isinstance(weights.joint, DenseGaussian)
    return weights.joint


def _parts(weights: Any) -> list[Any]:
    return [weights.joint] if isinstance(weights, JointGaussian) else list(weights.layers.values())


def _adds(part: Any) -> bool:
    return isinstance(part, DenseGaussian | DiagonalGaussian)


def _mean(values: Tensor, lead: int) -> Tensor:
    return values.mean(list(range(lead, values.dim()))) if values.dim() > lead else values
