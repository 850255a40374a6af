"""The matrix-normal inverse-Wishart posterior against dense formulas that share no step with it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor

from bayeswise.distributions import MatrixNormalInverseWishart, MultivariateStudentT, RegressionStats

MEMBERS: list[tuple[int, ...]] = [(), (2,), (2, 3)]


@dataclass(frozen=True)
class Problem:
    """A regression with its prior W | Σ ~ MN(M0, R0, Σ), Σ ~ IW(U0, u0), in numpy."""

    x: ndarray  # (…, N, I)
    y: ndarray  # (…, N, O)
    m0: ndarray  # (…, I, O)
    p0: ndarray  # R0⁻¹ (…, I, I)
    scale0: ndarray  # U0 (…, O, O)
    dof0: float

    def prior(self) -> RegressionStats:
        cross = self.p0 @ self.m0
        below = np.concatenate([cross.swapaxes(-1, -2), self.scale0 + t(self.m0) @ cross], -1)
        joint = np.concatenate([np.concatenate([self.p0, cross], -1), below], -2)
        n = torch.full(joint.shape[:-2], self.dof0, dtype=torch.float64)
        return RegressionStats(torch.tensor(joint), n, self.x.shape[-1])

    def data(self) -> RegressionStats:
        return RegressionStats.of(torch.tensor(self.x), torch.tensor(self.y))


def t(a: ndarray) -> ndarray:
    return a.swapaxes(-1, -2)


def covariance(rng: np.random.Generator, *shape: int) -> ndarray:
    root = rng.normal(size=(*shape, shape[-1] + 2))
    return root @ t(root) / shape[-1] + 0.1 * np.eye(shape[-1])


def problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    members = MEMBERS[seed % 3]
    n, inputs, outputs = (int(rng.integers(1, top)) for top in (31, 13, 5))
    x = rng.normal(size=(*members, n, inputs)) * 10 ** rng.uniform(-1, 1)
    w, m0 = rng.normal(size=(2, *members, inputs, outputs))
    y = x @ w + 0.5 * rng.normal(size=(*members, n, outputs))
    p0, scale0 = covariance(rng, *members, inputs), covariance(rng, *members, outputs)
    return Problem(x, y, m0, p0, scale0, outputs - 1 + rng.uniform(0.5, 5))


def problems() -> Iterator[Problem]:
    return map(problem, range(200))


def conjugate(p: Problem) -> tuple[MatrixNormalInverseWishart, MatrixNormalInverseWishart]:
    prior = p.prior()
    build = MatrixNormalInverseWishart.from_stats
    return build(prior), build(prior + p.data())


def dense_mean(p: Problem) -> ndarray:
    return np.linalg.solve(p.p0 + t(p.x) @ p.x, p.p0 @ p.m0 + t(p.x) @ p.y)


def dense_scale(p: Problem) -> ndarray:
    """U0 + (Y - XM)ᵀ(Y - XM) + (M - M0)ᵀR0⁻¹(M - M0)."""
    m = dense_mean(p)
    rest, shift = p.y - p.x @ m, m - p.m0
    return p.scale0 + t(rest) @ rest + t(shift) @ p.p0 @ shift


def log_gamma(a: float, dim: int) -> float:
    return dim * (dim - 1) / 4 * math.log(math.pi) + sum(math.lgamma(a - j / 2) for j in range(dim))


def dense_evidence(p: Problem) -> ndarray:
    """The matrix-t density of Y with row scale C = I + X R0 Xᵀ and column scale U0: N by N, not I by I."""
    (n, outputs), u0 = p.y.shape[-2:], p.dof0
    c = np.eye(n) + p.x @ np.linalg.solve(p.p0, t(p.x))
    rest = p.y - p.x @ p.m0
    inner = p.scale0 + t(rest) @ np.linalg.solve(c, rest)
    gammas = log_gamma((u0 + n) / 2, outputs) - log_gamma(u0 / 2, outputs)
    volumes = outputs * slogdet(c) - u0 * slogdet(p.scale0) + (u0 + n) * slogdet(inner)
    return gammas - n * outputs / 2 * math.log(math.pi) - 0.5 * volumes


def slogdet(a: ndarray) -> ndarray:
    return np.linalg.slogdet(a)[1]


def dense_student(y: ndarray, loc: ndarray, scale: ndarray, nu: float) -> ndarray:
    dim, rest = y.shape[-1], (y - loc)[..., None]
    distance = (t(rest) @ np.linalg.inv(scale) @ rest)[..., 0, 0]
    constant = math.lgamma((nu + dim) / 2) - math.lgamma(nu / 2) - dim / 2 * math.log(nu * math.pi)
    return constant - 0.5 * slogdet(scale) - (nu + dim) / 2 * np.log(1 + distance / nu)


def error(got: Tensor, want: ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got.numpy() - want).max() / max(np.abs(want).max(), 1e-300))


def example(n: int = 7, outputs: int = 3, seed: int = 0) -> Problem:
    """One problem of the usual sizes, I = 5, without members."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(n, 5)), rng.normal(size=(2, 5, outputs))
    y = x @ w[0] + 0.3 * rng.normal(size=(n, outputs))
    return Problem(x, y, w[1], covariance(rng, 5), covariance(rng, outputs), outputs + 1.5)


