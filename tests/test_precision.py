"""Where BALI chooses, small networks of few rows train in float64, whatever the precision of the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.methods import bali

N, INPUTS = 60, 5
TUNING = bw.Tuning(lengths=(20,), rows=160 * N, shares=(1.0, 0.25), straight_shares=())
METHOD = bw.BALI(tuning=TUNING, members=2)


def table(n: int = N) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, INPUTS, generator=rng)
    return x, torch.sin(x[:, :1]) + 0.1 * torch.randn(n, 1, generator=rng)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 7), nn.ReLU(), nn.Linear(7, 1))


class OnlyFloat32(nn.Module):
    """Its forward pass casts, and so mixes precisions with float64 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float())


def trained_in(model: nn.Module, x: Tensor, y: Tensor, method: bw.BALI | bw.MAP) -> torch.dtype:
    """The precision of the training rows' likelihood, as callbacks see it."""
    seen = []
    bw.fit(
        model,
        (x, y),
        bw.Gaussian(),
        method,
        progress=False,
        callbacks=[lambda progress: seen.append(progress.info.log_lik.dtype)],
    )
    return seen[0]


def test_float32_rows_give_the_posterior_of_the_same_numbers_in_float64() -> None:
    x, y = table()
    coarse = bw.fit(network(), (x, y), bw.Gaussian(), METHOD, progress=False)
    fine = bw.fit(network().double(), (x.double(), y.double()), bw.Gaussian(), METHOD, progress=False)
    for one, two in zip(coarse.weights.parts, fine.weights.parts, strict=True):
        for name, layer in one.layers.items():
            assert torch.equal(layer.mean, two.layers[name].mean)
            assert torch.equal(layer.noise, two.layers[name].noise)
    found = coarse.predict(x)
    assert found.mean.dtype == torch.float32  # answers have the precision of the question
    assert network()[0].weight.dtype == torch.float32


def test_what_is_given_trains_in_the_precision_of_the_rows() -> None:
    assert trained_in(network(), *table(), bw.BALI(steps=2)) == torch.float32


@pytest.mark.parametrize(("rows", "wanted"), [(40, torch.float64), (41, torch.float32)])
def test_many_rows_stay_in_their_precision(monkeypatch, rows: int, wanted: torch.dtype) -> None:
    monkeypatch.setattr(bali, "FEW", 40)
    assert trained_in(network(), *table(rows), METHOD) == wanted


def test_large_networks_stay_in_their_precision() -> None:
    weights = (INPUTS + 1) * 7 + 8
    for small, wanted in ((weights, torch.float64), (weights - 1, torch.float32)):
        method = bw.BALI(tuning=replace(TUNING, small=small))
        assert trained_in(network(), *table(), method) == wanted


def test_a_model_that_knows_float32_alone_is_trained_in_float32() -> None:
    posterior = bw.fit(OnlyFloat32(), table(), bw.Gaussian(), METHOD, progress=False)
    assert posterior.predict(table()[0]).mean.isfinite().all()
    assert trained_in(OnlyFloat32(), *table(), METHOD) == torch.float32


def test_other_methods_keep_the_precision_of_the_rows() -> None:
    assert trained_in(network(), *table(), bw.MAP(steps=2)) == torch.float32
