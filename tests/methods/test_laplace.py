"""Laplace: exact where the truth is known, and its own definition by brute force elsewhere."""

import copy
import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.networks import discover
from bayeswise.networks.curvature import backward
from bayeswise.weights import JointGaussian, LayerGaussians

B, I, O, N = 7, 5, 3, 40  # noqa: E741
STRUCTURES = {"kronecker": bw.Kronecker(), "diagonal": bw.Diagonal(), "full": bw.Full()}


def kron(a: Tensor, b: Tensor) -> Tensor:
    return torch.kron(a.contiguous(), b.contiguous())


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, I, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], -1)


def trained(likelihood, y: Tensor, x: Tensor, hidden: int = 6, steps: int = 200) -> nn.Sequential:
    """A small network at (about) the most probable weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(I, hidden), nn.Tanh(), nn.Linear(hidden, O)).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -likelihood.log_prob(model(x), y).mean() + 0.01 * sum(
            p.square().sum() for p in model.parameters()
        )
        loss.backward()
        optimiser.step()
    return model


def classes(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def fit(model, x, y, likelihood, **settings) -> Any:
    return bw.fit(model, (x, y), likelihood, bw.Laplace(**settings), batch_size=16, progress=False)


# ------------------------------------------------------------------------------- where the truth is known


@pytest.mark.parametrize("structure", ["kronecker", "full"])
def test_a_linear_model_has_the_exact_posterior_and_evidence(structure):
    """Three outputs with correlated noise: y = x W + e."""
    x = rows(N)
    noise = torch.tensor([[0.5, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 0.3]]).double()
    design, delta = with_ones(x), 0.7
    y = design @ torch.ones(I + 1, O).double() + torch.randn(N, O, dtype=torch.float64) @ noise
    precision = kron(design.T @ design, torch.linalg.inv(noise)) + delta * torch.eye((I + 1) * O).double()
    mean = torch.linalg.solve(precision, (design.T @ y @ torch.linalg.inv(noise)).flatten())
    model = nn.Linear(I, O).double()
    with torch.no_grad():
        model.weight.copy_(mean.reshape(I + 1, O)[:-1].T)
        model.bias.copy_(mean.reshape(I + 1, O)[-1])
    posterior = fit(model, x, y, bw.Gaussian(noise), structure=STRUCTURES[structure], precision=delta)

    whole = kron(torch.eye(N).double(), noise) + kron(design @ design.T, torch.eye(O).double()) / delta
    truth = torch.distributions.MultivariateNormal(torch.zeros(N * O).double(), whole).log_prob(y.flatten())
    assert float(posterior.log_evidence - truth) == pytest.approx(0, abs=1e-10 * abs(float(truth)))
    new = rows(B, 1)
    features = kron(with_ones(new), torch.eye(O).double())  # (B·O, P)
    wanted = features @ torch.linalg.inv(precision) @ features.T
    torch.testing.assert_close(posterior.function_covariance(new), wanted, rtol=1e-10, atol=1e-14)
    prediction = posterior.predict(new)
    own = torch.stack([wanted[i * O : (i + 1) * O, i * O : (i + 1) * O] for i in range(B)]) + noise
    truth = torch.distributions.MultivariateNormal(with_ones(new) @ mean.reshape(I + 1, O), own)
    torch.testing.assert_close(prediction.log_prob(y[:B]), truth.log_prob(y[:B]), rtol=1e-10, atol=0)
    torch.testing.assert_close(prediction.std, truth.stddev, rtol=1e-10, atol=0)
    torch.testing.assert_close(prediction.entropy(), truth.entropy(), rtol=1e-10, atol=0)


def test_evidence_finds_precision_and_noise_of_a_linear_model():
    """At the chosen δ and s the derivatives of log Z vanish: the neighbours are worse."""
    x, rng = rows(200), torch.Generator().manual_seed(1)
    w = torch.randn(I + 1, 1, generator=rng, dtype=torch.float64) / 2
    y = with_ones(x) @ w + 0.3 * torch.randn(200, 1, generator=rng, dtype=torch.float64)
    model = nn.Linear(I, 1).double()
    solution = torch.linalg.lstsq(with_ones(x), y).solution
    with torch.no_grad():
        model.weight.copy_(solution[:-1].T)
        model.bias.copy_(solution[-1])
    posterior = fit(model, x, y, bw.Gaussian())
    noise = posterior.weights.noise()
    assert noise is not None
    residual = (y - with_ones(x) @ solution).square().sum()
    gamma = posterior.weights.determined(0)[""]
    assert float(noise) == pytest.approx(float(residual / (200 - gamma)), rel=1e-6)
    layer = posterior.weights.layers[""]
    best = float(posterior.log_evidence)
    for factor in (0.9, 1.1):
        other = fit(model, x, y, bw.Gaussian(noise), precision=float(layer.precision) * factor)
        assert float(other.log_evidence) < best
        other = fit(model, x, y, bw.Gaussian(noise * factor), precision=float(layer.precision))
        assert float(other.log_evidence) < best


# ------------------------------------------------------------------------- its own definition by brute force


def dense_precision(posterior, network, x, structure: str, delta: dict[str, float]) -> Tensor:
    """G + δ as one matrix (P, P), from the definition."""
    params = network.layer_parameters()
    done = backward(network, params, x)
    columns = list(bw.Categorical().hessian_root(done.output))
    jac = torch.stack([done.flat(done.back(s)) for s in columns])  # (O, N, P)
    full = torch.einsum("snp,snq->pq", jac, jac)
    sizes = [v.size for v in network.layers]
    prior = torch.cat([torch.full((s,), delta[v.name]) for s, v in zip(sizes, network.layers, strict=True)])
    if structure == "full":
        return full + torch.diag(prior.double())
    if structure == "diagonal":
        return torch.diag(full.diagonal() + prior)
    blocks = []
    for view in network.layers:
        left = done.rows[view.name].T @ done.rows[view.name]
        right = torch.stack([done.back(s)[view.name] for s in columns]).flatten(0, 1)
        right = right.T @ right
        blocks.append(kron(left, right) / len(x))
    return torch.block_diag(*blocks) + torch.diag(prior.double())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_network_has_its_definition(structure):
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    delta = {"0": 0.5, "2": 2.0}
    posterior = fit(model, x, y, bw.Categorical(), structure=STRUCTURES[structure], precision=delta)
    network = posterior.problem.network
    precision = dense_precision(posterior, network, x, structure, delta)
    covariance = torch.linalg.inv(precision)
    new = rows(B, 1)
    done = backward(network, network.layer_parameters(), new)
    eye = torch.eye(O).double()
    jac = torch.stack([done.flat(done.back(e.expand(B, O))) for e in eye], 1)  # (B, O, P)
    wanted = torch.einsum("bop,pq,cdq->bocd", jac, covariance, jac)
    torch.testing.assert_close(
        posterior.function_covariance(new), wanted.reshape(B * O, B * O), rtol=1e-9, atol=1e-13
    )
    own = torch.stack([wanted[b, :, b] for b in range(B)])  # (B, O, O)
    torch.testing.assert_close(posterior.predict(new).covariance, own, rtol=1e-9, atol=1e-13)
    marginal = posterior.weights.function_variance(done, network.output_layer)
    torch.testing.assert_close(marginal, own.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-13)

    w = torch.cat([v.matrix(network.layer_parameters()).flatten() for v in network.layers])
    prior = torch.cat([torch.full((v.size,), delta[v.name]).double() for v in network.layers])
    log_lik = bw.Categorical().log_prob(model(x), y).sum()
    evidence = log_lik - 0.5 * (prior * w * w).sum() + 0.5 * prior.log().sum() - 0.5 * torch.logdet(precision)
    assert float(posterior.log_evidence) == pytest.approx(float(evidence.detach()), rel=1e-11)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_draws_have_the_stated_covariance(structure):
    """The sampler's linear map F on unit noise: F Fᵀ is the covariance, between layers too."""
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x, hidden=2)
    posterior = fit(model, x, y, bw.Categorical(), structure=STRUCTURES[structure], precision=1.5)
    network, weights = posterior.problem.network, posterior.weights
    sizes = [v.size for v in network.layers]
    total, units = sum(sizes), []
    for k in range(total):
        noise = torch.zeros(1, total, dtype=torch.float64)
        noise[0, k] = 1
        if isinstance(weights, JointGaussian):
            units.append(weights.joint.root(noise)[0])
            continue
        assert isinstance(weights, LayerGaussians)
        parts = zip(network.layers, noise.split(sizes, -1), strict=True)
        moved = [weights.layers[v.name].root(z.reshape(1, v.inputs, v.outputs)) for v, z in parts]
        units.append(torch.cat([m.flatten() for m in moved]))
    root = torch.stack(units, -1)
    wanted = torch.linalg.inv(dense_precision(posterior, network, x, structure, {"0": 1.5, "2": 1.5}))
    torch.testing.assert_close(root @ root.T, wanted, rtol=1e-9, atol=1e-12)


