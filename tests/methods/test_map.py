"""MAP: the ridge solution where there is one, and a module with dropout and BatchNorm left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.linalg import NumericalError
from bayeswise.networks import discover, evaluating
from bayeswise.problem import Problem, Units

B, I, O, N = 7, 5, 3, 40  # noqa: E741
QUIET = dict(progress=False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression(outputs: int = O) -> tuple[Tensor, Tensor]:
    x = random(N, I, seed=1)
    return x, x @ random(I, outputs, seed=2) + 0.3 * random(N, outputs, seed=3) + 2


def ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    rows = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    return torch.linalg.solve(rows.T @ rows + penalty * torch.eye(I + 1, dtype=x.dtype), rows.T @ y)


def noisy(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hidden = [nn.Linear(I, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3)]
        return nn.Sequential(*hidden, nn.Linear(8, O)).double()


def dropout() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(I, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, O)).double()


@pytest.mark.parametrize("precision", [1.0, 30.0])
def test_a_linear_model_finds_the_ridge_solution(precision: float):
    x, y = regression()
    noise = 0.25
    method = bw.MAP(bw.Cosine(0.2), precision=precision, steps=500)
    posterior = bw.fit(
        nn.Linear(I, O).double(), (x, y), bw.Gaussian(noise), method, standardise=False, **QUIET
    )
    exact = ridge(x, y, noise * precision)
    params = posterior.sample(1)
    torch.testing.assert_close(params["weight"][0].T, exact[:-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(params["bias"][0], exact[-1], rtol=0, atol=1e-5)
    predictive = posterior.predict(x)
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    torch.testing.assert_close(predictive.mean, rows @ exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(predictive.std, torch.full((N, O), 0.5, dtype=x.dtype), rtol=0, atol=1e-12)
    assert float(predictive.epistemic.max()) < 1e-6


def test_the_noise_is_the_covariance_of_the_residuals_in_the_users_units():
    x, y = regression()
    scale = torch.tensor([10.0, 1.0, 0.1], dtype=x.dtype)
    posterior = bw.fit(nn.Linear(I, O).double(), (x, y * scale), bw.Gaussian(), bw.MAP(steps=300), **QUIET)
    predictive = posterior.predict(x)
    residual = y * scale - predictive.mean
    expected = residual.T @ residual / N + 1e-6 * torch.diag((y * scale).var(0, correction=0))
    torch.testing.assert_close(posterior.likelihood(posterior.draw(1)).noise, expected, rtol=1e-9, atol=1e-12)


def test_categorical_finds_the_penalised_optimum():
    x, y = regression()
    y = y.argmax(1)
    method = bw.MAP(bw.Cosine(0.2), precision=2.0, steps=400)
    posterior = bw.fit(nn.Linear(I, O).double(), (x, y), bw.Categorical(), method, **QUIET)
    params = {k: v[0].clone().requires_grad_() for k, v in posterior.sample(1).items()}
    logits = x @ params["weight"].T + params["bias"]
    penalty = sum(p.square().sum() for p in params.values())
    loss = nn.functional.cross_entropy(logits, y, reduction="sum") + 0.5 * 2.0 * penalty
    grads = torch.autograd.grad(loss, list(params.values()))
    assert max(float(g.abs().max()) for g in grads) < 1e-3


def state(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


def test_buffers_are_the_states_own():
    x, y = regression()
    model = noisy().train()
    before = state(model)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.MAP(steps=30), batch_size=20, **QUIET)
    first = posterior.predict(x).mean
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training and model[1].training
    values = {k: v[0] for k, v in posterior.sample(1).items()} | posterior.problem.network.constants
    assert int(values["1.num_batches_tracked"]) == 30
    assert not torch.equal(values["1.running_mean"], before["1.running_mean"])
    copy = noisy(1).eval()
    copy.load_state_dict(values)
    units = posterior.problem.units
    torch.testing.assert_close(units.to_user(copy(x)).detach(), first, rtol=0, atol=1e-12)
    with torch.no_grad():  # predictions do not look at the user's buffers either
        model[1].running_mean += 100
    assert torch.equal(posterior.predict(x).mean, first)


def test_a_posterior_on_the_way_is_not_moved_by_later_steps():
    x, y = regression()
    kept = []

    def keep(progress) -> None:
        if progress.step == 5:
            posterior = progress.posterior()
            kept.append((posterior, posterior.predict(x).mean.clone()))

    bw.fit(noisy(), (x, y), bw.Gaussian(), bw.MAP(steps=20), callbacks=[keep], **QUIET)
    posterior, mean = kept[0]
    assert torch.equal(posterior.predict(x).mean, mean)


@pytest.mark.parametrize("build", [noisy, dropout, lambda: nn.Linear(I, O).double()])
def test_members_predict_and_come_back_from_disk(build, tmp_path):
    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])
    model = build()
    posterior = bw.fit(model, (xs, ys), bw.Gaussian(), bw.MAP(steps=40), members=2, batch_size=20, **QUIET)
    mean = posterior.predict(xs).mean
    assert mean.shape == (2, N, O)
    for k in range(2):  # each member with its own parameters and buffers
        values = {n: v[0, k] for n, v in posterior.sample(1).items()}
        copy = build().eval()
        copy.load_state_dict(values)
        units = posterior.problem.units
        expected = (copy(xs[k]).detach() * units.scale[k]) + units.shift[k]
        torch.testing.assert_close(mean[k], expected, rtol=0, atol=1e-10)
    posterior.save(tmp_path / "saved")
    assert torch.equal(bw.load(tmp_path / "saved", build()).predict(xs).mean, mean)


def test_members_without_noise_are_single_runs():
    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])
    model = nn.Sequential(nn.Linear(I, 8), nn.Tanh(), nn.Linear(8, O)).double()
    method = bw.MAP(steps=30)
    together = bw.fit(model, (xs, ys), bw.Gaussian(), method, members=2, **QUIET).predict(xs)
    for k in range(2):
        alone = bw.fit(model, (xs[k], ys[k]), bw.Gaussian(), method, **QUIET).predict(xs[k])
        torch.testing.assert_close(together.mean[k], alone.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(together.std[k], alone.std, rtol=0, atol=1e-9)


def test_all_parameters_train():
    x, y = regression()
    model = nn.Sequential(nn.Linear(I, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, O)).double()
    before = state(model)
    params = bw.fit(model, (x, y), bw.Gaussian(), bw.MAP(steps=5), **QUIET).sample(1)
    assert set(params) == set(before)
    assert not any(torch.equal(params[name][0], before[name]) for name in before)


@pytest.mark.parametrize("settings", [dict(steps=0), dict(precision=-1.0)])
def test_settings_without_meaning_are_refused(settings: dict):
    with pytest.raises(ValueError, match="MAP: "):
        bw.MAP(**settings)


@pytest.mark.parametrize("rate", [1e-3, np.float32(0.5)])
def test_a_number_is_no_schedule(rate):
    with pytest.raises(TypeError, match=rf"MAP: learning_rate is a schedule.*use bw.Constant\({rate}\)"):
        bw.MAP(learning_rate=rate)


def test_numpy_integers_are_steps():
    method = bw.MAP(steps=np.int64(5))
    assert method == bw.MAP(steps=5) and type(method.steps) is int
    with pytest.raises(TypeError):
        bw.MAP(steps=2.5)


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("normed", [False, True])
def test_a_module_that_works_on_its_input_in_place_leaves_the_data_alone(members, normed: bool):
    x, y = regression()
    if members is not None:
        x, y = torch.stack([x, x.flip(1)]), torch.stack([y, -y])
    head = [nn.BatchNorm1d(I), nn.Linear(I, O)] if normed else [nn.Linear(I, O)]
    model = nn.Sequential(nn.ReLU(inplace=True), *head).double()
    kept, method = x.clone(), bw.MAP(bw.Cosine(0.1), steps=200)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, members=members, **QUIET)
    assert torch.equal(x, kept)
    mean = posterior.predict(x).mean
    assert torch.equal(x, kept)
    start = nn.Sequential(nn.Identity(), *head)
    plain = bw.fit(start, (x.relu(), y), bw.Gaussian(), method, members=members, **QUIET)
    torch.testing.assert_close(mean, plain.predict(x.relu()).mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Gaussian(0.1), bw.Categorical()])
@pytest.mark.parametrize("outputs", [2, 3])
def test_a_diverged_run_says_so(likelihood, outputs: int):
    x, y = regression(outputs)
    y = y.argmax(1) if isinstance(likelihood, bw.Categorical) else y
    model = nn.Sequential(nn.Linear(I, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))
    method = bw.MAP(bw.Constant(1e18), steps=20)
    with pytest.raises(NumericalError, match="MAP: .* not finite after .* lower the learning rate"):
        bw.fit(model, (x.float(), y), likelihood, method, **QUIET)


def test_no_posterior_from_weights_or_residuals_that_are_not_finite():
    x, y = regression()
    model, method = nn.Linear(I, O).double(), bw.MAP(steps=3)
    with evaluating(model):
        network = discover(model, x)
    problem = Problem(network, bw.Gaussian(), N, Units.identity(O, x.dtype, network.device))
    rows = TensorRows(x, y, N)
    state = method.init(problem, rows, torch.Generator().manual_seed(0))
    bad = replace(state, params=state.params | {"bias": state.params["bias"] + torch.nan})
    with pytest.raises(NumericalError, match="MAP: the weights are not finite after 0 steps; lower the"):
        method.posterior(problem, bad, rows)
    huge = replace(state, params=state.params | {"bias": state.params["bias"] + 1e200})
    with pytest.raises(NumericalError, match="MAP: the residuals are not finite"):
        method.posterior(problem, huge, rows)


@pytest.mark.parametrize("members", [None, 2])
def test_parameters_without_a_gradient_stay_as_they_are(members, tmp_path):
    x, y = regression()
    if members is not None:
        x, y = torch.stack([x, x.flip(1)]), torch.stack([y, -y])
    lead = () if members is None else (members,)
    model = nn.Sequential(nn.Linear(I, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, O)).double()
    model[0].requires_grad_(False), model[1].bias.requires_grad_(False)
    before = state(model)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.MAP(steps=5), members=members, **QUIET)
    params = posterior.sample(1)
    assert set(params) == set(before)
    for name, value in before.items():
        same = torch.equal(params[name][0], value.expand(*lead, *value.shape))
        assert same == (name in ("0.weight", "0.bias", "1.bias")), name
    assert "35 weights" in posterior.summary() and "56 weights require no gradient" in posterior.summary()
    assert "0.weight, 0.bias, 1.bias" in posterior.summary()
    assert not model[0].weight.requires_grad and model[3].weight.requires_grad
    mean = posterior.predict(x).mean
    posterior.save(tmp_path / "saved")
    with torch.no_grad():
        model[0].weight.add_(100)  # the posterior has its own
    assert torch.equal(posterior.predict(x).mean, mean)
    assert torch.equal(bw.load(tmp_path / "saved", model).predict(x).mean, mean)


def test_frozen_features_give_the_ridge_solution_on_them():
    x, y = regression()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(I, I), nn.Tanh(), nn.Linear(I, O)).double()
    model[0].requires_grad_(False)
    method = bw.MAP(bw.Cosine(0.2), precision=2.0, steps=600)
    posterior = bw.fit(model, (x, y), bw.Gaussian(0.25), method, standardise=False, **QUIET)
    exact = ridge(model[:2](x).detach(), y, 0.25 * 2.0)
    torch.testing.assert_close(posterior.sample(1)["2.weight"][0].T, exact[:-1], rtol=0, atol=1e-3)


def test_a_model_with_nothing_to_train_is_refused():
    model = nn.Linear(I, O).double().requires_grad_(False)
    with pytest.raises(ValueError, match="MAP: no parameter of the model requires a gradient"):
        bw.fit(model, regression(), bw.Gaussian(), bw.MAP(steps=2), **QUIET)


def test_the_noise_weighs_batches_by_their_rows_whatever_the_shape_of_a_row():
    x, y = regression()
    model = nn.Sequential(nn.Flatten(), nn.Linear(I, O)).double()
    images = x[:, None, :, None]  # (N, 1, I, 1): the last batch has 7 of 40 rows
    posterior = bw.fit(model, (images, y), bw.Gaussian(), bw.MAP(steps=20), batch_size=11, **QUIET)
    residual = y - posterior.predict(images).mean
    expected = residual.T @ residual / N + 1e-6 * torch.diag(y.var(0, correction=0))
    torch.testing.assert_close(posterior.likelihood(posterior.draw(1)).noise, expected, rtol=1e-9, atol=1e-12)
