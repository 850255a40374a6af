"""Likelihoods against torch.distributions, brute-force Hessians and the exact answers of extreme scales."""

import math

import numpy as np
import pytest
import torch
from torch import distributions as td

from bayeswise.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

S, K, B, O = 11, 2, 7, 3  # noqa: E741
F64 = torch.float64


def covariance(rng, *leading, outputs=O):
    a = torch.randn(*leading, outputs, outputs, generator=rng, dtype=F64)
    return a @ a.mT + 0.3 * torch.eye(outputs, dtype=F64)


def example(name: str, rng, *leading) -> tuple[Likelihood, torch.Tensor, torch.Tensor]:
    """A likelihood, outputs (*leading, B, O) and targets as from the door."""
    f = torch.randn(*leading, B, O, generator=rng, dtype=F64)
    if name == "categorical":
        return Categorical(), f, torch.randint(O, (B,), generator=rng)
    if name == "bernoulli":
        return Bernoulli(), f, torch.randint(2, (B, O), generator=rng).to(F64)
    y = torch.randn(B, O, generator=rng, dtype=F64)
    return (Gaussian(0.7) if name == "gaussian variance" else Gaussian(covariance(rng))), f, y


def second(function):
    return torch.func.jacrev(torch.func.jacrev(function))


names = pytest.mark.parametrize(
    "name", ["gaussian variance", "gaussian covariance", "categorical", "bernoulli"]
)


@names
def test_log_prob_is_that_of_the_conditional(name, rng):
    likelihood, f, y = example(name, rng, S, K)
    got = likelihood.log_prob(f, y)
    assert got.shape == (S, K, B)
    torch.testing.assert_close(got, likelihood.conditional(f).log_prob(y), rtol=1e-12, atol=1e-12)


@names
def test_score_and_hessian_by_autograd(name, rng):
    likelihood, f, y = example(name, rng)
    hessians = [
        second(lambda row, b=b: -likelihood.log_prob(row[None], y[b : b + 1])[0])(f[b]) for b in range(B)
    ]
    exact = torch.stack(hessians)  # (B, O, O)
    v = torch.randn(B, O, generator=rng, dtype=F64)
    close = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(likelihood.hessian_mul(f, v), (exact @ v[..., None])[..., 0], **close)
    columns = torch.stack(list(likelihood.hessian_root(f)), -1)  # (B, O, columns)
    torch.testing.assert_close(columns @ columns.mT, exact, **close)
    torch.testing.assert_close(likelihood.hessian_sum(f), exact.sum(0), **close)


@names
def test_hessians_of_members_are_those_of_each_member(name, rng):
    likelihood, f, _ = example(name, rng, K)
    v = torch.randn(K, B, O, generator=rng, dtype=F64)
    for k in range(K):
        torch.testing.assert_close(likelihood.hessian_sum(f)[k], likelihood.hessian_sum(f[k]))
        torch.testing.assert_close(likelihood.hessian_mul(f, v)[k], likelihood.hessian_mul(f[k], v[k]))
        for both, one in zip(likelihood.hessian_root(f), likelihood.hessian_root(f[k]), strict=True):
            torch.testing.assert_close(both[k], one)


@names
def test_random_root_has_the_hessian_as_its_mean(name, rng):
    likelihood, f, _ = example(name, rng)
    n = 20_000
    (s,) = likelihood.hessian_root(f[:1].expand(n, 1, O), rng)  # (n, 1, O)
    products = s[:, 0, :, None] * s[:, 0, None, :]  # (n, O, O)
    error = (products.mean(0) - likelihood.hessian_sum(f[:1])).abs()
    assert (error <= 5 * products.std(0) / math.sqrt(n) + 1e-12).all()


@names
def test_vmap_over_members_and_its_gradient(name, rng):
    likelihood, f, y = example(name, rng, K)

    def total(g):
        return torch.func.vmap(likelihood.log_prob, in_dims=(0, None))(g, y).sum()

    score = torch.func.grad(total)(f)
    g = f.clone().requires_grad_()
    (expected,) = torch.autograd.grad(likelihood.log_prob(g, y).sum(), g)
    torch.testing.assert_close(score, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, O])