def test_functions_are_linear_in_the_weights_and_have_the_covariance_of_predictions():
    x = rows(N)
    y = classes(x)
    posterior = fit(trained(bw.Categorical(), y, x), x, y, bw.Categorical())
    new = rows(B, 1)
    draws = posterior.draw(20_000)(new).flatten(1)  # (S, B·O)
    wanted = posterior.function_covariance(new)
    found = torch.cov(draws.T)
    error = (wanted.diagonal()[:, None] * wanted.diagonal() + wanted**2).sqrt() / math.sqrt(20_000)
    assert float(((found - wanted).abs() / error).max()) < 5
    mean = posterior.problem.network(posterior.problem.network.layer_parameters(), new)
    spread = (draws.mean(0) - mean.flatten()).abs() / (wanted.diagonal() / 20_000).sqrt()
    assert float(spread.max()) < 5


@pytest.mark.parametrize("rank", [1, 4, 59])
def test_low_rank_is_the_best_truncation_and_the_full_one_at_full_rank(rank):
    """Of 63 weights of a network with 2 x 40 columns: all 59 others are the truncation's loss."""
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    low = fit(model, x, y, bw.Categorical(), structure=bw.LowRank(rank, passes=60), precision=0.5)
    network = low.problem.network
    zero = {"0": 0.0, "2": 0.0}
    values, vectors = torch.linalg.eigh(dense_precision(low, network, x, "full", zero))
    wanted = vectors[:, -rank:] @ torch.diag(values[-rank:]) @ vectors[:, -rank:].T
    joint = low.weights.joint
    found = joint.basis @ torch.diag(joint.eigenvalues) @ joint.basis.T
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9 * float(values[-1]))
    precision = wanted + 0.5 * torch.eye(len(wanted)).double()
    root = torch.stack([joint.root(e[None])[0] for e in torch.eye(len(wanted)).double()], -1)
    torch.testing.assert_close(root @ root.T, torch.linalg.inv(precision), rtol=1e-8, atol=1e-10)
    assert float(joint.log_det()) == pytest.approx(float(torch.logdet(precision)), rel=1e-9)
    new = rows(B, 1)
    done = backward(network, network.layer_parameters(), new)
    jac = torch.stack([done.flat(done.back(e.expand(B, O))) for e in torch.eye(O).double()], 1).flatten(0, 1)
    covariance = jac @ torch.linalg.inv(precision) @ jac.T
    torch.testing.assert_close(low.function_covariance(new), covariance, rtol=1e-8, atol=1e-10)
    if rank == 59:  # nothing of the matrix is left out
        whole = fit(model, x, y, bw.Categorical(), structure=bw.Full(), precision=0.5)
        torch.testing.assert_close(
            whole.function_covariance(new), low.function_covariance(new), rtol=1e-6, atol=1e-8
        )


