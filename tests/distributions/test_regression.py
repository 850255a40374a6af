"""The statistics of a regression: a vector space over its rows."""

import pytest
import torch
from torch import Tensor

from bayeswise.distributions import DiagonalPrior, MatrixNormalInverseWishart, RegressionStats

ROWS, INPUTS, OUTPUTS, MEMBERS = 7, 5, 3, 2


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_stats(seed: int, members: tuple[int, ...] = (MEMBERS,)) -> RegressionStats:
    x, y = normal(*members, ROWS, INPUTS, seed=seed), normal(*members, ROWS, OUTPUTS, seed=seed + 100)
    return RegressionStats.of(x, y)


def assert_equal(a: RegressionStats, b: RegressionStats, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a.joint, b.joint, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.n, b.n, rtol=tolerance, atol=tolerance)
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)


@pytest.mark.parametrize("members", [(), (MEMBERS,), (MEMBERS, 4)])
def test_blocks_are_sums_over_the_rows(members: tuple[int, ...]) -> None:
    x, y = normal(*members, ROWS, INPUTS, seed=0), normal(*members, ROWS, OUTPUTS, seed=1)
    stats = RegressionStats.of(x, y)
    torch.testing.assert_close(stats.xx, torch.einsum("...ri,...rj->...ij", x, x))
    torch.testing.assert_close(stats.xy, torch.einsum("...ri,...ro->...io", x, y))
    torch.testing.assert_close(stats.yy, torch.einsum("...ro,...rp->...op", y, y))
    assert torch.equal(stats.n, torch.full(members, 7.0, dtype=torch.float64))
    assert (stats.inputs, stats.outputs) == (INPUTS, OUTPUTS)


def test_products_stay_in_the_type_of_the_data_and_counts_in_float64() -> None:
    stats = RegressionStats.of(normal(ROWS, INPUTS, seed=0).float(), normal(ROWS, OUTPUTS, seed=1).float())
    assert (stats.joint.dtype, stats.n.dtype) == (torch.float32, torch.float64)


def test_adding_statistics_is_concatenating_rows() -> None:
    x, y = normal(MEMBERS, 2 * ROWS, INPUTS, seed=2), normal(MEMBERS, 2 * ROWS, OUTPUTS, seed=3)
    parts = RegressionStats.of(x[:, :ROWS], y[:, :ROWS]) + RegressionStats.of(x[:, ROWS:], y[:, ROWS:])
    assert_equal(parts, RegressionStats.of(x, y))


def test_vector_space() -> None:
    a, b, c = random_stats(0), random_stats(1), random_stats(2)
    assert_equal((a + b) - b, a)
    assert_equal((a + b) + c, a + (b + c))
    assert_equal(a + b, b + a)
    assert_equal(2.5 * (a + b), 2.5 * a + b * 2.5)
    assert_equal(0.5 * a + 1.5 * a, 2.0 * a)
    assert_equal(a - a, 0.0 * a)


def test_scaling_is_repeating_the_rows() -> None:
    x, y = normal(ROWS, INPUTS, seed=4), normal(ROWS, OUTPUTS, seed=5)
    assert_equal(3 * RegressionStats.of(x, y), RegressionStats.of(x.repeat(3, 1), y.repeat(3, 1)))


def test_statistics_of_weighted_rows_are_those_of_rows_times_the_root_of_the_weight() -> None:
    x, y = normal(ROWS, INPUTS, seed=6), normal(ROWS, OUTPUTS, seed=7)
    scaled = RegressionStats.of(0.5**0.5 * x, 0.5**0.5 * y)
    torch.testing.assert_close((0.5 * RegressionStats.of(x, y)).joint, scaled.joint)


def test_arithmetic_leaves_its_arguments_alone() -> None:
    a, b = random_stats(0), random_stats(1)
    before = a.joint.clone(), a.n.clone()
    _ = (a + b, a - b, 2.0 * a)
    assert torch.equal(a.joint, before[0]) and torch.equal(a.n, before[1])


