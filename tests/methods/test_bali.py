"""BALI against answers that are known exactly, and the behaviour that its documentation promises."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.distributions import MatrixNormal, RegressionStats
from bayeswise.linalg import NumericalWarning
from bayeswise.methods.accounts import evidence
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.networks import discover, evaluating
from bayeswise.problem import Problem, Units
from bayeswise.randomness import derived_seed
from bayeswise.saving import flatten
from bayeswise.training import train
from bayeswise.weights import Layerwise

B, I, O, N = 7, 5, 3, 40  # noqa: E741
QUIET = dict(progress=False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(*sizes: int, seed: int = 0, bias: bool = True, activation=nn.Tanh) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
        return nn.Sequential(*layers[:-1]).double()


def regression(n: int = N, outputs: int = O, seed: int = 1) -> tuple[Tensor, Tensor]:
    x = random(n, I, seed=seed)
    weights = random(I, outputs, seed=seed + 1)
    return x, (x @ weights).sin() + 0.1 * random(n, outputs, seed=seed + 2)


def problem_of(model: nn.Module, x: Tensor, likelihood, members: int | None = None) -> Problem:
    with evaluating(model):
        network = discover(model, x if members is None else x[0])
    units = Units.identity(network.outputs, network.dtype, network.device)
    return Problem(network, likelihood, x.shape[-2], units, members)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --------------------------------------------------------------------------------------- exact answers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("effective", [1.0, 0.25])
def test_one_linear_layer_is_the_exact_posterior_of_the_standardised_data(bias: bool, effective: float):
    x, y = regression()
    y = 3 * y + 5
    prior = 2.5
    method = bw.BALI(steps=1, effective=effective, prior=bw.Isotropic(prior), noise_floor=1e-3, dof=4.0)
    posterior = bw.fit(mlp(I, O, bias=bias), (x, y), bw.Gaussian(), method, **QUIET)
    weights = posterior.weights
    assert isinstance(weights, Layerwise)
    q = weights.layers["0"]

    mean, std = y.mean(0), y.std(0, correction=0)
    t = (y - mean) / std
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1) if bias else x
    precision = torch.eye(rows.shape[1], dtype=x.dtype) / prior + effective * rows.T @ rows
    m = torch.linalg.solve(precision, effective * rows.T @ t)
    n_eff = effective * N
    u = 1e-3 * n_eff * torch.eye(O, dtype=x.dtype) + effective * t.T @ t - m.T @ precision @ m
    close(q.mean, m, 1e-10)
    close(q.precision_factor @ q.precision_factor.T, precision, 1e-10)
    close(q.scale, u, 1e-10)
    assert float(q.dof) == pytest.approx(4 + n_eff, abs=1e-12)
    noise = u / (4 + n_eff + O + 1)
    close(q.noise, noise, 1e-10)

    new = random(B, I, seed=9)
    new_rows = torch.cat([new, torch.ones(B, 1, dtype=x.dtype)], 1) if bias else new
    spread = (new_rows @ torch.linalg.inv(precision) * new_rows).sum(1)  # x R xᵀ
    variance = (1 + spread)[:, None] * noise.diagonal() * std**2
    predictive = posterior.predict(new, 4000)
    error = 5 * (variance / 4000).sqrt()
    assert ((predictive.mean - (new_rows @ m * std + mean)).abs() < error).all()
    close(predictive.std, variance.sqrt(), 0.05)
    close(predictive.aleatoric, (noise.diagonal().sqrt() * std).expand(B, O), 1e-10)


def test_batches_of_a_constant_rate_are_a_weighted_sum_of_rows():
    """After t steps the statistics are the bias-corrected average over the batches that were seen."""
    x, y = regression()
    rate, seen = 0.3, []
    method = bw.BALI(steps=6, update_rate=bw.Constant(rate))
    problem = problem_of(mlp(I, O), x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state = method.init(problem, TensorRows(x, y, B), rng)
    for step in range(6):
        rows = slice(step * 5, step * 5 + B)
        seen.append(torch.cat([x[rows], torch.ones(B, 1, dtype=x.dtype), y[rows]], 1))
        state, _ = method.step(problem, state, (x[rows], y[rows]), rng)
    shares = [rate * (1 - rate) ** (5 - s) / (1 - (1 - rate) ** 6) for s in range(6)]
    expected = sum(w * (N / B) * b.T @ b for w, b in zip(shares, seen, strict=True))
    close(state.layers["0"].data.joint, expected, 1e-12)
    assert float(state.layers["0"].data.n) == pytest.approx(N, rel=1e-12)


@pytest.mark.parametrize("schedule", [bw.Cosine(0.3), bw.StepDecay(0.5), bw.Constant(0.1)])
def test_the_bias_correction_of_a_decaying_rate(schedule):
    x, y = regression()
    method = bw.BALI(steps=20, update_rate=schedule)
    problem = problem_of(mlp(I, 4, O), x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state, left = method.init(problem, TensorRows(x, y, N), rng), 1.0
    for t in range(20):
        state, info = method.step(problem, state, (x, y), rng)
        left *= 1 - schedule(t, 20)
        assert float(state.bias) == pytest.approx(1 - left, rel=1e-12)
        assert info.details()["rate"] == pytest.approx(schedule(t, 20) / (1 - left), rel=1e-12)


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Categorical()])
def test_the_direct_mean_update_agrees_with_the_natural_one(likelihood):
    x, y = regression(n=60)
    y = y if isinstance(likelihood, bw.Gaussian) else y.argmax(1)
    natural = bw.BALI(steps=50, update_rate=bw.StepDecay(0.5), effective=0.5)
    fits = [
        bw.fit(mlp(I, 4, O), (x, y), likelihood, method, batch_size=20, **QUIET).weights
        for method in (natural, replace(natural, update=MeanUpdate()))
    ]
    for name, q in fits[0].layers.items():
        close(fits[1].layers[name].mean, q.mean, 1e-9)
        close(fits[1].layers[name].noise, q.noise, 1e-9)


def test_targets_of_a_hidden_layer():
    """y = z + α g / sqrt(mean g²), read back from the statistics of the first step."""
    x, y = regression()
    model = mlp(I, 4, O)
    method = bw.BALI(steps=1, step_size=0.7, start="model")
    problem = problem_of(model, x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state, _ = method.step(problem, method.init(problem, TensorRows(x, y, N), rng), (x, y), rng)
    z = model[0](x).detach().requires_grad_()
    (g,) = torch.autograd.grad(-0.5 * (y - model[2](z.tanh())).square().sum(), [z])  # Σ = I at the start
    target = z.detach() + 0.7 * g / g.square().mean(0).sqrt()
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype), target], 1)
    close(state.layers["0"].data.joint, rows.T @ rows, 1e-11)
    close(state.layers["0"].gg, g.square().mean(0), 1e-12)
    hidden = torch.cat([z.detach().tanh(), torch.ones(N, 1, dtype=x.dtype), y], 1)  # the last: true targets
    close(state.layers["2"].data.joint, hidden.T @ hidden, 1e-11)


def test_a_dead_unit_keeps_its_output():
    x, y = regression()
    model = mlp(I, 4, O, activation=nn.ReLU)
    with torch.no_grad():
        model[0].bias[1] = -100.0
    method = bw.BALI(steps=1, start="model")
    problem = problem_of(model, x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state, _ = method.step(problem, method.init(problem, TensorRows(x, y, N), rng), (x, y), rng)
    layer = state.layers["0"]
    assert float(layer.gg[1]) == 0 and (layer.gg[[0, 2, 3]] > 0).all()
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    close(layer.data.xy[:, 1], rows.T @ model[0](x)[:, 1].detach(), 1e-10)
    assert layer.data.joint.isfinite().all()
    for _ in range(5):
        state, _ = method.step(problem, state, (x, y), rng)
    predictive = method.posterior(problem, state, TensorRows(x, y, N)).predict(x)
    assert predictive.mean.isfinite().all() and predictive.std.isfinite().all()


def test_a_layer_used_several_times_counts_for_n_eff_rows():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(I, I), nn.Linear(I, O)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(self.a(x).tanh()).tanh())

    x, y = regression()
    weights = bw.fit(Shared().double(), (x, y), bw.Gaussian(), bw.BALI(steps=5), **QUIET).weights
    assert [float(q.dof) for q in weights.layers.values()] == pytest.approx([N, N], rel=1e-12)


# --------------------------------------------------------------------------------------------- members


def run(problem: Problem, data: TensorRows, method: bw.BALI, start: dict[str, Tensor], steps: int):
    rng = torch.Generator().manual_seed(0)
    state = replace(method.init(problem, data, rng), start={k: v.clone() for k, v in start.items()})
    for epoch in range(steps):
        batch = next(iter(data.epoch(epoch, 7)))
        state, _ = method.step(problem, state, batch, rng)
    return state, method.posterior(problem, state, data)


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Categorical()])
@pytest.mark.parametrize("singular", [False, True])
def test_members_are_single_runs_also_beside_a_rescued_one(likelihood, singular: bool):
    members, steps = 3, 30
    x, y = regression()
    x = torch.stack([random(N, I, seed=20 + k) for k in range(members)])
    y = torch.stack([y + 0.3 * random(N, O, seed=30 + k) for k in range(members)])
    prior = bw.Isotropic(1e20 if singular else 4.0)
    if singular:  # one member has two equal columns, and a prior that does not tell them apart
        x[1, :, 3] = x[1, :, 2]
    if not isinstance(likelihood, bw.Gaussian):
        y = y.argmax(-1)
    model = mlp(I, 4, O)
    method = bw.BALI(steps=steps, first_prior=prior, prior=bw.FanIn(40.0), update_rate=bw.StepDecay(0.3))
    together = problem_of(model, x, likelihood, members)
    start = {v.name: 0.3 * random(members, v.inputs, v.outputs, seed=40) for v in together.network.layers}
    state, batched = run(together, TensorRows(x, y, 20, lead=1), method, start, steps)
    rescues = []
    for k in range(members):
        alone = problem_of(model, x[k], likelihood)
        own, single = run(
            alone, TensorRows(x[k], y[k], 20), method, {n: v[k] for n, v in start.items()}, steps
        )
        rescues.append(int(own.rescues))
        for name, q in single.weights.layers.items():
            both = batched.weights.layers[name]
            close(both.noise[k], q.noise, 1e-9)
            if not (singular and k == 1):  # the two equal columns share their weight in any proportion
                close(both.mean[k], q.mean, 1e-9)
        new = random(B, I, seed=50)
        new[:, 3] = new[:, 2] if singular else new[:, 3]
        mine = single.weights.layers["0"].mean
        rows = torch.cat([new, torch.ones(B, 1, dtype=new.dtype)], 1)
        close(rows @ batched.weights.layers["0"].mean[k], rows @ mine, 1e-9)
    assert int(state.rescues) == sum(rescues)
    assert (rescues[1] > 0) == singular and rescues[0] == rescues[2] == 0


def test_members_standardise_their_own_targets():
    x, y = regression()
    xs, ys = torch.stack([x, x]), torch.stack([y, 100 * y - 7])
    posterior = bw.fit(mlp(I, O), (xs, ys), bw.Gaussian(), bw.BALI(steps=1), members=2, **QUIET)
    predictive = posterior.predict(xs, 16)
    single = bw.fit(mlp(I, O), (x, y), bw.Gaussian(), bw.BALI(steps=1), **QUIET)
    for k, (scale, shift) in enumerate(((1, 0), (100, -7))):
        mean = posterior.weights.layers["0"].mean[k]
        close(mean, single.weights.layers["0"].mean, 1e-10)
        rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
        exact = (rows @ mean) * y.std(0, correction=0) + y.mean(0)
        assert ((predictive.mean[k] - (exact * scale + shift)).abs() < 2 * predictive.std[k]).all()
    close(predictive.aleatoric[1], 100 * predictive.aleatoric[0], 1e-10)


# ------------------------------------------------------------------------------- behaviour as documented


def accuracy(model, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(-1) == y).double().mean())


def test_one_small_step_from_a_trained_network_keeps_its_accuracy():
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(300, I, generator=rng, dtype=torch.float64)
    y = (x @ torch.randn(I, O, generator=rng, dtype=torch.float64)).sin().argmax(1)
    model = mlp(I, 16, O)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    trained = accuracy(model, x, y)
    assert trained > 0.9
    settings = dict(steps=1, step_size=0.05, prior=bw.Isotropic(1e4))
    kept = bw.fit(model, (x, y), bw.Categorical(), bw.BALI(start="model", **settings), **QUIET)
    drawn = bw.fit(model, (x, y), bw.Categorical(), bw.BALI(start="draw", **settings), **QUIET)
    assert accuracy(lambda x: kept.predict(x, 64).mean, x, y) > trained - 0.03
    assert accuracy(lambda x: drawn.predict(x, 64).mean, x, y) < 0.7


@pytest.mark.parametrize("forward", [bw.WeightNoise(), bw.LocalReparametrisation()])
@pytest.mark.parametrize("members", [None, 2])
def test_noise_of_the_forward_pass_vanishes_with_r(forward, members):
    x, y = regression()
    if members:
        x, y = torch.stack([x, x + 1]), torch.stack([y, 2 * y])
    tight, quiet = bw.Isotropic(1e-12), {}
    for prior in (tight, bw.FanIn(4.0)):
        means = []
        for way in (bw.Deterministic(), forward):
            method = bw.BALI(steps=10, prior=prior, forward=way)
            fitted = bw.fit(
                mlp(I, 4, O), (x, y), bw.Gaussian(), method, batch_size=20, members=members, **QUIET
            )
            means.append(torch.cat([q.mean.flatten() for q in fitted.weights.layers.values()]))
        quiet[prior] = float((means[0] - means[1]).norm() / means[0].norm())
    assert quiet[tight] < 1e-4 and quiet[bw.FanIn(4.0)] > 1e-3


@pytest.mark.parametrize("forward", [bw.Deterministic(), bw.WeightNoise(), bw.LocalReparametrisation()])
def test_every_forward_mode_learns(forward):
    x, y = regression(n=200, outputs=1)
    method = bw.BALI(steps=200, forward=forward)
    predictive = bw.fit(mlp(I, 30, 1), (x, y), bw.Gaussian(), method, **QUIET).predict(x)
    rmse = float((predictive.mean - y).square().mean().sqrt())
    assert rmse < 0.2 < float(y.std()), rmse
    inside = (predictive.interval(0.9)[0] <= y) & (y <= predictive.interval(0.9)[1])
    assert 0.8 < float(inside.double().mean()) <= 1.0


def test_noise_drawn_with_the_weights_is_inverse_wishart():
    x, y = regression(n=30)
    settings = dict(steps=1, dof=5.0)
    drawn = bw.fit(mlp(I, O), (x, y), bw.Gaussian(), bw.BALI(noise="drawn", **settings), **QUIET)
    q = drawn.weights.layers["0"]
    assert drawn.weights.noise() is None
    functions = drawn.draw(20_000)
    noise = drawn.likelihood(functions).noise
    assert noise.shape == (20_000, O, O)
    scale = y.std(0, correction=0)
    expected = q.scale / (q.dof - O - 1) * scale[:, None] * scale  # the mean of IW(U, u)
    close(noise.mean(0), expected, 0.02 * float(expected.diagonal().max()))
    predictive = drawn.predict(x[:B], 512)
    assert predictive.std.isfinite().all() and predictive.log_prob(y[:B]).isfinite().all()


def test_known_noise_is_not_inferred():
    x, y = regression(n=80)
    known = bw.fit(mlp(I, 8, O), (x, 10 * y), bw.Gaussian(0.01), bw.BALI(steps=50), **QUIET).predict(x[:B])
    close(known.aleatoric, torch.full((B, O), 0.1, dtype=torch.float64), 1e-12)
    inferred = bw.fit(mlp(I, 8, O), (x, 10 * y), bw.Gaussian(), bw.BALI(steps=50), **QUIET).predict(x[:B])
    assert (inferred.aleatoric > 0.5).all()  # the noise is 1, and the network is not perfect


class Skip(nn.Module):
    """No layer's output is the module's: a skip goes around the last one."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.a, self.b, self.skip = nn.Linear(I, width), nn.Linear(width, O), nn.Linear(I, O)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.b(self.a(x).tanh())


