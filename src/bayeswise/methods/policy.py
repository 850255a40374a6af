"""What happens to the layers that a method leaves out: each by name, and why."""

from __future__ import annotations

import torch
from torch import Tensor

from bayeswise.methods.protocol import Data
from bayeswise.networks import Network, evaluating, unsuited, view_of
from bayeswise.problem import Problem


def fixed_layers(problem: Problem, chosen: Network, data: Data) -> tuple[str, ...]:
    """A line for every module with parameters of its own that no chosen layer has."""
    network = problem.network
    inferred = {name for view in chosen.layers for name in view.parameters}
    left: dict[str, list[str]] = {}
    for name in dict(network.module.named_parameters()):
        if name not in inferred:
            left.setdefault(name.rpartition(".")[0], []).append(name)
    if not left:
        return ()
    called = _called(network, data.example[0], len(problem.lead))
    return tuple(
        f'layer "{where}": fixed, {_reason(where, own, network, called)}' for where, own in left.items()
    )


def _reason(where: str, own: list[str], network: Network, called: set[str]) -> str:
    module = network.module.get_submodule(where)
    kind = type(module).__name__
    if where not in called:
        return f"{kind} is never called"
    if any(layer.name == where for layer in (*network.layers, *network.elementwise)):
        return "not in the subset"
    if where in network.barred:
        return network.barred[where]
    if view_of(where, module) is not None:
        return "not selected"
    if next(module.children(), None) is not None:
        return f"parameters of {kind} itself: {', '.join(name.rpartition('.')[2] for name in own)}"
    return unsuited(module) or f"{kind} cannot be inferred"


def _called(network: Network, x: Tensor, lead: int) -> set[str]:
    """The names of the modules that a pass calls."""
    found: set[str] = set()
    names = {module: name for name, module in network.module.named_modules()}
    handles = [m.register_forward_pre_hook(lambda m, _: found.add(names[m])) for m in names]
    try:
        with torch.no_grad(), evaluating(network.module):
            network(network.single(), x[0] if lead else x)
    finally:
        for handle in handles:
            handle.remove()
    return found
