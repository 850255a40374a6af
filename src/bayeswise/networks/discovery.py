"""Look at a module once, with one example batch: which layers it calls, and what its output is."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayeswise.networks.elementwise import elementwise_view
from bayeswise.networks.network import (
    Network,
    Params,
    Select,
    as_rows,
    choose_layers,
    compute_dtype,
    unwrap,
)
from bayeswise.networks.signals import hooked
from bayeswise.networks.views import LayerView

WIDE = 20_000  # weights of the largest layer from which a loop over members beats vmap
PROBES = (-1e3, -1e-3, 1e-3, 1e3)  # both signs, small and large
PROBED = 32  # rows


def discover(module: nn.Module, x: Tensor, select: Select = None, members: bool = False) -> Network:
    """The network behind a module, run once on the example batch x (B, …) in eval mode.

    With `members` its inputs, too, will carry members.
    """
    module = unwrap(module)
    dtype = compute_dtype(x, module)
    views = choose_layers(module, select)
    values = _values(module, dtype)
    given = x.clone()
    with _sizes(module) as sizes, _floats_wanted(module, x):
        out, calls = _run(module, list(views.values()), values, given)
    rows = _checked(out, x)
    layers = tuple(views[name] for name in calls)  # in the order of their first call
    own = {name for layer in layers for name in layer.parameters}
    constants = {name: value for name, value in values.items() if name not in own}
    named = [(views[name], outputs) for name, outputs in calls.items()]
    output_layer = _output_layer(out, named, lambda view: _returned(module, view, values, x[:PROBED]))
    network = Network(module, layers, constants, dtype, rows.shape[-1], output_layer, True)
    network = replace(network, changes_input=given._version > 0, width=max(sizes) // len(x))
    network = _with_elementwise(network, values, x, select)
    wholly = replace(network, constants={})
    return replace(
        network,
        vectorised=vectorises(network, network.layer_parameters(), x, members),
        vectorises_all=vectorises(wholly, values, x, members),
    )


def _values(module: nn.Module, dtype: torch.dtype) -> Params:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: value.detach().to(dtype if value.is_floating_point() else value.dtype, copy=True)
        for name, value in state.items()
    }


def _checked(out: Any, x: Tensor) -> Tensor:
    """The module's output as rows (B, O), as many as x has."""
    if not isinstance(out, Tensor):
        raise TypeError(
            f"the model returned a {type(out).__name__}; it must return one tensor: wrap it in a module "
            "whose forward picks that"
        )
    rows = as_rows(out, len(x))
    if rows.shape[0] != x.shape[0]:
        raise ValueError(
            f"the model's output for x of shape {tuple(x.shape)} has shape {tuple(out.shape)}; "
            f"it must have {x.shape[0]} rows, one for each of x"
        )
    return rows


def _run(
    module: nn.Module, views: list[LayerView], values: Params, x: Tensor
) -> tuple[Any, dict[str, list[Tensor]]]:
    """The module's output, and what each call of the layers gave."""
    calls: dict[str, list[Tensor]] = {}

    def on_output(view: LayerView, _: Tensor, z: Tensor) -> Tensor:
        z = z if z.requires_grad else z.requires_grad_()
        calls.setdefault(view.name, []).append(z)
        return z.clone()

    with torch.enable_grad(), hooked(module, views, on_output):
        return _called(module, values, x), calls


@contextmanager
def _sizes(module: nn.Module) -> Iterator[list[int]]:
    """The numbers in the outputs of all submodules that run."""
    sizes: list[int] = []

    def hook(_: nn.Module, __: Any, out: Any) -> None:
        sizes.append(out.numel() if isinstance(out, Tensor) else 0)

    handles = [m.register_forward_hook(hook) for m in module.modules()]
    try:
        yield sizes
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _floats_wanted(module: nn.Module, x: Tensor) -> Iterator[None]:
    """Say how whole numbers become floats where a module without an embedding does not take them."""
    try:
        yield
    except RuntimeError as error:
        embeds = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in module.modules())
        if x.is_floating_point() or embeds or "type" not in str(error):
            raise
        kind = str(x.dtype).removeprefix("torch.")
        raise ValueError(f"x has type {kind}, the model computes with floats; give x.float()") from error


