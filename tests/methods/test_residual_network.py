"""An unmodified residual network with a plain forward trains by BALI and is left as it was."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw

METHOD = bw.BALI(step_size=0.2, update_rate=bw.Cosine(0.5))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class ResidualMLP(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = block(h)
        return self.last(h)


def sinc(x: Tensor) -> Tensor:
    """2 sin(20 x) / (20 x) - 1, the paper's first function."""
    return 2 * torch.sinc(20 * x / torch.pi) - 1


def rows(n: int = 256) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(n, 1, generator=rng) - 1
    return x, sinc(x) + 0.1 * torch.randn(n, 1, generator=rng)


def looks(module: nn.Module) -> dict:
    """All that a user could notice of a module."""
    return {
        "state": {k: v.clone() for k, v in module.state_dict().items()},
        "grads": [p.grad for p in module.parameters()],
        "modes": [m.training for m in module.modules()],
        "attributes": [sorted(vars(m)) for m in module.modules()],
        "hooks": [
            len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
            for m in module.modules()
        ],
    }


def fit(width: int, steps: int) -> float:
    """The error against the noise-free function; a rescue, a NaN or a changed module fails."""
    torch.manual_seed(0)
    model = ResidualMLP(width, blocks=10)
    before, twin = looks(model), copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a rescue warns
        method = bw.BALI(step_size=METHOD.step_size, update_rate=METHOD.update_rate, steps=steps)
        posterior = bw.fit(model, rows(), bw.Gaussian(), method, progress=False)
    after = looks(model)
    assert posterior.rescues == 0 and len(posterior.problem.network.layers) == 22
    assert all(torch.equal(before["state"][k], v) for k, v in after["state"].items())
    assert {k: v for k, v in before.items() if k != "state"} == {
        k: v for k, v in after.items() if k != "state"
    }
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    grid = torch.linspace(-1, 1, 400)[:, None]
    mean = posterior.predict(grid).mean
    assert mean.isfinite().all()
    return float((mean - sinc(grid)).square().mean().sqrt())


def test_ten_blocks_learn_sinc_in_a_short_run():
    assert fit(width=16, steps=400) < 0.25


@pytest.mark.slow
def test_ten_blocks_learn_sinc():
    assert fit(width=32, steps=2000) <= 0.10
