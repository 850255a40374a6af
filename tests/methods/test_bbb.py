"""Bayes by Backprop: the exact mean-field optimum of a linear model, and both forms of the forward pass."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.gradient import outputs
from bayeswise.networks import discover, evaluating, noise_keys
from bayeswise.priors import ScaleMixture
from bayeswise.problem import Problem, Units
from bayeswise.weights import MeanField

B, I, O, N, S = 7, 5, 3, 40, 11  # noqa: E741
QUIET = dict(progress=False)
FORMS = [bw.LocalReparametrisation(), bw.WeightNoise()]


@pytest.fixture(autouse=True)
def seeded():
    """The starting weights of modules that tests build are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression(outputs: int = O) -> tuple[Tensor, Tensor]:
    x = random(N, I, seed=1)
    return x, x @ random(I, outputs, seed=2) + 0.5 * random(N, outputs, seed=3)


def mlp(*middle: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(I, 4), *middle, nn.Tanh(), nn.Linear(4, O)).double()


def problem_of(model: nn.Module, x: Tensor, likelihood=None, members: int | None = None) -> Problem:
    with evaluating(model):
        network = discover(model, x if members is None else x[0])
    units = Units.identity(network.outputs, x.dtype, network.device)
    return Problem(network, likelihood or bw.Gaussian(), N, units, members)


def weights_of(posterior: bw.Posterior) -> MeanField:
    assert isinstance(posterior.weights, MeanField)
    return posterior.weights


# ---------------------------------------------------------------------------------------- the exact optimum


@pytest.mark.parametrize("kl_weight", [1.0, 0.2])
@pytest.mark.parametrize("forward", FORMS)
def test_a_linear_model_finds_the_exact_mean_field_optimum(forward, kl_weight: float):
    (x, y), noise, variance = regression(1), 0.25, 2.0
    model = nn.Linear(I, 1).double()
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    method = bw.BayesByBackprop(
        bw.Cosine(0.03), kl_weight, bw.Isotropic(variance), forward, initial_std=0.1, steps=1500
    )
    found = weights_of(bw.fit(model, (x, y), bw.Gaussian(noise), method, standardise=False, **QUIET))
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    # the bound with κ KL is that of N / κ rows: their precision is Rᵀ R / (κ σ²) + I / s²
    precision = rows.T @ rows / (kl_weight * noise) + torch.eye(I + 1, dtype=x.dtype) / variance
    mean = torch.linalg.solve(precision, rows.T @ y / (kl_weight * noise))[:, 0]
    std = precision.diagonal().rsqrt()
    got_mean = torch.cat([found.mean["weight"][0], found.mean["bias"]])
    got_std = torch.cat([found.std["weight"][0], found.std["bias"]])
    spread = noise**0.5 / N**0.5  # the noise of gradients does not shrink with κ
    assert float((got_mean - mean).abs().max()) < 0.12 * spread
    torch.testing.assert_close(got_std, std, rtol=0.08, atol=0)


