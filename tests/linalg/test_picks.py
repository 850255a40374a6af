"""Rows that are held as the place of their one, against one-hot rows."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayeswise.linalg import first_alike, is_picks, merged, picked, scattered

B, T, I, O, K = 7, 6, 5, 3, 2  # noqa: E741


@pytest.fixture(params=[(), (K,)], ids=["one", "members"])
def rows(request) -> tuple[Tensor, Tensor, Tensor]:
    """Places x (…, B, T, 1), the same one-hot (…, B, T, I), and g (…, B, T, O)."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(I, (*request.param, B, T, 1), generator=rng)
    g = torch.randn(*request.param, B, T, O, generator=rng, dtype=torch.float64)
    return x, one_hot(x[..., 0], I).double(), g


def test_products_are_those_of_one_hot_rows(rows):
    x, hot, g = rows
    assert is_picks(x) and not is_picks(hot)
    torch.testing.assert_close(scattered(x, g, I), hot.mT @ g, rtol=1e-14, atol=1e-14)
    values = torch.randn(*x.shape[:-2], I, O, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(picked(values, x), hot @ values)


def test_rows_that_are_alike_are_added_at_the_first_of_them(rows):
    x, hot, g = rows
    first = first_alike(x)
    for index in [(0, 0), (3, 5), (6, 2)]:
        own = x[(*(0,) * (x.dim() - 3), index[0])][:, 0].tolist()
        assert int(first[(*(0,) * (x.dim() - 3), *index)]) == own.index(own[index[1]])
    found = merged(first, g)
    torch.testing.assert_close(hot.mT @ found, hot.mT @ g, rtol=1e-14, atol=1e-14)
    later = first[..., 0] != torch.arange(T)
    assert bool(later.any()) and not bool(found[later].any())
    squares = (hot.mT @ g).square().sum(-3)  # Σ_n (Σ_t x g)²
    again = scattered(x.flatten(-3, -2), found.square().flatten(-3, -2), I)
    torch.testing.assert_close(again, squares, rtol=1e-13, atol=1e-13)
