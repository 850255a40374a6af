"""How much memory a Laplace fit will take, before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bayeswise.arrays import as_tensor
from bayeswise.data import BATCH
from bayeswise.methods.structures import Diagonal, Full, Kronecker, LayerSize, Sizes, Structure
from bayeswise.methods.subsets import layer_names
from bayeswise.networks import (
    EmbeddingView,
    Network,
    Select,
    discover,
    evaluating,
    is_elementwise,
    row_counts,
)
from bayeswise.networks.curvature import GaussNewton
from bayeswise.posterior import prepared_inputs

if TYPE_CHECKING:
    from bayeswise.methods.laplace import Laplace

FINISH = 3  # posteriors that are held at once while precision and noise are chosen
TRAINING = 4  # times the parameters: themselves, two averages, a gradient
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class Memory:
    """Bytes that a fit takes: `state` all the time, `step` on top in a batch, `posterior` in the end."""

    structure: Structure
    weights: int  # of the chosen layers
    state: int
    step: int
    posterior: int
    free: int | None = None  # bytes, where that is known
    advice: str = ""  # empty where the fit has room

    @property
    def peak(self) -> int:
        """The most at one time."""
        return self.state + max(self.step, FINISH * self.posterior)

    def __str__(self) -> str:
        """One line, and the advice."""
        parts = f"state {amount(self.state)}, step {amount(self.step)}, posterior {amount(self.posterior)}"
        room = "" if self.free is None else f"; {amount(self.free)} free"
        line = f"{self.structure} of {self.weights} weights: {amount(self.peak)} at most ({parts}){room}"
        return f"{line}\n{self.advice}" if self.advice else line


def estimated(
    method: Laplace, model: nn.Module, x: Any, batch_size: int | None, select: Select, free: int | None
) -> Memory:
    """The memory of a fit of this method to rows like x (B, …); nothing of that size is allocated."""
    x = as_tensor(x, "x")[: batch_size or BATCH]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = prepared_inputs(x, x.dtype if x.dtype not in HALF else torch.float32, device)
    with torch.inference_mode(False), evaluating(model):
        network = discover(model, x, select).with_elementwise()
        rows = row_counts(network, x, 0)
    look = Look(method, network, rows, len(x), batch_size or len(x))
    free = free_bytes(device) if free is None else free
    found = look.memory(method.structure, layer_names(method.subset, network, "Laplace"))
    return replace(found, free=free, advice=look.advice(found, free))


HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Look:
    """A network with the rows that its layers had of some examples."""

    method: Laplace
    network: Network
    rows: dict[str, int]
    seen: int  # examples
    batch: int  # examples of a step

    def memory(self, structure: Structure, names: Iterable[str]) -> Memory:
        """What these layers take in this form."""
        sizes = self.sizes(set(names))
        numbers, item = structure.numbers(sizes), self.network.dtype.itemsize
        everything = sum(p.numel() for p in self.network.module.parameters()) * item
        training = 0 if self.method.first is None else TRAINING * everything
        has_fixed = self.method.first is not None or self.method.subset is not None
        fixed = everything - item * sizes.weights if has_fixed else 0
        state = max(8 * numbers.state, training)
        step, posterior = item * numbers.step, 8 * numbers.posterior + fixed
        return Memory(structure, sizes.weights, state, step, posterior)

    def sizes(self, names: set[str]) -> Sizes:
        """Those of the layers with these names."""
        layers = tuple(
            LayerSize(
                view.inputs,
                view.outputs,
                view.groups[0] if view.groups else 1,
                self.rows[view.name] * self.batch // self.seen,
                1 if isinstance(view, EmbeddingView) else view.inputs,
                self.rows[view.name] > self.seen,
                view.name == self.network.output_layer,
                is_elementwise(view),
            )
            for view in self.network.layers
            if view.name in names
        )
        curvature, outputs = self.method.curvature, self.network.outputs
        columns = outputs if isinstance(curvature, GaussNewton) else getattr(curvature, "samples", 1)
        return Sizes(layers, self.batch, columns, self.network.width)

    def advice(self, found: Memory, free: int | None) -> str:
        """What has room where this has not; empty where it has."""
        limit = getattr(found.structure, "limit", found.weights)
        if (free is None or found.peak <= free) and found.weights <= limit:
            return ""
        names = layer_names(self.method.subset, self.network, "Laplace")
        others = {
            "Kronecker()": self.memory(Kronecker(), names),
            "Diagonal()": self.memory(Diagonal(), names),
        }
        last = self.network.output_layer
        if last is not None and names != (last,):
            others['subset="last"'] = self.memory(found.structure, (last,))
            if isinstance(found.structure, Full):
                others['Kronecker() with subset="last"'] = self.memory(Kronecker(), (last,))
        fit = [
            f"{word} ({amount(other.peak)})"
            for word, other in others.items()
            if other.peak < found.peak and (free is None or other.peak <= free) and _allowed(other)
        ]
        needs = f"{found.structure.word} needs {amount(found.peak)}"
        room = f"{needs}, {amount(free)} are free" if free is not None and found.peak > free else needs
        room += f" and has more than limit={limit} weights" if found.weights > limit else ""
        return (
            f"{room}; use {' or '.join(fit)}" if fit else f"{room}; use smaller layers or fewer rows a batch"
        )


def _allowed(memory: Memory) -> bool:
    return memory.weights <= getattr(memory.structure, "limit", memory.weights)


def free_bytes(device: torch.device) -> int | None:
    """The memory that nobody uses, None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    table = Path("/proc/meminfo")
    if device.type != "cpu" or not table.exists():
        return None
    lines = dict(line.split(":") for line in table.read_text(encoding="utf-8").splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else None


def amount(size: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, word in UNITS:
        if size >= unit:
            return f"{size / unit:.3g} {word}"
    return f"{size} bytes"
