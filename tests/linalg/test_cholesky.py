"""The safe Cholesky: what it rescues, what it leaves alone and what it refuses."""

import pytest
import torch
from torch import Tensor

from bayeswise.linalg import NumericalError, condition, factorise, safe_cholesky

SCALES = [10.0**k for k in range(-12, 17, 4)]  # 8 of them
RANKS = [(5, 2), (20, 7), (40, 39), (60, 3), (100, 50)]  # (n, rank)
DTYPES = [torch.float32, torch.float64]


def rank_deficient(n: int, rank: int, scale: float, seed: int, dtype: torch.dtype) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(rank, n, generator=rng, dtype=dtype)
    return scale * (rows.mT @ rows)


def positive_definite(n: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return rank_deficient(n, 2 * n, 1.0, seed, dtype)


def with_condition(n: int, number: float) -> Tensor:
    """A float32 matrix whose factor has diagonal 1 … 1/sqrt(number)."""
    return torch.diag(torch.logspace(0, -torch.tensor(number).log10().item(), n))


def relative_error(lower: Tensor, matrix: Tensor) -> float:
    lower, matrix = lower.double(), matrix.double()
    return ((lower @ lower.mT - matrix).norm() / matrix.norm()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3.3e-5), (torch.float64, 6.1e-14)])
def test_rank_deficient_matrices_of_every_scale_are_factorised(dtype: torch.dtype, tolerance: float) -> None:
    rescued, worst = 0, 0.0
    cases = [(n, rank, scale, seed) for n, rank in RANKS for scale in SCALES for seed in range(3)]
    for n, rank, scale, seed in cases:  # 120 per type, 240 together
        matrix = rank_deficient(n, rank, scale, seed, dtype)
        factor = safe_cholesky(matrix)
        rescued += int(factor.rescued)
        worst = max(worst, relative_error(factor.lower, matrix))
        assert factor.jitter <= 10 * torch.finfo(dtype).eps * matrix.trace()
    assert len(cases) == 120
    assert rescued > 90
    assert worst <= tolerance


def test_jitter_scales_with_the_matrix() -> None:
    matrix = -1e-14 * torch.eye(5, dtype=torch.float64)
    matrix[0, 0] = 1.0
    small, large = safe_cholesky(matrix), safe_cholesky(2.0**40 * matrix)
    assert small.jitter > 1e-14
    assert torch.equal(large.jitter, 2.0**40 * small.jitter)
    torch.testing.assert_close(large.lower, 2.0**20 * small.lower, rtol=1e-12, atol=0)


def test_jitter_is_the_smallest_of_its_ladder() -> None:
    eps = torch.finfo(torch.float64).eps
    for k in range(9):
        low = -0.5 * eps * 10.0**k  # the ladder's step k lifts it, step k - 1 does not
        factor = safe_cholesky(torch.diag(torch.tensor([1 - low, low], dtype=torch.float64)))
        assert factor.jitter.item() == pytest.approx(eps * 10.0**k, rel=1e-12)


def test_a_rescue_touches_only_the_failing_matrices() -> None:
    good = [positive_definite(5, seed) for seed in range(6)]
    bad = rank_deficient(5, 2, 1.0, 3, torch.float64)
    batch = torch.stack([*good[:2], bad, *good[2:5], bad, good[5]]).reshape(2, 4, 5, 5)
    factor = safe_cholesky(batch)
    flat, jitter = factor.lower.reshape(8, 5, 5), factor.jitter.reshape(8)
    assert (jitter > 0).tolist() == [False, False, True, False, False, False, True, False]
    assert int(factor.rescued) == 2
    for got, matrix in zip(flat, batch.reshape(8, 5, 5), strict=True):
        assert torch.equal(got, safe_cholesky(matrix).lower)
    for got, matrix in zip(flat[[0, 1, 3, 4, 5, 7]], good, strict=True):
        assert torch.equal(got, torch.linalg.cholesky(matrix))


def test_only_the_lower_triangle_is_read() -> None:
    matrix = positive_definite(5, 0)
    spoiled = matrix + torch.full((5, 5), 3.0, dtype=torch.float64).triu(1)
    assert torch.equal(safe_cholesky(matrix).lower, safe_cholesky(spoiled).lower)


