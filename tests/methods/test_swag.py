"""SWAG: its moments against numpy over stored snapshots, its draws against the covariance of the paper."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.linalg import NumericalError
from bayeswise.methods.schedules import Cyclic
from bayeswise.methods.swag import Snapshots, Trajectory
from bayeswise.networks import Params, discover, evaluating
from bayeswise.problem import Problem, Units
from bayeswise.randomness import derived_seed
from bayeswise.weights import LowRank, MeanField, Mixture, Particles, Point

B, I, O, N, S, E = 7, 5, 3, 40, 11, 3  # noqa: E741
QUIET: dict[str, Any] = dict(progress=False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression() -> tuple[Tensor, Tensor]:
    x = random(N, I, seed=1)
    return x, (x @ random(I, O, seed=2)).sin() + 0.3 * random(N, O, seed=3) + 2


def mlp(norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(4), nn.Tanh()] if norm else [nn.Tanh()]
        return nn.Sequential(nn.Linear(I, 4), *middle, nn.Linear(4, O)).double()


def problem_of(model: nn.Module, x: Tensor, likelihood=None, members: int | None = None) -> Problem:
    with evaluating(model):
        network = discover(model, x if members is None else x[0])
    units = Units.identity(O, x.dtype, network.device)
    return Problem(network, likelihood or bw.Gaussian(), N, units, members)


def walk(method: bw.SWAG, problem: Problem, x: Tensor, y: Tensor, seed: int = 0) -> Iterator[Trajectory]:
    """The states of a run in which every batch has all rows."""
    rng = torch.Generator().manual_seed(derived_seed(seed, 1))
    state = method.init(problem, TensorRows(x, y, N, len(problem.lead)), rng)
    for _ in range(method.steps):
        state, _ = method.step(problem, state, (x, y), rng)
        yield state


def flat(params: Params, lead: int = 1) -> Tensor:
    """Parameters (…) in one vector (…, P), in the order of their names."""
    return torch.cat([params[name].flatten(lead) for name in sorted(params)], -1)


# ------------------------------------------------------------------------------------------------ the moments


def visited(count: int) -> list[Params]:
    return [{"a": 5 + random(O, I, seed=t), "b": random(O, seed=100 + t)} for t in range(count)]


def collected(seen: list[Params], rank: int) -> Snapshots:
    found = Snapshots.none(seen[0], rank, torch.device("cpu"))
    for params in seen:
        found = found.take_(params)
    return found


def reference(seen: list[Params], rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean (P,), variance (P,) and the last deviations (K, P) of running means, oldest first."""
    w = np.stack([flat(params, 0).numpy() for params in seen])  # (T, P)
    deviations = np.stack([w[t] - w[: t + 1].mean(0) for t in range(len(w))])
    return w.mean(0), (w**2).mean(0) - w.mean(0) ** 2, deviations[max(0, len(w) - rank) :]


def covariance(seen: list[Params], rank: int) -> Tensor:
    """The paper's, ½ (Σ_diag + D Dᵀ / (K - 1)), over all parameters together (P, P)."""
    _, variance, d = reference(seen, rank)
    return torch.from_numpy(0.5 * (np.diag(variance) + d.T @ d / (len(d) - 1)))


@pytest.mark.parametrize("count", [1, 2, 4, 5, 13])
def test_moments_are_those_of_the_snapshots(count: int):
    seen, rank = visited(count), 4
    found = collected(seen, rank)
    mean, variance, deviations = reference(seen, rank)
    assert int(found.count) == count
    np.testing.assert_allclose(flat(found.mean, 0), mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(found.squares, 0) / count, variance, rtol=0, atol=1e-12)
    ring = flat(found.columns)
    held = [ring[t % rank] for t in range(max(0, count - rank), count)]
    np.testing.assert_allclose(torch.stack(held), deviations, rtol=0, atol=1e-12)
    assert not ring[count:].any()


def test_the_first_snapshot_counts_once():
    seen = visited(1)
    found = collected(seen, 4)
    assert all(torch.equal(found.mean[name], value) for name, value in seen[0].items())
    assert not any(value.any() for value in (*found.squares.values(), *found.columns.values()))


