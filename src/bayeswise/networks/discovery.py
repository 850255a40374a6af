"""Look at a module once, with one example batch: which layers it calls, and what its output is."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayeswise.networks.network import Network, Params, Select, as_rows, choose_layers, compute_dtype, unwrap
from bayeswise.networks.signals import hooked
from bayeswise.networks.views import LayerView

WIDE = 20_000  # weights of the largest layer from which a loop over members beats vmap


def discover(module: nn.Module, x: Tensor, select: Select = None) -> Network:
    """The network behind a module, run once on the example batch x (B, …) in eval mode."""
    module = unwrap(module)
    dtype = compute_dtype(x, module)
    views = choose_layers(module, select)
    values = _values(module, dtype)
    given = x.clone()
    out, calls = _run(module, list(views.values()), values, given)
    rows = as_rows(out)
    layers = tuple(views[name] for name in calls)  # in the order of their first call
    own = {name for layer in layers for name in layer.parameters}
    constants = {name: value for name, value in values.items() if name not in own}
    network = Network(module, layers, constants, dtype, rows.shape[-1], _output_layer(out, calls), True)
    network = replace(network, changes_input=given._version > 0)
    return replace(network, vectorised=_vectorised(network, x))


def _values(module: nn.Module, dtype: torch.dtype) -> Params:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: value.detach().to(dtype if value.is_floating_point() else value.dtype, copy=True)
        for name, value in state.items()
    }


def _run(
    module: nn.Module, views: list[LayerView], values: Params, x: Tensor
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    calls: dict[str, list[Tensor]] = {}

    def on_output(view: LayerView, _: Tensor, z: Tensor) -> Tensor:
        z = z if z.requires_grad else z.requires_grad_()
        calls.setdefault(view.name, []).append(z)
        return z.clone()

    with torch.enable_grad(), hooked(module, views, on_output):
        copies = {name: value.clone() for name, value in values.items()}  # a forward may move its buffers
        return functional_call(module, copies, (x,)), calls


def _output_layer(out: Tensor, calls: dict[str, list[Tensor]]) -> str | None:
    """The layer called once whose output has the module's values and rows, and moves it one to one."""
    if calls and not out.requires_grad:
        raise ValueError(
            "the model's output has no gradient with respect to its layers; "
            "remove detach() or no_grad() from the model's forward"
        )
    for name, outputs in calls.items():
        z = outputs[0]
        if len(outputs) > 1 or z.numel() != out.numel() or z.shape[-1] != as_rows(out).shape[-1]:
            continue
        if not torch.equal(z.reshape(out.shape), out):
            continue
        probe = torch.linspace(1, 2, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
        (moved,) = torch.autograd.grad((out * probe).sum(), [z], retain_graph=True)
        if torch.equal(moved.reshape(probe.shape), probe):
            return name
    return None


def _vectorised(network: Network, x: Tensor) -> bool:
    """Whether members go through vmap: a fixed rule, so that a resumed run takes the same way."""
    if not network.layers or max(layer.inputs * layer.outputs for layer in network.layers) > WIDE:
        return False
    params = {name: torch.stack([v, v]) for name, v in network.layer_parameters().items()}
    try:
        with torch.no_grad():
            network(params, x, lead=1)
    except RuntimeError:  # data-dependent branches, in-place updates, modules that vmap does not know
        return False
    return True
