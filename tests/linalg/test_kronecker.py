"""The nearest Kronecker product against a dense singular value decomposition of the rearranged sum."""

import pytest
import torch
from torch import Tensor

from bayeswise.linalg import nearest_product

I, O, K = 5, 3, 4  # noqa: E741


def positive(n: int, rank: int, seed: int, *lead: int) -> Tensor:
    """A Gram matrix of so many rows."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(*lead, rank, n, generator=rng, dtype=torch.float64)
    return rows.mT @ rows


def kron(a: Tensor, b: Tensor) -> Tensor:
    return torch.kron(a.contiguous(), b.contiguous())


def best(total: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest product and its relative error, by all singular values of the (I², O²) rearrangement."""
    table = total.reshape(I, O, I, O).permute(0, 2, 1, 3).reshape(I * I, O * O)
    u, s, v = torch.linalg.svd(table, full_matrices=False)
    product = (s[0] * torch.outer(u[:, 0], v[0])).reshape(I, I, O, O).permute(0, 2, 1, 3)
    return product.reshape(I * O, I * O), s[1:].norm() / s.norm()


@pytest.mark.parametrize("scale", [1e-6, 0.2, 1.0, 7.0, 1e5])
@pytest.mark.parametrize("rank", [1, 2, 9])
def test_it_is_the_first_singular_pair(scale: float, rank: int) -> None:
    one = positive(I, rank, 0), positive(O, rank, 1)
    two = positive(I, rank, 2), scale * positive(O, rank, 3)
    found = nearest_product(one, two)
    total = kron(*one) + kron(*two)
    wanted, missed = best(total)
    got = kron(found.left, found.right)
    assert float((got - wanted).norm() / wanted.norm()) < 1e-10
    assert float((got - total).norm() / total.norm()) == pytest.approx(float(missed), rel=1e-8)
    assert float(found.missed) == pytest.approx(float(missed), rel=1e-8)
    for factor in (found.left, found.right):
        torch.testing.assert_close(factor, factor.mT, rtol=0, atol=1e-15 * float(factor.norm()))
        assert float(torch.linalg.eigvalsh(factor)[0]) > -1e-14 * float(factor.norm())


@pytest.mark.parametrize("side", ["left", "right"])
def test_it_is_exact_where_one_side_is_proportional(side: str) -> None:
    a, b, other = positive(I, 9, 0), positive(O, 9, 1), 3.7
    two = (other * a, positive(O, 9, 3)) if side == "left" else (positive(I, 9, 2), other * b)
    found = nearest_product((a, b), two)
    total = kron(a, b) + kron(*two)
    assert float((kron(found.left, found.right) - total).norm() / total.norm()) < 1e-14
    assert float(found.missed) < 1e-7  # the root of rounding


def test_leading_dimensions_are_one_by_one() -> None:
    one = positive(I, 9, 0, 2, K), positive(O, 9, 1, 2, K)
    two = positive(I, 9, 2, 2, K), positive(O, 9, 3, 2, K)
    found = nearest_product(one, two)
    assert found.missed.shape == (2, K)
    for j in range(2):
        for k in range(K):
            wanted, _ = best(kron(one[0][j, k], one[1][j, k]) + kron(two[0][j, k], two[1][j, k]))
            got = kron(found.left[j, k], found.right[j, k])
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("zero", ["one", "two", "left", "both"])
def test_a_term_that_is_zero_leaves_the_other(zero: str) -> None:
    one, two = [positive(I, 9, 0), positive(O, 9, 1)], [positive(I, 9, 2), positive(O, 9, 3)]
    for k, term in enumerate((one, two)):
        if zero in ("both", ("one", "two")[k]):
            term[1] = torch.zeros_like(term[1])
    if zero == "left":
        two[0] = torch.zeros_like(two[0])
    found = nearest_product((one[0], one[1]), (two[0], two[1]))
    torch.testing.assert_close(
        kron(found.left, found.right), kron(*one) + kron(*two), rtol=1e-12, atol=1e-300
    )
    assert float(found.missed) < 1e-60


def test_of_two_as_near_it_is_the_first() -> None:
    """Terms of the same norm that share no direction."""
    a, b = torch.eye(I, dtype=torch.float64), torch.eye(O, dtype=torch.float64)
    one, two = (a[:1].T @ a[:1], b[:1].T @ b[:1]), (a[1:2].T @ a[1:2], b[1:2].T @ b[1:2])
    found = nearest_product(one, two)
    torch.testing.assert_close(kron(found.left, found.right), kron(*one), rtol=0, atol=1e-12)
    assert float(found.missed) == pytest.approx(0.5**0.5)


def test_its_derivative_is_that_of_differences() -> None:
    one, two = (positive(I, 9, 0), positive(O, 9, 1)), (positive(I, 9, 2), positive(O, 9, 3))

    def total(s: Tensor) -> Tensor:
        found = nearest_product(one, (two[0], two[1] * s))
        return (
            torch.linalg.slogdet(found.left).logabsdet * O + torch.linalg.slogdet(found.right).logabsdet * I
        )

    s = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(total, s)
