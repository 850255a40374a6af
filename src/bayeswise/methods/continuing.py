r"""An old posterior in the place of the prior: what was learned from rows that are gone (continual learning).

    q_old(w) = N(m, P⁻¹),  P = G_old + δ                              the old rows, and the prior before them
    w* = argmax  Σ_n log p(y_n | f(x_n; w)) - ½ (w - m)ᵀ P (w - m)    over the new rows
    q(w) = N(w*, (P + G / T)⁻¹)
    log p(new | old) = Σ_n log p(y_n | f_n) / T - ½ (w* - m)ᵀ P (w* - m) + ½ log |P| - ½ log |P + G / T|

Curvatures add and δ stays. Diagonals and full matrices add in their own form; two Kronecker products do not:
A₁ ⊗ B₁ + A₂ ⊗ B₂ is replaced by the nearest product (`linalg/kronecker.py`), in q and in the evidence. The
pull of P in the training is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from bayeswise.distributions import DenseGaussian, DiagonalGaussian, KroneckerGaussian, LayerGaussian
from bayeswise.linalg import Factors, NearestProduct, nearest_product, solve_lower
from bayeswise.methods.evidence import ROUNDS, TOLERANCE, Fit, Tuned, Weights, noise_scale, notes
from bayeswise.methods.structures import Diagonal, Full, Kronecker, Structure
from bayeswise.networks import Network, Params, is_elementwise
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem
from bayeswise.weights import JointGaussian, LayerGaussians
from bayeswise.weights.curved import inner, summed


@dataclass(frozen=True, eq=False)
class Before:
    """The old posterior, N(m, P⁻¹)."""

    problem: Problem  # its n counts all earlier rows
    weights: Weights
    unused: Any = None  # a precision that was asked for now

    @classmethod
    def of(cls, old: Posterior, structure: Structure, unused: Any = None) -> Before:
        """Refuse forms that do not add, and forms that are not the same."""
        weights: Any = old.weights
        if not isinstance(structure, Kronecker | Diagonal | Full):
            raise ValueError(
                f"Laplace: {structure} cannot go on from a posterior: two such matrices have no sum of that "
                "form; use structure=bw.Kronecker(), bw.Diagonal() or bw.Full() for the old and the new rows"
            )
        if old.method != "Laplace":
            raise ValueError(
                f"Laplace: prior is a {old.method} posterior, a Laplace posterior is needed; fit the old "
                f"rows with bw.Laplace({_setting(structure)})"
            )
        if not _has_form(weights, structure, old.problem.network):
            raise ValueError(
                f"Laplace: prior is a {old.method} posterior that is not {structure.word}; fit the old rows "
                f"with bw.Laplace({_setting(structure)})"
            )
        return cls(old.problem, weights, unused)

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
            summed(_square(layer, moves[name]), self.lead) for name, layer in self.weights.layers.items()
        ]
        return torch.stack(parts).sum(0)

    def with_curvature(self, new: Weights, scale: Tensor) -> Weights:
        """The old curvature and the new one times a number (…,), around the new means."""
        if isinstance(new, JointGaussian):
            old = _dense(self.weights)
            total = old.curvature + _dense(new).curvature * scale[..., None, None]
            return replace(new, joint=DenseGaussian.of(total, old.precision))
        assert isinstance(self.weights, LayerGaussians) and isinstance(new, LayerGaussians)
        layers = {
            name: _sum(old, new.layers[name].tempered(inner(scale, new.means[name])))
            for name, old in self.weights.layers.items()
        }
        return replace(new, layers=layers)

    def gained(self, new: Weights, scale: Tensor) -> Tensor:
        """γ of the new rows alone, (…,): the derivative of log |P + scale G| in log scale."""
        if isinstance(new, JointGaussian):
            old, total = _dense(self.weights).factor, _dense(self.with_curvature(new, scale)).factor
            return total.shape[-1] - solve_lower(total, old).square().sum((-2, -1))  # tr G (P + G)⁻¹
        with torch.enable_grad():
            log = scale.log().detach().requires_grad_()
            volume = self.with_curvature(new, log.exp()).log_det(self.lead).sum()
            return torch.autograd.grad(volume, log)[0]

    def tuned(self, fit: Fit, base: Weights) -> Tuned:
        """The Gaussian after the new rows, with their own noise where that is inferred."""
        s = torch.ones_like(fit.log_lik)
        for _ in range(ROUNDS if fit.problem.infers_noise else 0):
            old, s = s, noise_scale(fit, {"": self.gained(base, 1 / (fit.temperature * s))})
            if bool(((s / old).log().abs() < TOLERANCE).all()):
                break
        scale = 1 / (fit.temperature * s)
        weights = self.with_curvature(base, scale)
        change = self.weights.log_det(self.lead) - weights.log_det(self.lead)
        log_evidence = fit.log_lik_at(s) / fit.temperature + 0.5 * (change - self.distance(fit.means))
        delta = {name: _mean(part, self.lead) for name, part in self._precisions().items()}
        about = f"the prior is the posterior of an earlier fit, of {self.problem.n} rows, precision and all"
        about += f": {self.problem.n + fit.problem.n} rows in all"
        about = (about, *self._not_used(), *self._missed(base, scale), *notes(fit, weights, delta))
        return Tuned(weights, fit.noise * s[..., None, None], log_evidence, about)

    def _not_used(self) -> tuple[str, ...]:
        if self.unused is None:
            return ()
        given = self.unused if isinstance(self.unused, Real | tuple) else f"{type(self.unused).__name__}(…)"
        return (f"caution: precision={given} is not used: the prior precision is that of the earlier fit",)

    def _missed(self, new: Weights, scale: Tensor) -> tuple[str, ...]:
        """What the nearest products leave out, of all layers the worst."""
        if not isinstance(self.weights, LayerGaussians) or not isinstance(new, LayerGaussians):
            return ()
        found = {
            name: float(_product(old, new.layers[name].tempered(inner(scale, new.means[name]))).missed.max())
            for name, old in self.weights.layers.items()
            if isinstance(old, KroneckerGaussian)
        }
        if not found:
            return ()
        worst = max(found, key=lambda name: found[name])
        return (
            "old and new curvature together are the nearest Kronecker product to their sum, which misses at "
            f'most {100 * found[worst]:.2g} % of it (layer "{worst}")',
        )

    def _precisions(self) -> dict[str, Tensor]:
        """δ by layer."""
        if isinstance(self.weights, LayerGaussians):
            return {name: layer.precision for name, layer in self.weights.layers.items()}
        sizes = [view.size for view in self.problem.network.layers]
        return dict(zip(self.weights.means, self.weights.joint.precision.split(sizes, -1), strict=True))


def check_before(before: Any) -> None:
    """Refuse a posterior that was not made ready."""
    if before is not None and not isinstance(before, Before):
        raise TypeError(
            f"Laplace: before is set by fit and cannot be a {type(before).__name__}; use bw.fit(model, data, "
            "likelihood, bw.Laplace(), prior=old_posterior)"
        )


def _setting(structure: Structure) -> str:
    """What makes it, in the shortest form."""
    if structure == Kronecker():
        return ""
    return (
        f"structure=bw.{structure if isinstance(structure, Kronecker) else type(structure).__name__ + '()'}"
    )


def _dense(weights: Weights) -> DenseGaussian:
    assert isinstance(weights, JointGaussian) and isinstance(weights.joint, DenseGaussian)
    return weights.joint


def _has_form(weights: Any, structure: Structure, network: Network) -> bool:
    """Whether every part is what this structure makes of it."""
    if isinstance(structure, Full):
        return isinstance(weights, JointGaussian) and isinstance(weights.joint, DenseGaussian)
    diagonal = {v.name for v in network.layers if isinstance(structure, Diagonal) or is_elementwise(v)}
    return isinstance(weights, LayerGaussians) and all(
        isinstance(layer, DiagonalGaussian if name in diagonal else KroneckerGaussian)
        for name, layer in weights.layers.items()
    )


def _square(layer: LayerGaussian, move: Tensor) -> Tensor:
    """Terms (…, I, O) whose sum is vec(D)ᵀ (G + δ) vec(D)."""
    if isinstance(layer, KroneckerGaussian):
        move = layer.left.mT.to(move) @ move @ layer.right.to(move)
    return (layer.eigenvalues + layer.precision).to(move) * move.square()


def _sum(old: LayerGaussian, new: LayerGaussian) -> LayerGaussian:
    """Both curvatures under the old prior."""
    if not isinstance(old, KroneckerGaussian):
        return DiagonalGaussian(old.eigenvalues + new.eigenvalues, old.precision)
    found = _product(old, new)
    one = torch.ones((), dtype=found.left.dtype, device=found.left.device)
    return KroneckerGaussian.of(found.left, found.right, one, old.precision)


def _product(old: LayerGaussian, new: LayerGaussian) -> NearestProduct:
    assert isinstance(old, KroneckerGaussian) and isinstance(new, KroneckerGaussian)
    return nearest_product(_factors(old), _factors(new))


def _factors(layer: KroneckerGaussian) -> Factors:
    """A and B of G = A ⊗ B, whose eigenvalues are a bᵀ; B has trace 1."""
    total = layer.eigenvalues.sum((-2, -1), keepdim=True)
    a, b = layer.eigenvalues.sum(-1), layer.eigenvalues.sum(-2)
    b = b / total.squeeze(-1).clamp_min(torch.finfo(b.dtype).tiny)
    q_a, q_b = layer.left, layer.right
    return (q_a * a[..., None, :]) @ q_a.mT, (q_b * b[..., None, :]) @ q_b.mT


def _mean(values: Tensor, lead: int) -> Tensor:
    return values.mean(list(range(lead, values.dim()))) if values.dim() > lead else values
