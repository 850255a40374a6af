"""Regression with a known noise covariance against the Gaussian over vec W, entry by entry."""

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayeswise.distributions import MatrixNormal, RegressionStats
from bayeswise.linalg import NumericalError

MEMBERS: list[tuple[int, ...]] = [(), (2,), (2, 3)]
Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.tensor(rng.normal(size=shape))


def covariance(rng: np.random.Generator, *shape: int) -> Tensor:
    root = normal(rng, *shape, shape[-1] + 2)
    return root @ root.mT / shape[-1] + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


def case(seed: int) -> Case:
    """Rows x, targets y, prior mean, prior precision, noise covariance; some have fewer rows than inputs."""
    rng = np.random.default_rng(seed)
    members = MEMBERS[seed % 3]
    n, i, o = (int(rng.integers(1, top)) for top in (16, 7, 5))
    x, m0, noise = normal(rng, *members, n, i), normal(rng, *members, i, o), covariance(rng, *members, o)
    y = x @ normal(rng, *members, i, o) + 0.5 * normal(rng, *members, n, o)
    return x, y, m0, covariance(rng, *members, i), noise


def conjugate(x: Tensor, y: Tensor, m0: Tensor, p0: Tensor, noise: Tensor):
    """Prior statistics, statistics with the data, posterior; the prior's yy block plays no part."""
    cross, i = p0 @ m0, x.shape[-1]
    yy = 7 * torch.eye(y.shape[-1], dtype=torch.float64).expand(noise.shape)
    joint = torch.cat([torch.cat([p0, cross], -1), torch.cat([cross.mT, yy], -1)], -2)
    prior = RegressionStats(joint, torch.zeros(x.shape[:-2], dtype=torch.float64), i)
    stats = prior + RegressionStats.of(x, y)
    return prior, stats, MatrixNormal.from_stats(stats, noise)


def vec(a: ndarray) -> ndarray:
    return a.T.reshape(-1)  # columns one below the other


def dense(x: ndarray, y: ndarray, m0: ndarray, p0: ndarray, noise: ndarray) -> tuple[ndarray, ndarray, float]:
    """Mean and covariance of vec W, and log N(vec Y; vec XM0, Σ ⊗ (I + X R0 Xᵀ)), for one member."""
    weights, design = np.linalg.inv(noise), np.kron(np.eye(len(noise)), x)  # vec(XW) = (I ⊗ X) vec W
    rows = np.kron(weights, np.eye(len(x)))  # the precision of vec Y
    p = np.kron(weights, p0)
    precision = p + design.T @ rows @ design
    mean = np.linalg.solve(precision, p @ vec(m0) + design.T @ rows @ vec(y))
    spread = np.kron(noise, np.eye(len(x))) + design @ np.linalg.solve(p, design.T)
    rest = vec(y) - design @ vec(m0)
    distance = rest @ np.linalg.solve(spread, rest)
    log_p = -0.5 * (distance + np.linalg.slogdet(spread)[1] + len(rest) * np.log(2 * np.pi))
    return mean, np.linalg.inv(precision), float(log_p)


def members(*tensors: Tensor):
    """The same tensors member by member, as arrays."""
    flat = [a.reshape(-1, *a.shape[-2:]).numpy() for a in tensors]
    return zip(*flat, strict=True)


