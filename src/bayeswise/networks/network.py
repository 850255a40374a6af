"""A module as a pure function of its parameters, and which of its layers a method may see as rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayeswise.networks.marks import Params, is_mark, marked
from bayeswise.networks.views import LayerView, view_of

Select = Callable[[str, nn.Module], bool] | Iterable[str] | None


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Run with every submodule in train or eval mode; each one's own mode comes back, whatever happens."""
    changed = [m for m in module.modules() if m.training != training]
    for m in changed:
        m.training = training
    try:
        yield
    finally:
        for m in changed:
            m.training = not training


def evaluating(module: nn.Module) -> AbstractContextManager[None]:
    """Run in eval mode."""
    return in_mode(module, False)


def unwrap(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, or the module itself."""
    return getattr(module, "_orig_mod", module)


def compute_dtype(x: Tensor, module: nn.Module) -> torch.dtype:
    """Floating inputs decide; half precision is computed in float32; other inputs leave it to the module."""
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    dtype = x.dtype if x.is_floating_point() else own
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def as_rows(out: Tensor, rows: int) -> Tensor:
    """A module's output for so many rows as (B, O); one that squeezes drops the dimension of a single row."""
    if rows == 1 and out.dim() < 2:
        return out.reshape(1, -1)
    if out.dim() == 1:
        return out[:, None]
    if out.dim() == 2:
        return out
    raise ValueError(
        f"the model's output for a batch has shape {tuple(out.shape)}; (B,) or (B, O) is needed: "
        "flatten it in the model's forward"
    )


@dataclass(frozen=True, eq=False)
class Network:
    """A module, the layers chosen for inference in the order of their first call, and all else as it is."""

    module: nn.Module
    layers: tuple[LayerView, ...]
    constants: Params  # parameters of no chosen layer, and all buffers
    dtype: torch.dtype  # what the network computes in
    outputs: int  # O
    output_layer: str | None  # the layer whose output is the module's output, if there is one
    vectorised: bool  # members by vmap, else one after another
    changes_input: bool = False  # the module's forward works in place on its input: it gets a copy
    vectorises_all: bool = False  # vmap also runs it where all its values have members
    width: int = 1  # the most numbers that a submodule gave for one row
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)  # what was found out once
    values: Params | None = None  # present ones of parameters and buffers, in place of the module's own
    elementwise: tuple[LayerView, ...] = ()  # norms and embeddings that a method may take too
    barred: Mapping[str, str] = field(default_factory=dict)  # those that none may take, and why

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def fixed(self) -> dict[str, int]:
        """The parameters that belong to no chosen layer, with their sizes."""
        own = dict(self.module.named_parameters())
        inferred = {name for layer in self.layers for name in layer.parameters}
        names = [*self.constants, *(name for name in self.values or () if name not in self.constants)]
        return {name: own[name].numel() for name in names if name in own and name not in inferred}

    def bare(self) -> Network:
        """The network without values of its own: all of them come with the parameters."""
        return replace(self, constants={}, layers=(), vectorised=self.vectorises_all)

    def layer_parameters(self) -> Params:
        """The present values of the chosen layers' parameters: copies."""
        own = dict(self.module.named_parameters()) if self.values is None else self.values
        names = [name for layer in self.layers for name in layer.parameters]
        return {name: own[name].detach().to(self.dtype, copy=True) for name in names}

    def present(self) -> Params:
        """What a pass needs beside the constants: values of the chosen layers, and those that `at` gave."""
        return (self.values or {}) | self.layer_parameters()

    def single(self) -> Params:
        """The same of one member, where the values have members."""
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {k: v[0] if v.dim() > own[k].dim() else v for k, v in self.present().items()}

    def only(self, names: Iterable[str]) -> Network:
        """The network with fewer chosen layers; the others keep their present values."""
        kept = set(names)
        layers = tuple(layer for layer in self.layers if layer.name in kept)
        return replace(self, layers=layers, values=self.present(), cache={})

    def with_elementwise(self) -> Network:
        """The network with norms and embeddings behind its other chosen layers; found once."""
        if not self.elementwise:
            return self
        if "elementwise" not in self.cache:
            own = {name for view in self.elementwise for name in view.parameters}
            self.cache["elementwise"] = replace(
                self,
                layers=(*self.layers, *self.elementwise),
                constants={name: value for name, value in self.constants.items() if name not in own},
                vectorised=self.vectorised and self.vectorises_all,
                cache={},
                values=None if self.values is None else {k: self.constants[k] for k in own} | self.values,
                elementwise=(),
            )
        return self.cache["elementwise"]

    def at(self, values: Params) -> Network:
        """The network with these present values of parameters and buffers, with or without members."""
        own = {name for layer in self.layers for name in layer.parameters}
        vectorised = self.vectorised and (self.vectorises_all or own >= set(values))
        return replace(self, values=self.present() | values, vectorised=vectorised, cache={})

    def __call__(self, params: Params, x: Tensor, lead: int = 0, x_lead: int = 0) -> Tensor:
        """Outputs (…, B, O) for parameters with `lead` leading dimensions; the last `x_lead` are also x's.

        Masks and noise may stand among the parameters: see `networks/marks.py`.
        """
        if lead == 0:
            x = x.clone() if self.changes_input else x
            return as_rows(self._run(params, x), len(x))
        step = 0 if x_lead == lead else None

        def inner(p: Params, rows: Tensor) -> Tensor:
            return self(p, rows, lead - 1, x_lead - 1 if step == 0 else x_lead)

        if self.vectorised:
            return vmap(inner, in_dims=(0, step), randomness="different")(params, x)
        size = next(iter(params.values())).shape[0]
        rows = x.unbind(0) if step == 0 else [x] * size
        return torch.stack([inner({k: v[i] for k, v in params.items()}, rows[i]) for i in range(size)])

    def _run(self, params: Params, x: Tensor) -> Any:
        """The module with these values in place of its own; what a pass does to buffers is forgotten."""
        moves = self.cache.get("moves constants", True)  # until it is known, they are copied
        constants = {k: v.clone() for k, v in self.constants.items()} if moves else self.constants
        try:
            return self.run(params, constants, x)
        finally:
            if "moves constants" not in self.cache:
                moved = any(not v.is_inference() and v._version > 0 for v in constants.values())
                self.cache["moves constants"] = moved

    def run(self, params: Params, constants: Params, x: Tensor) -> Any:
        """The module's own output for these values and marks; a pass in train mode moves the constants."""
        marks = {key: value for key, value in params.items() if is_mark(key)}
        if not marks:
            return self._swapped(params, constants, x)
        values = {key: value for key, value in params.items() if key not in marks}
        with marked(self.module, self.layers, marks):
            return self._swapped(values, constants, x)

    def _swapped(self, params: Params, constants: Params, x: Tensor) -> Any:
        """As `functional_call`, at less overhead: values go straight to where the module keeps its own."""
        values, slots, own = constants | params, self._slots(), []  # parameters go before constants
        if slots is None:
            return functional_call(self.module, values, (x,))
        try:
            for name, value in values.items():
                for store, key in slots[name]:
                    own.append((store, key, store[key]))
                    store[key] = value
            return self.module(x)
        finally:
            for store, key, value in reversed(own):
                store[key] = value

    def _slots(self) -> Slots | None:
        """Where the module keeps each value; looked up again when a submodule was exchanged."""
        modules = list(self.module.modules())
        known, slots = self.cache.get("slots", (None, None))
        if known != modules:
            slots = _slots(self.module)
            self.cache["slots"] = (modules, slots)
        return slots