def test_noise_by_residuals_where_no_layer_has_it():
    rng = torch.Generator().manual_seed(4)
    x = torch.randn(600, I, generator=rng, dtype=torch.float64)
    root = torch.tensor([[0.3, 0, 0], [0.2, 0.4, 0], [0, -0.1, 0.5]], dtype=torch.float64)
    signal = x @ torch.randn(I, O, generator=rng, dtype=torch.float64)
    y = signal + torch.randn(600, O, generator=rng, dtype=torch.float64) @ root.T
    posterior = bw.fit(Skip().double(), (x, y), bw.Gaussian(), bw.BALI(steps=400), **QUIET)
    assert posterior.problem.network.output_layer is None
    assert "noise by residuals" in posterior.summary()
    noise = posterior.likelihood(posterior.draw(1)).noise
    close(noise, root @ root.T, 0.05)
    predictive = posterior.predict(x)
    assert float((predictive.mean - signal).square().mean().sqrt()) < 0.25
    drawn = bw.fit(Skip().double(), (x, y), bw.Gaussian(), bw.BALI(steps=50, noise="drawn"), **QUIET)
    assert drawn.predict(x[:B], 64).std.isfinite().all()


def test_the_residual_noise_is_the_average_of_residuals():
    x, y = regression()
    model = Skip().double()
    method = bw.BALI(steps=1, start="model", noise_floor=0.01)
    problem = problem_of(model, x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state, _ = method.step(problem, method.init(problem, TensorRows(x, y, N), rng), (x, y), rng)
    r = (y - model(x)).detach()
    expected = (0.01 * N * torch.eye(O, dtype=x.dtype) + r.T @ r) / (N + O + 1)
    close(method.posterior(problem, state, TensorRows(x, y, N)).weights.noise(), expected, 1e-12)


def test_categorical_learns_and_is_calibrated_away_from_the_data():
    rng = torch.Generator().manual_seed(5)
    centres = torch.tensor([[2.0, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 2, 0, 0]], dtype=torch.float64)
    y = torch.arange(150) % O
    x = centres[y] + 0.3 * torch.randn(150, I, generator=rng, dtype=torch.float64)
    posterior = bw.fit(mlp(I, 12, O), (x, y), bw.Categorical(), bw.BALI(steps=100), **QUIET)
    predictive = posterior.predict(x)
    assert (predictive.mean.argmax(1) == y).all() and float(predictive.log_prob(y).mean()) > -0.1
    far = posterior.predict(5 * torch.randn(150, I, generator=rng, dtype=torch.float64))
    assert float(far.epistemic.mean()) > 5 * float(predictive.epistemic.mean())


def test_bernoulli_learns_one_and_several_outputs():
    x, _ = regression(n=150)
    for outputs in (1, 2):
        y = (x[:, :outputs] + x[:, 2:3] > 0).double()
        predictive = bw.fit(mlp(I, 12, outputs), (x, y), bw.Bernoulli(), bw.BALI(steps=100), **QUIET).predict(
            x
        )
        assert ((predictive.mean > 0.5) == (y > 0.5)).double().mean() > 0.93


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Categorical()])
def test_layers_without_bias_have_no_column_of_ones(likelihood):
    x, y = regression()
    y = y if isinstance(likelihood, bw.Gaussian) else y.argmax(1)
    posterior = bw.fit(mlp(I, 4, O, bias=False), (x, y), likelihood, bw.BALI(steps=10), **QUIET)
    assert [q.inputs for q in posterior.weights.layers.values()] == [I, 4]
    variance = posterior.problem.is_regression and 40 or 10
    view = posterior.problem.network.layers[0]
    given = bw.BALI(prior=bw.FanIn(3.0)).layer_prior(posterior.problem, view)
    assert given.variance == pytest.approx(3.0 / I)
    assert bw.BALI().layer_prior(posterior.problem, view).variance == variance