def test_the_problems_cover_few_rows_one_output_and_members() -> None:
    shapes = [(p.x.shape, p.y.shape) for p in problems()]
    assert sum(x[-2] < x[-1] for x, _ in shapes) > 20
    assert sum(y[-1] == 1 for _, y in shapes) > 20
    assert sum(y[-1] > 1 for _, y in shapes) > 100
    assert {len(x) for x, _ in shapes} == {2, 3, 4}


def test_parameters_equal_the_dense_posterior() -> None:
    for p in problems():
        _, posterior = conjugate(p)
        lower = posterior.precision_factor
        assert error(lower @ lower.mT, p.p0 + t(p.x) @ p.x) <= 1e-10
        assert error(posterior.mean, dense_mean(p)) <= 1e-10
        assert error(posterior.scale, dense_scale(p)) <= 1e-10
        assert error(posterior.dof, np.full(p.x.shape[:-2], p.dof0 + p.x.shape[-2])) <= 1e-15
        assert not posterior.jitter.any()


def test_noise_is_the_mode_of_the_inverse_wishart() -> None:
    for p in problems():
        _, posterior = conjugate(p)
        want = dense_scale(p) / (p.dof0 + p.x.shape[-2] + p.y.shape[-1] + 1)
        assert error(posterior.noise, want) <= 1e-10
        assert error(posterior.noise_factor @ posterior.noise_factor.mT, want) <= 1e-10


def test_evidence_equals_the_matrix_t_density() -> None:
    for p in problems():
        prior, posterior = conjugate(p)
        assert error(posterior.log_evidence(prior), dense_evidence(p)) <= 1e-10


def test_predictive_equals_the_dense_student_t() -> None:
    for seed, p in enumerate(problems()):
        _, posterior = conjugate(p)
        rng = np.random.default_rng(seed)
        x, y = (rng.normal(size=(*a.shape[:-2], 7, a.shape[-1])) for a in (p.x, p.y))
        nu = p.dof0 + p.x.shape[-2] - p.y.shape[-1] + 1
        spread = 1 + np.einsum("...ri,...ir->...r", x, np.linalg.solve(p.p0 + t(p.x) @ p.x, t(x)))
        scale = spread[..., None, None] * dense_scale(p)[..., None, :, :] / nu
        got = posterior.predictive(torch.tensor(x))
        assert error(got.loc, x @ dense_mean(p)) <= 1e-10
        assert error(got.scale_factor @ got.scale_factor.mT, scale) <= 1e-10
        assert error(got.log_prob(torch.tensor(y)), dense_student(y, x @ dense_mean(p), scale, nu)) <= 1e-10


def test_batch_update_equals_sequential_update() -> None:
    for p in problems():
        _, batch = conjugate(p)
        state = MatrixNormalInverseWishart.from_stats(p.prior())
        for i in range(p.x.shape[-2]):
            row = replace(p, x=p.x[..., i : i + 1, :], y=p.y[..., i : i + 1, :]).data()
            state = MatrixNormalInverseWishart.from_stats(state.stats() + row)
        assert error(state.mean, batch.mean.numpy()) <= 1e-10
        assert error(state.scale, batch.scale.numpy()) <= 1e-10
        assert error(state.dof, batch.dof.numpy()) <= 1e-14