def test_a_small_variance_around_a_large_mean_survives_single_precision():
    seen = [{"a": (100 + 1e-3 * random(I, seed=t)).float()} for t in range(50)]
    exact = np.stack([params["a"].double().numpy() for params in seen]).var(0)
    found = collected(seen, 2).squares["a"] / 50
    np.testing.assert_allclose(found, exact, rtol=2e-2)  # mean(w²) - w̄² would be noise: w² has steps of 1e-3


def test_a_run_takes_its_snapshots_every_so_many_steps_and_at_the_last():
    (x, y), method = regression(), bw.SWAG(rank=3, every=4, warmup=0.3, steps=30)
    seen, taken, last = [], [], None
    for t, state in enumerate(walk(method, problem_of(mlp(), x), x, y), 1):
        if int(state.snapshots.count) > len(taken):
            taken.append(t)
            seen.append({name: w.clone() for name, w in state.descent.params.items()})
        last = state
    assert taken == [10, 14, 18, 22, 26, 30] and last is not None
    mean, variance, deviations = reference(seen, 3)
    np.testing.assert_allclose(flat(last.snapshots.mean, 0), mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(last.snapshots.squares, 0) / 6, variance, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(last.snapshots.columns), deviations, rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------------- the draws


def gaussian(seen: list[Params], rank: int, scale: float = 1.0) -> LowRank:
    found = collected(seen, rank)
    return LowRank(found.mean, found.std(scale), found.factor(scale), None)


def linear_map(weights: Any, size: int, monkeypatch) -> Tensor:
    """F (P, size): what a draw adds to the mean for each single standard normal number."""
    used = 0

    def units(shape, **_) -> Tensor:
        nonlocal used
        width = int(np.prod(shape[1:]))
        block = torch.eye(size, dtype=torch.float64)[:, used : used + width].reshape(shape)
        used += width
        return block

    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn", units)
        drawn, _ = weights.sample(size, None, torch.Generator())
    assert used == size
    return (flat(drawn) - flat(weights.mean, 0)).T


@pytest.mark.parametrize("count", [4, 13])
@pytest.mark.parametrize("rank", [2, 6, 20])
def test_the_map_of_a_draw_has_the_covariance_of_the_paper_between_layers_too(
    count: int, rank: int, monkeypatch
):
    seen = visited(count)
    f = linear_map(gaussian(seen, rank), 18 + min(count, rank), monkeypatch)
    expected = covariance(seen, rank)
    torch.testing.assert_close(f @ f.T, expected, rtol=0, atol=1e-12)
    assert float(expected[:15, 15:].abs().max()) > 0.05  # "a" and "b" are correlated
    f = linear_map(gaussian(seen, rank, 3.0), 18 + min(count, rank), monkeypatch)
    torch.testing.assert_close(f @ f.T, 3 * expected, rtol=0, atol=1e-12)


def test_the_covariance_of_many_draws_is_within_five_standard_errors():
    seen, n, network = visited(9), 20_000, problem_of(mlp(), regression()[0]).network
    drawn, _ = gaussian(seen, 5).sample(n, network, torch.Generator().manual_seed(0))
    w, expected = flat(drawn), covariance(seen, 5)
    error = ((expected.diagonal()[:, None] * expected.diagonal() + expected.square()) / n).sqrt()
    assert float(((w.T.cov() - expected) / error).abs().max()) < 5
    mean = torch.from_numpy(reference(seen, 5)[0])
    assert float(((w.mean(0) - mean) / (expected.diagonal() / n).sqrt()).abs().max()) < 5


def test_draws_of_a_fit_have_the_stated_covariance():
    (x, y), n = regression(), 20_000
    method = bw.SWAG(rank=6, every=5, learning_rate=bw.Constant(0.05), steps=200)
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
    weights = posterior.weights
    assert isinstance(weights, LowRank) and weights.covariance is not None
    f, std = flat(weights.columns), flat(weights.std, 0)
    expected = std.square().diag() + f.T @ f
    scale = expected.diagonal().rsqrt()
    found = flat({name: value for name, value in posterior.sample(n).items() if name in weights.std}).T.cov()
    correlation = scale[:, None] * expected * scale
    error = ((1 + correlation.square()) / n).sqrt()
    assert float((scale[:, None] * (found - expected) * scale / error).abs().max()) < 5


def test_columns_of_single_precision_are_kept_in_half_of_the_memory():
    exact = visited(13)
    seen = [{name: value.float() for name, value in params.items()} for params in exact]
    found = collected(seen, 6)
    assert all(d.dtype == torch.bfloat16 for d in found.columns.values())
    kept = found.factor(1.0)
    f = torch.cat([kept[name].double().flatten(1) for name in sorted(kept)], -1)
    wanted = covariance(exact, 6) - 0.5 * torch.from_numpy(reference(exact, 6)[1]).diag()
    size = wanted.diagonal().sqrt()
    assert float(((f.T @ f - wanted) / (size[:, None] * size)).abs().max()) < 0.01
    drawn, _ = LowRank(found.mean, found.std(1.0), kept, None).sample(
        S, problem_of(mlp(), regression()[0]).network, torch.Generator().manual_seed(0)
    )
    assert drawn["a"].dtype == torch.float32


# ------------------------------------------------------------------------------------------ its special cases


def test_a_scale_of_zero_is_the_mean_alone():
    x, y = regression()
    method = bw.SWAG(rank=4, every=3, scale=0.0, steps=40)
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
    usual = bw.fit(mlp(), (x, y), bw.Gaussian(), replace(method, scale=1.0), **QUIET)
    assert isinstance(posterior.weights, Point) and isinstance(usual.weights, LowRank)
    for name, value in posterior.sample(S).items():
        assert torch.equal(value, usual.weights.mean[name].expand(S, *value.shape[1:]))
    assert "the mean of" in posterior.summary()


def test_a_rank_of_zero_is_a_diagonal_gaussian():
    x, y = regression()
    method = bw.SWAG(rank=0, every=3, steps=60)
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
    usual = bw.fit(mlp(), (x, y), bw.Gaussian(), replace(method, rank=4), **QUIET)
    assert isinstance(posterior.weights, MeanField) and isinstance(usual.weights, LowRank)
    for name, std in posterior.weights.std.items():
        assert torch.equal(std, usual.weights.std[name]) and float(std.min()) > 0


def test_less_than_two_snapshots_show_no_spread_and_the_summary_says_so():
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.SWAG(steps=12), **QUIET)
    assert isinstance(posterior.weights, Point) and posterior.weights.distinct == 1
    assert "1 snapshots of SGD" in posterior.summary() and "no spread is known" in posterior.summary()