# ------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(("n", "expected"), [(999, 1.0), (1000, 0.25), (5000, 0.25)])
def test_the_default_rule_for_n_eff(n: int, expected: float):
    problem = replace(problem_of(mlp(I, O), random(B, I), bw.Gaussian()), n=n)
    assert bw.BALI().fraction(problem) == expected
    assert bw.BALI(effective=0.1).fraction(problem) == 0.1


def test_every_layer_has_the_prior_it_was_given():
    x = random(B, I)
    first, last, other = bw.Isotropic(1.0), bw.FanIn(2.0), bw.FanIn(8.0)
    method = bw.BALI(prior=other, first_prior=first, last_prior=last, noise_floor=0.1, hidden_noise_floor=0.2)
    problem = problem_of(mlp(I, 4, 6, O), x, bw.Gaussian())
    priors = [method.layer_prior(problem, view) for view in problem.network.layers]
    assert [p.variance for p in priors] == [1.0, 8.0 / 5, 2.0 / 7]
    assert [p.scale for p in priors] == pytest.approx([0.2 * B, 0.2 * B, 0.1 * B])
    default = [bw.BALI().layer_prior(problem, view).variance for view in problem.network.layers]
    assert default == pytest.approx([40, 40 / 5, 40 / 7])
    classes = problem_of(mlp(I, 4, 6, O), x, bw.Categorical())
    default = [bw.BALI().layer_prior(classes, view).variance for view in classes.network.layers]
    assert default == pytest.approx([10, 10 / 5, 10 / 7])
    wide = problem_of(mlp(16, 4, O), random(B, 16), bw.Gaussian())  # with the column of ones 17 inputs
    assert bw.BALI().layer_prior(wide, wide.network.layers[0]).variance == 40 / 17


