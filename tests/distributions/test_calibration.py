"""Draws: the sampler's linear map, the moments of its noise, and simulation-based calibration.

Calibration: draw parameters from the prior and data from them; among draws of the posterior the rank of the
true value is then uniform, whatever the data. It is tested by a chi-square over 20 bins.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal

from bayeswise.distributions import (
    MatrixNormal,
    MatrixNormalInverseWishart,
    MultivariateStudentT,
    RegressionStats,
)

SETS, DRAWS, BINS = 1000, 99, 20
ROWS, INPUTS, OUTPUTS = 7, 5, 3
LEVEL = 1e-3


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def normal(rng: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def posterior_of_two_members(dof: float = 20.0) -> MatrixNormalInverseWishart:
    rng = seeded(5)
    root = normal(rng, 2, OUTPUTS, ROWS)
    prior = RegressionStats.prior(2.0, root @ root.mT, dof, INPUTS)
    data = RegressionStats.of(normal(rng, 2, ROWS, INPUTS), normal(rng, 2, ROWS, OUTPUTS))
    return MatrixNormalInverseWishart.from_stats(prior + data)


def vec_covariance(posterior: MatrixNormalInverseWishart, noise: Tensor) -> Tensor:
    """Σ ⊗ R (K, OI, OI)."""
    rows = torch.cholesky_inverse(posterior.precision_factor)
    return torch.einsum("kop,kij->koipj", noise, rows).reshape(2, OUTPUTS * INPUTS, -1)


def unit_inputs(*shape: int, **_: object) -> Tensor:
    return torch.eye(15, dtype=torch.float64).reshape(15, 1, 5, 3).expand(15, 2, 5, 3)


def test_the_linear_map_of_the_sampler_is_a_root_of_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = posterior_of_two_members()
    drawn = posterior.draw_noise_factor(1, seeded(0))[0]
    monkeypatch.setattr(torch, "randn", unit_inputs)
    for factor, noise in ((None, posterior.noise), (drawn, drawn @ drawn.mT)):
        columns = (posterior.sample(15, noise_factor=factor) - posterior.mean).mT.reshape(15, 2, 15)
        got = torch.einsum("ska,skb->kab", columns, columns)
        torch.testing.assert_close(got, vec_covariance(posterior, noise), rtol=1e-12, atol=1e-12)


def test_draws_of_weights_have_their_moments_within_five_standard_errors() -> None:
    posterior, n = posterior_of_two_members(), 20_000
    draws = posterior.sample(n, seeded(1)).mT.reshape(n, 2, 15)
    want, mean = vec_covariance(posterior, posterior.noise), posterior.mean.mT.reshape(2, 15)
    variance = want.diagonal(dim1=-2, dim2=-1)
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    got = torch.einsum("ska,skb->kab", draws - mean, draws - mean) / n
    standard_error = ((variance[:, :, None] * variance[:, None, :] + want.square()) / n).sqrt()
    assert ((got - want).abs() < 5 * standard_error).all()


def assert_mean(draws: Tensor, want: Tensor) -> None:
    standard_error = draws.std(0) / len(draws) ** 0.5
    assert (standard_error < 0.05 * want.abs().amax()).all()
    assert ((draws.mean(0) - want).abs() < 5 * standard_error).all()


def test_drawn_noise_has_the_means_of_the_inverse_wishart_and_of_the_wishart() -> None:
    posterior = posterior_of_two_members()
    root = posterior.draw_noise_factor(20_000, seeded(2))
    noise, u = root @ root.mT, posterior.dof[:, None, None]
    assert_mean(noise, posterior.scale / (u - OUTPUTS - 1))
    assert_mean(torch.linalg.inv(noise), u * torch.linalg.inv(posterior.scale))


def test_draws_with_drawn_noise_have_the_covariance_of_the_matrix_t() -> None:
    posterior, n = posterior_of_two_members(), 20_000
    rng = seeded(3)
    draws = posterior.sample(n, rng, posterior.draw_noise_factor(n, rng)) - posterior.mean
    vec = draws.mT.reshape(n, 2, 15)
    noise = posterior.scale / (posterior.dof - OUTPUTS - 1)[:, None, None]
    assert_mean(torch.einsum("ska,skb->skab", vec, vec), vec_covariance(posterior, noise))


def test_student_t_draws_have_their_moments() -> None:
    root = normal(seeded(4), 2, 3, 3).tril() + 2 * torch.eye(3, dtype=torch.float64)
    loc, df = normal(seeded(5), 2, 3), torch.tensor([12.0, 30.0], dtype=torch.float64)
    student = MultivariateStudentT(loc, root, df)
    centred = student.sample(20_000, seeded(6)) - loc
    assert (centred.mean(0).abs() < 5 * centred.std(0) / 20_000**0.5).all()
    assert_mean(torch.einsum("sko,skp->skop", centred, centred), student.covariance)


def test_noise_in_float32_leaves_the_mean_as_exact_as_float32_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posterior = posterior_of_two_members()
    draws = posterior.sample(11, seeded(7), dtype=torch.float32)
    assert draws.dtype == torch.float32
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.zeros(shape))
    assert torch.equal(posterior.sample(1, dtype=torch.float32)[0], posterior.mean.float())


def test_equal_seeds_draw_equal_bits_and_leave_the_global_generator_alone() -> None:
    posterior, before = posterior_of_two_members(), torch.get_rng_state()
    first, second = (posterior.sample(11, seeded(7)) for _ in range(2))
    roots = [posterior.draw_noise_factor(11, seeded(8)) for _ in range(2)]
    assert torch.equal(first, second) and torch.equal(*roots)
    assert not torch.equal(first, posterior.sample(11, seeded(9)))
    assert torch.equal(before, torch.get_rng_state())


@dataclass(frozen=True)
class Experiment:
    """1,000 data sets as members: the truth that made them and the posterior that they give."""

    x: Tensor  # (K, R, I)
    y: Tensor  # (K, R, O)
    w: Tensor  # (K, I, O)
    noise: Tensor  # (K, O, O)
    posterior: MatrixNormalInverseWishart


def simulate(seed: int, outputs: int = OUTPUTS) -> Experiment:
    rng = seeded(seed)
    scale = torch.eye(outputs, dtype=torch.float64) + 0.5
    prior = RegressionStats.prior(1.5, scale.expand(SETS, -1, -1), outputs + 1.5, INPUTS)
    before = MatrixNormalInverseWishart.from_stats(prior)
    root = before.draw_noise_factor(1, rng)  # (1, K, O, O)
    w = before.sample(1, rng, root)[0]
    x = normal(rng, SETS, ROWS, INPUTS)
    y = x @ w + normal(rng, SETS, ROWS, outputs) @ root[0].mT
    posterior = MatrixNormalInverseWishart.from_stats(prior + RegressionStats.of(x, y))
    return Experiment(x, y, w, root[0] @ root[0].mT, posterior)


def functions(e: Experiment, w: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Scalar functions of weights (…, K, I, O) and noise (…, K, O, O), each (…, K)."""
    f = e.x @ w  # (…, K, R, O)
    row_noise = torch.linalg.cholesky(noise).unsqueeze(-3)
    return {
        "weight": w[..., 2, 0],
        "noise variance": noise[..., 0, 0],
        "noise covariance": noise[..., 0, -1],
        "noise volume": torch.logdet(noise),
        "fitted value": f[..., 3, -1],
        "likelihood": MultivariateNormal(f, scale_tril=row_noise).log_prob(e.y).sum(-1),
    }