# -------------------------------------------------------------------------------------------------- the steps


def test_steps_after_the_warm_up_are_those_of_sgd_with_momentum():
    (x, y), model = regression(), mlp()
    known = bw.Gaussian(0.04)
    method = bw.SWAG(
        learning_rate=Cyclic(0.05, 0.01, 2), momentum=0.8, warmup=0.0, rows=1.0, precision=0.7, steps=20
    )
    *_, state = walk(method, problem_of(model, x, known), x, y)
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8, weight_decay=0.7 / N)
    for t in range(20):
        rate = 0.01 + 0.04 * 0.5 * (1 + np.cos(np.pi * (t % 10) / 10))
        optimiser.param_groups[0]["lr"] = 0.04 * rate  # the rate counts in units of the noise
        optimiser.zero_grad()
        (0.5 * (y - model(x)).square().sum(-1) / 0.04).mean().backward()
        optimiser.step()
    own = dict(model.named_parameters())
    for name, value in state.descent.params.items():
        torch.testing.assert_close(value, own[name].detach(), rtol=0, atol=1e-10)


def test_the_warm_up_is_adam_with_a_schedule_of_its_own():
    (x, y), model = regression(), mlp()
    method = bw.SWAG(warmup=0.5, warmup_rate=bw.Cosine(0.02), precision=0.7, steps=40)
    states = walk(method, problem_of(model, x), x, y)
    warm = [
        {n: w.clone() for n, w in s.descent.params.items()} for s, _ in zip(states, range(20), strict=False)
    ]
    alone = bw.MAP(bw.Cosine(0.02), 0.7, 20)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), alone, standardise=False, **QUIET)
    for name, value in warm[-1].items():
        torch.testing.assert_close(value, posterior.sample(1)[name][0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("share, n", [(0.3, 12), (0.01, 8), (1.0, N)])
def test_a_step_of_sgd_sees_a_share_of_the_rows_and_one_of_adam_sees_all(share: float, n: int):
    class Counts(nn.Linear):
        seen: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            Counts.seen.append(len(x))
            return super().forward(x)

    (x, y), method = regression(), bw.SWAG(rows=share, steps=6)
    problem = problem_of(Counts(I, O).double(), x)
    Counts.seen.clear()
    list(walk(method, problem, x, y))
    assert Counts.seen == [N, N, N, n, n, n]


@pytest.mark.parametrize("noise", [0.04, torch.diag(torch.tensor([0.5, 0.04, 2.0]))])
def test_the_rate_counts_in_units_of_the_smallest_noise(noise):
    from bayeswise.methods.swag import _noise_scale

    x, _ = regression()
    eye = torch.eye(O, dtype=torch.float64)
    given = problem_of(mlp(), x, bw.Gaussian(noise))
    assert float(_noise_scale(given, eye)) == pytest.approx(0.04)
    assert torch.equal(
        _noise_scale(problem_of(mlp(), x, bw.Categorical()), eye.expand(2, O, O)), torch.ones(2)
    )
    found = problem_of(mlp(), x)
    two = torch.stack([3 * eye, 5 * eye])
    torch.testing.assert_close(_noise_scale(found, two), torch.tensor([3.0, 5.0], dtype=torch.float64))


def test_larger_rates_leave_more_spread():
    x, y = regression()
    spread = []
    for rate in (0.003, 0.03):
        method = bw.SWAG(learning_rate=bw.Constant(rate), every=5, steps=600)
        posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
        spread.append(float(posterior.predict(x, 128).epistemic.mean()))
    assert spread[1] > 1.5 * spread[0] > 0


def test_a_rate_that_is_too_large_is_named():
    x, y = regression()
    method = bw.SWAG(learning_rate=bw.Constant(1e4), steps=200)
    with pytest.raises(NumericalError, match="SWAG: .* not finite after .* steps; lower the learning rate"):
        bw.fit(mlp(), (x, y), bw.Gaussian(0.01), method, **QUIET)


# ------------------------------------------------------------------------------------- noise, members, splits


def test_the_noise_is_the_covariance_of_the_residuals_at_the_mean():
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.SWAG(every=5, steps=100), batch_size=16, **QUIET)
    weights, own = posterior.weights, mlp()
    assert isinstance(weights, LowRank) and weights.covariance is not None
    own.load_state_dict(weights.mean)
    residual = posterior.problem.units.to_network(y) - own(x).detach()
    expected = residual.T @ residual / N + 1e-6 * torch.eye(O, dtype=torch.float64)
    torch.testing.assert_close(weights.covariance, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rank", [0, 4])
def test_data_splits_are_single_runs(rank: int):
    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])
    method = bw.SWAG(rank=rank, every=3, steps=40)
    together = bw.fit(mlp(), (xs, ys), bw.Gaussian(), method, members=2, **QUIET).weights
    for k in range(2):
        alone = bw.fit(mlp(), (xs[k], ys[k]), bw.Gaussian(), method, **QUIET).weights
        for name, value in alone.tensors().items():
            found = together.tensors()[name]
            found = found[:, k] if name.startswith("columns/") else found[k]
            torch.testing.assert_close(found, value, rtol=0, atol=1e-9)


