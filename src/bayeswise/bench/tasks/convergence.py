"""Figure 2: training and test NLL against steps and against seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks.classification import DRAWS, classified
from bayeswise.bench.tasks.protocol import datasets_of, jobs_of
from bayeswise.bench.watch import Watch, nll_of, spread
from bayeswise.posterior import Posterior

TRAIN_ROWS, FIRST, LOOKS = 10_000, 10, 16
STEPS = 1_000  # about as many as a method chooses


class Convergence:
    """NLL along a run, by 128 draws, at sixteen steps evenly spaced on a logarithmic scale."""

    summary = "NLL of training and test rows against steps and seconds (Fig. 2)"
    datasets = ("spambase", "magic", "mnist", "fashion_mnist")

    def jobs(self, request: Request) -> Iterator[Job]:
        """One split or seed of each data set, unless more are asked for."""
        for dataset in datasets_of(request, self, "classification"):
            yield from jobs_of(request, dataset, request.splits or 1, DRAWS)

    def watch(self, job: Job) -> Watch:
        """The likelihood of the test rows and of 10,000 random training rows."""
        return watched(job)

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """The figures at the end, and the curve."""
        return [one | {"curve": watch.curve()} for one in classified(job, posterior)]


def watched(job: Job) -> Watch:
    """Looks at test rows and at random training rows along the run of one split."""
    assert not job.batched  # these networks are too wide for it
    rng = torch.Generator().manual_seed(job.seed)
    some = torch.randperm(len(job.y), generator=rng)[:TRAIN_ROWS]
    rows = {"train_nll": (job.x[some], job.y[some]), "test_nll": (job.x_test, job.y_test)}
    return Watch(frozenset(spread(job.steps or STEPS, FIRST, LOOKS)), nll_of(rows, job.draws))
