"""Drawing and predicting: coherent functions, the same numbers in blocks, any memory, any chunk."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise import posterior as module
from bayeswise.distributions import MatrixNormalInverseWishart
from bayeswise.posterior import prepared_inputs

B, I, O, S, N = 7, 5, 3, 11, 40  # noqa: E741


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(I, 4), nn.Tanh(), nn.Linear(4, O)).double()


def fitted(members: int | None = None, likelihood=None, **settings) -> bw.Posterior:
    lead = () if members is None else (members,)
    y = 5 + 2 * random(*lead, N, O, seed=1)
    likelihood = likelihood or bw.Gaussian()
    y = y.argmax(-1) if isinstance(likelihood, bw.Categorical) else y
    method = bw.BALI(steps=5, **settings)
    return bw.fit(model(), (random(*lead, N, I), y), likelihood, method, members=members, progress=False)


def trained(method) -> bw.Posterior:
    y = 5 + 2 * random(N, O, seed=1)
    return bw.fit(model(), (random(N, I), y), bw.Gaussian(), method, progress=False)


def test_draws_are_the_network_with_the_sampled_parameters():
    posterior, x = fitted(), random(B, I, seed=3)
    params = posterior.sample(S)
    f = posterior.draw(S)(x)
    net, units = model(), posterior.problem.units
    for s in range(S):
        net.load_state_dict({name: value[s] for name, value in params.items()})
        torch.testing.assert_close(f[s], net(x).detach() * units.scale + units.shift, rtol=0, atol=1e-11)


def test_functions_are_coherent_whatever_rows_are_asked_for():
    functions, x = fitted().draw(S), random(B, I, seed=3)
    whole = functions(x)
    torch.testing.assert_close(functions(x[2:5]), whole[:, 2:5], rtol=0, atol=1e-12)
    torch.testing.assert_close(functions(x.flip(0)), whole.flip(1), rtol=0, atol=1e-12)
    assert torch.equal(functions(x), whole)


def test_draws_come_in_chunks_of_the_networks_own_size(monkeypatch):
    """More draws than a chunk holds: every one is new, and rows in blocks give the same numbers."""
    posterior, x = fitted(), random(B, I, seed=3)
    f = posterior.draw(150)(x)  # chunks of 64
    assert f.shape == (150, B, O) and len({round(float(v), 9) for v in f[:, 0, 0]}) == 150
    kept = f.clone()
    monkeypatch.setattr(type(posterior.draw(1)), "_block", lambda self, params, x: 2)
    torch.testing.assert_close(posterior.draw(150)(x), kept, rtol=0, atol=1e-12)


@pytest.mark.parametrize("numbers", [1, 3, 5])
def test_every_chunk_has_draws_of_all_starts(monkeypatch, numbers: int):
    """Whatever a chunk may hold: 12 draws of three starts are four of each, in turn."""
    posterior = trained(bw.BALI(steps=20, members=3))
    size = sum(layer.size for layer in posterior.problem.network.layers)
    monkeypatch.setattr(module, "CHUNK_NUMBERS", numbers * size)
    drawn = posterior.sample(12)["0.weight"]  # (n, O, I)
    means = torch.stack([part.layers["0"].mean[:-1].mT for part in posterior.weights.parts])  # type: ignore
    nearest = (drawn[:, None] - means).square().sum((-2, -1)).argmin(1)
    assert nearest.tolist() == [0, 1, 2] * 4


def test_networks_without_chosen_layers_come_in_chunks_too(monkeypatch):
    """Bayes by Backprop draws every parameter: two networks at once where there is room for two."""
    posterior = trained(bw.BayesByBackprop(steps=2))
    size = sum(value.numel() for value in model().parameters())
    monkeypatch.setattr(module, "CHUNK_NUMBERS", 2 * size)
    assert [n for n, _ in posterior.draw(5)._noise_factors()] == [2, 2, 1]


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("noise", ["mode", "drawn"])
def test_a_small_memory_gives_the_same_numbers(members, noise: str):
    posterior = fitted(members, noise=noise)
    lead = () if members is None else (members,)
    x, y = random(*lead, B, I, seed=3), 5 + random(*lead, B, O, seed=4)
    large, small = posterior.predict(x, S), posterior.predict(x, S, memory=1)
    assert large.kept and not small.kept  # one row at a time
    for name in ("mean", "std", "epistemic", "aleatoric", "draws"):
        torch.testing.assert_close(getattr(small, name), getattr(large, name), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(small.log_prob(y), large.log_prob(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(small.quantile(0.3), large.quantile(0.3), rtol=1e-9, atol=1e-9)


def test_memory_bounds_the_rows_of_a_block():
    blocks = fitted().predict(random(9, I), S, memory=4 * 2 * S * O * 8)._source
    assert [block.shape for block in blocks.blocks()] == [(S, 2, O)] * 4 + [(S, 1, O)]


MEMORY_SCRIPT = """
import torch, bayeswise as bw
def peak():  # of this program; getrusage would count the parent's memory before exec as well
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
torch.set_num_threads(1)
rng = torch.Generator().manual_seed(0)
x, y = torch.randn(40, 5, generator=rng), torch.randn(40, 3, generator=rng)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.BALI(steps=2), progress=False)
rows = torch.randn(26_000, 5, generator=rng)
posterior.predict(rows[:2000]).mean
before = peak()
kept = posterior.predict(rows)
assert kept.kept
print((peak() - before) / (256 * len(rows) * 3 * 4))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_kept_draws_take_their_own_memory_and_little_more():
    """80 MB of draws; without in-place work it was 4.4 times as much."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(bw.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert 0.4 < float(done.stdout) < 1.8


def test_rows_run_at_once_follow_the_widest_parameter():
    x = random(B, I)
    small = fitted()
    params = small.sample(S)
    assert small.draw(S)._block(params, x) == 2**20 // (S * 4)
    assert small.draw(1)._block(small.sample(1), x) == 2**20 // I  # a row of x is wider than a layer
    wide = nn.Sequential(nn.Linear(I, 100), nn.Tanh(), nn.Linear(100, O)).double()
    data = random(N, I), random(N, O, seed=1)
    found = bw.fit(wide, data, bw.Gaussian(), bw.MAP(steps=1), progress=False)  # has no layers
    assert found.draw(S)._block(found.sample(1), x) == 2**20 // 100
    bali = bw.fit(wide, data, bw.Gaussian(), bw.BALI(steps=1), progress=False)
    assert bali.draw(S)._block(bali.sample(S), x) == 2**20 // (S * 100)


class Counting(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(I, O), []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(1)
        return self.fc(x)


@pytest.mark.parametrize("members", [None, 2])
def test_one_network_runs_once_whatever_draws_are_asked_for(members):
    lead = () if members is None else (members,)
    net, x, y = Counting().double(), random(*lead, N, I), random(*lead, N, O, seed=1)
    posterior = bw.fit(net, (x, y), bw.Gaussian(), bw.MAP(steps=3), members=members, progress=False)
    net.calls.clear()
    f = posterior.draw(S)(x)
    assert len(net.calls) in (1, members)  # vectorised or one after another
    assert f.shape == (S, *lead, N, O) and torch.equal(f, f[:1].expand_as(f))
    assert f.untyped_storage().nbytes() == f[0].numel() * 8
    few = posterior.predict(x, S, memory=f[0].numel() * 8)  # room for one network
    assert few.kept and torch.equal(few.draws, f)


def test_sampled_parameters_are_those_of_the_drawn_functions_in_every_chunk():
    posterior, x = fitted(noise="drawn"), random(B, I, seed=3)
    params = posterior.sample(150, torch.Generator().manual_seed(4))
    f = posterior.draw(150, torch.Generator().manual_seed(4))(x)
    hidden = (x @ params["0.weight"].mT + params["0.bias"][:, None]).tanh()
    out = hidden @ params["2.weight"].mT + params["2.bias"][:, None]
    torch.testing.assert_close(f, posterior.problem.units.to_user(out), rtol=0, atol=1e-11)


def test_drawn_noise_is_that_of_its_weights():
    """W = M + L⁻ᵀ A Fᵀ: with each draw's own F, A has the moments of a normal."""
    x, y = random(N, I), random(N, 1, seed=1)
    method = bw.BALI(steps=1, noise="drawn", effective=0.1)  # few degrees of freedom: very different noises
    posterior = bw.fit(nn.Linear(I, 1).double(), (x, y), bw.Gaussian(), method, progress=False)
    functions, q = posterior.draw(3000), posterior.weights.layers[""]
    params, noise = functions.params(), functions.noise()  # (S, 1, 1)
    w = torch.cat([params["weight"].mT, params["bias"][:, None]], 1)  # (S, I+1, 1)
    a = q.precision_factor.mT @ (w - q.mean) / noise.sqrt()
    assert abs(float(a.square().mean()) - 1) < 5 * (2 / a.numel()) ** 0.5
    assert abs(float(a.pow(4).mean()) - 3) < 5 * (96 / a.numel()) ** 0.5
    assert float(noise.log().std()) > 0.5


