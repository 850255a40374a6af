"""What `fit` warns of."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from bayeswise.linalg import NumericalWarning
from bayeswise.methods import Method
from bayeswise.networks import Network
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem


class FixedParametersWarning(UserWarning):
    """Part of the model is not inferred."""


class PrecisionWarning(UserWarning):
    """The computation runs in another precision than the model's or the data's."""


def warn_coarse(problem: Problem) -> None:
    """Targets whose spread the precision cannot resolve."""
    if not problem.units.resolved_in(problem.network.dtype):
        warnings.warn(
            f"{type_name(problem.network.dtype)} cannot resolve the spread of y at its size; "
            "give x as float64, or subtract a number from y",
            PrecisionWarning,
            stacklevel=3,
        )


def type_name(dtype: torch.dtype) -> str:
    """As people write it, float32."""
    return str(dtype).removeprefix("torch.")


def warn_half(model: nn.Module, source: Any) -> None:
    """Half precision, which is computed in float32."""
    pair = isinstance(source, tuple)
    tensors = [*model.parameters(), *(source[:1] if pair else ())]
    half = next((t.dtype for t in tensors if t.dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        warnings.warn(
            f"{type_name(half)} is computed in float32, and so are predictions",
            PrecisionWarning,
            stacklevel=3,
        )


def warn_fixed(network: Network, method: Method[Any]) -> None:
    """Parameters that are not inferred."""
    network = network.with_elementwise() if getattr(method, "infers_elementwise", False) else network
    if network.fixed and not method.infers_all:
        warnings.warn(fixed_text(network, 6), FixedParametersWarning, stacklevel=3)


def fixed_text(network: Network, most: int) -> str:
    """Which parameters are not inferred, at most so many by name, and their share."""
    fixed = sum(network.fixed.values())
    share = fixed / (fixed + sum(layer.size for layer in network.layers))
    names = list(network.fixed)
    shown = ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
    return f"{share:.1%} of the parameters belong to no inferred layer and stay as they are: {shown}"


def fixed_note(posterior: Posterior) -> tuple[str, ...]:
    """The same for a summary."""
    network = posterior.problem.network
    return (fixed_text(network, len(network.fixed)),) if network.fixed and network.layers else ()


def warn_rescues(posterior: Posterior) -> None:
    """Factorisations that needed help."""
    if posterior.rescues:
        warnings.warn(
            f"{posterior.rescues} factorisations needed jitter; the posterior is close, not exact: "
            "a tighter prior or a larger noise floor avoids it",
            NumericalWarning,
            stacklevel=3,
        )