def test_noise_of_members_and_draws(rng, outputs):
    f = torch.randn(S, K, B, outputs, generator=rng, dtype=F64)
    y = torch.randn(B, outputs, generator=rng, dtype=F64)
    members, draws = covariance(rng, K, outputs=outputs), covariance(rng, S, K, outputs=outputs)
    of_members, of_draws = Gaussian(members).log_prob(f, y), Gaussian(draws).log_prob(f, y)
    for s, k in ((0, 0), (4, 1), (10, 0)):
        one = td.MultivariateNormal(f[s, k], members[k]).log_prob(y)
        torch.testing.assert_close(of_members[s, k], one, rtol=1e-12, atol=1e-12)
        one = td.MultivariateNormal(f[s, k], draws[s, k]).log_prob(y)
        torch.testing.assert_close(of_draws[s, k], one, rtol=1e-12, atol=1e-12)
    vmapped = torch.func.vmap(lambda g, n: Gaussian(n).log_prob(g, y), in_dims=(1, 0), out_dims=1)(f, members)
    torch.testing.assert_close(vmapped, of_members, rtol=1e-12, atol=1e-12)


def test_a_variance_and_its_covariance_agree(rng):
    f, y = torch.randn(2, B, O, generator=rng, dtype=F64)
    whole = Gaussian(0.7 * torch.eye(O, dtype=F64)).log_prob(f, y)
    torch.testing.assert_close(Gaussian(0.7).log_prob(f, y), whole, rtol=1e-12, atol=1e-12)
    single = Gaussian(torch.tensor([[0.7]], dtype=F64)).log_prob(f[:, :1], y[:, :1])
    torch.testing.assert_close(Gaussian(0.7).log_prob(f[:, :1], y[:, :1]), single, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outputs", [1, O])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_survives_extreme_scales(rng, scale, outputs):
    noise = covariance(rng, outputs=outputs)
    f, y = torch.randn(2, B, outputs, generator=rng)
    usual = Gaussian(noise).log_prob(f, y)
    scaled = Gaussian(noise * scale**2).log_prob(f * scale, y * scale)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, usual - outputs * math.log(scale), rtol=1e-5, atol=1e-4)


def test_noise_is_learnable(rng):
    log_noise = torch.zeros((), dtype=F64, requires_grad=True)
    f, y = torch.randn(2, B, 1, generator=rng, dtype=F64)
    loss = Gaussian(log_noise.exp().reshape(1, 1)).log_prob(f, y).sum()
    (slope,) = torch.autograd.grad(loss, log_noise)
    assert slope.item() == pytest.approx(0.5 * ((y - f).square().sum().item() - B), rel=1e-12)


def test_labels_broadcast_over_members(rng):
    f = torch.randn(B, O, generator=rng, dtype=F64)
    y = torch.randint(O, (K, B), generator=rng)
    got = Categorical().log_prob(f, y)
    expected = f.log_softmax(-1)[torch.arange(B), y]
    torch.testing.assert_close(got, expected)


def test_certain_labels_stay_finite():
    f = torch.tensor([[1000.0, -1000.0]])
    assert Categorical().log_prob(f, torch.tensor([1])).item() == -2000.0
    assert Bernoulli().log_prob(f, torch.tensor([[1.0, 0.0]])).item() == 0.0
    assert Bernoulli().log_prob(f, torch.tensor([[0.0, 1.0]])).item() == -2000.0
    tail = Bernoulli().log_prob(torch.tensor([[25.0]], dtype=F64), torch.tensor([[1.0]], dtype=F64))
    assert tail.item() == pytest.approx(-math.log1p(math.exp(-25.0)), rel=1e-12)


