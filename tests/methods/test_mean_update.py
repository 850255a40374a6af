"""Moving the mean instead of averaging statistics: the same posterior."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.distributions import DiagonalPrior
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.updates import NaturalUpdate, Shape, Targets
from bayeswise.weights import Layerwise

I, O, R, N = 5, 3, 30, 60  # noqa: E741
PRIOR = DiagonalPrior(4.0, 0.3, 2.0, I, O)
SHAPE = Shape((), I, O, torch.float64, torch.device("cpu"))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batches(n: int, same: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Rows x and targets y."""
    w = random(I, O, seed=99)
    found = []
    for k in range(n):
        x = random(R, I, seed=0 if same else k)
        found.append((x, x @ w + 0.3 * random(R, O, seed=100 + (0 if same else k))))
    return found


def run(update: Any, rows: list[tuple[Tensor, Tensor]], rates: list[float], noisy: bool = False) -> Any:
    """The posterior of one layer after these batches; the pass has the mean as weights, or others."""
    data = update.empty(SHAPE)
    for k, ((x, y), rate) in enumerate(zip(rows, rates, strict=True)):
        w = update.current(PRIOR, data, "layer").mean if k else torch.zeros(I, O, dtype=x.dtype)
        w = w + 0.1 * random(I, O, seed=k) if noisy else w
        z = x @ w
        data = update(PRIOR, data, Targets(x, w, z, y - z), rate, N / R)
    return update.exact(PRIOR, data, "layer")


RATES = [1.0, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1, 0.05]


@pytest.mark.parametrize("noisy", [False, True])
def test_it_is_the_average_of_the_statistics(noisy):
    """Mean, R⁻¹, U and u are those of eq. 16 and 17 to rounding."""
    rows = batches(len(RATES))
    wanted, found = (run(update, rows, RATES, noisy) for update in (NaturalUpdate(), MeanUpdate()))
    torch.testing.assert_close(found.factor, wanted.factor, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.dof, wanted.dof, rtol=1e-13, atol=0)


def test_rows_of_each_member_weigh_their_own():
    x, y = random(2, R, I), random(2, R, O, seed=1)
    shape, weight = replace(SHAPE, lead=(2,)), torch.tensor([1.0, 3.0], dtype=torch.float64)
    data, update = MeanUpdate().empty(shape), MeanUpdate()
    data = update(PRIOR, data, Targets(x, torch.zeros(2, I, O).double(), 0 * y, y), 1.0, weight)
    for k in range(2):
        rows = [(x[k], y[k])]
        alone = MeanUpdate().empty(SHAPE)
        zeros = torch.zeros(I, O, dtype=torch.float64)
        alone = update(PRIOR, alone, Targets(*rows[0][:1], zeros, 0 * y[k], y[k]), 1.0, float(weight[k]))
        torch.testing.assert_close(data.mean[k], alone.mean)
        torch.testing.assert_close(data.factor[k], alone.factor)


@pytest.mark.parametrize("every", [2, 5, 10])
def test_a_noise_that_moves_rarely_ends_at_the_same_posterior(every):
    """The same rows again and again: whatever is between, the end is the exact posterior."""
    steps = 401  # the noise moves at the last
    rows = batches(1, same=True) * steps
    rates = [1.0] + [0.1] * (steps - 1)
    wanted, found = run(NaturalUpdate(), rows, rates), run(MeanUpdate(every), rows, rates)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found.noise, wanted.noise, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.precision_factor, wanted.precision_factor, rtol=1e-11, atol=1e-12)


def test_known_inputs_end_at_the_exact_mean():
    """With Ψxx of all rows, and all rows in every batch, the mean settles where the regression has it."""
    (x, y), *_ = batches(1)
    update, start = MeanUpdate(every=3), random(I, O, seed=5)
    data = update.knowing(PRIOR, update.empty(SHAPE), N / R * x.mT @ x, "layer")
    for k, rate in enumerate([1.0] + [0.2] * 150):
        w = data.mean if k else start
        data = update(PRIOR, data, Targets(x, w, x @ w, y - x @ w), rate, N / R)
    found, wanted = update.exact(PRIOR, data, "layer"), run(NaturalUpdate(), [(x, y)], [1.0])
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.precision_factor, wanted.precision_factor, rtol=1e-11, atol=1e-12)
    rest = y - x @ found.mean
    expected = (PRIOR.scale * torch.eye(O) + N / R * rest.mT @ rest) / (N + PRIOR.dof + O + 1)
    torch.testing.assert_close(found.noise, expected, rtol=1e-6, atol=1e-9)