def test_drawn_noise_costs_no_weights(monkeypatch):
    functions = fitted(noise="drawn").draw(150)
    expected = functions.noise()
    monkeypatch.setattr(MatrixNormalInverseWishart, "sample", None)
    assert torch.equal(functions.noise(), expected) and len(expected.unique(dim=0)) == 150


def test_the_mean_of_many_draws_is_the_posterior_mean_of_a_linear_model():
    x, y = random(N, I), random(N, O, seed=1)
    posterior = bw.fit(nn.Linear(I, O).double(), (x, y), bw.Gaussian(), bw.BALI(steps=1), progress=False)
    draws = 20_000
    params = posterior.sample(draws)
    q = posterior.weights.layers[""]
    r = torch.linalg.inv(q.precision_factor @ q.precision_factor.T)
    error = (r.diagonal()[:, None] * q.noise.diagonal() / draws).sqrt()  # of the mean (I+1, O)
    found = torch.cat([params["weight"].mT, params["bias"][:, None]], 1)
    assert ((found.mean(0) - q.mean).abs() < 5 * error).all()
    covariance = torch.einsum("sio,sjo->ij", found - q.mean, found - q.mean) / draws / q.noise.trace()
    torch.testing.assert_close(covariance, r, rtol=0.05, atol=0.05 * float(r.diagonal().max()))


