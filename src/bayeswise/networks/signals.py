"""What a layerwise method senses: each chosen layer's inputs, outputs and output gradients, as rows.

One forward pass and one gradient with respect to layer outputs; no weight gradient is ever formed. Hooks
live for one forward pass and leave nothing behind on the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from bayeswise.linalg import solve_lower
from bayeswise.networks.network import Network, Params
from bayeswise.networks.views import LayerView


@dataclass(frozen=True)
class LayerSignal:
    """The rows of one layer in one batch; a layer used several times has more rows.

    Where the layer is G regressions side by side, that dimension stands before the last two.
    """

    x: Tensor  # (…, R, I)
    z: Tensor  # (…, R, O): x W, and the noise where there is one
    g: Tensor  # (…, R, O): ∂ log p / ∂z


@dataclass(frozen=True)
class Signals:
    """One forward pass: outputs, log-likelihood of each row, and the signals of every chosen layer."""

    output: Tensor  # f (…, B, O)
    log_lik: Tensor  # (…, B)
    layers: dict[str, LayerSignal]


@dataclass(frozen=True)
class LocalNoise:
    """Noise on a layer's outputs with the spread of its weights: ε = sqrt(x R xᵀ)·base, per row."""

    precision_factor: Tensor  # (…, I, I): the Cholesky factor of R⁻¹
    base: Tensor  # (…, R, O)

    def __call__(self, rows: Tensor, start: int = 0) -> Tensor:
        """The noise of the rows (…, R', I) that begin at `start` of the layer's rows in this batch."""
        spread = solve_lower(self.precision_factor.to(rows.dtype), rows.mT).square().sum(-2)  # (…, R')
        spread = spread.clamp_min(torch.finfo(rows.dtype).tiny)  # a row of zeros: the gradient stays finite
        return spread.sqrt()[..., None] * self.base[..., start : start + rows.shape[-2], :]


Call = tuple[Tensor, Tensor]  # a layer's rows (…, R, I) and its output in one call
Tape = dict[str, list[Call]]
Forward = tuple[Tensor, Tape, dict[str, list[Tensor]]]


def layer_signals(
    network: Network,
    params: Params,
    x: Tensor,
    log_lik: Callable[[Tensor], Tensor],
    lead: int = 0,
    noise: Mapping[str, LocalNoise] | None = None,
) -> Signals:
    """Run the network once and differentiate Σ log p(y | f) with respect to the layers' outputs.

    With `lead` = 1 the parameters, x and the noise carry a leading member dimension.
    """
    with torch.enable_grad():
        f, tape, points = recorded(network, params, x, lead, noise)
        row_log_lik = log_lik(f)  # (…, B)
        flat = [point for name in points for point in points[name]]
        ones = torch.ones_like(row_log_lik)  # of Σ log p
        found = torch.autograd.grad(row_log_lik, flat, ones, allow_unused=True)
    grads = (torch.zeros_like(z) if g is None else g for z, g in zip(flat, found, strict=True))
    gradients = {name: [next(grads) for _ in points[name]] for name in points}
    layers = {v.name: _signal(v, tape[v.name], gradients[v.name], lead) for v in network.layers}
    return Signals(f.detach(), row_log_lik.detach(), layers)


def recorded(
    network: Network, params: Params, x: Tensor, lead: int, noise: Mapping[str, LocalNoise] | None = None
) -> Forward:
    """Outputs f (…, B, O), what every call of the layers saw and gave, and the points to differentiate at."""
    forward = _single if lead == 0 else _vectorised if network.vectorised else _looped
    return forward(network, params, x, noise or {})


def _signal(view: LayerView, calls: Sequence[Call], grads: Sequence[Tensor], lead: int) -> LayerSignal:
    grads = by_call(calls, grads)
    return LayerSignal(
        _joined([x for x, _ in calls]),
        _joined([view.output_rows(z.detach(), lead) for _, z in calls]),
        _joined([view.output_rows(g, lead) for g in grads]),
    )


def by_call(calls: Sequence[Call], grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """One gradient for each call, where members ran one after another and each has its own."""
    if grads[0].dim() == calls[0][1].dim():
        return grads
    size = len(grads) // len(calls)
    return [torch.stack(list(grads[i * size : (i + 1) * size])) for i in range(len(calls))]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def _single(network: Network, params: Params, x: Tensor, noise: Mapping[str, LocalNoise]) -> Forward:
    """Outputs, tape, and the layer outputs themselves as the points to differentiate at."""
    tape: Tape = {}

    def on_output(view: LayerView, x: Tensor, z: Tensor) -> Tensor:
        z = _noisy(view, x, z, noise, tape)
        z = z if z.requires_grad else z.requires_grad_()
        tape.setdefault(view.name, []).append((view.rows(x.detach(), 0), z))
        return z.clone()  # the module may change its copy in place

    f = _taped(network, params, x, on_output)
    return f, tape, {name: [z for _, z in calls] for name, calls in tape.items()}


def _looped(network: Network, params: Params, x: Tensor, noise: Mapping[str, LocalNoise]) -> Forward:
    """Members one after another; the points are listed call by call, member by member."""
    runs = [
        _single(
            network,
            {name: value[k] for name, value in params.items()},
            x[k],
            {name: LocalNoise(n.precision_factor[k], n.base[k]) for name, n in noise.items()},
        )
        for k in range(x.shape[0])
    ]
    f = torch.stack([run[0] for run in runs])
    tape: Tape = {}
    points: dict[str, list[Tensor]] = {}
    for name, calls in runs[0][1].items():
        for i in range(len(calls)):
            pairs = [run[1][name][i] for run in runs]
            stacked = (torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]))
            tape.setdefault(name, []).append(stacked)
            points.setdefault(name, []).extend(p[1] for p in pairs)
    return f, tape, points