def test_the_statistics_of_the_inputs_are_those_of_all_rows():
    """A wide first layer that is fed by the data knows Ψxx before the first step; others do not."""
    x, y = random(50, 210), random(50, 2, seed=1)
    model = nn.Sequential(nn.Linear(210, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.BALI(steps=1), progress=False)
    method, rng = bw.BALI(steps=1, effective=0.5), torch.Generator().manual_seed(0)
    state = method.init(posterior.problem, TensorRows(x, y, 20), rng)
    rows = torch.cat([x, torch.ones(50, 1, dtype=x.dtype)], 1)
    torch.testing.assert_close(state.layers["0"].data.xx, 0.5 * rows.mT @ rows, rtol=1e-12, atol=1e-12)
    assert state.layers["2"].data.spread.numel() == 0 and not state.layers["2"].data.xx.any()
    scaled = nn.Sequential(nn.Tanh(), nn.Linear(210, 2)).double()
    posterior = bw.fit(scaled, (x, y), bw.Gaussian(), bw.BALI(steps=1), progress=False)
    state = method.init(posterior.problem, TensorRows(x, y, 20), rng)
    assert state.layers["1"].data.spread.numel() == 0


@pytest.mark.parametrize("splits", [0, 3])
def test_every_start_and_split_knows_its_own_inputs(splits):
    """Starts of a split share its rows; each counts them as often as its own N_eff says."""
    x, y = random(max(1, splits), 50, 210), random(max(1, splits), 50, 2, seed=1)
    rows = torch.cat([x, torch.ones(*x.shape[:-1], 1, dtype=x.dtype)], -1)
    x, y, members = (x, y, splits) if splits else (x[0], y[0], None)
    model = nn.Sequential(nn.Linear(210, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    shares = tuple(0.5 + k for k in range(2 * max(1, splits)))
    method = bw.BALI(steps=1, effective=shares, members=2)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, members=members, progress=False)
    data = TensorRows(x, y, 20, lead=int(splits > 0))
    state = method.init(posterior.problem, data, torch.Generator().manual_seed(0))
    counted = torch.tensor(shares, dtype=x.dtype)[:, None, None] * (rows.mT @ rows).repeat(2, 1, 1)
    torch.testing.assert_close(state.layers["0"].data.xx, counted, rtol=1e-12, atol=1e-12)


def test_a_draw_has_the_spread_of_the_posterior():
    rows = batches(6)
    update, data = MeanUpdate(every=3), MeanUpdate(every=3).empty(SHAPE)
    for (x, y), rate in zip(rows, RATES, strict=False):
        z = x @ data.mean
        data = update(PRIOR, data, Targets(x, data.mean, z, y - z), rate, N / R)
    q, rng = update.current(PRIOR, data, "layer"), torch.Generator().manual_seed(0)
    draws = torch.stack([q.draw(rng) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), data.mean, rtol=0, atol=0.02)
    exact = update.exact(PRIOR, data, "layer")
    wanted = torch.kron(exact.noise.contiguous(), torch.cholesky_inverse(exact.precision_factor).contiguous())
    flat = (draws - data.mean).mT.reshape(len(draws), -1)
    torch.testing.assert_close(flat.mT @ flat / len(flat), wanted, rtol=0.1, atol=2e-3)
    torch.testing.assert_close(exact.mean, data.mean, rtol=1e-10, atol=1e-12)


def fit(update: Any, steps: int = 60, **options: Any) -> bw.Posterior:
    x = random(200, 4)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2)).double()
    method = bw.BALI(steps=steps, update=update)
    return bw.fit(model, (x, y), bw.Categorical(), method, batch_size=64, progress=False, **options)


def test_a_network_learns_the_same():
    x = random(500, 4, seed=7)
    y = (x[:, 0] * x[:, 1] > 0).long()
    nll = [
        float(-fit(update, 200).predict(x).log_prob(y).mean()) for update in (NaturalUpdate(), MeanUpdate(10))
    ]
    assert max(nll) < 0.45 and abs(nll[0] - nll[1]) < 0.05


