"""What a task is: which runs it consists of, what is watched on the way, and the figures at the end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from bayeswise.bench.datasets import Dataset, available, equal_groups, load, rows
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.npz import KIND_OF_PREFIX
from bayeswise.bench.settings import recipe
from bayeswise.bench.watch import Watch
from bayeswise.posterior import Posterior

WIDE = 20_000  # weights of the largest layer from which members no longer gain from one batched run


class Task(Protocol):
    """One of the paper's experiments."""

    @property
    def summary(self) -> str:
        """One line for `bench list`."""
        ...

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paper's data sets; others of the same kind may be asked for."""
        ...

    def jobs(self, request: Request) -> Iterator[Job]:
        """The runs, one after another."""
        ...

    def watch(self, job: Job) -> Watch:
        """What is noted while it trains."""
        ...

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """`metrics`, and what else belongs to the line, of every split."""
        ...


def jobs_of(request: Request, dataset: Dataset, splits: int, draws: int) -> Iterator[Job]:
    """The runs of one data set: small networks train all splits of equal size at once, others one by one.

    A data set with one published split is trained from as many seeds instead.
    """
    if len(dataset.train) == 1:
        for seed in range(request.seed, request.seed + splits):
            yield job_of(request, dataset, (0,), seed, draws, batched=False)
        return
    wanted = range(splits)
    made = recipe(dataset, request.method, request.settings, request.steps)
    if max(a * b for a, b in zip(made.sizes, made.sizes[1:], strict=False)) > WIDE:
        groups = [(split,) for split in wanted]
    else:
        groups = [tuple(group) for group in equal_groups(dataset, wanted)]
    for group in groups:
        yield job_of(request, dataset, group, request.seed, draws, batched=len(group) > 1)


def job_of(
    request: Request, dataset: Dataset, splits: tuple[int, ...], seed: int, draws: int, batched: bool
) -> Job:
    """One run."""
    made = recipe(dataset, request.method, request.settings, request.steps)
    found = rows(dataset, splits)
    tensors = (found.x, found.y, found.x_test, found.y_test)
    x, y, x_test, y_test = tensors if batched else (t[0] for t in tensors)
    return Job(
        task=request.task,
        dataset=dataset.name,
        method=request.method,
        settings=request.settings,
        seed=seed,
        splits=splits,
        recipe=made,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        draws=draws,
        data=dataset.digest,
        batched=batched,
        splits_there=len(dataset.train),
    )


def datasets_of(request: Request, task: Task, kind: str) -> Iterator[Dataset]:
    """The data sets that are asked for, by default the paper's, one at a time."""
    found = [load(name, request.data_dir) for name in request.datasets or task.datasets]  # before any trains
    for dataset in found:
        if dataset.kind != kind:
            longer = [f"{prefix}{dataset.name}" for prefix in KIND_OF_PREFIX]
            others = [name for name in available(request.data_dir) if name in longer]
            hint = f"; did you mean {' or '.join(others)}?" if others else ""
            about = f"data set {dataset.name} is for {dataset.kind}; task {request.task} needs {kind}"
            raise ValueError(about + hint)
        if len(dataset.train) > 1 and (request.splits or 0) > (count := len(dataset.train)):
            raise ValueError(f"data set {dataset.name} has {count} splits; give --splits {count} at most")
        recipe(dataset, request.method, request.settings, request.steps)  # says what it does not know
    yield from found


def check_known(request: Request, names: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse what the task does not know, before anything trains."""
    for name in names:
        if name not in known:
            raise ValueError(f"task {request.task} has no {what} {name!r}; it knows {', '.join(known)}")