def test_a_generator_moves_on_and_is_reproducible():
    posterior, x = fitted(), random(B, I)
    rng = torch.Generator().manual_seed(5)
    one, two = posterior.draw(S, rng)(x), posterior.draw(S, rng)(x)
    assert not torch.equal(one, two)
    assert torch.equal(one, posterior.draw(S, torch.Generator().manual_seed(5))(x))
    assert not torch.equal(posterior.sample(2, rng)["0.weight"], posterior.sample(2, rng)["0.weight"])


def test_classification_predicts_probabilities():
    posterior, x = fitted(likelihood=bw.Categorical()), random(B, I)
    expected = posterior.draw(S)(x).softmax(-1).mean(0)
    torch.testing.assert_close(posterior.predict(x, S).mean, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        (torch.full((B, I), torch.nan), ValueError, "35 of 35 inputs are NaN"),
        (torch.zeros(0, I), ValueError, r"\(0, 5\); at least one row"),
        (torch.tensor(1.0), ValueError, "at least one row"),
        ("rows", TypeError, "x is a str"),
        (None, TypeError, "x is a NoneType"),
    ],
)
def test_bad_inputs_are_refused(x, kind, message: str):
    with pytest.raises(kind, match=message):
        fitted().predict(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(B, 4), r"x of shape \(7, 4\) and type float64: .*rows \(B, …\) like those"),
        (torch.zeros(I), r"shape \(5,\).*outputs have shape \(3, 1\) instead of \(5, 3\)"),
        (torch.zeros(B, 2, I), r"\(7, 2, 5\) .*output for a batch has shape \(7, 2, 3\)"),
        (torch.zeros(B, I, dtype=torch.long), "type int64"),
    ],
)
@pytest.mark.parametrize("method", [bw.BALI(steps=2), bw.MAP(steps=2)])
def test_rows_that_the_network_cannot_run_are_refused(x: Tensor, message: str, method):
    data = random(N, I), random(N, O, seed=1)
    posterior = bw.fit(model(), data, bw.Gaussian(), method, progress=False)
    with pytest.raises(ValueError, match=message):
        posterior.predict(x)
    with pytest.raises(ValueError, match=r"give rows \(B, …\) like those it was fitted on"):
        _ = posterior.predict(x, memory=1).mean