def test_a_run_goes_on_with_the_same_bits(tmp_path):
    whole = fit(MeanUpdate(every=4)).weights

    class Broken(Exception):
        pass

    def kill(progress: Any) -> None:
        if progress.step == 30:
            raise Broken

    store = bw.Checkpoints(tmp_path, every=7)
    with pytest.raises(Broken):
        fit(MeanUpdate(every=4), checkpoint=store, callbacks=[kill])
    again = fit(MeanUpdate(every=4), checkpoint=store).weights
    assert isinstance(whole, Layerwise) and isinstance(again, Layerwise)
    assert all(torch.equal(whole.layers[k].factor, again.layers[k].factor) for k in whole.layers)


def test_wide_layers_do_not_factorise_at_every_step():
    wide, narrow = (nn.Sequential(nn.Linear(n, 3)).double() for n in (199, 100))
    for model, kind in ((wide, MeanUpdate), (narrow, NaturalUpdate)):
        x = random(20, model[0].in_features)
        posterior = bw.fit(model, (x, random(20, 3)), bw.Gaussian(), bw.BALI(steps=1), progress=False)
        assert isinstance(bw.BALI().rule(posterior.problem), kind)


@pytest.mark.parametrize("settings", [{"every": 0}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(ValueError, match="MeanUpdate"):
        MeanUpdate(**settings)


def test_drawn_weights_keep_the_exact_update():
    """Noise of moved means is lost to rounding when weights are drawn."""
    model = nn.Sequential(nn.Linear(250, 4), nn.Linear(4, 1)).double()
    problem = bw.fit(model, (random(8, 250), random(8, 1)), bw.Gaussian(), bw.BALI(steps=1)).problem
    assert isinstance(bw.BALI().rule(problem), MeanUpdate)
    assert isinstance(bw.BALI(forward=bw.WeightNoise()).rule(problem), NaturalUpdate)


def test_several_starts_move_by_their_means():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()
    problem = bw.fit(model, (random(8, 3), random(8, 1)), bw.Gaussian(), bw.BALI(steps=1)).problem
    assert isinstance(bw.BALI(steps=1).rule(problem), NaturalUpdate)
    assert isinstance(bw.BALI(steps=1, members=2).rule(problem), MeanUpdate)


def test_what_a_step_tells_is_of_the_posterior_of_its_pass():
    """Not of the next one, whose factors are found in the same step."""
    x, y = random(20, 3), random(20, 2, seed=1)
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), []
    for update in (NaturalUpdate(), MeanUpdate()):
        told: list[dict[str, float]] = []
        look = lambda p, told=told: told.append(p.info.details())  # noqa: E731
        bw.fit(
            model, (x, y), bw.Gaussian(), bw.BALI(steps=6, update=update), progress=False, callbacks=[look]
        )
        seen.append(told)
    for natural, moved in zip(*seen, strict=True):
        assert moved == pytest.approx(natural, rel=1e-6)


@pytest.mark.parametrize("every", [1, 3])
def test_members_with_rates_of_their_own_are_as_they_are_alone(every):
    """A member whose rate is 0 stays as it is; the others move as with one number."""
    update, rows = (
        MeanUpdate(every),
        [(random(2, R, I, seed=k), random(2, R, O, seed=9 + k)) for k in range(6)],
    )
    rates = [(1.0, 1.0), (0.5, 0.3), (0.4, 0.0), (0.3, 0.2), (0.2, 0.0), (0.1, 0.0)]
    data = update.empty(replace(SHAPE, lead=(2,)))
    alone = [update.empty(SHAPE) for _ in range(2)]
    for (x, y), both in zip(rows, rates, strict=True):
        w = data.mean if int(data.steps) else random(2, I, O, seed=30)
        rate, scale = torch.tensor(both, dtype=torch.float64), 1 + random(2, O, seed=31).square()
        own = [Targets(x[k], alone[k].mean, x[k] @ w[k], y[k], scale=scale[k]) for k in range(2)]
        if not int(data.steps):
            own = [replace(targets, w=w[k]) for k, targets in enumerate(own)]
        data = update(PRIOR, data, Targets(x, w, x @ w, y, scale=scale), rate, 2.0)
        alone = [update(PRIOR, alone[k], own[k], both[k], 2.0) for k in range(2)]
    for k in range(2):
        for name in ("mean", "xx", "rest", "n", "factor", "left"):
            torch.testing.assert_close(
                getattr(data, name)[k], getattr(alone[k], name), rtol=1e-12, atol=1e-13
            )
