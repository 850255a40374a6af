"""What BALI says of a run and of its layers."""

from __future__ import annotations

import torch
from torch import Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart
from bayeswise.distributions.inverse_wishart import CERTAIN
from bayeswise.linalg import condition
from bayeswise.methods.members import Each
from bayeswise.networks import LayerView
from bayeswise.problem import Problem


def evidence(given: DiagonalPrior, q: MatrixNormalInverseWishart, name: str) -> Tensor:
    """The layer's log evidence with the smallest proper u0, max(u0, O), (…,) with groups apart."""
    dof = max(given.dof, float(given.outputs))
    proper = DiagonalPrior(given.variance, given.scale, dof, given.inputs, given.outputs)
    prior = MatrixNormalInverseWishart.from_stats(proper.stats(q.factor.device), name)
    counted = q.dof.double() + dof - given.dof
    posterior = MatrixNormalInverseWishart(q.factor.double(), counted, q.inputs, q.jitter)
    return posterior.log_evidence(prior, name)


def about_layer(view: LayerView, prior: DiagonalPrior, q: MatrixNormalInverseWishart) -> str:
    """Shape, prior, noise and condition of a layer."""
    noise = q.noise.diagonal(dim1=-2, dim2=-1).mean().sqrt()
    shape = " x ".join(map(str, (*view.groups, view.inputs, view.outputs)))
    return (
        f'layer "{view.name}": {shape}, prior variance {words(prior.variance)}, '
        f"mean noise {float(noise):.3g}, condition {float(condition(q.factor).max()):.1e}"
    )


def about_output(problem: Problem) -> tuple[str, ...]:
    """Which layer regresses on the targets, if any."""
    if not problem.is_regression:
        return ()
    if problem.network.output_layer is not None:
        return (f'layer "{problem.network.output_layer}" is the output: it regresses on the targets',)
    return ("no layer's output is the model's output: all layers follow gradients, noise by residuals",)


def words(value: Each | Tensor) -> str:
    """A number, or from the smallest to the largest of several; whole ones, such as steps, in full."""
    numbers = torch.as_tensor(value)
    form = ".4g" if numbers.is_floating_point() else "d"
    low, high = numbers.min().item(), numbers.max().item()
    return f"{low:{form}}" if low == high else f"{low:{form}} to {high:{form}}"


def step_figures(rescues: Tensor, rate: float | Tensor) -> dict[str, float]:
    """The rescued factorisations so far, and the rate γ: that of the fastest member."""
    fastest = torch.as_tensor(rate, dtype=torch.float64).max()
    return {"rescues": float(rescues), "rate": float(fastest)}


def layer_figures(
    priors: dict[str, DiagonalPrior], layers: dict[str, MatrixNormalInverseWishart], lead: tuple[int, ...]
) -> dict[str, float]:
    """The condition of every layer's factor, and its evidence where the noise is unknown."""
    values = {}
    for name, q in layers.items():
        values[f"condition/{name}"] = float(condition(q.factor).max())
        if float(q.dof.max()) < CERTAIN:
            found = evidence(priors[name], q, name).reshape(*lead, -1)  # (…, groups)
            values[f"evidence/{name}"] = float(found.sum(-1).mean())
    return values