def test_starting_weights_have_the_scale_of_the_inputs():
    problem = problem_of(mlp(I, 200, 300), random(B, I), bw.Gaussian())
    method = bw.BALI(initial_scale=2.0, first_prior=bw.Isotropic(3.0))
    start = method.init(
        problem, TensorRows(random(B, I), random(B, 300), B), torch.Generator().manual_seed(0)
    ).start
    assert float(start["0"].std()) == pytest.approx(2.0 / 6**0.5, rel=0.1)  # whatever the prior
    assert float(start["2"].std()) == pytest.approx(2.0 / 201**0.5, rel=0.02)
    method = replace(method, first_initial_scale=5.0)
    start = method.init(
        problem, TensorRows(random(B, I), random(B, 300), B), torch.Generator().manual_seed(0)
    ).start
    assert float(start["0"].std()) == pytest.approx(5.0 / 6**0.5, rel=0.1)
    assert float(start["2"].std()) == pytest.approx(2.0 / 201**0.5, rel=0.02)


def test_rescues_are_counted_and_said():
    x, y = regression()
    x[:, 3] = x[:, 2]
    method = bw.BALI(steps=5, prior=bw.Isotropic(1e25))
    with pytest.warns(NumericalWarning, match="factorisations needed jitter"):
        posterior = bw.fit(mlp(I, O), (x, y), bw.Gaussian(), method, **QUIET)
    assert "needed jitter" in posterior.summary()
    assert posterior.predict(x).std.isfinite().all()
    with pytest.warns(NumericalWarning):  # also where only the last factorisation needed it
        bw.fit(mlp(I, O), (x, y), bw.Gaussian(), replace(method, steps=1), **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bw.fit(mlp(I, O), (x, y), bw.Gaussian(), replace(method, prior=None), **QUIET)


def test_info_has_evidence_with_the_smallest_proper_prior():
    x, y = regression()
    method = bw.BALI(steps=2)  # u0 = 0 is improper
    problem = problem_of(mlp(I, O), x, bw.Gaussian())
    rng = torch.Generator().manual_seed(0)
    state = method.init(problem, TensorRows(x, y, N), rng)
    state, info = method.step(problem, state, (x, y), rng)
    assert "evidence/0" not in info.details()  # there is no posterior yet
    _, info = method.step(problem, state, (x, y), rng)
    details = info.details()

    from bayeswise.distributions import MatrixNormalInverseWishart, RegressionStats

    prior = RegressionStats.prior(40.0, 1e-4 * N * torch.eye(O, dtype=x.dtype), float(O), I + 1)
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    posterior = MatrixNormalInverseWishart.from_stats(prior + RegressionStats.of(rows, y))
    exact = posterior.log_evidence(MatrixNormalInverseWishart.from_stats(prior))
    assert details["evidence/0"] == pytest.approx(float(exact), rel=1e-10)
    assert details["condition/0"] >= 1 and details["rescues"] == 0


def test_single_and_double_precision_agree():
    x, y = regression(n=80)
    method = bw.BALI(steps=60)
    problem = problem_of(mlp(I, 10, O), x, bw.Gaussian())
    start = method.init(problem, TensorRows(x, y, N), torch.Generator().manual_seed(0)).start
    model = mlp(I, 10, O)
    with torch.no_grad():
        model[0].weight.copy_(start["0"][:-1].T), model[0].bias.copy_(start["0"][-1])
        model[2].weight.copy_(start["2"][:-1].T), model[2].bias.copy_(start["2"][-1])
    own = replace(method, start="model")
    settings = dict(standardise=True, **QUIET)
    double = bw.fit(model, (x, y), bw.Gaussian(), own, **settings).predict(x)
    single = bw.fit(model.float(), (x.float(), y.float()), bw.Gaussian(), own, **settings).predict(x)
    assert single.mean.dtype == torch.float32 and double.mean.dtype == torch.float64
    close(single.aleatoric.double(), double.aleatoric, 1e-3)
    gap = (single.mean.double() - double.mean).square().mean().sqrt()
    assert float(gap) < 0.1 * float(double.std.mean())


def test_predictions_follow_the_units_of_the_targets():
    x, y = regression(n=80)
    method = bw.BALI(steps=40)
    plain = bw.fit(mlp(I, 10, O), (x, y), bw.Gaussian(), method, **QUIET).predict(x)
    scale = torch.tensor([1e3, 1e-3, 7.0], dtype=x.dtype)
    shift = torch.tensor([5e3, -2.0, 0.3], dtype=x.dtype)
    moved = bw.fit(mlp(I, 10, O), (x, y * scale + shift), bw.Gaussian(), method, **QUIET).predict(x)
    close((moved.mean - shift) / scale, plain.mean, 1e-6)
    close(moved.std / scale, plain.std, 1e-6)
    close(moved.log_prob(y * scale + shift) + scale.log().sum(), plain.log_prob(y), 1e-5)


def test_the_summary_says_what_was_inferred():
    x, y = regression()
    summary = bw.fit(mlp(I, 4, O), (x, y), bw.Gaussian(), bw.BALI(steps=3), **QUIET).summary()
    assert "3 steps, 40 rows counted as 40" in summary
    assert 'layer "0": 6 x 4' in summary and 'layer "2" is the output' in summary


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(step_size=0.0), "step_size"),
        (dict(steps=0), "steps"),
        (dict(noise_floor=-1.0), "noise_floor"),
        (dict(effective=0.0), "effective"),
        (dict(dof=-1.0), "u0"),
        (dict(start="warm"), "start"),
        (dict(noise="median"), "noise"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict, message: str):
    with pytest.raises(ValueError, match=f"BALI: .*{message}"):
        bw.BALI(**settings)