def test_the_argument_is_not_changed() -> None:
    matrix = rank_deficient(5, 2, 1.0, 0, torch.float64)
    before = matrix.clone()
    assert int(safe_cholesky(matrix).rescued) == 1
    assert torch.equal(matrix, before)


@pytest.mark.parametrize("factorisation", [safe_cholesky, factorise])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [(0, 0), (4, 4), (3, 1)])
def test_nan_and_infinity_are_named_and_counted(factorisation, dtype, value, place) -> None:
    batch = torch.stack([positive_definite(5, seed, dtype) for seed in range(3)])
    batch[1, place[0], place[1]] = value
    batch[1, place[1], place[0]] = value
    count = 1 if place[0] == place[1] else 2
    with pytest.raises(NumericalError, match=rf"enc\.proj: {count} of 75 entries are NaN or infinite; look"):
        factorisation(batch, "enc.proj")


@pytest.mark.parametrize("factorisation", [safe_cholesky, factorise])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_indefinite_matrix_is_refused_with_its_name_and_a_remedy(factorisation, dtype) -> None:
    batch = torch.stack([positive_definite(5, seed, dtype) for seed in range(3)])
    batch[2, 0, 0] = -1.0
    with pytest.raises(NumericalError, match=r"fc: 1 of 3 matrices of size 5.*use a tighter prior"):
        factorisation(batch, "fc")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_slightly_indefinite_matrix_is_refused_in_either_type(dtype: torch.dtype) -> None:
    matrix = torch.tensor([[1.0, 1.001], [1.001, 1.0]], dtype=dtype)  # an eigenvalue of -5e-4 of the trace
    tried = {torch.float32: "1e-05", torch.float64: "2e-05"}[dtype]  # eps·10^k, the last below 1e-4
    with pytest.raises(NumericalError, match=f"not positive definite, even with {tried} of the trace"):
        safe_cholesky(matrix)


def test_condition_is_the_squared_ratio_of_the_diagonal() -> None:
    lower = torch.diag_embed(torch.tensor([[4.0, 1.0, 2.0], [3.0, 3.0, 0.5]]))
    assert condition(lower).tolist() == [16.0, 36.0]


def test_factorise_goes_to_float64_past_the_limit() -> None:
    below, above = with_condition(5, 0.5e5), with_condition(5, 2e5)
    assert factorise(below).lower.dtype == torch.float32
    assert factorise(above).lower.dtype == torch.float64
    assert torch.equal(factorise(above).lower, torch.linalg.cholesky(above.double()))
    assert factorise(torch.stack([below, above])).lower.dtype == torch.float64
    assert torch.equal(factorise(below).lower, torch.linalg.cholesky(below))


def test_factorise_needs_no_jitter_where_float64_is_enough() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randint(-3, 4, (3, 5), generator=rng).float()  # products of integers are exact
    matrix = rows.mT @ rows + 2.0**-20 * torch.eye(5)
    assert int(safe_cholesky(matrix - 2.0**-20 * torch.eye(5)).rescued) == 1
    factor = factorise(matrix)
    assert factor.lower.dtype == torch.float64
    assert int(factor.rescued) == 0
    assert relative_error(factor.lower, matrix) <= 1e-15


def test_factorise_rescues_float32_products_by_their_own_rounding_error() -> None:
    shares = []
    for n, rank in RANKS:
        for seed in range(5):
            matrix = rank_deficient(n, rank, 1.0, seed, torch.float32)
            factor = factorise(matrix)
            shares.append((factor.jitter / matrix.double().trace()).item())
            assert relative_error(factor.lower, matrix) <= 3.3e-5
    rescued = [share for share in shares if share > 0]
    assert len(rescued) >= 15
    assert min(rescued) == pytest.approx(torch.finfo(torch.float32).eps, rel=1e-12)  # not that of float64


def test_float32_products_held_in_float64_are_rescued() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(2000, 4, generator=rng) @ torch.randn(4, 30, generator=rng) + 3.0
    matrix = (rows.mT @ rows).double()  # indefinite by some 1e-8 of its trace
    assert torch.linalg.eigvalsh(matrix)[0] < -2.3e-9 * matrix.trace()
    assert relative_error(safe_cholesky(matrix).lower, matrix) <= 1e-6
