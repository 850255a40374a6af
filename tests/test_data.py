"""Rows in every form: each once, in an order that can be repeated from any position."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from bayeswise.data import LoaderRows, TensorRows, as_loader

N, B = 23, 7
X = torch.arange(float(N))[:, None]
Y = 10 * X


def as_is(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def loader_rows(**options) -> LoaderRows:
    return LoaderRows(DataLoader(TensorDataset(X, Y), **({"batch_size": B} | options)), as_is)


def order(batches) -> list[list[int]]:
    pairs = list(batches)
    assert all(torch.equal(y, 10 * x) for x, y in pairs)
    return [x.flatten().int().tolist() for x, _ in pairs]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


SOURCES = {
    "tensors": lambda: TensorRows(X, Y, B),
    "loader": lambda: loader_rows(shuffle=True, drop_last=True),
    "own generator": lambda: loader_rows(
        shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(1)
    ),
    "sampler": lambda: loader_rows(
        sampler=RandomSampler(X, generator=torch.Generator().manual_seed(2)), drop_last=True
    ),
    "batch sampler": lambda: LoaderRows(
        DataLoader(
            TensorDataset(X, Y),
            batch_sampler=BatchSampler(
                RandomSampler(X, generator=torch.Generator().manual_seed(2)), B, drop_last=True
            ),
        ),
        as_is,
    ),
}
sources = pytest.mark.parametrize("name", SOURCES)


@sources
def test_an_epoch_is_repeated_from_its_number_and_seed(name: str):
    rows = SOURCES[name]()
    first = order(rows.epoch(0, 5))
    assert order(rows.epoch(0, 5)) == first == order(SOURCES[name]().epoch(0, 5))
    assert order(rows.epoch(1, 5)) != first and order(rows.epoch(0, 6)) != first
    assert [len(batch) for batch in first] == [B, B, B]
    assert len(set(flat(first))) == 3 * B


@sources
@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_an_epoch_goes_on_from_any_position(name: str, start: int):
    rows = SOURCES[name]()
    assert order(rows.epoch(4, 5, start)) == order(rows.epoch(4, 5))[start:]


@sources
def test_the_generators_of_the_user_are_put_back_after_every_batch(name: str):
    rows = SOURCES[name]()
    own = generators(rows)
    before = [torch.get_rng_state(), *(g.get_state() for g in own)]
    for index, _ in enumerate(rows.epoch(0, 5)):
        now = [torch.get_rng_state(), *(g.get_state() for g in own)]
        assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True)), index
        if index == 1:
            break  # given up in the middle of an epoch
    assert torch.equal(torch.get_rng_state(), before[0])


def generators(rows) -> list[torch.Generator]:
    if isinstance(rows, TensorRows):
        return []
    batches = rows.loader.batch_sampler
    found = (getattr(o, "generator", None) for o in (rows.loader, rows.loader.sampler, batches.sampler))
    return [g for g in found if g is not None]


def test_a_user_who_draws_between_batches_changes_nothing():
    rows = loader_rows(shuffle=True)
    expected, seen = order(rows.epoch(0, 5)), []
    with torch.random.fork_rng():
        for batch in rows.epoch(0, 5):
            torch.rand(3)
            seen.append(batch)
    assert order(seen) == expected


class Noisy(TensorDataset):
    """Augmentation: every row is drawn anew from the global generator."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.rand(1), super().__getitem__(index)[1]