def test_low_rank_wants_one_precision_and_saves(tmp_path):
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    with pytest.raises(ValueError, match="shared=True"):
        fit(model, x, y, bw.Categorical(), structure=bw.LowRank(5))
    shared = bw.Evidence(shared=True)
    posterior = fit(model, x, y, bw.Categorical(), structure=bw.LowRank(5), precision=shared)
    posterior.save(tmp_path / "saved")
    loaded = bw.load(tmp_path / "saved", model)
    assert torch.equal(loaded.draw(3)(x), posterior.draw(3)(x))
    trained_first = bw.Laplace(structure=bw.LowRank(5), precision=shared, first=bw.MAP(steps=100))
    found = bw.fit(model, (x, y), bw.Categorical(), trained_first, batch_size=16, progress=False)
    assert found.predict(x).mean.isfinite().all()
    with pytest.raises(ValueError, match="passes at least 2"):
        bw.LowRank(5, passes=1)


# --------------------------------------------------------------------------------------- what can be chosen


def test_temperature_divides_the_curvature():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    one = fit(model, x, y, bw.Categorical(), precision=1.0)
    hot = fit(model, x, y, bw.Categorical(), precision=1.0, temperature=4.0)
    for name in one.weights.layers:
        expected = one.weights.layers[name].eigenvalues / 4
        torch.testing.assert_close(hot.weights.layers[name].eigenvalues, expected, rtol=1e-12, atol=0)


