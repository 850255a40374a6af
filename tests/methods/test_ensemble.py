"""Ensembles: each member is a MAP run from its own start, and predictions are their equal mixture."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.gradient import fan_ins
from bayeswise.networks import discover, evaluating
from bayeswise.problem import Problem, Units
from bayeswise.weights import Particles

B, I, O, N, S, E = 7, 5, 3, 40, 11, 4  # noqa: E741
QUIET = dict(progress=False)


@pytest.fixture(autouse=True)
def seeded():
    """The starting weights of modules that tests build are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression() -> tuple[Tensor, Tensor]:
    x = random(N, I, seed=1)
    return x, (x @ random(I, O, seed=2)).sin() + 0.3 * random(N, O, seed=3) + 2


def mlp(norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(8), nn.Tanh()] if norm else [nn.Tanh()]
        return nn.Sequential(nn.Linear(I, 8), *middle, nn.Linear(8, O)).double()


def starts(method: bw.Ensemble, model: nn.Module, x: Tensor, members: int | None = None, seed: int = 0):
    """The first state of a run with this seed."""
    from bayeswise.randomness import derived_seed

    lead = 0 if members is None else 1
    with evaluating(model):
        network = discover(model, x[0] if lead else x)
    problem = Problem(network, bw.Gaussian(), N, Units.identity(O, x.dtype, network.device), members)
    rng = torch.Generator().manual_seed(derived_seed(seed, 1))
    return method.init(problem, TensorRows(x, x, N, lead), rng)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Gaussian(0.04), bw.Categorical()])
def test_each_member_is_a_map_run_from_its_start(norm: bool, likelihood):
    x, y = regression()
    y = y.argmax(1) if isinstance(likelihood, bw.Categorical) else y
    model, settings = mlp(norm), dict(learning_rate=bw.Cosine(0.01), precision=0.7, steps=40)
    method = bw.Ensemble(members=E, **settings)
    together = bw.fit(model, (x, y), likelihood, method, batch_size=16, seed=3, **QUIET)
    found, first = together.sample(E), starts(method, model, x, seed=3)
    for e in range(E):
        own = copy.deepcopy(model)
        own.load_state_dict({name: v[e] for name, v in (first.params | first.buffers).items()})
        alone = bw.fit(own, (x, y), likelihood, bw.MAP(**settings), batch_size=16, seed=3, **QUIET)
        for name, value in alone.sample(1).items():
            torch.testing.assert_close(found[name][e], value[0], rtol=0, atol=1e-9)
        if isinstance(likelihood, bw.Gaussian) and likelihood.noise is None:
            noise = together.weights.tensors()["noise"][e]
            torch.testing.assert_close(noise, alone.weights.noise(), rtol=0, atol=1e-9)
    assert float((found["0.weight"][0] - found["0.weight"][1]).abs().max()) > 0.1