def test_augmentation_is_new_in_every_batch_and_repeated_with_the_epoch():
    rows = LoaderRows(DataLoader(Noisy(X, Y), B), as_is)
    first, again, later = (torch.cat([x for x, _ in rows.epoch(e, 5)]) for e in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert len(set(first.flatten().tolist())) == N
    skipped = torch.cat([x for x, _ in rows.epoch(0, 5, start=2)])
    assert torch.equal(skipped, first[2 * B :])


@pytest.mark.parametrize("name", ["tensors", "loader"])
def test_ordered_has_every_row_once(name: str):
    rows = TensorRows(X, Y, B) if name == "tensors" else loader_rows(shuffle=True)
    assert sorted(flat(order(rows.ordered()))) == list(range(N)) and rows.n == N
    assert [len(batch) for batch in order(rows.ordered())] == [B, B, B, 2]


def test_tensors_in_one_batch_are_not_shuffled():
    rows = TensorRows(X, Y, N)
    assert order(rows.epoch(0, 1)) == [list(range(N))] and order(rows.epoch(0, 1, 1)) == []


def test_members_are_shuffled_alike():
    x = torch.stack([X, X + 100])
    for a, b in TensorRows(x, 10 * x, B, 1).epoch(2, 3):
        assert torch.equal(a[1], a[0] + 100) and torch.equal(b, 10 * a) and a.shape == (2, B, 1)


def test_the_example_is_the_first_batch():
    assert order([TensorRows(X, Y, B).example]) == [list(range(B))]
    assert order([loader_rows().example]) == [list(range(B))]


class Chosen:
    """A batch sampler that leaves most rows out."""

    def __iter__(self):
        return iter([[0, 1], [5, 6, 7]])

    def __len__(self) -> int:
        return 2


def test_the_rows_of_a_batch_sampler_are_those_that_it_chooses():
    rows = LoaderRows(DataLoader(TensorDataset(X, Y), batch_sampler=Chosen()), as_is)
    assert rows.n == 5 and order(rows.ordered()) == [[0, 1], [5, 6, 7]]


def test_the_rows_of_a_subset_sampler_are_counted():
    assert loader_rows(sampler=SequentialSampler(range(9))).n == 9


class Stream(IterableDataset):
    def __iter__(self):
        return iter((x, 10 * x) for x in X)


def test_a_stream_has_an_order_of_its_own():
    loader = as_loader(Stream(), B)
    rows = LoaderRows(loader, as_is)
    assert rows.n == N and order(rows.epoch(0, 1)) == order(rows.epoch(3, 2)) == order(rows.ordered())
    assert flat(order(rows.epoch(0, 1, 2))) == list(range(2 * B, N))


def test_a_dataset_is_shuffled_in_batches():
    rows = LoaderRows(as_loader(TensorDataset(X, Y), B), as_is)
    batches = order(rows.epoch(0, 0))
    assert [len(batch) for batch in batches] == [B, B, B]  # full ones, as of a pair
    assert len(set(flat(batches))) == 3 * B and flat(batches) != sorted(flat(batches))
    seen = {row for epoch in range(20) for row in flat(order(rows.epoch(epoch, 0)))}
    assert seen == set(range(N))
    assert as_loader(TensorDataset(X, Y), None).batch_size == 1024


@pytest.mark.parametrize("batch", [N, N + 1])
def test_a_dataset_in_one_batch_is_whole(batch: int):
    rows = LoaderRows(as_loader(TensorDataset(X, Y), batch), as_is)
    assert sorted(flat(order(rows.epoch(0, 0)))) == list(range(N))


@pytest.mark.parametrize(
    "own", [as_loader(TensorDataset(X, Y), B), DataLoader(TensorDataset(X, Y), B, drop_last=True)]
)
def test_rows_that_a_pass_leaves_out_are_in_the_ordered_one(own: DataLoader):
    rows = LoaderRows(own, as_is)
    assert sorted(flat(order(rows.ordered()))) == list(range(N)) and rows.n == N
    assert own.drop_last and len(order(rows.epoch(0, 0))) == 3


class Batches(torch.utils.data.Dataset):
    """Items that are batches already: 7, 7, 7 and 2 rows."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index * B : (index + 1) * B], Y[index * B : (index + 1) * B]


def test_items_that_are_batches_are_counted_by_their_rows():
    rows = LoaderRows(DataLoader(Batches(), batch_size=None), as_is)
    assert rows.n == N and flat(order(rows.ordered())) == list(range(N))


@pytest.mark.parametrize("dataset", [TensorDataset(X), TensorDataset(X, Y, Y)])
def test_a_loader_that_yields_no_pairs_is_refused(dataset):
    with pytest.raises(ValueError, match=r"batch 0 is a .*pairs \(x, y\)"):
        next(iter(LoaderRows(DataLoader(dataset, 4), as_is).ordered()))


def test_a_loader_without_rows_is_refused():
    empty = LoaderRows(DataLoader(TensorDataset(X[:0], Y[:0]), 4), as_is)
    with pytest.raises(ValueError, match="at least one row"):
        _ = empty.example


def test_an_error_names_its_batch():
    def refuse(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if (x == 15).any():
            raise ValueError("1 of 7 inputs are NaN")
        return x, y

    rows = LoaderRows(DataLoader(TensorDataset(X, Y), B), refuse)
    with pytest.raises(ValueError, match="batch 2: 1 of 7 inputs are NaN"):
        list(rows.ordered())
