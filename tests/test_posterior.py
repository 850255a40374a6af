"""Drawing and predicting: coherent functions, the same numbers in blocks, any memory, any chunk."""

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise import posterior as module
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
    monkeypatch.setattr(type(posterior.draw(1)), "_block", lambda self, params: 2)
    torch.testing.assert_close(posterior.draw(150)(x), kept, rtol=0, atol=1e-12)


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
        ("rows", TypeError, "not str"),
        (None, TypeError, "not NoneType"),
    ],
)
def test_bad_inputs_are_refused(x, kind, message: str):
    with pytest.raises(kind, match=message):
        fitted().predict(x)


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