def test_move_is_the_weighted_average_and_consumes_its_state() -> None:
    a, b = random_stats(0), random_stats(1)
    want = 0.7 * a + (0.3 * 40.0) * b
    moved = a.move_(0.3, b, 40.0)
    assert_equal(moved, want)
    assert moved.joint.data_ptr() == a.joint.data_ptr()


def test_move_at_rate_one_forgets_and_at_rate_zero_stays() -> None:
    b = random_stats(1)
    assert_equal(random_stats(0).move_(1.0, b, 2.0), 2.0 * b)
    assert_equal(random_stats(0).move_(0.0, b, 2.0), random_stats(0))


@pytest.mark.parametrize("members", [(), (MEMBERS,)])
def test_prior_is_the_statistics_of_its_pseudo_data(members: tuple[int, ...]) -> None:
    root = normal(*members, OUTPUTS, OUTPUTS, seed=8)
    prior = RegressionStats.prior(4.0, root.mT @ root, 6.5, INPUTS)
    pseudo = torch.cat(
        [torch.eye(INPUTS, dtype=torch.float64) / 2, torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64)]
    )
    targets = torch.cat([torch.zeros(*members, INPUTS, OUTPUTS, dtype=torch.float64), root], -2)
    want = RegressionStats.of(pseudo.expand(*members, INPUTS + OUTPUTS, INPUTS), targets)
    torch.testing.assert_close(prior.joint, want.joint)
    assert torch.equal(prior.n, torch.full(members, 6.5, dtype=torch.float64))


def test_diagonal_prior_adds_what_its_dense_statistics_add() -> None:
    prior, data = DiagonalPrior(4.0, 0.3, 6.5, INPUTS, OUTPUTS), random_stats(0)
    before = data.joint.clone()
    assert_equal(prior + data, prior.stats() + data, 0.0)
    assert torch.equal(data.joint, before)
    want = RegressionStats.prior(4.0, 0.3 * torch.eye(OUTPUTS, dtype=torch.float64), 6.5, INPUTS)
    assert_equal(prior.stats(), want, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shifted_statistics_are_those_of_the_shifted_targets(dtype):
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(2, 7, 5, generator=rng, dtype=dtype)
    y = torch.randn(2, 7, 3, generator=rng, dtype=dtype)
    w = torch.randn(2, 5, 3, generator=rng, dtype=dtype)
    before = RegressionStats.of(x, y)
    kept = before.joint.clone()
    expected = RegressionStats.of(x.double(), y.double() + x.double() @ w.double())
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(before.shifted(w).joint, expected.joint, rtol=bound, atol=bound)
    assert torch.equal(before.joint, kept)


def test_what_is_explained_cancels_exactly_in_shifted_statistics():
    """A small step on large outputs: the scale U is that of the step, which float32 rows alone would lose."""
    rng = torch.Generator().manual_seed(6)
    x = torch.randn(200, 5, generator=rng)
    w = 1e4 * torch.randn(5, 3, generator=rng)
    step = 1e-2 * torch.randn(200, 3, generator=rng)
    prior = DiagonalPrior(1e20, 1e-9, 0.0, 5, 3)
    shifted = MatrixNormalInverseWishart.from_stats(prior + RegressionStats.of(x, step).shifted(w))
    xd, rest = x.double(), step.double()
    exact = rest.T @ rest - rest.T @ xd @ torch.linalg.solve(xd.T @ xd, xd.T @ rest)
    assert float((shifted.scale - exact).norm() / exact.norm()) < 1e-2
    assert float(shifted.jitter) == 0
    direct = RegressionStats.of(x, x @ w + step)
    wide = RegressionStats(direct.joint.double(), direct.n, 5)
    lost = (wide.yy - wide.xy.mT @ torch.linalg.solve(wide.xx, wide.xy) - exact).norm() / exact.norm()
    assert float(lost) > 1.0