def test_draws_of_data_splits_are_independent_and_have_their_own_covariance():
    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])
    method = bw.SWAG(rank=4, every=3, steps=40)
    posterior = bw.fit(mlp(), (xs, ys), bw.Gaussian(), method, members=2, **QUIET)
    weights, n = posterior.weights, 20_000
    assert isinstance(weights, LowRank) and weights.lead == (2,)
    drawn = {name: value for name, value in posterior.sample(n).items() if name in weights.std}
    w = flat(drawn, 2)  # (n, 2, P)
    for k in range(2):
        f, std = flat(weights.columns, 2)[:, k], flat(weights.std)[k]
        expected = std.square().diag() + f.T @ f
        scale = expected.diagonal().rsqrt()
        error = (w[:, k].T.cov() - expected) * scale[:, None] * scale
        assert float(error.abs().max()) < 5 * (2 / n) ** 0.5
    z = (w - w.mean(0)) / w.std(0)
    assert float((z[:, 0].T @ z[:, 1] / n).abs().max()) < 5 / n**0.5


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Categorical()])
def test_each_member_is_a_run_from_its_start(norm: bool, likelihood):
    x, y = regression()
    y = y.argmax(1) if isinstance(likelihood, bw.Categorical) else y
    method, model = bw.SWAG(rank=4, every=3, rows=1.0, members=E, steps=40), mlp(norm)
    problem = problem_of(model, x, likelihood)
    rows = TensorRows(x, y, N)
    first = method.init(problem, rows, torch.Generator().manual_seed(5)).descent
    *_, last = _from_seed(method, problem, x, y, 5)
    for e in range(E):
        own = copy.deepcopy(model)
        values = {name: v[e] for name, v in (first.params | first.buffers).items()}
        own.load_state_dict(values)
        *_, alone = walk(replace(method, members=1), problem_of(own, x, likelihood), x, y)
        for part in ("mean", "squares"):
            for name, value in getattr(alone.snapshots, part).items():
                torch.testing.assert_close(getattr(last.snapshots, part)[name][e], value, rtol=0, atol=1e-9)
        for name, value in alone.snapshots.columns.items():
            torch.testing.assert_close(last.snapshots.columns[name][:, e], value, rtol=0, atol=1e-9)
    assert float((first.params["0.weight"][0] - first.params["0.weight"][1]).abs().max()) > 0.1


