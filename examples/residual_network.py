"""Your own module with residual connections: nothing to change in it, and a choice of layers.

python examples/residual_network.py
"""

import warnings

import torch
from torch import Tensor, nn

import bayeswise as bw


class Block(nn.Module):
    """x + W₂ tanh(W₁ norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Residual(nn.Module):
    """A stem, blocks, and a head that is used as it is."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(1, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


def main() -> dict[str, float]:
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(256, 1, generator=rng) - 1
    truth = torch.sinc(3 * x)
    y = truth + 0.1 * torch.randn(256, 1, generator=rng)
    model, method = Residual(), bw.BALI(steps=400)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", bw.FixedParametersWarning)
        whole = bw.fit(model, (x, y), bw.Gaussian(), method, progress=False)
        head = bw.fit(model, (x, y), bw.Gaussian(), method, select=["head"], progress=False)

    print("warning:", said[0].message, end="\n\n")
    print(whole.summary(), end="\n\n")
    errors = {}
    for name, posterior in (("all linear layers", whole), ("only the head", head)):
        prediction = posterior.predict(x)
        errors[name] = float((prediction.mean - truth).square().mean().sqrt())
        spread = float(prediction.epistemic.mean())
        print(f"{name:18s} error against the truth {errors[name]:.3f}, epistemic part {spread:.3f}")
    unchanged = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    print("the module is as it was:", unchanged)
    return errors | {"unchanged": float(unchanged)}


if __name__ == "__main__":
    main()