def test_members_of_data_splits_are_map_runs_too():
    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])
    model, method = mlp(), bw.Ensemble(members=E, steps=30)
    together = bw.fit(model, (xs, ys), bw.Gaussian(), method, members=2, **QUIET)
    found, first = together.sample(E), starts(method, model, xs, 2)
    assert found["0.weight"].shape == (E, 2, 8, I)
    for e, k in ((0, 0), (2, 1)):
        own = copy.deepcopy(model)
        own.load_state_dict({name: v[e, k] for name, v in first.params.items()})
        alone = bw.fit(own, (xs[k], ys[k]), bw.Gaussian(), bw.MAP(steps=30), **QUIET)
        for name, value in alone.sample(1).items():
            torch.testing.assert_close(found[name][e, k], value[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [1, 3, E, 2 * E, S])
def test_the_prediction_is_the_mixture_of_the_members(n: int, tmp_path):
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.Ensemble(members=E, steps=30), **QUIET)
    units, weights = posterior.problem.units, posterior.weights
    assert isinstance(weights, Particles) and weights.covariance is not None and weights.distinct == E
    order = [i % E for i in range(n)]
    f = []
    for e in order:
        own = mlp()
        own.load_state_dict({name: v[e] for name, v in weights.params.items()})
        f.append(units.to_user(own(x).detach()))
    f, noise = torch.stack(f), units.noise_to_user(weights.covariance)[order]
    prediction = posterior.predict(x, n)
    torch.testing.assert_close(prediction.draws, f, rtol=0, atol=1e-12)
    mean = f.mean(0)
    variance = (f - mean).square().mean(0) + noise.diagonal(dim1=-2, dim2=-1).mean(0)
    torch.testing.assert_close(prediction.mean, mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(prediction.variance, variance, rtol=1e-9, atol=0)
    single = [torch.distributions.MultivariateNormal(m, c).log_prob(y) for m, c in zip(f, noise, strict=True)]
    expected = torch.stack(single).logsumexp(0) - np.log(n)
    torch.testing.assert_close(prediction.log_prob(y), expected, rtol=0, atol=1e-9)
    posterior.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", mlp()).predict(x, n)
    assert torch.equal(again.log_prob(y), prediction.log_prob(y))


def test_more_than_a_chunk_of_members_keep_their_own_noise():
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.Ensemble(members=70, steps=2), **QUIET)
    weights = posterior.weights
    assert isinstance(weights, Particles) and weights.covariance is not None
    torch.testing.assert_close(posterior.draw(70).noise(), weights.covariance, rtol=1e-9, atol=1e-12)
    assert torch.equal(posterior.sample(70)["0.weight"], weights.params["0.weight"])


def test_starts_are_torchs_own_for_linear_layers_and_convolutions_and_the_modules_for_others():
    model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(18, 400)).double()
    with torch.no_grad():
        model[1].weight.fill_(1.7)
    model[0].bias.requires_grad_(False)
    x = random(B, 2, 5)
    with evaluating(model):
        network = discover(model, x)
    assert fan_ins(network) == {"0.weight": 6, "0.bias": 6, "3.weight": 18, "3.bias": 18}
    problem = Problem(network, bw.Gaussian(), B, Units.identity(400, x.dtype, network.device))
    state = bw.Ensemble(members=E).init(problem, TensorRows(x, x, B), torch.Generator().manual_seed(0))
    for name, inputs in (("0.weight", 6), ("3.weight", 18), ("3.bias", 18)):
        value, bound = state.params[name], inputs**-0.5
        assert 0.9 * bound < float(value.abs().max()) <= bound
        assert abs(float(value.var()) / (bound**2 / 3) - 1) < 0.2  # of a uniform
        assert not torch.equal(value[0], value[1])
    assert torch.equal(state.params["1.weight"], torch.full((E, 6), 1.7, dtype=x.dtype))
    assert torch.equal(state.buffers["0.bias"], model[0].bias.detach().expand(E, 6))


def test_members_disagree_away_from_the_data():
    x = torch.linspace(-1, 1, N, dtype=torch.float64)[:, None]
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    method = bw.Ensemble(bw.Ensemble.members, bw.Cosine(0.02), 0.1, 400)
    posterior = bw.fit(model, (x, (3 * x).sin()), bw.Gaussian(), method, **QUIET)
    near, far = (posterior.predict(x * scale, 5).epistemic.mean() for scale in (1.0, 4.0))
    assert float(far) > 5 * float(near)
    assert "5 networks, each of 61 weights" in posterior.summary()


@pytest.mark.parametrize("settings", [dict(members=0), dict(steps=0), dict(precision=-1.0)])
def test_settings_without_meaning_are_refused(settings: dict):
    with pytest.raises(ValueError, match="Ensemble: "):
        bw.Ensemble(**settings)
    with pytest.raises(TypeError, match=r"Ensemble: learning_rate is a schedule.*use bw.Constant\(0.1\)"):
        bw.Ensemble(learning_rate=0.1)  # type: ignore[arg-type]
    assert replace(bw.Ensemble(), members=np.int64(2)) == bw.Ensemble(members=2)