def _from_seed(method, problem, x, y, seed) -> Iterator[Trajectory]:
    rng = torch.Generator().manual_seed(seed)
    state = method.init(problem, TensorRows(x, y, N), rng)
    for _ in range(method.steps):
        state, _ = method.step(problem, state, (x, y), rng)
        yield state


@pytest.mark.parametrize("n", [2, E, S])
def test_draws_go_through_the_members_in_turn_each_with_its_noise(n: int):
    x, y = regression()
    method = bw.SWAG(rank=4, every=3, members=E, steps=60)
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
    weights = posterior.weights
    assert isinstance(weights, Mixture) and len(weights.parts) == E
    assert posterior.method == "MultiSWAG" and "3 networks, for each a Gaussian" in posterior.summary()
    drawn, noise = posterior.sample(n), posterior.draw(n).noise()
    for i in range(n):
        part = weights.parts[i % E]
        z = flat({k: drawn[k][i] for k in part.std}, 0) - flat({k: part.mean[k] for k in part.std}, 0)
        assert isinstance(part, LowRank) and part.covariance is not None
        total = (flat(part.std, 0).square() + flat(part.columns).square().sum(0)).sqrt()
        assert float((z / total).abs().max()) < 5
        torch.testing.assert_close(noise[i], part.covariance, rtol=1e-9, atol=1e-12)
    assert not torch.equal(weights.parts[0].mean["0.weight"], weights.parts[1].mean["0.weight"])


def test_members_of_a_scale_of_zero_are_particles():
    x, y = regression()
    method = bw.SWAG(rank=4, every=3, members=E, scale=0.0, steps=40)
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
    assert type(posterior.weights) is Particles and posterior.weights.distinct == E


# ---------------------------------------------------------------------------------------- running statistics


