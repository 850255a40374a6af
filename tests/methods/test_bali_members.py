"""Several starts of BALI in one run."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.weights import Layerwise, Mixture

B, I, O, N, E = 7, 5, 3, 40, 3  # noqa: E741


def data(kind: str = "gaussian") -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(N, I, generator=rng, dtype=torch.float64)
    y = x[:, :O].sin() + 0.1 * torch.randn(N, O, generator=rng, dtype=torch.float64)
    return x, y.argmax(1) if kind == "categorical" else y


def net(plus: bool = False) -> nn.Module:
    layers = [nn.Linear(I, 6), nn.Tanh(), nn.Linear(6, O)]
    return nn.Sequential(*layers, *([nn.Softplus()] if plus else [])).double()


def fit(x: Tensor, y: Tensor, likelihood: Any = None, model: nn.Module | None = None, **options: Any) -> Any:
    own = {"members": options.pop("splits")} if "splits" in options else {}
    method = bw.BALI(steps=25, **options)
    return bw.fit(model or net(), (x, y), likelihood or bw.Gaussian(), method, progress=False, **own)


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize(
    "forward", [bw.Deterministic(), bw.WeightNoise(), bw.LocalReparametrisation()], ids=repr
)
def test_starts_are_the_members_of_a_run_on_copies_of_the_data(kind, forward):
    """The same numbers as E data splits that are all the same rows."""
    x, y = data(kind)
    likelihood = bw.Gaussian() if kind == "gaussian" else bw.Categorical()
    update = MeanUpdate(10) if forward == bw.Deterministic() else NaturalUpdate()
    own: Any = {"forward": forward, "update": update}
    starts = fit(x, y, likelihood, members=E, **own)
    copies = fit(x.expand(E, -1, -1), y.expand(E, *y.shape), likelihood, splits=E, **own)
    assert isinstance(starts.weights, Mixture) and len(starts.weights.parts) == E
    for e, part in enumerate(starts.weights.parts):
        assert isinstance(part, Layerwise)
        for name, q in part.layers.items():
            torch.testing.assert_close(q.factor, copies.weights.layers[name].factor[e], rtol=1e-9, atol=1e-12)


def test_splits_and_starts_together():
    """Two splits with three starts each: the second split's starts are those it has alone on these rows."""
    x, y = data()
    both_x, both_y = torch.stack([x, 2 * x]), torch.stack([y, -y])
    posterior = fit(both_x, both_y, splits=2, members=E)
    prediction = posterior.predict(both_x[:, :B], 2 * E)
    assert prediction.mean.shape == (2, B, O) and prediction.draws.shape == (2 * E, 2, B, O)
    wide_x = both_x.expand(E, 2, N, I).flatten(0, 1)
    wide_y = both_y.expand(E, 2, N, O).flatten(0, 1)
    alone = fit(wide_x, wide_y, splits=2 * E, update=MeanUpdate(10))
    for e, part in enumerate(posterior.weights.parts):
        for name, q in part.layers.items():
            wanted = alone.weights.layers[name].factor[2 * e : 2 * e + 2]
            torch.testing.assert_close(q.factor, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", ["mode", "drawn"])
@pytest.mark.parametrize("plus", [False, True])
def test_the_prediction_is_the_mixture_of_the_parts(noise, plus):
    x, y = data()
    y = y.abs() + 0.1
    posterior = fit(x, y, members=E, noise=noise, model=net(plus), update_rate=bw.StepDecay(0.3))
    prediction = posterior.predict(x[:B], 600)
    draws = prediction.draws.reshape(200, E, B, O)
    between = draws.mean(0).var(0)  # starts differ by more than the draws of one
    assert float(between.mean()) > 0
    noises = prediction.likelihood.noise
    assert noises.shape == (600, O, O)
    first, again = noises[:E], noises[E : 2 * E]
    assert torch.equal(first, again) == (noise == "mode")
    assert not torch.equal(first[0], first[1])
    assert prediction.log_prob(y[:B]).isfinite().all()


@pytest.mark.parametrize("noise", ["mode", "drawn"])
def test_it_is_saved_and_loaded_as_one(noise, tmp_path):
    x, y = data()
    posterior = fit(x, y, members=E, noise=noise, update_rate=bw.StepDecay(0.3))
    posterior.save(tmp_path / "saved")
    loaded = bw.load(tmp_path / "saved", net())
    for n in (1, 2, 10):
        assert torch.equal(loaded.draw(n)(x), posterior.draw(n)(x))
        assert torch.equal(loaded.predict(x, n).std, posterior.predict(x, n).std)
    assert "of 3 starts, mixed" in loaded.summary()


def test_a_mixture_of_starts_is_less_sure_far_from_the_data():
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(60, 1, generator=rng, dtype=torch.float64) * 2 - 1
    y = (3 * x).sin() + 0.05 * torch.randn(60, 1, generator=rng, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1)).double()
    far = torch.tensor([[-4.0], [4.0]]).double()
    stds = [
        bw.fit(model, (x, y), bw.Gaussian(), bw.BALI(steps=200, members=k), progress=False).predict(far).std
        for k in (1, 8)
    ]
    assert float(stds[1].mean()) > float(stds[0].mean())


def test_members_must_be_positive():
    with pytest.raises(ValueError, match="members must be positive"):
        bw.BALI(members=0)


@pytest.mark.parametrize("value", [[1.0, 4.0], "1", ("1",)])
def test_settings_of_members_are_numbers_in_a_tuple(value):
    message = f"BALI: effective is the {type(value).__name__} {value!r}; give one number for all, or a tuple"
    with pytest.raises(TypeError, match=re.escape(message)):
        bw.BALI(effective=value)