@pytest.mark.parametrize("rows", [B, 4 * B])  # too few to be parted, and enough
def test_a_model_without_linear_layers_is_refused(rows):
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(I)).double()
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="no layer to infer"):
        bw.fit(model, (random(rows, I), random(rows, I)), bw.Gaussian(), **QUIET)


def test_no_posterior_before_the_first_step():
    x, y = regression()
    method, problem = bw.BALI(), problem_of(mlp(I, O), x, bw.Gaussian())
    data = TensorRows(x, y, N)
    with pytest.raises(ValueError, match="no step yet"):
        method.posterior(problem, method.init(problem, data, torch.Generator()), data)


@pytest.mark.parametrize("forward", [bw.Deterministic(), bw.WeightNoise()])
def test_training_by_hand_is_training_by_the_loop(forward):
    x, y = regression()
    rows, method = TensorRows(x, y, 16), bw.BALI(steps=5, forward=forward)  # 2 batches in an epoch
    problem, seed = problem_of(mlp(I, 4, O), x, bw.Gaussian()), 3
    rng = torch.Generator().manual_seed(derived_seed(seed, 1))
    state = method.init(problem, rows, rng)
    batches = [batch for epoch in range(3) for batch in rows.epoch(epoch, derived_seed(seed, 2))]
    for batch in batches[:5]:
        state, _ = method.step(problem, state, batch, rng)
    looped = flatten(train(method, problem, rows, seed=seed, progress=False))
    assert len(batches) == 6 and int(looped["step"]) == 5
    assert all(torch.equal(value, looped[name]) for name, value in flatten(state).items())


