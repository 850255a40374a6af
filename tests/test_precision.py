"""Where BALI chooses, small networks of few rows train in float64, whatever the precision of the rows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw

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


class Cast(nn.Module):
    """Its output is no layer's own in another precision than this."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.layers = dtype, network()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).to(self.dtype)


class Refuses(nn.Module):
    """It asks for float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, 1)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return self.layer(x)


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
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    coarse = bw.fit(model, (x, y), bw.Gaussian(), METHOD, progress=False)
    fine = bw.fit(network().double(), (x.double(), y.double()), bw.Gaussian(), METHOD, progress=False)
    for one, two in zip(coarse.weights.parts, fine.weights.parts, strict=True):
        for name, layer in one.layers.items():
            assert torch.equal(layer.mean, two.layers[name].mean)
            assert torch.equal(layer.noise, two.layers[name].noise)
    found = coarse.predict(x)
    assert found.mean.dtype == torch.float32  # answers have the precision of the question
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())  # of the same type, too
    assert all(after[name].dtype == value.dtype for name, value in before.items())


def test_what_is_given_trains_in_the_precision_of_the_rows() -> None:
    assert trained_in(network(), *table(), bw.BALI(steps=2)) == torch.float32


@pytest.mark.parametrize(("rows", "wanted"), [(42, torch.float64), (43, torch.float32)])
@pytest.mark.parametrize(
    ("few", "each"), [(42, 1), (10, 7)]
)  # rows, or rows for each of five inputs and a bias
def test_many_rows_stay_in_their_precision(rows: int, wanted: torch.dtype, few: int, each: int) -> None:
    method = bw.BALI(tuning=replace(TUNING, few=few, few_each=each))
    assert trained_in(network(), *table(rows), method) == wanted


def test_large_networks_stay_in_their_precision() -> None:
    weights = (INPUTS + 1) * 7 + 8
    for small, wanted in ((weights, torch.float64), (weights - 1, torch.float32)):
        method = bw.BALI(tuning=replace(TUNING, small=small))
        assert trained_in(network(), *table(), method) == wanted


@pytest.mark.parametrize("kind", [OnlyFloat32, Refuses])
def test_a_model_that_knows_float32_alone_is_trained_in_float32(kind: type[nn.Module]) -> None:
    posterior = bw.fit(kind(), table(), bw.Gaussian(), METHOD, progress=False)
    assert posterior.predict(table()[0]).mean.isfinite().all()
    assert trained_in(kind(), *table(), METHOD) == torch.float32


def test_a_forward_pass_that_casts_keeps_its_structure() -> None:
    """In float64 the last layer is not the output of one, and of the other only there; units differ."""
    x, y = table()
    posterior = bw.fit(Cast(torch.float32), (x, 100 + y), bw.Gaussian(), METHOD, progress=False)
    assert float((posterior.predict(x).mean - 100 - y).square().mean().sqrt()) < 0.7  # y has 0.75
    posterior = bw.fit(Cast(torch.float64), (x, y), bw.Gaussian(), METHOD, progress=False)
    assert bool(posterior.predict(x).log_prob(y).isfinite().all())


def test_layers_may_be_named_by_an_iterator() -> None:
    names = (name for name in ("0", "2"))
    posterior = bw.fit(network(), table(), bw.Gaussian(), METHOD, select=names, progress=False)
    assert set(posterior.weights.parts[0].layers) == {"0", "2"}


def test_callbacks_see_predictions_in_the_precision_of_the_rows() -> None:
    seen, (x, y) = [], table()
    look = [lambda progress: seen.append(progress.posterior().predict(x).mean.dtype)]
    bw.fit(network(), (x, y), bw.Gaussian(), METHOD, progress=False, callbacks=look)
    assert set(seen) == {torch.float32}


def test_other_methods_keep_the_precision_of_the_rows() -> None:
    assert trained_in(network(), *table(), bw.MAP(steps=2)) == torch.float32


@pytest.mark.parametrize(
    ("rows", "regression", "wanted"), [(40, False, True), (41, False, False), (40, True, False)]
)
def test_labels_have_a_bound_of_their_own(rows: int, regression: bool, wanted: bool) -> None:
    small: Any = SimpleNamespace(layers=[SimpleNamespace(inputs=3, size=30)])
    problem: Any = SimpleNamespace(network=small, n=rows, is_regression=regression)
    assert replace(TUNING, few=7, label_few=40, few_each=2).is_little(problem) == wanted