def _called(module: nn.Module, values: Params, x: Tensor) -> Any:
    """The module's output with copies of these values in place of its own: a pass may move its buffers.

    `functional_call` would leave them behind in a module that stands at two places.
    """
    copies = {name: value.clone() for name, value in values.items()}
    return Network(module, (), {}, x.dtype, 0, None, False).run(copies, {}, x)


def _returned(module: nn.Module, view: LayerView, values: Params, x: Tensor) -> bool:
    """Whether the module returns what the layer gives, whatever that is: a ReLU or a clamp does not."""
    given: list[Tensor] = []

    def on_output(_: LayerView, __: Tensor, z: Tensor) -> Tensor:
        given.append((1 + z.abs()) * PROBES[len(given)])
        return given[-1].clone()

    with torch.no_grad(), hooked(module, [view], on_output):
        for _ in PROBES:
            out = _called(module, values, x.clone())
            if not torch.equal(given[-1].reshape(out.shape), out):
                return False
    return True


def _output_layer(
    out: Tensor, calls: list[tuple[LayerView, list[Tensor]]], returned: Callable[[LayerView], bool]
) -> str | None:
    """The layer called once whose output rows are the module's, and move them one to one."""
    if calls and not out.requires_grad:
        raise ValueError(
            "the model's output has no gradient with respect to its layers; "
            "remove detach() or no_grad() from the model's forward"
        )
    for view, outputs in calls:
        z = outputs[0]
        own = view.output_rows(z, 0)  # (B, O) where it is the module's output
        if len(outputs) > 1 or not torch.equal(own, as_rows(out, len(own))):
            continue
        probe = torch.linspace(1, 2, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
        (moved,) = torch.autograd.grad((out * probe).sum(), [z], retain_graph=True)
        if torch.equal(moved.reshape(probe.shape), probe) and returned(view):
            return view.name
    return None


def _with_elementwise(network: Network, values: Params, x: Tensor, select: Select) -> Network:
    """The network that knows its norms and embeddings, in the order of their first call."""
    named = dict(network.module.named_modules())
    views = {name: view for name, m in named.items() if (view := elementwise_view(name, m)) is not None}
    if not views:
        return network
    owners = Counter(id(p) for m in named.values() for p in m.parameters(recurse=False))
    followed = _follow_examples(network.module, views, values, x)
    barred: dict[str, str] = {}
    for name in views:
        if select is not None:
            barred[name] = "not selected"
        elif any(owners[id(p)] > 1 for p in named[name].parameters()):
            barred[name] = "another layer has its parameter too"
        elif name not in followed:
            barred[name] = "it has no rows of its own for every example"
    kept = tuple(views[name] for name in followed if name not in barred)
    return replace(network, elementwise=kept, barred=barred)


def _follow_examples(
    module: nn.Module, views: Mapping[str, LayerView], values: Params, x: Tensor
) -> list[str]:
    """The layers whose calls have as many rows more as a batch has examples more than a smaller one."""
    if len(x) == 1:
        return list(_first_sizes(module, views, values, x))
    some, fewer = x[:3], x[: min(len(x), 3) - 1]
    try:
        sizes, smaller = (_first_sizes(module, views, values, part) for part in (some, fewer))
    except RuntimeError:  # it runs on batches of one size only
        return []
    wanted = {name: [n * len(some) for n in of] for name, of in smaller.items()}
    return [name for name, of in sizes.items() if wanted.get(name) == [n * len(fewer) for n in of]]


def _first_sizes(
    module: nn.Module, views: Mapping[str, LayerView], values: Params, x: Tensor
) -> dict[str, list[int]]:
    """The first dimension of what each call of the layers gave; in the order of their first call."""
    sizes: dict[str, list[int]] = {}

    def on_output(view: LayerView, _: Tensor, z: Tensor) -> Tensor:
        sizes.setdefault(view.name, []).append(len(z))
        return z

    with torch.no_grad(), hooked(module, list(views.values()), on_output):
        _called(module, values, x.clone())
    return sizes


def vectorises(network: Network, values: Params, x: Tensor, members: bool) -> bool:
    """Whether members of these values go through vmap: a fixed rule, the same when a run is resumed."""
    if not network.layers or max(layer.size for layer in network.layers) > WIDE:
        return False
    params = {name: torch.stack([v, v]) for name, v in values.items()}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # vmap would loop by itself
            network(params, torch.stack([x, x]) if members else x, lead=1, x_lead=int(members))
    except (RuntimeError, UserWarning):  # branches on data, in-place updates, modules unknown to vmap
        return False
    return True
