"""Products with rows that have a single one: each row is held as the place of its one, a whole number.

Such rows x (…, T, 1) stand for one-hot rows (…, T, I), which are never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_picks(x: Tensor) -> bool:
    """Whether rows are places."""
    return not x.is_floating_point()


def picked(values: Tensor, x: Tensor) -> Tensor:
    """X V (…, T, O) for values V (…, I, O)."""
    return values.gather(-2, x.expand(*x.shape[:-1], values.shape[-1]))


def scattered(x: Tensor, g: Tensor, inputs: int) -> Tensor:
    """Xᵀ g (…, I, O) for g (…, T, O)."""
    total = g.new_zeros(*g.shape[:-2], inputs, g.shape[-1])
    return total.scatter_add_(-2, x.expand(g.shape), g)


def first_alike(x: Tensor) -> Tensor:
    """For every row the first t that picks the same place, (…, T, 1)."""
    places, order = x.sort(dim=-2, stable=True)
    t = torch.arange(x.shape[-2], device=x.device)[:, None].expand(x.shape)
    begins = torch.ones_like(places, dtype=torch.bool)
    begins[..., 1:, :] = places[..., 1:, :] != places[..., :-1, :]
    start = torch.where(begins, t, 0).cummax(-2).values  # where the run of equal places begins
    return torch.empty_like(order).scatter_(-2, order, order.gather(-2, start))


def merged(first: Tensor, g: Tensor) -> Tensor:
    """The sums of g (…, T, O) over rows that pick the same place, at the first of them; zeros at others."""
    return torch.zeros_like(g).scatter_add_(-2, first.expand(g.shape), g)