@pytest.mark.parametrize("variance", [0.01, 1.0, 100.0])
def test_known_noise_gives_the_posterior_of_a_known_covariance(variance):
    """One linear layer and a known Σ: eq. 10 and 11, whatever the residuals say."""
    x, y = regression()
    method = bw.BALI(steps=1, effective=1.0, prior=bw.Isotropic(2.0))
    posterior = bw.fit(
        nn.Linear(I, O).double(), (x, y), bw.Gaussian(variance), method, standardise=False, **QUIET
    )
    rows = torch.cat([x, torch.ones(N, 1, dtype=x.dtype)], 1)
    prior = RegressionStats.prior(2.0, torch.eye(O, dtype=x.dtype), 0.0, I + 1)
    noise = variance * torch.eye(O, dtype=x.dtype)
    exact = MatrixNormal.from_stats(prior + RegressionStats.of(rows, y), noise)
    layer = posterior.weights.layers[""]
    close(layer.mean, exact.mean, 1e-9)
    close(layer.noise, noise, 1e-9)
    predictive = posterior.predict(x, n=4000)
    spread = torch.linalg.solve_triangular(exact.precision_factor, rows.T, upper=False).square().sum(0)
    expected = (variance * spread).sqrt()[:, None].expand(N, O)
    torch.testing.assert_close(predictive.epistemic, expected, rtol=0.08, atol=0)
    close(predictive.aleatoric, torch.full((N, O), variance**0.5, dtype=x.dtype), 1e-9)


