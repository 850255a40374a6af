"""Which of a network's layers a method takes: all, the last, by name, or by a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import nn

from bayeswise.networks import Network

Subset = str | Sequence[str] | Callable[[str, nn.Module], bool] | Mapping[str, bool] | None


def is_mask(subset: Subset) -> bool:
    """Whether a subset is a function of name and module, or says yes or no of every layer."""
    return callable(subset) or isinstance(subset, Mapping)


def layer_names(subset: Subset, network: Network, method: str) -> tuple[str, ...]:
    """The names of the layers, in the order of the network where it is a mask."""
    there = [layer.name for layer in network.layers]
    if subset is None:
        return tuple(there)
    if subset == "last":
        if network.output_layer is None:
            raise ValueError(f"{method}: no layer's output is the model's; give names of layers: {there}")
        return (network.output_layer,)
    if is_mask(subset):
        wanted = _masked(subset, network, method)
    else:
        wanted = (subset,) if isinstance(subset, str) else tuple(subset)  # type: ignore[arg-type]
    unknown = [name for name in wanted if name not in there]
    if unknown or not wanted:
        raise ValueError(f"{method}: subset names {unknown or 'nothing'}; there are {there}")
    return wanted


def _masked(subset: Subset, network: Network, method: str) -> tuple[str, ...]:
    there = [layer.name for layer in network.layers]
    if isinstance(subset, Mapping):
        answers = dict(subset)
    else:
        assert callable(subset)
        answers = {name: subset(name, network.module.get_submodule(name)) for name in there}
    for name, answer in answers.items():
        if not isinstance(answer, bool | np.bool_):
            raise TypeError(
                f'{method}: subset says {type(answer).__name__} of layer "{name}"; a layer is in as a whole '
                "or not, True or False: single weights cannot be chosen"
            )
    silent = [name for name in there if name not in answers]
    if silent:
        raise ValueError(f'{method}: subset says nothing of layer "{silent[0]}"; give True or False')
    return tuple(name for name in (*there, *(set(answers) - set(there))) if answers[name])
