"""The evidence of Laplace is that of the targets as they were given, whatever the network saw."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.estimators import BayesianRegressor

I, O, N = 5, 3, 40  # noqa: E741
NOISE = torch.tensor([[50.0, 0.2, 0.0], [0.2, 0.04, 0.001], [0.0, 0.001, 0.003]]).double()
DELTA = 0.7


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def task() -> tuple[Tensor, Tensor]:
    x = normal(N, I)
    y = with_ones(x) @ normal(I + 1, O, seed=1) + 0.5 * normal(N, O, seed=2)
    return x, y * torch.tensor([30.0, 1.0, 0.2]) + torch.tensor([100.0, -3.0, 0.0])


def units(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.mean(0), y.std(0, correction=0)


def linear(x: Tensor, t: Tensor, noise: Tensor, delta: float = DELTA) -> nn.Linear:
    """The most probable weights for targets t of known noise."""
    design, inverse = with_ones(x), torch.linalg.inv(noise)
    size = design.shape[1] * t.shape[1]
    precision = (
        torch.kron((design.T @ design).contiguous(), inverse.contiguous()) + delta * torch.eye(size).double()
    )
    w = torch.linalg.solve(precision, (design.T @ t @ inverse).flatten()).reshape(-1, t.shape[1])
    model = nn.Linear(x.shape[1], t.shape[1]).double()
    with torch.no_grad():
        model.weight.copy_(w[:-1].T)
        model.bias.copy_(w[-1])
    return model


def marginal(x: Tensor, y: Tensor, shift: Tensor, scale: Tensor) -> float:
    """log p(y) in closed form, where w ~ N(0, 1 / δ) for (y - shift) / scale."""
    design = with_ones(x)
    own = torch.kron(torch.eye(len(x)).double(), NOISE)
    cov = own + torch.kron((design @ design.T).contiguous(), torch.diag(scale.square())) / DELTA
    return float(torch.distributions.MultivariateNormal(shift.repeat(len(x)), cov).log_prob(y.flatten()))


def fit(model: nn.Module, x: Tensor, y: Tensor, noise: Any, standardise: bool | None = True, **own) -> Any:
    settings: dict[str, Any] = {"precision": DELTA} | own
    method = bw.Laplace(**settings)
    return bw.fit(model, (x, y), bw.Gaussian(noise), method, standardise=standardise, progress=False)


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Full()])
def test_a_linear_model_has_the_marginal_likelihood_of_the_targets_as_given(structure):
    x, y = task()
    shift, scale = units(y)
    model = linear(x, (y - shift) / scale, NOISE / torch.outer(scale, scale))
    found = fit(model, x, y, NOISE, structure=structure)
    assert float(found.log_evidence) == pytest.approx(marginal(x, y, shift, scale), abs=1e-8)


def test_standardised_or_not_the_evidence_is_the_same():
    """With y = s t the prior precision of t's weights, δ, is δ / s² for those of y."""
    x, y = task()
    y = y[:, :1] - y[:, :1].mean(0)
    s = float(units(y)[1])
    inside = fit(linear(x, y / s, torch.eye(1).double() * 50 / s**2), x, y, 50.0)
    model = linear(x, y, torch.eye(1).double() * 50, DELTA / s**2)
    outside = fit(model, x, y, 50.0, False, precision=DELTA / s**2)
    assert float(inside.log_evidence) == pytest.approx(float(outside.log_evidence), abs=1e-8)
    assert abs(N * np.log(s)) > 100  # what would be missing


def test_halves_one_after_the_other_add_up_in_the_units_of_the_first():
    x, y = task()
    half = N // 2
    shift, scale = units(y[:half])
    model = linear(x[:half], (y[:half] - shift) / scale, NOISE / torch.outer(scale, scale))
    old = fit(model, x[:half], y[:half], NOISE)
    method = bw.Laplace(first=bw.MAP(steps=1500, learning_rate=bw.Cosine(0.05)))
    new: Any = bw.fit(model, (x[half:], y[half:]), bw.Gaussian(NOISE), method, prior=old, progress=False)
    total = float(old.log_evidence + new.log_evidence)
    assert total == pytest.approx(marginal(x, y, shift, scale), rel=1e-8)


def test_every_split_has_its_own_scale():
    x, y = task()
    model, method = nn.Linear(I, O).double(), bw.Laplace(first=bw.MAP(steps=30))
    pair = (torch.stack([x, x]), torch.stack([y, 10 * y]))
    both: Any = bw.fit(model, pair, bw.Gaussian(), method, members=2, progress=False)
    one: Any = bw.fit(model, (x, y), bw.Gaussian(), method, progress=False)
    assert float(both.log_evidence[0]) == pytest.approx(float(one.log_evidence), abs=1e-5)
    apart = float(both.log_evidence[0] - both.log_evidence[1])
    assert apart == pytest.approx(N * O * np.log(10), abs=1e-5)


def test_a_temperature_divides_the_change_of_units_too():
    x, y = task()
    model, cold = nn.Linear(I, O).double(), bw.Laplace(temperature=0.5, first=bw.MAP(steps=30))
    one, ten = (
        bw.fit(model, (x, c * y), bw.Gaussian(), cold, progress=False).log_evidence for c in (1.0, 10.0)
    )
    assert one is not None and ten is not None
    assert float(one - ten) == pytest.approx(N * O * np.log(10) / 0.5, abs=1e-5)


def test_an_estimator_has_it_in_the_units_of_y():
    x, y = (part.numpy() for part in task())
    method = bw.Laplace(first=bw.MAP(steps=30))
    one, ten = (BayesianRegressor((6,), method=method).fit(x, c * y).posterior_ for c in (1.0, 10.0))
    assert one.log_evidence is not None and ten.log_evidence is not None
    assert float(one.log_evidence - ten.log_evidence) == pytest.approx(N * O * np.log(10), abs=1e-5)