def test_drawn_noise_enters_the_passes_too():
    x, y = regression()
    factors = []
    for noise in ("mode", "drawn"):
        method = bw.BALI(steps=5, forward=bw.WeightNoise(), noise=noise)
        weights = bw.fit(mlp(I, 4, O), (x, y), bw.Gaussian(), method, **QUIET).weights
        factors.append(weights.layers["0"].factor)
    assert not torch.allclose(*factors)


# ---------------------------------------------------------------------------------------- convolutions


def cnn(outputs: int = O, seed: int = 0, activation=nn.Tanh) -> nn.Sequential:
    """For images of one channel, 8 x 8; its second convolution has two groups."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first = nn.Conv2d(1, 4, 3, stride=2, padding=1), activation()  # 4 x 4 positions
        second = nn.Conv2d(4, 6, 3, groups=2), activation()  # 2 x 2
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(24, outputs)).double()


def images(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    """8 x 8 images with a bar across or upright somewhere in noise, and which of the two it is."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = 0.5 * torch.randn(n, 1, 8, 8, generator=rng, dtype=torch.float64)
    for image, upright, at in zip(x[:, 0], y, torch.randint(8, (n,), generator=rng), strict=True):
        (image.mT if upright else image)[at] += 1.5
    return x, y


def grouped_rows(x: Tensor) -> Tensor:
    """The rows (G, R, I) of the grouped convolution by torch's own unfold, in two halves."""
    halves = (nn.functional.unfold(half, 3).mT.flatten(0, 1) for half in x.chunk(2, 1))
    return torch.stack([torch.cat([rows, torch.ones(len(rows), 1, dtype=x.dtype)], 1) for rows in halves])