@pytest.mark.parametrize("shape", [(B, I), (3, B, I), (I,), (2, 0, I)])
def test_members_need_rows_for_each_member(shape):
    with pytest.raises(ValueError, match=r"2 members, so x needs the shape \(2, B, …\)|at least one row"):
        fitted(2).predict(torch.zeros(shape))


def test_members_refuse_rows_without_their_members_even_where_the_sizes_agree():
    with pytest.raises(ValueError, match=r"x of shape \(2, 5\).*\(members, B, …\)"):
        fitted(2).predict(torch.zeros(2, I))


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (dict(n=0), ValueError, "at least 1, not 0"),
        (dict(n=2.5), TypeError, "whole number, not 2.5"),
        (dict(rng=3), TypeError, r"not int; use torch.Generator\(\).manual_seed\(3\)"),
        (dict(rng=np.random.default_rng(0)), TypeError, "torch.Generator, not Generator"),
    ],
)
def test_bad_numbers_of_draws_and_generators_are_refused(settings: dict, kind, message: str):
    posterior, x = fitted(), random(B, I)
    with pytest.raises(kind, match=message):
        posterior.predict(x, **settings)
    with pytest.raises(kind, match=message):
        posterior.sample(**({"n": S} | settings))
    with pytest.raises(kind, match=message):
        posterior.predict(x, S).sample(**({"n": S} | settings))
    assert posterior.predict(x, np.int64(S)).draws.shape == (S, B, O)


def test_too_few_degrees_of_freedom_name_the_layer_and_the_remedy():
    posterior = fitted(noise="drawn")
    q = posterior.weights.layers["2"]
    short = MatrixNormalInverseWishart(q.factor, torch.tensor(0.5).double(), q.inputs, q.jitter)
    posterior.weights.layers["2"] = short
    with pytest.raises(ValueError, match=r'layer "2": .*u = 0.5 and O = 3: .*BALI\'s dof\) by more than 1.5'):
        posterior.predict(random(B, I))


def test_inputs_take_the_networks_precision_and_whole_numbers_stay_whole():
    cpu = torch.device("cpu")
    assert prepared_inputs([[1.0, 2.0]], torch.float64, cpu).dtype == torch.float64
    assert prepared_inputs(torch.ones(2, 3).half(), torch.float32, cpu).dtype == torch.float32
    assert prepared_inputs([[1, 2]], torch.float32, cpu).dtype == torch.int64


def test_a_model_that_works_on_its_input_in_place_is_predicted_right():
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(I, O)

        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            return self.fc(x)

    x, y = random(N, I), random(N, O, seed=1)
    kept = x.clone()
    posterior = bw.fit(Centred().double(), (x, y), bw.Gaussian(), bw.BALI(steps=3), progress=False)
    plain = bw.fit(nn.Linear(I, O).double(), (x - 0.5, y), bw.Gaussian(), bw.BALI(steps=3), progress=False)
    torch.testing.assert_close(posterior.predict(x, 150).mean, plain.predict(x - 0.5, 150).mean)
    assert torch.equal(x, kept)


def test_draws_without_vmap_are_the_same():
    from dataclasses import replace

    posterior, x = fitted(), random(B, I)
    network = replace(posterior.problem.network, vectorised=False)
    looped = replace(posterior, problem=replace(posterior.problem, network=network))
    torch.testing.assert_close(looped.draw(S)(x), posterior.draw(S)(x), rtol=0, atol=1e-12)


def test_kept_draws_are_the_default_budget():
    assert module.MEMORY == 2**30 and fitted().predict(random(B, I)).kept