Slots = dict[str, list[tuple[dict[str, Any], str]]]


def _slots(module: nn.Module) -> Slots | None:
    """Where a module keeps each parameter and buffer, aliases included.

    None where a submodule wants to be told of new values (an LSTM holds its weights twice).
    """
    if any(type(m).__setattr__ is not nn.Module.__setattr__ for m in module.modules()):
        return None
    names = {id(v): k for k, v in (*module.named_parameters(), *module.named_buffers())}
    slots: Slots = {}
    for m in module.modules():
        for store in (m._parameters, m._buffers):
            for key, value in store.items():
                if value is not None:
                    slots.setdefault(names[id(value)], []).append((store, key))
    return slots


def choose_layers(module: nn.Module, select: Select) -> dict[str, LayerView]:
    """All layers that a view knows and the user selected, by name; by default not those that are frozen.

    Where every parameter is frozen, that says nothing: then it is all layers.
    """
    modules = dict(module.named_modules())
    views = {name: view for name, m in modules.items() if (view := view_of(name, m)) is not None}
    if select is None:
        free = {n: v for n, v in views.items() if any(p.requires_grad for p in modules[n].parameters())}
        return _untied(free or views, modules)
    if callable(select):
        return _untied({n: v for n, v in views.items() if select(n, modules[n])}, modules)
    wanted = [select] if isinstance(select, str) else list(select)
    unknown = [name for name in wanted if name not in views]
    if unknown:
        raise ValueError(f"select names {unknown[0]!r}, which is no supported layer; there are {list(views)}")
    return _untied({name: views[name] for name in wanted}, modules)


def _untied(views: dict[str, LayerView], modules: dict[str, nn.Module]) -> dict[str, LayerView]:
    owner: dict[int, str] = {}
    for name, module in modules.items():
        for parameter in module.parameters(recurse=False):
            other = owner.setdefault(id(parameter), name)
            if other != name and (other in views or name in views):
                raise ValueError(
                    f'layers "{other}" and "{name}" share a parameter, but a layer that is inferred needs '
                    "its own: untie them, or use one layer twice, or pass select=… to leave both out"
                )
    return views