def test_the_kl_weight_scales_the_divergence_by_that_over_n():
    x, y = regression()
    problem, rng = problem_of(mlp(), x, bw.Gaussian(0.25)), torch.Generator()
    moved = {}
    for kappa in (0.0, 1.0, 3.0):
        method = bw.BayesByBackprop(bw.Constant(1e-3), kappa, initial_std=0.3, steps=1)
        state = method.init(problem, TensorRows(x, y, N), rng.manual_seed(1))
        mean, std = state.params["mean"].clone(), torch.full_like(state.params["mean"], 0.3)
        state, _ = method.step(problem, state, (x, y), rng.manual_seed(2))
        first = state.averages.first
        moved[kappa] = torch.cat([first["mean"], first["rho"]]) / 0.1  # Adam's average of one gradient
    kl = torch.cat([mean, (std - 1 / std) * -math.expm1(-0.3)])  # with σ = softplus(ρ): dσ/dρ = 1 - exp(-σ)
    torch.testing.assert_close(moved[1.0] - moved[0.0], kl / N, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moved[3.0] - moved[0.0], 3 * kl / N, rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------ divergence


def test_the_gaussian_divergence_is_torchs():
    x, _ = regression()
    network = problem_of(mlp(nn.LayerNorm(4)), x).network
    size = sum(p.numel() for p in network.module.parameters())
    mean, std = random(2, size, seed=4), random(2, size, seed=5).exp()
    variance = {"0.weight": 6, "0.bias": 6, "3.weight": 5, "3.bias": 5}  # inputs, with the column of ones
    for prior, of in (
        (bw.Isotropic(0.7), lambda _: 0.7),
        (bw.FanIn(0.7), lambda n: 0.7 / variance.get(n, 1)),
    ):
        s = torch.cat([torch.full((p.numel(),), of(n) ** 0.5) for n, p in network.module.named_parameters()])
        normal = torch.distributions.Normal
        expected = torch.distributions.kl_divergence(normal(mean, std), normal(torch.zeros_like(s), s)).sum()
        found = bw.BayesByBackprop(prior=prior).divergence(network, mean, std, mean)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_the_scale_mixture_is_torchs_and_its_divergence_that_of_the_draw():
    prior, w = ScaleMixture(0.3, 2.0, 0.01), 2 * random(200)
    td = torch.distributions
    shares, stds = torch.tensor([[0.3, 0.7], [2.0, 0.01]], dtype=torch.float64)
    stds = stds.sqrt()
    mixture = td.MixtureSameFamily(td.Categorical(shares), td.Normal(torch.zeros_like(stds), stds))
    torch.testing.assert_close(prior.log_prob(w), mixture.log_prob(w), rtol=1e-10, atol=1e-12)
    mean, std = random(200, seed=1), random(200, seed=2).exp()
    network = problem_of(mlp(), regression()[0]).network
    found = bw.BayesByBackprop(prior=prior).divergence(network, mean, std, w)
    expected = (td.Normal(mean, std).log_prob(w) - mixture.log_prob(w)).sum()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


# ----------------------------------------------------------------------------------------------- two forms


def test_outputs_drawn_row_by_row_have_the_moments_of_drawn_weights():
    x, count = regression()[0][:B], 20_000
    network = problem_of(nn.Linear(I, O).double(), x).network
    mean, var = network.layer_parameters(), {"weight": random(O, I, seed=6).exp(), "bias": random(O).exp()}
    variance, noise = noise_keys("")
    values = {name: value.expand(count, *value.shape) for name, value in mean.items()}
    values[variance] = network.layers[0].matrix(var).expand(count, -1, -1)
    values[noise] = random(count, B, O, seed=7)
    f = outputs(network, values, {}, x, 1, 0)
    expected = x.square() @ var["weight"].T + var["bias"]
    std_error = (expected / count).sqrt()
    assert float(((f.mean(0) - x @ mean["weight"].T - mean["bias"]) / std_error).abs().max()) < 4.5
    assert float(((f.var(0) / expected - 1) / (2 / count) ** 0.5).abs().max()) < 4.5
    # rows by themselves
    correlation = (f[:, 0, 0] - f[:, 0, 0].mean()) @ (f[:, 1, 0] - f[:, 1, 0].mean()) / count
    assert (
        abs(float(correlation / (expected[0, 0] * expected[1, 0]).sqrt())) < 4.5 / count**0.5
    )  # rows by themselves


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_zeros_has_a_gradient(dtype: torch.dtype):
    x, y = (value.to(dtype) for value in regression())
    model = nn.Sequential(nn.Linear(I, 4, bias=False), nn.ReLU(), nn.Linear(4, O, bias=False)).to(dtype)
    posterior = bw.fit(model, (x * (x[:, :1] > 0), y), bw.Gaussian(), bw.BayesByBackprop(steps=20), **QUIET)
    assert all(bool(value.isfinite().all()) for value in weights_of(posterior).tensors().values())


@pytest.mark.parametrize("prior", [bw.Isotropic(1.0), ScaleMixture()])
def test_the_gradients_of_both_forms_agree_in_expectation(prior):
    x, y = regression()
    count, first = 3000, {}
    model = mlp(nn.LayerNorm(4))
    xs, ys = x[:B].expand(count, -1, -1), y[:B].expand(count, -1, -1)
    problem = problem_of(model, xs, bw.Gaussian(0.25), count)
    for forward in FORMS:
        method = bw.BayesByBackprop(prior=prior, forward=forward, initial_std=0.2)
        rng = torch.Generator().manual_seed(4)
        state = method.init(problem, TensorRows(xs, ys, B, 1), rng)
        state, _ = method.step(problem, state, (xs, ys), rng)
        first[type(forward)] = torch.cat([state.averages.first["mean"], state.averages.first["rho"]], -1)
    local, weight = first.values()
    error = ((local.var(0) + weight.var(0)) / count).sqrt()
    assert float(((local.mean(0) - weight.mean(0)) / error.clamp_min(1e-12)).abs().max()) < 4.5
    assert float(local.var(0).mean()) < float(weight.var(0).mean()) or isinstance(prior, ScaleMixture)


def test_what_the_local_form_does_not_cover_is_drawn_as_weights():
    x, y = regression()
    model = mlp(nn.LayerNorm(4))
    model[0].bias.requires_grad_(False)  # the first layer does not train as a whole
    method = bw.BayesByBackprop(steps=3, initial_std=0.3)
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, **QUIET)
    found, draws = weights_of(posterior), posterior.sample(S)
    assert set(found.std) == {"0.weight", "1.weight", "1.bias", "3.weight", "3.bias"}
    for name, value in draws.items():
        assert (float(value.var(0).min()) > 0) == (name in found.std), name
    assert "independent Gaussians in place of 43 weights" in posterior.summary()
    assert "4 weights require no gradient" in posterior.summary()