def test_unknown_noise_says_what_to_do():
    with pytest.raises(ValueError, match="leaves the noise to the method; use likelihood.given"):
        Gaussian().log_prob(torch.zeros(B, O), torch.zeros(B, O))
    assert Gaussian().given(torch.eye(O)).log_prob(torch.zeros(B, O), torch.zeros(B, O)).shape == (B,)
    assert Categorical().given(torch.eye(O)) == Categorical()


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_bad_variances(noise):
    with pytest.raises(ValueError, match="variance and must be positive"):
        Gaussian(noise)


def test_bad_covariances():
    with pytest.raises(ValueError, match=r"covariance \(..., O, O\), got shape \(3,\); use torch.diag"):
        Gaussian(torch.ones(3))
    with pytest.raises(ValueError, match="not positive definite; raise the noise floor"):
        Gaussian(-torch.eye(2)).log_prob(torch.zeros(B, 2), torch.zeros(B, 2))
    with pytest.raises(TypeError, match=r"noise is a ndarray; give .* a tensor: torch.as_tensor\(noise\)"):
        Gaussian(np.eye(2))  # type: ignore[arg-type]


def test_targets_are_brought_to_shape():
    column = Gaussian().targets(torch.arange(B), 1)
    assert column.dtype == torch.float64 and column[:, 0].tolist() == list(range(B))
    assert Gaussian().targets(torch.zeros(K, B, O, dtype=F64), O).shape == (K, B, O)
    assert Bernoulli().targets(torch.tensor([True, False]), 1).tolist() == [[1.0], [0.0]]
    labels = Categorical().targets(torch.as_tensor(np.array([0.0, 2.0])), O)
    assert labels.dtype == torch.long and labels.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs", "message"),
    [
        (Gaussian(), torch.zeros(B), O, r"shape \(7,\), the model's outputs \(..., B, 3\)"),
        (Gaussian(), torch.zeros(B, 2), O, r"shape \(7, 2\), the model's outputs \(..., B, 3\)"),
        (Gaussian(), torch.zeros(K, B), 1, r"shape \(2, 7\), the model's outputs \(..., B, 1\)"),
        (Gaussian(), torch.tensor([1.0, math.nan, math.inf]), 1, "2 of 3 targets are NaN or infinite"),
        (Bernoulli(), torch.tensor([0, 1, 2]), 1, "0 or 1, got 2; use Categorical"),
        (Bernoulli(), torch.tensor([0.0, math.nan]), 1, "0 or 1, got nan"),
        (Categorical(), torch.tensor([0, 1, 3]), O, r"label 3 is not one of the classes 0 ... 2"),
        (Categorical(), torch.tensor([0, -1]), O, "label -1 is not"),
        (Categorical(), torch.tensor([0.0, 0.5]), O, "label 0.5 is not"),
        (Categorical(), torch.tensor([0.0, math.nan]), O, "label nan is not"),
        (Categorical(), torch.tensor([0, 1]), 1, "use Bernoulli"),
        (Categorical(), torch.tensor(1), O, r"have shape \(B,\)"),
    ],
)
def test_bad_targets_stop_at_the_door(likelihood, y, outputs, message):
    with pytest.raises(ValueError, match=message):
        likelihood.targets(y, outputs)


def test_whole_numbers_are_not_rounded():
    y = torch.tensor([2**24 + 1, 2**40 + 1])  # float32 holds neither
    assert Gaussian().targets(y, 1).flatten().tolist() == [2**24 + 1, 2**40 + 1]


def test_labels_in_a_column_are_those_in_a_row(rng):
    likelihood, f, y = example("categorical", rng, S)
    assert torch.equal(likelihood.targets(y[:, None], O), y)
    assert torch.equal(likelihood.targets(torch.stack([y, y])[..., None], O), torch.stack([y, y]))
    assert likelihood.targets(y[:1], O).shape == (1,)  # one row is no column
    predictive = likelihood.predictive(f)
    assert torch.equal(predictive.log_prob(y[:, None]), predictive.log_prob(y))