def _vectorised(network: Network, params: Params, x: Tensor, noise: Mapping[str, LocalNoise]) -> Forward:
    """All members in one vmapped pass; the points are zero nudges added to the layers' outputs.

    A nudge is one zero, seen in the shape of an output. Adding it makes the copy that the module may change
    in place.
    """
    shapes, zero = call_shapes(network, x, lead=1), x.new_zeros((), dtype=network.dtype)
    nudges = {
        name: [zero.expand(x.shape[0], *shape).requires_grad_() for shape in sizes]
        for name, sizes in shapes.items()
    }

    def member(params: Params, x: Tensor, nudges: dict[str, list[Tensor]], noise: dict[str, Any]) -> Any:
        tape: Tape = {}

        def on_output(view: LayerView, x: Tensor, z: Tensor) -> Tensor:
            index = len(tape.get(view.name, ()))
            z = _noisy(view, x, z, {k: LocalNoise(*v) for k, v in noise.items()}, tape)
            tape.setdefault(view.name, []).append((view.rows(x.detach(), 0), z))
            return z + nudges[view.name][index]

        return _taped(network, params, x, on_output), tape

    values = {name: (n.precision_factor, n.base) for name, n in noise.items()}
    f, tape = vmap(member, in_dims=0)(params, x, nudges, values)
    return f, tape, nudges


def _noisy(view: LayerView, x: Tensor, z: Tensor, noise: Mapping[str, LocalNoise], tape: Tape) -> Tensor:
    if view.name not in noise:
        return z
    done = sum(view.output_rows(z, 0).shape[-2] for _, z in tape.get(view.name, ()))
    return z + view.unrows(noise[view.name](view.rows(x, 0), done), z)


def _taped(
    network: Network, params: Params, x: Tensor, on_output: Callable[[LayerView, Tensor, Tensor], Tensor]
) -> Tensor:
    with hooked(network.module, network.layers, on_output):
        return network(params, x)


@contextmanager
def hooked(
    module: nn.Module,
    layers: Sequence[LayerView],
    on_output: Callable[[LayerView, Tensor, Tensor], Tensor],
) -> Iterator[None]:
    """Let `on_output(view, input, output)` replace the outputs of these layers; nothing stays behind."""

    def hook(view: LayerView, _: nn.Module, args: tuple, kwargs: dict, out: Tensor) -> Tensor:
        return on_output(view, args[0] if args else next(iter(kwargs.values())), out)

    handles = []
    try:
        for view in layers:
            layer = module.get_submodule(view.name)
            handles.append(layer.register_forward_hook(partial(hook, view), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_shapes(network: Network, x: Tensor, lead: int) -> dict[str, list[torch.Size]]:
    """The output shape of every call of every chosen layer in one member's pass; cached by the batch's shape.

    It runs with the present values, which do not matter here.
    """
    one = x[0] if lead else x
    key = ("call shapes", one.shape)
    if key not in network.cache:
        shapes: dict[str, list[torch.Size]] = {}

        def on_output(view: LayerView, x: Tensor, z: Tensor) -> Tensor:
            shapes.setdefault(view.name, []).append(z.shape)
            return z

        with torch.no_grad():
            _taped(network, network.single(), one, on_output)
        network.cache[key] = shapes
    return network.cache[key]


def is_fed_by_data(network: Network, view: LayerView, x: Tensor) -> bool:
    """Whether a layer is called once, with the rows (B, …) of the model's own inputs, flat."""
    seen: list[Tensor] = []

    def on_output(own: LayerView, x: Tensor, z: Tensor) -> Tensor:
        seen.extend([x] if own.name == view.name else [])
        return z

    with torch.no_grad():
        _taped(network, network.single(), x, on_output)
    return len(seen) == 1 and seen[0].shape == x.flatten(1).shape and torch.equal(seen[0], x.flatten(1))


def row_counts(network: Network, x: Tensor, lead: int) -> dict[str, int]:
    """R, the rows of every chosen layer in one member's pass over the batch."""
    shapes = call_shapes(network, x, lead)
    return {view.name: sum(_row_count(view, shape) for shape in shapes[view.name]) for view in network.layers}


def _row_count(view: LayerView, shape: torch.Size) -> int:
    return view.output_rows(torch.empty(shape, device="meta"), 0).shape[-2]