def test_a_subset_leaves_the_other_layers_as_they_are():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    last = fit(model, x, y, bw.Categorical(), subset="last", precision=1.0)
    whole = fit(model, x, y, bw.Categorical(), structure=bw.Full(), precision=1.0, subset=("2",))
    assert list(last.weights.means) == list(whole.weights.means) == ["2"]
    new = rows(B, 1)
    hidden = with_ones(model[1](model[0](new))).detach()
    design = with_ones(model[1](model[0](x))).detach()
    p = model(x).detach().softmax(-1)
    hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]  # (N, O, O)
    full = (
        torch.einsum("ni,noq,nj->iojq", design, hessian, design).reshape(7 * O, 7 * O)
        + torch.eye(7 * O).double()
    )
    features = kron(hidden, torch.eye(O).double())
    wanted = features @ torch.linalg.inv(full) @ features.T
    torch.testing.assert_close(whole.function_covariance(new), wanted, rtol=1e-9, atol=1e-13)
    product = kron(design.T @ design, hessian.sum(0)) / N + torch.eye(7 * O).double()
    wanted = features @ torch.linalg.inv(product) @ features.T
    torch.testing.assert_close(last.function_covariance(new), wanted, rtol=1e-9, atol=1e-13)
    own = torch.stack([wanted[i * O : (i + 1) * O, i * O : (i + 1) * O] for i in range(B)])
    torch.testing.assert_close(last.predict(new).covariance, own, rtol=1e-9, atol=1e-13)
    assert last.draw(3)(new).shape == (3, B, O)


def test_a_bias_apart_has_no_covariance_with_its_weights():
    x = rows(N)
    y = classes(x)
    posterior = fit(
        trained(bw.Categorical(), y, x),
        x,
        y,
        bw.Categorical(),
        structure=bw.Kronecker(bias="apart"),
        precision=1.0,
    )
    layer = posterior.weights.layers["0"]
    left = layer.left @ torch.diag(layer.eigenvalues[:, -1]) @ layer.left.T
    assert float(left[-1, :-1].abs().max()) < 1e-12 * float(left.abs().max())
    with pytest.raises(ValueError, match="joint"):
        bw.Kronecker(bias="with")  # type: ignore[arg-type]


def test_without_a_bias_nothing_is_apart():
    """A standardised column has the sum of squares of a column of ones."""
    x = rows(N)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    model, y = nn.Linear(x.shape[1], 1, bias=False).double(), x.sum(1)
    with torch.no_grad():
        model.weight.fill_(0.9)
    joint, apart = (
        fit(model, x, y, bw.Gaussian(), structure=bw.Kronecker(bias=b), precision=1.0)
        for b in ("joint", "apart")
    )
    assert torch.equal(joint.function_covariance(x[:4]), apart.function_covariance(x[:4]))


