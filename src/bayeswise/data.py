"""The training rows, in whatever form they come: a pair of arrays, a Dataset or a DataLoader.

Every form is prepared at the door (checked, moved, in the network's units) and can be gone through again in
the same order: epoch by epoch, from any position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from bayeswise.randomness import derived_seed

BATCH = 1024
Batch = tuple[Tensor, Tensor]
Prepare = Callable[[Any, Any], Batch]


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Rows in memory: x (…, N, …) and y (…, N[, O]), `lead` of whose dimensions are members."""

    x: Tensor
    y: Tensor
    batch_size: int
    lead: int = 0

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.x.shape[self.lead]

    @property
    def example(self) -> Batch:
        """The first rows."""
        return self._rows(torch.arange(min(self.batch_size, self.n)))

    def epoch(self, epoch: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Shuffled batches from position `start` on; a last incomplete batch is left out."""
        if self.batch_size >= self.n:
            yield from islice([(self.x, self.y)], start, None)
            return
        order = torch.randperm(self.n, generator=Generator().manual_seed(derived_seed(seed, epoch)))
        for rows in list(order.split(self.batch_size))[start : self.n // self.batch_size]:
            yield self._rows(rows)

    def ordered(self) -> Iterator[Batch]:
        """Every row once, in order."""
        for start in range(0, self.n, self.batch_size):
            size = min(self.batch_size, self.n - start)
            yield self.x.narrow(self.lead, start, size), self.y.narrow(self.lead, start, size)

    def parted(self, folds: int, held: int, seed: int) -> tuple[TensorRows, Batch]:
        """Most rows, and `held` others to judge by; `folds` times with other rows, (folds·members, …)."""
        order = torch.randperm(self.n, generator=Generator().manual_seed(seed))
        orders = torch.stack([order.roll(-fold * held) for fold in range(folds)])  # (folds, N)
        parts = [self._rows(own) for own in orders]
        if folds > 1:
            join = torch.cat if self.lead else torch.stack
            x, y = (join(list(both)) for both in zip(*parts, strict=True))
        else:
            x, y = parts[0]
        lead = self.lead if folds == 1 else 1
        most = self.n - held
        rows = replace(self, x=x.narrow(lead, held, most), y=y.narrow(lead, held, most), lead=lead)
        rows = replace(rows, batch_size=min(self.batch_size, most))
        return rows, (x.narrow(lead, 0, held), y.narrow(lead, 0, held))

    def _rows(self, rows: Tensor) -> Batch:
        rows = rows.to(self.x.device)
        return self.x.index_select(self.lead, rows), self.y.index_select(self.lead, rows)


@dataclass(frozen=True, eq=False)
class LoaderRows:
    """Rows from a DataLoader; its order comes from the seed and the epoch, not from the global generator."""

    loader: DataLoader
    prepare: Prepare

    @property
    def n(self) -> int:
        """The number of rows, those that `drop_last` leaves out of a pass included."""
        return self._count

    @property
    def example(self) -> Batch:
        """The first batch."""
        return self._first

    @cached_property
    def _count(self) -> int:
        if self.loader.batch_size is not None:  # else the user makes the batches, of any rows
            try:
                return len(self.loader.sampler)  # type: ignore[arg-type]
            except TypeError:  # a stream
                pass
        return sum(x.shape[0] for x, _ in self.ordered())

    @cached_property
    def _first(self) -> Batch:
        batch = next(iter(self.epoch(0, 0)), None)
        if batch is None:
            raise ValueError("the DataLoader yields no batch; give it at least one row")
        return batch

    def epoch(self, epoch: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """The loader's batches from position `start` on; earlier ones are fetched and dropped."""
        return self._batches(self.loader, derived_seed(seed, epoch), start)

    def ordered(self) -> Iterator[Batch]:
        """One pass in the loader's own order, with the rows that `drop_last` leaves out."""
        return self._batches(_undropped(self.loader), derived_seed(0, 0), 0)

    def _batches(self, loader: DataLoader, seed: int, start: int) -> Iterator[Batch]:
        lent = LentGenerators(loader, seed)
        with lent:
            batches = enumerate(loader)
        while True:
            with lent:
                index, batch = next(batches, (-1, None))
            if index < 0:
                return
            if index >= start:
                yield self._checked(batch, index)

    def _checked(self, batch: Any, index: int) -> Batch:
        if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) != 2:
            raise ValueError(
                f"batch {index} is a {type(batch).__name__}; a DataLoader must yield pairs (x, y)"
            )
        try:
            return self.prepare(*batch)
        except (ValueError, TypeError) as error:
            raise type(error)(f"batch {index}: {error}") from None


class LentGenerators:
    """The generators a loader uses, global and own, with a state of ours while batches are fetched.

    Entering brings our state, leaving keeps it for the next time and puts the user's back.
    """

    def __init__(self, loader: DataLoader, seed: int) -> None:
        """Fresh states from a seed."""
        batches = loader.batch_sampler
        users = [loader, loader.sampler, batches, getattr(batches, "sampler", None)]
        own = [getattr(user, "generator", None) for user in users]
        self._own = list({id(g): g for g in own if isinstance(g, Generator)}.values())
        fresh = Generator().manual_seed(seed).get_state()
        self._inside = [fresh] + [Generator(g.device).manual_seed(seed).get_state() for g in self._own]
        self._outside: list[Tensor] = []

    def __enter__(self) -> None:
        """Bring our states."""
        self._outside = self._swap(self._inside)

    def __exit__(self, *error: object) -> None:
        """Put the user's states back."""
        self._inside = self._swap(self._outside)

    def _swap(self, states: list[Tensor]) -> list[Tensor]:
        before = [torch.get_rng_state()] + [g.get_state() for g in self._own]
        torch.set_rng_state(states[0])
        for generator, state in zip(self._own, states[1:], strict=True):
            generator.set_state(state)
        return before


Rows = TensorRows | LoaderRows


def _undropped(loader: DataLoader) -> DataLoader:
    """The same loader without `drop_last`."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or not batches.drop_last:
        return loader
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(batches.sampler, batches.batch_size, drop_last=False),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )


def as_loader(dataset: Dataset, batch_size: int | None) -> DataLoader:
    """A shuffling loader of full batches for a map-style dataset, an ordered one for a stream."""
    sized = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__")
    if sized and len(dataset) == 0:  # type: ignore[arg-type]
        raise ValueError("the Dataset has no rows; at least one is needed")
    batch = batch_size or BATCH
    partial = sized and len(dataset) > batch  # type: ignore[arg-type]
    return DataLoader(dataset, batch_size=batch, shuffle=sized, drop_last=partial)
