"""The paper's networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bayeswise.randomness import global_rng


class LeakyTanh(nn.Module):
    """tanh(x) + 0.1 x, the paper's activation for classification."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return x.tanh() + 0.1 * x


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "leaky_tanh": LeakyTanh}


def mlp(sizes: Sequence[int], activation: str, seed: int) -> nn.Sequential:
    """A fully connected network, its weights drawn by torch's rule with this seed."""
    layers: list[nn.Module] = []
    with global_rng(seed):
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
