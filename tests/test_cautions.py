"""What the summary says of unusual data."""

import pytest
import torch
from torch import nn

import bayeswise as bw
from bayeswise.cautions import cautions
from bayeswise.data import TensorRows


def rows(x, y, lead: int = 0) -> TensorRows:
    return TensorRows(x, y, 64, lead)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def said_of(found: TensorRows) -> tuple[str, ...]:
    return cautions(found, is_regression=found.y.is_floating_point())


X, Y = normal(300, 5), normal(300, 1, seed=1)


def test_ordinary_rows_need_no_caution():
    assert said_of(rows(X, Y)) == ()
    assert said_of(rows(X, (Y[:, 0] > 0).long())) == ()
    assert said_of(rows(X.expand(3, -1, -1), Y.expand(3, -1, -1), lead=1)) == ()


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:20], Y[:20], "only 20 rows"),
        (normal(120, 40), normal(120, 1), "only 3 rows for each of 40 columns: compare with a linear model"),
        (torch.cat([X, X[:, :2] @ normal(2, 3)], 1), Y, "rank 5 of 8 columns (columns repeat one another)"),
        (torch.cat([X, torch.full((300, 2), 7.0)], 1), Y, "2 of 7 input columns are constant"),
        (normal(60, 100), normal(60, 1), "rank 59 of 100 columns (there are fewer rows)"),
        (X, Y.clone().index_fill_(0, torch.tensor([3, 9]), 100.0), "2 targets lie more than 8 robust"),
        (X, (torch.arange(300) % 50 == 0).long(), "the rarest class has 6 of 300 rows (2.0%)"),
    ],
)
def test_what_is_unusual_is_said(x, y, said):
    found = said_of(rows(x, y))
    assert any(said in line for line in found), found
    assert all(line.startswith("caution: ") for line in found)


def test_a_rare_answer_to_any_question_is_said():
    y = torch.stack([Y[:, 0] > 0, torch.arange(300) % 50 == 0], 1).float()
    assert said_of(rows(X, y.long())) == cautions(rows(X, y), is_regression=False)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    posterior = bw.fit(model, (X, y), bw.Bernoulli(), bw.MAP(steps=2), progress=False)
    assert "caution: the rarest class has 6 of 300 rows (2.0%)" in posterior.summary()


def test_a_column_that_varies_late_is_not_constant():
    late = torch.zeros(300, 1)
    late[290:] = 1.0
    assert said_of(rows(torch.cat([X, late], 1), Y)) == ()


def test_columns_of_any_size_and_place_count_alike():
    scaled = X * torch.tensor([1e-6, 1.0, 1e6, 1.0, 1.0]) + torch.tensor([0.0, 1e3, 0.0, -50.0, 0.0])
    assert said_of(rows(scaled, Y)) == ()


def one_hot(classes: int, seed: int) -> torch.Tensor:
    labels = torch.randint(classes, (300,), generator=torch.Generator().manual_seed(seed))
    return nn.functional.one_hot(labels, classes).float()


def test_texts_that_are_one_hot_encoded_are_no_cause():
    coded = torch.cat([one_hot(2, 0)[:, :1], X, one_hot(3, 1), one_hot(2, 2), one_hot(4, 3)], 1)
    assert said_of(rows((coded - coded.mean(0)) / coded.std(0), Y)) == ()
    repeated = torch.cat([coded, X[:, :1], one_hot(3, 1)], 1)
    (found,) = said_of(rows(repeated, Y))
    assert "rank 12 of 15 columns (columns repeat one another)" in found


def test_images_and_many_equal_targets_are_no_cause():
    assert said_of(rows(normal(80, 1, 4, 4), normal(80, 1))) == ()
    zeros = torch.zeros(300, 1).index_fill_(0, torch.arange(40), 1.0)
    assert said_of(rows(X, zeros)) == ()


def test_the_summary_says_it():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    posterior = bw.fit(model, (X[:20], Y[:20]), bw.Gaussian(), bw.MAP(steps=2), progress=False)
    assert "caution: only 20 rows" in posterior.summary()