def error(got: ndarray, want: ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


def vec_covariance(posterior: MatrixNormal) -> Tensor:
    """Σ ⊗ R (…, OI, OI) from the factors."""
    noise = posterior.noise_factor @ posterior.noise_factor.mT
    rows = torch.cholesky_inverse(posterior.precision_factor)
    size = noise.shape[-1] * rows.shape[-1]
    return torch.einsum("...op,...ij->...oipj", noise, rows).reshape(*noise.shape[:-2], size, size)


def test_posterior_and_evidence_equal_the_vectorised_regression() -> None:
    for seed in range(200):
        x, y, m0, p0, noise = case(seed)
        prior, stats, posterior = conjugate(x, y, m0, p0, noise)
        evidence = posterior.log_evidence(prior, stats).reshape(-1, 1, 1)
        got = members(posterior.mean, vec_covariance(posterior), evidence)
        for (m, spread, log_p), arrays in zip(got, members(x, y, m0, p0, noise), strict=True):
            want = dense(*arrays)
            assert error(vec(m), want[0]) <= 1e-10
            assert error(spread, want[1]) <= 1e-10
            assert error(log_p[0, 0], np.array(want[2])) <= 1e-10


def test_evidence_obeys_the_chain_rule_and_one_point_is_the_predictive_density() -> None:
    for seed in range(200):
        x, y, m0, p0, noise = case(seed)
        prior, stats, posterior = conjugate(x, y, m0, p0, noise)
        total = torch.zeros(x.shape[:-2], dtype=torch.float64)
        so_far = prior
        for r in range(x.shape[-2]):
            before = MatrixNormal.from_stats(so_far, noise)
            total += before.predictive(x[..., r : r + 1, :]).log_prob(y[..., r : r + 1, :])[..., 0]
            so_far = so_far + RegressionStats.of(x[..., r : r + 1, :], y[..., r : r + 1, :])
        torch.testing.assert_close(posterior.log_evidence(prior, stats), total, rtol=1e-10, atol=1e-10)


def test_predictive_covariance_is_noise_plus_that_of_the_weights() -> None:
    for seed in range(0, 30):
        x, y, m0, p0, noise = case(seed)
        posterior = conjugate(x, y, m0, p0, noise)[2]
        got = posterior.predictive(x)
        torch.testing.assert_close(got.mean, x @ posterior.mean, rtol=1e-12, atol=1e-12)
        for xs, s, w, c in members_of_predictive(x, noise, vec_covariance(posterior), got.covariance_matrix):
            for row, spread in zip(xs, c, strict=True):
                design = np.kron(np.eye(len(s)), row[None])  # (O, OI)
                assert error(spread, s + design @ w @ design.T) <= 1e-10


def members_of_predictive(x: Tensor, noise: Tensor, weights: Tensor, spread: Tensor):
    per_member = spread.reshape(-1, *spread.shape[-3:]).numpy()
    for (xs, s, w), c in zip(members(x, noise, weights), per_member, strict=True):
        yield xs, s, w, c


def example() -> MatrixNormal:
    """Two members, I = 5, O = 3."""
    rng = np.random.default_rng(0)
    x, y, m0 = normal(rng, 2, 7, 5), normal(rng, 2, 7, 3), normal(rng, 2, 5, 3)
    return conjugate(x, y, m0, covariance(rng, 2, 5), covariance(rng, 2, 3))[2]


def test_the_linear_map_of_the_sampler_is_a_root_of_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = example()
    units = torch.eye(15, dtype=torch.float64).reshape(15, 1, 5, 3).expand(15, 2, 5, 3)
    monkeypatch.setattr(torch, "randn", lambda *shape, **_: units)
    columns = (posterior.sample(15) - posterior.mean).mT.reshape(15, 2, 15)  # images of the unit inputs
    got = torch.einsum("ska,skb->kab", columns, columns)
    torch.testing.assert_close(got, vec_covariance(posterior), rtol=1e-12, atol=1e-12)


def test_draws_have_the_mean_and_covariance_within_five_standard_errors() -> None:
    posterior, n = example(), 20_000
    draws = posterior.sample(n, torch.Generator().manual_seed(0)).mT.reshape(n, 2, 15)
    want, mean = vec_covariance(posterior), posterior.mean.mT.reshape(2, 15)
    variance = want.diagonal(dim1=-2, dim2=-1)
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    got = torch.einsum("ska,skb->kab", draws - mean, draws - mean) / n
    standard_error = ((variance[:, :, None] * variance[:, None, :] + want.square()) / n).sqrt()
    assert ((got - want).abs() < 5 * standard_error).all()


def test_predictive_is_a_torch_distribution_with_leading_members() -> None:
    got = example().predictive(torch.zeros(7, 5, dtype=torch.float64))
    assert isinstance(got, MultivariateNormal)
    assert (got.batch_shape, got.event_shape) == ((2, 7), (3,))
    torch.testing.assert_close(got.covariance_matrix[:, 0], got.covariance_matrix[:, 6])


def test_float32_statistics_that_need_float64() -> None:
    x, y, m0, p0, noise = case(0)
    x = x.clone()
    x[:, 0] *= 1e4
    prior, stats, posterior = conjugate(x, y, m0, p0, noise)
    narrow = [RegressionStats(s.joint.float(), s.n, s.inputs) for s in (prior, stats)]
    got = MatrixNormal.from_stats(narrow[1], noise.float())
    assert got.mean.dtype == torch.float64
    torch.testing.assert_close(got.predictive(x.float()).mean, x @ posterior.mean, rtol=1e-3, atol=1e-3)
    evidence = got.log_evidence(narrow[0], narrow[1])
    assert torch.isfinite(evidence) and evidence.dtype == torch.float64


def test_a_bad_noise_covariance_is_named() -> None:
    x, y, m0, p0, noise = case(0)
    with pytest.raises(NumericalError, match="head: noise covariance: 1 of 1 matrices"):
        MatrixNormal.from_stats(conjugate(x, y, m0, p0, noise)[1], -noise, "head")
