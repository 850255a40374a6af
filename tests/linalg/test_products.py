"""Products, solves, log-determinants and the multivariate gamma function against their definitions."""

import math

import pytest
import torch
from torch import Tensor

from bayeswise.linalg import (
    GramSum,
    cross,
    gram,
    logdet,
    multidigamma,
    multigammaln,
    solve_lower,
    solve_lower_t,
    symmetric_eigen,
)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one thread are numpy's, of several torch's."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def lower(*shape: int) -> Tensor:
    return normal(*shape, shape[-1]).tril() + 3 * torch.eye(shape[-1], dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 5, 300])
def test_gram_is_the_product_and_symmetric(n: int) -> None:
    rows = normal(2, 7, n)
    got = gram(rows)
    torch.testing.assert_close(got, torch.einsum("kri,krj->kij", rows, rows), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got, got.mT, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gram_keeps_the_precision_of_its_rows(dtype: torch.dtype) -> None:
    rows = normal(7, 30).to(dtype)
    torch.testing.assert_close(gram(rows), rows.mT @ rows)


def test_gram_of_columns_that_lie_apart_and_of_rows_to_differentiate() -> None:
    wide = normal(3, 7, 30)
    rows = wide[..., ::3]
    torch.testing.assert_close(gram(rows), rows.mT @ rows, rtol=1e-12, atol=1e-12)
    wide.requires_grad_()
    (found,) = torch.autograd.grad(gram(wide).sum(), wide)
    torch.testing.assert_close(found, 2 * wide.sum(-1, keepdim=True).expand_as(wide))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("columns", [1, 4])
def test_cross_is_the_product_of_two_sets_of_rows(lead: tuple[int, ...], columns: int) -> None:
    a, b = normal(*lead, 7, 5), normal(*lead, 7, 2 * columns, seed=1)[..., ::2]
    wanted = torch.einsum("...ri,...rj->...ij", a, b)
    torch.testing.assert_close(cross(a, b), wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cross(a.expand(2, *a.shape), b.expand(2, *b.shape))[1], wanted)
    (slope,) = torch.autograd.grad(cross(a.requires_grad_(), b).sum(), a)
    torch.testing.assert_close(slope, b.sum(-1, keepdim=True).expand_as(a))


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("n", [1, 5, 300, 1_024, 1_100])
def test_a_sum_of_grams_is_the_gram_of_all_rows(n: int, lead: tuple[int, ...]) -> None:
    """Also where it is asked for before the last part."""
    rows = normal(*lead, 21, n)
    found = GramSum.like(rows)
    for k, part in enumerate(rows.split(7, -2)):
        found.add_(part)
        seen = rows[..., : 7 * (k + 1), :]
        torch.testing.assert_close(found.total(), seen.mT @ seen, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [5, 300])
def test_a_sum_of_grams_may_be_finer_than_its_rows(n: int) -> None:
    """Each product is rounded, their sum is not: small parts are not lost beside a large one."""
    rows = normal(7, n, dtype=torch.float32)
    found = GramSum(torch.full((n, n), 1e8, dtype=torch.float64))
    for _ in range(3):
        found.add_(rows)
    wanted = 1e8 + 3 * (rows.mT @ rows).double()
    torch.testing.assert_close(found.total(), wanted, rtol=1e-14, atol=0)


def test_gram_of_no_rows_is_zero() -> None:
    assert torch.equal(gram(torch.empty(0, 300)), torch.zeros(300, 300))


def test_solves_with_leading_dimensions() -> None:
    factor, b = lower(2, 5), normal(11, 2, 5, 3, seed=1)
    forward, backward = solve_lower(factor, b), solve_lower_t(factor, b)
    torch.testing.assert_close(factor @ forward, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factor.mT @ backward, b, rtol=1e-12, atol=1e-12)


def test_logdet_is_that_of_the_product() -> None:
    factor = lower(2, 5)
    want = torch.linalg.slogdet(factor @ factor.mT)[1]
    torch.testing.assert_close(logdet(factor), want, rtol=1e-12, atol=0)


def test_logdet_does_not_overflow() -> None:
    factor = 1e30 * torch.eye(40)
    assert logdet(factor).item() == pytest.approx(2 * 40 * math.log(1e30), rel=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
def test_multigammaln_obeys_its_recursion_to_the_scalar_function(dim: int) -> None:
    a = 3.1
    want = math.lgamma(a)  # Γ_d(a) = π^((d-1)/2) Γ(a) Γ_{d-1}(a - 1/2)
    for j in range(1, dim):
        want += j / 2 * math.log(math.pi) + math.lgamma(a - j / 2)
    got = multigammaln(torch.tensor([a, a], dtype=torch.float64), dim)
    assert got.tolist() == pytest.approx([want, want], rel=1e-13)


def test_multigammaln_of_two_dimensions_obeys_the_duplication_formula() -> None:
    # Γ_2(n) = π^(1/2) Γ(n) Γ(n - 1/2) = π 2^(2-2n) Γ(2n - 1)
    for n in (2, 3, 7):
        want = math.log(math.pi) + (2 - 2 * n) * math.log(2) + math.lgamma(2 * n - 1)
        got = multigammaln(torch.tensor(float(n), dtype=torch.float64), 2)
        assert got.item() == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("dim", [1, 3])
def test_multidigamma_is_the_derivative_of_multigammaln(dim: int) -> None:
    a = torch.tensor([2.3, 9.7, 400.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(multigammaln(a, dim).sum(), a)
    torch.testing.assert_close(multidigamma(a.detach(), dim), slope, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eigenvectors_give_the_matrix_back(dtype: torch.dtype) -> None:
    a = gram(normal(2, 7, 5)).to(dtype)
    values, vectors = symmetric_eigen(a)
    assert values.dtype == vectors.dtype == dtype and vectors.is_contiguous()
    assert bool((values.diff() >= 0).all())
    close = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(vectors * values[..., None, :] @ vectors.mT, a, rtol=close, atol=close)
    torch.testing.assert_close(
        vectors.mT @ vectors, torch.eye(5, dtype=dtype).expand(2, 5, 5), rtol=close, atol=close
    )