def test_stats_is_the_inverse_of_from_stats() -> None:
    for p in problems():
        stats = p.prior() + p.data()
        posterior = MatrixNormalInverseWishart.from_stats(stats)
        back = posterior.stats()
        assert error(back.joint, stats.joint.numpy()) <= 1e-13
        assert torch.equal(back.n, stats.n)
        again = MatrixNormalInverseWishart.from_stats(back)
        assert error(again.factor, posterior.factor.numpy()) <= 1e-10


def test_evidence_obeys_the_chain_rule() -> None:
    for p in problems():
        cut = p.x.shape[-2] // 2
        prior, both = conjugate(p)
        _, first = conjugate(replace(p, x=p.x[..., :cut, :], y=p.y[..., :cut, :]))
        chained = first.log_evidence(prior) + both.log_evidence(first)
        assert error(chained, both.log_evidence(prior).numpy()) <= 1e-10


def test_evidence_of_one_point_is_the_student_density_of_the_prior_predictive() -> None:
    for p in problems():
        one = replace(p, x=p.x[..., :1, :], y=p.y[..., :1, :])
        prior, posterior = conjugate(one)
        density = prior.predictive(torch.tensor(one.x)).log_prob(torch.tensor(one.y))[..., 0]
        assert error(posterior.log_evidence(prior), density.numpy()) <= 1e-10


def test_evidence_of_no_data_is_zero() -> None:
    prior, _ = conjugate(example())
    assert prior.log_evidence(prior).item() == 0.0


def test_predictive_broadcasts_rows_over_members() -> None:
    p = problem(1)
    _, posterior = conjugate(p)
    x = torch.tensor(np.random.default_rng(0).normal(size=(7, p.x.shape[-1])))
    shared, repeated = posterior.predictive(x), posterior.predictive(x.expand(2, -1, -1))
    torch.testing.assert_close(shared.loc, repeated.loc)
    torch.testing.assert_close(shared.scale_factor, repeated.scale_factor)


def test_kl_to_itself_is_zero() -> None:
    for p in problems():
        _, q = conjugate(p)
        assert q.kl(q).abs().max() <= 1e-9


def gamma_kl(a: float, b: float, a0: float, b0: float) -> float:
    """KL between gamma distributions of shape a, a0 and rate b, b0."""
    psi = torch.tensor(a, dtype=torch.float64).digamma().item()
    return (a - a0) * psi - math.lgamma(a) + math.lgamma(a0) + a0 * math.log(b / b0) + a * (b0 - b) / b


def test_kl_of_one_output_is_that_of_the_normal_inverse_gamma() -> None:
    p = example(outputs=1)
    prior, q = conjugate(p)
    m, precision, u, scale = dense_mean(p), p.p0 + p.x.T @ p.x, p.dof0 + 7, float(dense_scale(p)[0, 0])
    shift = (m - p.m0)[:, 0]
    trace = np.trace(np.linalg.solve(precision, p.p0))
    normal = 0.5 * (trace - 5 + slogdet(precision) - slogdet(p.p0) + u / scale * shift @ p.p0 @ shift)
    noise = gamma_kl(u / 2, scale / 2, p.dof0 / 2, float(p.scale0[0, 0]) / 2)  # KL is the same for 1/Σ
    assert q.kl(prior).item() == pytest.approx(normal + noise, rel=1e-12)


def log_density(d: MatrixNormalInverseWishart, w: Tensor, noise: Tensor) -> Tensor:
    """Log density of W and Σ together, by torch's multivariate normal and the definition of IW."""
    o, lower = d.outputs, d.precision_factor
    rows = torch.linalg.inv(lower @ lower.mT)
    vec = w.mT.reshape(len(w), -1)  # (S, O·I): columns of W one below the other
    spread = torch.einsum("sop,ij->soipj", noise, rows).reshape(len(w), o * d.inputs, -1)
    mean = d.mean.mT.reshape(-1)
    normal = torch.distributions.MultivariateNormal(mean, spread).log_prob(vec)
    u, trace = d.dof.item(), torch.linalg.solve(noise, d.scale).diagonal(dim1=-2, dim2=-1).sum(-1)
    constant = u / 2 * torch.logdet(d.scale) - u * o / 2 * math.log(2) - log_gamma(u / 2, o)
    return normal + constant - (u + o + 1) / 2 * torch.logdet(noise) - 0.5 * trace