@pytest.mark.parametrize("members", [1, E])
def test_each_draw_has_the_statistics_of_its_own_network(members: int, tmp_path):
    (x, y), model = regression(), mlp(norm=True).train()
    norm = next(m for m in model if isinstance(m, nn.BatchNorm1d))
    norm.momentum = 0.3
    before = copy.deepcopy(model.state_dict())
    method = bw.SWAG(rank=4, every=3, draws=S, members=members, steps=60)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, **QUIET)
    weights = posterior.weights
    assert type(weights) is Particles and weights.distinct == S and weights.covariance is not None
    drawn = weights.params
    h = x @ drawn["0.weight"].mT + drawn["0.bias"][:, None]  # (S, N, 4)
    torch.testing.assert_close(drawn["1.running_mean"], h.mean(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(drawn["1.running_var"], h.var(1), rtol=0, atol=1e-12)
    assert float(drawn["0.weight"].std(0).min()) > 0
    assert torch.equal(weights.covariance[0], weights.covariance[members])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert norm.momentum == 0.3 and model.training and norm.training
    posterior.save(tmp_path / "saved")
    assert torch.equal(
        bw.load(tmp_path / "saved", mlp(True)).predict(x, S).mean, posterior.predict(x, S).mean
    )


def test_statistics_of_data_splits_are_their_own():
    (x, y), model = regression(), mlp(norm=True)
    xs, ys = torch.stack([x, 3 * x.flip(1)]), torch.stack([y, -5 * y])
    method = bw.SWAG(rank=4, every=3, draws=2, steps=30)
    drawn = bw.fit(model, (xs, ys), bw.Gaussian(), method, members=2, batch_size=10, **QUIET).sample(2)
    h = xs @ drawn["0.weight"].mT + drawn["0.bias"][:, :, None]  # (2, 2, N, 4)
    torch.testing.assert_close(drawn["1.running_mean"], h.mean(2), rtol=0, atol=1e-12)
    variance = torch.stack([part.var(2) for part in h.split(10, 2)]).mean(0)
    torch.testing.assert_close(drawn["1.running_var"], variance, rtol=0, atol=1e-12)


def test_the_mean_alone_has_statistics_of_its_own_too():
    (x, y), model = regression(), mlp(norm=True)
    found = bw.fit(model, (x, y), bw.Gaussian(), bw.SWAG(every=3, scale=0.0, steps=30), **QUIET).sample(1)
    h = F.linear(x, found["0.weight"][0], found["0.bias"][0])
    torch.testing.assert_close(found["1.running_mean"][0], h.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["1.running_var"][0], h.var(0), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- starts, settings


def test_a_trained_start_keeps_its_units_and_its_weights():
    trained, fresh = bw.SWAG(warmup=0.0), bw.SWAG()
    assert fresh.standardises and not trained.standardises
    assert trained.starts_from_model and fresh.starts_from_model and not bw.SWAG(members=2).starts_from_model
    x, y = regression()
    model = nn.Linear(I, O).double()
    with torch.no_grad():
        solution = torch.linalg.lstsq(torch.cat([x, torch.ones(N, 1)], 1), y).solution
        model.weight.copy_(solution[:-1].T)
        model.bias.copy_(solution[-1])
    method = bw.SWAG(warmup=0.0, precision=0.0, every=5, steps=400)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, **QUIET)
    assert torch.equal(posterior.problem.units.shift, torch.zeros(O, dtype=torch.float64))
    weights = posterior.weights
    assert isinstance(weights, LowRank)
    spread = (weights.std["weight"].square() + weights.columns["weight"].square().sum(0)).sqrt()
    assert float(((weights.mean["weight"] - model.weight.detach()) / spread).abs().max()) < 4
    assert 0 < float(spread.max()) < 0.3


def test_an_estimator_takes_it_and_saves_it(tmp_path):
    x, y = (t.numpy() for t in regression())
    method = bw.SWAG(rank=4, every=3, learning_rate=Cyclic(0.02, 0.01, 2), steps=60)
    regressor = bw.BayesianRegressor(method=method, hidden=(6,)).fit(x, y[:, 0])
    mean, std = regressor.predict(x, return_std=True)
    regressor.save(tmp_path / "saved")
    again = bw.BayesianRegressor.load(tmp_path / "saved")
    assert again.method == method
    np.testing.assert_array_equal(again.predict(x), mean)
    assert (std > 0).all()


@pytest.mark.parametrize(
    "settings, error",
    [
        (dict(rank=-1), ValueError),
        (dict(rank=1), ValueError),
        (dict(scale=-1.0), ValueError),
        (dict(momentum=1.0), ValueError),
        (dict(every=0), ValueError),
        (dict(rows=0.0), ValueError),
        (dict(warmup=1.0), ValueError),
        (dict(members=0), ValueError),
        (dict(members=2, warmup=0.0), ValueError),
        (dict(draws=0), ValueError),
        (dict(precision=-1.0), ValueError),
        (dict(steps=0), ValueError),
        (dict(learning_rate=0.1), TypeError),
        (dict(warmup_rate=0.1), TypeError),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict, error: type):
    with pytest.raises(error, match="SWAG: "):
        replace(bw.SWAG(), **settings)
    assert replace(bw.SWAG(), rank=np.int64(20)) == bw.SWAG()