class Idle(nn.Module):
    """A linear layer, and beside it two that nothing comes out of."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 2), nn.Linear(2, 1)
        for p in (*self.a.parameters(), *self.b.parameters()):
            nn.init.zeros_(p)

    def forward(self, x):
        return self.used(x) + self.b(self.a(x).relu())


@pytest.mark.parametrize("shared", [False, True])
def test_layers_of_zeros_that_nothing_reaches_do_not_spoil_the_evidence(shared: bool):
    x, model = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).double(), Idle().double()
    noise = torch.randn(30, 1, generator=torch.Generator().manual_seed(1)).double()
    y = model.used(x).detach() + 0.1 * noise
    found = fit(model, x, y, bw.Gaussian(), precision=bw.Evidence(shared=shared)).predict(x)
    assert bool(found.std.isfinite().all()) and 0.05 < float(found.aleatoric[0]) < 0.2


def test_evidence_may_be_shared_and_is_then_no_better():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    for structure in STRUCTURES.values():
        each = fit(model, x, y, bw.Categorical(), structure=structure)
        shared = fit(model, x, y, bw.Categorical(), structure=structure, precision=bw.Evidence(shared=True))
        assert float(shared.log_evidence) <= float(each.log_evidence) + 1e-9
        fixed = fit(model, x, y, bw.Categorical(), structure=structure, precision=1.0)
        assert float(fixed.log_evidence) <= float(shared.log_evidence) + 1e-9


@pytest.mark.parametrize("structure", STRUCTURES)
def test_members_equal_single_runs(structure):
    x = torch.stack([rows(N, 1), rows(N, 2)])
    y = torch.stack([classes(x[0]), classes(x[1])])
    model = nn.Sequential(nn.Linear(I, 4), nn.Tanh(), nn.Linear(4, O)).double()
    method = bw.Laplace(structure=STRUCTURES[structure], first=bw.MAP(steps=150))
    both: Any = bw.fit(model, (x, y), bw.Categorical(), method, members=2, progress=False)
    new = torch.stack([rows(B, 3), rows(B, 4)])
    together = both.predict(new)
    for k in range(2):
        one: Any = bw.fit(model, (x[k], y[k]), bw.Categorical(), method, progress=False)
        torch.testing.assert_close(
            together.covariance[k], one.predict(new[k]).covariance, rtol=1e-5, atol=1e-8
        )
        assert both.log_evidence is not None and one.log_evidence is not None
        torch.testing.assert_close(both.log_evidence[k], one.log_evidence, rtol=1e-6, atol=1e-6)


def test_batches_of_any_size_give_the_same():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    found = [
        bw.fit(model, (x, y), bw.Categorical(), bw.Laplace(), batch_size=size, progress=False).log_evidence
        for size in (1, 7, 40)
    ]
    torch.testing.assert_close(found[0], found[2], rtol=1e-12, atol=0)
    torch.testing.assert_close(found[1], found[2], rtol=1e-12, atol=0)


def test_the_noise_of_numbers_is_inferred_in_the_users_units():
    x = rows(400)
    y = 100 + 30 * (x[:, :1].tanh() + 0.2 * torch.randn(400, 1, dtype=torch.float64))
    model = nn.Sequential(nn.Linear(I, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    posterior = bw.fit(model, (x, y), bw.Gaussian(), bw.Laplace(first=bw.MAP(steps=500)), progress=False)
    prediction = posterior.predict(x)
    assert float(prediction.aleatoric.mean()) == pytest.approx(6.0, rel=0.12)
    low, high = prediction.interval(0.9)
    assert 0.85 < float(((y > low) & (y < high)).double().mean()) < 0.96
    assert float(prediction.epistemic.mean()) < float(prediction.aleatoric.mean())


# ------------------------------------------------------------------------------------------ what is refused


def test_an_untrained_model_is_refused_by_name():
    x = rows(N)
    model = nn.Sequential(nn.Linear(I, 4), nn.Tanh(), nn.Linear(4, O)).double()
    for y, likelihood in (
        (classes(x), bw.Categorical()),
        (torch.ones(N, O).double() + rows(N)[:, :O] / 10, bw.Gaussian()),
        ((torch.arange(N) > 3).double()[:, None].expand(N, O), bw.Bernoulli()),
    ):
        with pytest.raises(ValueError, match=r"not trained.*Laplace\(first=bw.MAP\(\)\)"):
            fit(model, x, y, likelihood)


def test_targets_that_are_all_alike_are_no_reason_to_refuse():
    x = rows(N)
    model = nn.Linear(I, O).double()
    with torch.no_grad():
        model.weight.zero_()
    posterior = fit(model, x, torch.zeros(N, O).double(), bw.Gaussian(0.1))
    assert posterior.predict(x).std.isfinite().all()
    posterior = fit(trained(bw.Categorical(), classes(x), x), x[:1], classes(x)[:1], bw.Categorical())
    assert posterior.predict(x).mean.isfinite().all()


@pytest.mark.filterwarnings("ignore::bayeswise.notices.PrecisionWarning")
def test_half_precision_is_computed_in_float32_in_every_subset(tmp_path):
    x = rows(N).float()
    y = classes(x)
    model = trained(bw.Categorical(), y, x.double()).to(torch.bfloat16)
    for subset in (None, "last", ("0",)):
        posterior = fit(model, x, y, bw.Categorical(), subset=subset)
        assert posterior.predict(x).mean.dtype == torch.float32
        assert posterior.draw(3)(x).isfinite().all()
        posterior.save(tmp_path / str(subset))
        loaded = bw.load(tmp_path / str(subset), model)
        assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
        assert loaded.problem.network.width == posterior.problem.network.width


def test_bad_settings_name_the_remedy():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    with pytest.raises(ValueError, match="precision must be positive"):
        bw.Laplace(precision=0.0)
    with pytest.raises(TypeError, match=r"structure is a value such as bw.Kronecker\(\), not 'kron'"):
        bw.Laplace(structure="kron")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="precision is a number"):
        bw.Laplace(precision="auto")  # type: ignore[arg-type]
    posterior = fit(model, x, y, bw.Categorical())
    for ask in (posterior.predict, posterior.function_covariance):
        with pytest.raises(ValueError, match=r"cannot run on x of shape \(4, 7\)"):
            ask(torch.zeros(4, 7))
    with pytest.raises(ValueError, match="temperature"):
        bw.Laplace(temperature=0)
    with pytest.raises(ValueError, match=r"subset names \['9'\]; there are \['0', '2'\]"):
        fit(model, x, y, bw.Categorical(), subset=("9",))
    with pytest.raises(ValueError, match='no number for layer "2"'):
        fit(model, x, y, bw.Categorical(), precision={"0": 1.0})
    with pytest.raises(ValueError, match=r"15 weights needs 0.0 GB; use Kronecker"):
        bw.Full(limit=10).empty(discover(nn.Linear(4, 3), torch.zeros(2, 4)), ())


@pytest.mark.parametrize(
    "first",
    [bw.SWAG(steps=3), bw.Ensemble(), bw.MCDropout(), bw.BayesByBackprop(), bw.BALI(), bw.Laplace()],
    ids=lambda first: type(first).__name__,
)
def test_a_training_that_does_not_end_in_one_network_is_refused_at_once(first):
    with pytest.raises(ValueError, match=f"first={type(first).__name__}.. does not end in one network; use"):
        bw.Laplace(first=first)


def test_what_is_no_training_is_refused_at_once():
    for first in (bw.MAP, "map"):
        with pytest.raises(TypeError, match=r"first is a method that trains, such as bw.MAP\(\), not "):
            bw.Laplace(first=cast(Any, first))


class Bare(nn.Module):
    """A parameter of its own, and no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(I, 1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """A product."""
        return x @ self.w


@pytest.mark.filterwarnings("ignore::bayeswise.notices.FixedParametersWarning")
@pytest.mark.parametrize("first", [None, bw.MAP(steps=5)], ids=["trained before", "first"])
def test_a_model_without_layers_is_refused(first):
    x = rows(N)
    with pytest.raises(ValueError, match="found no layer to infer: .*supported are Linear, .*bare nn.Param"):
        bw.fit(Bare(), (x, x.sum(1)), bw.Gaussian(), bw.Laplace(first=first), progress=False)


def test_the_model_is_as_before_and_nan_weights_are_named():
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    before = copy.deepcopy(model.state_dict())
    model.train()
    fit(model, x, y, bw.Categorical())
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        next(model.parameters())[0, 0] = float("nan")
    with pytest.raises(ArithmeticError, match="not finite"):
        fit(model, x, y, bw.Categorical())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_it_saves_and_loads(structure, tmp_path):
    x = rows(N)
    y = classes(x)
    model = trained(bw.Categorical(), y, x)
    posterior = fit(model, x, y, bw.Categorical(), structure=STRUCTURES[structure], link=bw.Bridge())
    posterior.save(tmp_path / "saved")
    loaded = bw.load(tmp_path / "saved", model)
    new = rows(B, 1)
    assert torch.equal(posterior.predict(new).mean, loaded.predict(new).mean)
    assert torch.equal(posterior.draw(5)(new), loaded.draw(5)(new))
    assert loaded.log_evidence is not None and torch.equal(loaded.log_evidence, posterior.log_evidence)
    assert loaded.weights.tangent == bw.Bridge()


def test_many_classes_use_variances_alone(monkeypatch):
    """The variances are those of the whole covariance, in any block size."""
    x = rows(N)
    y = classes(x)
    posterior = fit(trained(bw.Categorical(), y, x), x, y, bw.Categorical(), link=bw.Probit())
    new = rows(B, 1)
    whole = posterior.predict(new)
    monkeypatch.setattr("bayeswise.posterior.MANY_OUTPUTS", 2)
    for size in (2**24, 1):
        monkeypatch.setattr("bayeswise.posterior.GAUSSIAN_BYTES", size)
        alone = posterior.predict(new)
        assert alone.covariance.shape == (B, O)
        variance = whole.covariance.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(alone.covariance, variance, rtol=1e-12, atol=0)
        torch.testing.assert_close(alone.mean, whole.mean, rtol=1e-12, atol=0)
    not_kept = posterior.predict(new, memory=1)
    assert not not_kept.kept
    torch.testing.assert_close(not_kept.mean, whole.mean, rtol=1e-12, atol=0)


def test_float32_keeps_the_direction_that_a_softmax_does_not_see():
    """Along (1, …, 1) the curvature of the outputs is zero; rounding there must not look like knowledge."""
    x = 30 * rows(2000).abs()
    y = classes(x / 30 - 0.5)
    model = trained(bw.Categorical(), y, x / 30)
    with torch.no_grad():
        model[0].weight.div_(30)  # type: ignore[operator]
        model[2].weight.mul_(3)  # type: ignore[operator]
    method = bw.Laplace(precision=1e-3)
    exact: Any = bw.fit(model, (x, y), bw.Categorical(), method, progress=False)
    coarse: Any = bw.fit(
        copy.deepcopy(model).float(), (x.float(), y), bw.Categorical(), method, progress=False
    )
    wanted = exact.predict(x[:B]).covariance
    found = coarse.predict(x[:B].float()).covariance.double()
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_a_wide_layer_has_the_eigenvectors_of_all_its_inputs():
    """One triangle of Σ x xᵀ is added up by blocks, batch by batch; the Gaussian is that of the whole."""
    torch.manual_seed(0)
    x, model = torch.randn(64, 300, dtype=torch.float64), nn.Linear(300, 2).double()
    y = model(x).detach() + 0.1 * torch.randn(64, 2, dtype=torch.float64)
    method = bw.Laplace(precision=3.0)
    found: Any = bw.fit(model, (x, y), bw.Gaussian(0.5), method, batch_size=16, progress=False)
    rows = torch.cat([x, torch.ones(64, 1, dtype=torch.float64)], 1)
    wanted = torch.linalg.inv(rows.mT @ rows / 0.5 + 3.0 * torch.eye(301, dtype=torch.float64))
    layer = found.weights.layers[""]
    got = (layer.left * layer.variance[:, :1].mT) @ layer.left.mT
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)


def test_a_spread_that_loses_the_training_labels_is_cautioned():
    """A network that is sure of its rows, with a precision under which it is not."""
    torch.manual_seed(0)
    x = torch.randn(200, 40)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 2))
    found = bw.fit(model, (x, y), bw.Categorical(), bw.Laplace(first=bw.MAP(steps=400)), progress=False)
    lost = [note for note in found.notes if "nats less likely than under the weights alone" in note]
    told = -float(found.predict(x[:64], 64).log_prob(y[:64]).mean())
    assert told > 0.1 and len(lost) == 1 and "bw.Validation()" in lost[0]
    given = bw.Laplace(first=bw.MAP(steps=400), precision=1.0)
    sure = bw.fit(model, (x, y), bw.Categorical(), given, progress=False)
    assert not [note for note in sure.notes if "nats" in note]