def test_kl_of_several_outputs_is_the_mean_log_ratio_of_draws() -> None:
    prior, q = conjugate(example(n=4))
    rng = torch.Generator().manual_seed(0)
    root = q.draw_noise_factor(4000, rng)
    w, noise = q.sample(4000, rng, root), root @ root.mT
    ratio = log_density(q, w, noise) - log_density(prior, w, noise)
    standard_error = ratio.std() / 4000**0.5
    assert standard_error < 0.03 * q.kl(prior)
    assert (ratio.mean() - q.kl(prior)).abs() < 5 * standard_error


def test_an_improper_prior_is_refused_by_name() -> None:
    improper, posterior = conjugate(replace(example(), dof0=1.5))
    for call in (posterior.kl, posterior.log_evidence):
        with pytest.raises(ValueError, match=r'layer "fc\.2".*u0 > O - 1.*u0 = 1\.5 .*set u0 to at least 3'):
            call(improper, "fc.2")
    for call in (lambda: improper.draw_noise_factor(2), lambda: improper.predictive(torch.zeros(1, 5))):
        with pytest.raises(ValueError, match=r"u > O - 1.*u = 1\.5 and O = 3: use a larger u0"):
            call()


def assert_close(got: Tensor, want: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=0)


def as_float32(stats: RegressionStats) -> RegressionStats:
    return replace(stats, joint=stats.joint.float())


def test_float32_evidence_and_kl_are_summed_in_float64() -> None:
    p = example(n=3000)
    build = MatrixNormalInverseWishart.from_stats
    narrow = build(as_float32(p.prior())), build(as_float32(p.prior() + p.data()))
    same = [replace(d, factor=d.factor.double()) for d in narrow]
    prior, posterior = conjugate(p)
    assert narrow[1].factor.dtype == torch.float32
    assert_close(narrow[1].log_evidence(narrow[0]), same[1].log_evidence(same[0]), 1e-14)
    assert_close(narrow[1].log_evidence(narrow[0]), posterior.log_evidence(prior), 1e-5)
    assert_close(narrow[1].kl(narrow[0]), posterior.kl(prior), 1e-5)
    assert torch.equal(narrow[1].stats().n, posterior.stats().n)


def test_float32_statistics_that_need_float64_still_give_every_answer() -> None:
    p = example(n=40)
    p = replace(p, x=p.x * np.array([1e3, 1, 1, 1, 1]))  # a condition above 1e5
    build = MatrixNormalInverseWishart.from_stats
    prior, posterior = build(as_float32(p.prior())), build(as_float32(p.prior() + p.data()))
    assert (prior.factor.dtype, posterior.factor.dtype) == (torch.float32, torch.float64)
    want = conjugate(p)
    assert_close(posterior.log_evidence(prior), want[1].log_evidence(want[0]), 1e-3)
    assert_close(posterior.kl(prior), want[1].kl(want[0]), 1e-3)
    x = torch.tensor(p.x)
    assert error(posterior.predictive(x.float()).loc, want[1].predictive(x).loc.numpy()) <= 1e-4


def test_student_t_covariance_and_its_infinite_case() -> None:
    factor = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    student = MultivariateStudentT(torch.zeros(2, 2), factor.expand(2, 2, 2), torch.tensor([5.0, 2.0]))
    assert_close(student.covariance[0], 5 / 3 * torch.tensor([[4.0, 0.0], [0.0, 9.0]]), 1e-6)
    assert torch.isinf(student.covariance[1]).all()


def test_student_t_density_of_one_output_equals_that_of_torch() -> None:
    loc, scale, df = (torch.tensor(v, dtype=torch.float64) for v in ([0.3, -1.0], [2.0, 0.4], [3.5, 60.0]))
    y = torch.tensor([5.0, -1.2], dtype=torch.float64)
    ours = MultivariateStudentT(loc[:, None], scale[:, None, None], df).log_prob(y[:, None])
    assert_close(ours, torch.distributions.StudentT(df, loc, scale).log_prob(y), 1e-12)


def test_one_draw_is_the_first_of_a_sample():
    """`draw` and `sample` are the same linear map of the same standard normal numbers."""
    rng = torch.Generator().manual_seed(3)
    rows = torch.randn(2, 30, 8, generator=rng, dtype=torch.float64)
    q = MatrixNormalInverseWishart.from_stats(RegressionStats.of(rows[..., :5], rows[..., 5:]))
    one = q.draw(torch.Generator().manual_seed(0))
    many = q.sample(1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(one, many[0], rtol=1e-12, atol=1e-13)