def p_value(draws: Tensor, truth: Tensor) -> float:
    """The chi-square p-value of the ranks of truth (K,) among draws (99, K)."""
    ranks = (draws < truth).sum(0)  # 0 … 99
    counts = torch.bincount(ranks * BINS // (DRAWS + 1), minlength=BINS).double()
    expected = SETS / BINS
    chi2 = (counts - expected).square().sum() / expected
    return torch.special.gammaincc(torch.tensor((BINS - 1) / 2, dtype=torch.float64), chi2 / 2).item()


def p_values(e: Experiment, w: Tensor, noise: Tensor) -> dict[str, float]:
    truth, drawn = functions(e, e.w, e.noise), functions(e, w, noise)
    return {name: p_value(drawn[name], truth[name]) for name in truth}


def draw(e: Experiment, seed: int, noise_scale: float = 1.0) -> tuple[Tensor, Tensor]:
    rng = seeded(seed)
    root = noise_scale**0.5 * e.posterior.draw_noise_factor(DRAWS, rng)
    return e.posterior.sample(DRAWS, rng, root), root @ root.mT


def test_the_rank_statistic_is_uniform_for_equal_and_not_for_shifted_distributions() -> None:
    draws, truth = normal(seeded(0), DRAWS, SETS), normal(seeded(1), SETS)
    assert p_value(draws, truth) > LEVEL
    assert p_value(draws, truth + 0.3) < 1e-6
    assert p_value(1.3 * draws, truth) < LEVEL


@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_the_posterior_is_calibrated(outputs: int) -> None:
    e = simulate(10, outputs)
    for name, p in p_values(e, *draw(e, 11)).items():
        assert p > LEVEL, name


def test_a_noise_covariance_wrong_by_a_factor_is_noticed() -> None:
    e = simulate(10)
    found = p_values(e, *draw(e, 11, noise_scale=1.3))
    assert found["noise volume"] < 1e-6 and found["noise variance"] < 1e-6
    assert found["fitted value"] < LEVEL and found["likelihood"] < 1e-6


def test_weights_drawn_with_the_noise_at_its_mode_are_noticed() -> None:
    e = simulate(10)
    w = e.posterior.sample(DRAWS, seeded(11))
    assert p_values(e, w, e.posterior.noise.expand(DRAWS, -1, -1, -1))["weight"] < LEVEL


def test_the_student_t_predictive_is_calibrated() -> None:
    e, rng = simulate(12), seeded(13)
    x = normal(rng, SETS, 1, INPUTS)
    truth = x @ e.w + normal(rng, SETS, 1, OUTPUTS) @ torch.linalg.cholesky(e.noise).mT
    drawn = e.posterior.predictive(x).sample(DRAWS, rng)  # (99, K, 1, O)
    assert p_value(drawn[..., 0, 0], truth[..., 0, 0]) > LEVEL
    assert p_value(drawn.sum((-2, -1)), truth.sum((-2, -1))) > LEVEL
    assert p_value(1.3 * drawn[..., 0, 0], truth[..., 0, 0]) < LEVEL


def test_the_regression_with_known_noise_is_calibrated() -> None:
    rng = seeded(14)
    noise = (torch.eye(OUTPUTS, dtype=torch.float64) + 0.5).expand(SETS, -1, -1)
    prior = RegressionStats.prior(1.5, noise, 0.0, INPUTS)
    w = MatrixNormal.from_stats(prior, noise).sample(1, rng)[0]
    x = normal(rng, SETS, ROWS, INPUTS)
    y = x @ w + normal(rng, SETS, ROWS, OUTPUTS) @ torch.linalg.cholesky(noise).mT
    posterior = MatrixNormal.from_stats(prior + RegressionStats.of(x, y), noise)
    drawn = posterior.sample(DRAWS, rng)
    assert p_value(drawn[..., 2, 0], w[:, 2, 0]) > LEVEL
    assert p_value((x @ drawn)[..., 3, 1], (x @ w)[:, 3, 1]) > LEVEL
    wider = posterior.mean + 1.3 * (drawn - posterior.mean)
    assert p_value(wider[..., 2, 0], w[:, 2, 0]) < LEVEL
