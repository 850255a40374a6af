"""Straight starts: networks of ReLUs whose kinks lie outside the data, taken where held-out rows say so."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.rehearsals import Draft, straightened
from bayeswise.methods.tuning import Tuning
from tests.methods.judged import Judged


def test_biases_start_as_wide_as_told_for_each_start():
    """The first layer's biases times 100 for the second start; every other weight as it is."""
    x, y = table(60, True)
    wide, plain = bw.BALI(steps=1, members=2, bias_scale=(1.0, 100.0)), bw.BALI(steps=1, members=2)
    posterior = bw.fit(relus(), (x, y), bw.Gaussian(), plain, progress=False)
    rows = TensorRows(x, y, 60)
    found, usual = (
        m.init(posterior.problem, rows, torch.Generator().manual_seed(0)).start for m in (wide, plain)
    )
    torch.testing.assert_close(found["2"], usual["2"])
    torch.testing.assert_close(found["0"][:, :-1], usual["0"][:, :-1])
    torch.testing.assert_close(found["0"][:, -1], usual["0"][:, -1] * torch.tensor([[1.0], [100.0]]))


def table(n: int, bent: bool) -> tuple[Tensor, Tensor]:
    """A straight line in three of five columns, or a wave along the first, with noise 0.3."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    signal = torch.sin(3 * x[:, :1]) if bent else x[:, :1] - 2 * x[:, 1:2] + 0.5 * x[:, 2:3]
    return x, signal + 0.3 * torch.randn(n, 1, generator=rng, dtype=torch.float64)


def relus() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.ReLU(), nn.Linear(30, 1)).double()


def chosen(n: int, bent: bool, rows: int = 2_000) -> tuple[bw.Posterior, float, float]:
    """What BALI chooses, its error on new rows, and that of a ridge regression."""
    x, y = table(n + 500, bent)
    method = bw.BALI(tuning=Tuning(lengths=(300,), shares=(1.0, 0.0625), straight_rows=rows))
    posterior = bw.fit(relus(), (x[:n], y[:n]), bw.Gaussian(), method, progress=False)
    ones = torch.cat([x, torch.ones_like(y)], 1)
    line = torch.linalg.solve(ones[:n].mT @ ones[:n] + torch.eye(6), ones[:n].mT @ y[:n])
    errors = (posterior.predict(x[n:]).mean - y[n:], ones[n:] @ line - y[n:])
    ours, ridge = (float(e.square().mean().sqrt()) for e in errors)
    return posterior, ours, ridge


def test_a_few_rows_of_a_line_are_fitted_straight():
    posterior, ours, ridge = chosen(20, bent=False)
    assert any(note.startswith("a straight start instead, share ") for note in posterior.notes)
    assert "10 steps of 8 starts" in posterior.summary()  # more, after 100 in the rehearsal
    assert ours < 1.1 * ridge


def test_with_many_rows_no_straight_start_is_tried():
    posterior, *_ = chosen(20, bent=False, rows=19)
    assert not any("straight" in note for note in posterior.notes)


def test_a_wave_is_not_fitted_straight():
    posterior, ours, ridge = chosen(200, bent=True)
    assert not any("straight" in note for note in posterior.notes)
    assert ours < 0.9 * ridge


def test_straight_starts_are_taken_in_the_splits_where_they_win():
    """Two splits: the first is better bent, the second straight with the second share."""
    bent = torch.tensor([[-1.0, -1.0], [-3.0, -3.0]])  # (S, R)
    straight = torch.tensor([[[-2.0, -2.0], [-2.5, -2.5]], [[-2.0, -2.2], [-1.0, -1.0]]])  # (C, S, R)
    tuning = Tuning(straight_shares=(1.0, 0.25), straight_steps=7, straight=50.0)
    method = bw.BALI(members=2, steps=(20, 40), temperature=(0.5, 1.0), tuning=tuning)
    trials: Any = Judged(straight, members=2)
    draft = Draft(replace(method, effective=(4.0, 16.0)), ((4.0, 16.0), (1.0, 1.0)), rows=bent)
    found, note = straightened(draft, 2.0, trials)
    assert found.shares == ((4.0, 0.25), (1.0, 0.25))
    assert found.method.bias_scale == (1.0, 50.0) and found.method.steps == (20, 7)
    assert found.method.temperature == (0.5, 2.0)
    assert note.startswith("a straight start instead in 1 of 2 splits, share 0.25 to 1, 7 steps and temp")
    worse: Any = Judged(straight - 9, members=2)
    assert straightened(draft, 2.0, worse) == (draft, "")
    assert straightened(replace(draft, shares=()), 2.0, trials)[1] == ""  # N_eff was given