def test_one_step_of_a_grouped_convolution_by_hand():
    """Two regressions whose rows are the positions of all images, together worth N_eff rows."""
    x, y = images(B)
    model, n_eff = cnn(2), 0.5 * B
    method = bw.BALI(steps=2, step_size=0.7, start="model", effective=0.5, prior=bw.Isotropic(2.5))
    problem = replace(problem_of(model, x, bw.Categorical()), n=B)
    rng, data = torch.Generator().manual_seed(0), TensorRows(x, y, B)
    state, _ = method.step(problem, method.init(problem, data, rng), (x, y), rng)

    h = model[1](model[0](x)).detach()
    z = model[2](h).detach().requires_grad_()
    (g,) = torch.autograd.grad(-nn.functional.cross_entropy(model[3:](z), y, reduction="sum"), [z])
    z, g = (t.detach().unflatten(1, (2, 3)).flatten(3).permute(1, 0, 3, 2).flatten(1, 2) for t in (z, g))
    target = z + 0.7 * g / g.square().mean(1, keepdim=True).sqrt()  # (2, B·4, 3)
    rows = grouped_rows(h)
    weight = n_eff / (B * 4)
    precision = torch.eye(19, dtype=x.dtype) / 2.5 + weight * rows.mT @ rows
    mean = torch.linalg.solve(precision, weight * rows.mT @ target)
    scale = 1e-4 * n_eff * torch.eye(3, dtype=x.dtype)
    scale = scale + weight * target.mT @ target - mean.mT @ precision @ mean

    q = method.posterior(problem, state, data).weights.layers["2"]
    close(state.layers["2"].gg, g.square().mean(1), 1e-12)
    close(q.precision_factor @ q.precision_factor.mT, precision, 1e-11)
    close(q.mean, mean, 1e-11)
    close(q.scale, scale, 1e-11)
    close(q.dof, torch.full((2,), n_eff, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("forward", [bw.Deterministic(), bw.WeightNoise(), bw.LocalReparametrisation()])
@pytest.mark.parametrize("noise", ["mode", "drawn"])
@pytest.mark.parametrize("members", [None, 2])
def test_a_grouped_convolution_trains_and_is_saved(forward, noise, members, tmp_path):
    x, y = images()
    if members:
        x, y = torch.stack([x, x.flip(-1)]), torch.stack([y, 1 - y])
    method = bw.BALI(steps=5, forward=forward, noise=noise)
    model = cnn(2)
    posterior = bw.fit(model, (x, y), bw.Categorical(), method, batch_size=20, members=members, **QUIET)
    assert all(q.factor.isfinite().all() for q in posterior.weights.layers.values())
    assert 'layer "2": 2 x 19 x 3' in posterior.summary()
    posterior.save(tmp_path / "m")
    loaded = bw.load(tmp_path / "m", cnn(2, seed=1))
    drawn, again = posterior.draw(11)(x), loaded.draw(11)(x)
    assert torch.equal(drawn, again) and drawn.isfinite().all()
    assert drawn.shape == (11, *x.shape[:-3], 2) and float(drawn.std(0).min()) > 0


def test_members_of_a_convolutional_network_are_single_runs():
    x, y = images()
    xs, ys, steps = torch.stack([x, x.flip(-2) + 0.1]), torch.stack([y, 1 - y]), 10
    method = bw.BALI(steps=steps)
    with evaluating(model := cnn(2)):
        network = discover(model, x)
    units = Units.identity(2, network.dtype, network.device)
    together = Problem(network, bw.Categorical(), N, units, 2)
    start = {v.name: 0.3 * random(2, *v.groups, v.inputs, v.outputs, seed=40) for v in network.layers}
    _, batched = run(together, TensorRows(xs, ys, 20, lead=1), method, start, steps)
    for k in range(2):
        alone, own = replace(together, members=None), {name: w[k] for name, w in start.items()}
        _, single = run(alone, TensorRows(xs[k], ys[k], 20), method, own, steps)
        for name, q in single.weights.layers.items():
            close(batched.weights.layers[name].mean[k], q.mean, 1e-9)
            close(batched.weights.layers[name].noise[k], q.noise, 1e-9)


def test_the_mean_update_of_a_convolution_agrees_with_the_natural_one():
    natural = bw.BALI(steps=20, update_rate=bw.StepDecay(0.5), effective=0.5)
    fits = [
        bw.fit(cnn(2), images(), bw.Categorical(), method, batch_size=20, **QUIET).weights
        for method in (natural, replace(natural, update=MeanUpdate()))
    ]
    for name, q in fits[0].layers.items():
        close(fits[1].layers[name].mean, q.mean, 1e-9)


def test_the_evidence_of_groups_is_their_sum():
    x, y = images()
    method, problem = bw.BALI(steps=3), replace(problem_of(cnn(2), x, bw.Categorical()), n=N)
    rng = torch.Generator().manual_seed(0)
    state = method.init(problem, TensorRows(x, y, N), rng)
    for _ in range(2):
        state, info = method.step(problem, state, (x, y), rng)
    posterior = method.posterior(problem, state, TensorRows(x, y, N)).weights.layers["2"]
    view = next(v for v in problem.network.layers if v.name == "2")
    each = [
        replace(posterior, factor=posterior.factor[g], dof=posterior.dof[g], jitter=posterior.jitter[g])
        for g in range(2)
    ]
    _, info = method.step(problem, state, (x, y), rng)
    prior = method.layer_prior(problem, view)
    parts = sum(float(evidence(prior, q, view.name)) for q in each)
    assert info.details()["evidence/2"] == pytest.approx(parts, rel=1e-10)


def test_a_regression_on_images_has_the_noise_of_its_last_layer():
    x, _ = images(200)
    y = x.mean((1, 2, 3))[:, None] * 5 + 0.1 * random(200, 1, seed=9)
    posterior = bw.fit(cnn(1), (x, y), bw.Gaussian(), bw.BALI(steps=60), **QUIET)
    assert 'layer "5" is the output' in posterior.summary()
    rmse = float((posterior.predict(x).mean - y).square().mean().sqrt())
    assert rmse < 0.5 * float(y.std()), (rmse, float(y.std()))


def test_bars_are_told_apart():
    x, y = images(200)
    new_x, new_y = images(200, seed=2)
    model = cnn(2, activation=nn.ReLU)
    posterior = bw.fit(model, (x, y), bw.Categorical(), bw.BALI(steps=150), batch_size=100, **QUIET)
    predictive = posterior.predict(new_x, 64)
    found = float((predictive.mean.argmax(-1) == new_y).double().mean())
    assert found > 0.95, found
    assert float(-predictive.log_prob(new_y).mean()) < 0.2


def test_what_has_no_view_stays_fixed_and_is_named():
    x, y = images()
    up = nn.Sequential(
        nn.ConvTranspose2d(1, 1, 2), nn.Conv2d(1, 2, 5), nn.Flatten(), nn.Linear(50, 2)
    ).double()
    with pytest.warns(UserWarning, match="stay as they are: 0.weight, 0.bias$"):
        posterior = bw.fit(up, (x, y), bw.Categorical(), bw.BALI(steps=2), **QUIET)
    assert list(posterior.weights.layers) == ["1", "3"]


@pytest.mark.parametrize("members", [None, 3])
def test_groups_of_the_first_layer_are_no_members(members):
    x, y = images()
    x = torch.cat([x, -x], 1)
    if members:
        x, y = x.expand(members, *x.shape), y.expand(members, N)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2)).double()
    method = bw.BALI(steps=3, forward=bw.LocalReparametrisation())
    posterior = bw.fit(model, (x, y), bw.Categorical(), method, members=members, **QUIET)
    lead = (members,) if members else ()
    assert posterior.weights.layers["0"].mean.shape == (*lead, 2, 10, 2)
    assert posterior.predict(x, 11).mean.isfinite().all()