# ------------------------------------------------------------------------------------ noise, start, posterior


@pytest.mark.parametrize("forward", FORMS)
def test_the_noise_is_the_expected_squared_residual(forward):
    x, y = regression()
    method = bw.BayesByBackprop(bw.Cosine(0.02), prior=bw.Isotropic(1.0), forward=forward, steps=800)
    posterior = bw.fit(nn.Linear(I, O).double(), (x, y), bw.Gaussian(), method, standardise=False, **QUIET)
    f = posterior.draw(4000)(x)
    residual = (y - f).flatten(0, 1)
    expected = residual.T @ residual / len(residual)
    found = weights_of(posterior).covariance
    assert found is not None
    scale = expected.diagonal().rsqrt()
    assert float((scale[:, None] * (found - expected) * scale).abs().max()) < 0.08


def test_draws_have_the_means_and_deviations_of_the_posterior(tmp_path):
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.BayesByBackprop(steps=5, initial_std=0.2), **QUIET)
    found, draws = weights_of(posterior), posterior.sample(20_000)
    for name, value in draws.items():
        error = found.std[name] / 20_000**0.5
        assert float(((value.mean(0) - found.mean[name]) / error).abs().max()) < 4.5
        torch.testing.assert_close(value.std(0), found.std[name], rtol=0.03, atol=0)
    posterior.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", mlp())
    drawn = posterior.sample(S)
    assert all(torch.equal(value, drawn[name]) for name, value in again.sample(S).items())


@pytest.mark.parametrize("forward", FORMS)
def test_members_are_single_runs_where_their_noise_is_the_same(forward, monkeypatch):
    import bayeswise.methods.bbb as bbb

    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])

    def normal(problem: Problem, rng: torch.Generator, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=rng, dtype=torch.float64)
        return drawn.expand(*problem.lead, *shape)

    monkeypatch.setattr(bbb, "_normal", normal)
    method = bw.BayesByBackprop(forward=forward, steps=20)
    together = weights_of(bw.fit(mlp(), (xs, ys), bw.Gaussian(), method, members=2, **QUIET))
    for k in range(2):
        alone = weights_of(bw.fit(mlp(), (xs[k], ys[k]), bw.Gaussian(), method, **QUIET))
        for name, value in alone.tensors().items():
            torch.testing.assert_close(together.tensors()[name][k], value, rtol=0, atol=1e-9)


def test_means_start_from_the_model_or_from_a_draw():
    x, y = regression()
    model, rows = mlp(), TensorRows(x, y, N)
    problem = problem_of(model, x)
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    for start, same in (("model", True), ("draw", False)):
        method = bw.BayesByBackprop(start=start, initial_std=0.3)  # type: ignore[arg-type]
        state = method.init(problem, rows, torch.Generator().manual_seed(0))
        assert torch.equal(state.params["mean"], own) == same == method.starts_from_model
        std = nn.functional.softplus(state.params["rho"])
        torch.testing.assert_close(std, torch.full_like(own, 0.3), rtol=1e-12, atol=0)


def test_a_larger_kl_weight_leaves_more_uncertainty():
    x, y = regression()
    spread = []
    for kappa in (1.0, 0.01):
        method = bw.BayesByBackprop(bw.Cosine(0.03), kappa, steps=300)
        posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), method, **QUIET)
        spread.append(float(posterior.predict(3 * x, 64).epistemic.mean()))
    assert spread[0] > 2 * spread[1]


@pytest.mark.parametrize(
    "settings, error",
    [
        (dict(kl_weight=-1.0), ValueError),
        (dict(initial_std=0.0), ValueError),
        (dict(steps=0), ValueError),
        (dict(start="zero"), ValueError),
        (dict(forward=bw.Deterministic()), TypeError),
        (dict(prior=1.0), TypeError),
        (dict(prior=bw.Isotropic), TypeError),
        (dict(learning_rate=0.1), TypeError),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict, error: type):
    with pytest.raises(error, match="BayesByBackprop: "):
        replace(bw.BayesByBackprop(), **settings)


@pytest.mark.parametrize("settings", [dict(share=0.0), dict(share=1), dict(wide=0.0), dict(narrow=math.inf)])
def test_a_mixture_without_meaning_is_refused(settings: dict):
    with pytest.raises(ValueError, match="ScaleMixture: "):
        ScaleMixture(**settings)
