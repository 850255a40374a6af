"""Figure 3: MNIST against FashionMNIST, both ways: are foreign images met with doubt?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from bayeswise.bench import scores
from bayeswise.bench.datasets import Dataset, load, rows
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks.classification import DRAWS, SEEDS
from bayeswise.bench.tasks.protocol import check_known, datasets_of, jobs_of
from bayeswise.bench.watch import Watch
from bayeswise.posterior import Posterior

PAIRS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
BINS = 40


class OutOfDistribution:
    """Known images against foreign ones, by entropy and by mutual information."""

    summary = "known against foreign images, MNIST and FashionMNIST (Fig. 3)"
    datasets = ("mnist", "fashion_mnist")

    def jobs(self, request: Request) -> Iterator[Job]:
        """Three seeds of each direction."""
        found = list(datasets_of(request, self, "classification"))
        check_known(request, (dataset.name for dataset in found), PAIRS, "foreign rows for")
        for dataset in found:
            foreign = load(PAIRS[dataset.name], request.data_dir)
            outside = seen_by(dataset, foreign)
            for job in jobs_of(request, dataset, request.splits or SEEDS, DRAWS):
                extra = {"outside": outside}
                yield replace(job, other=foreign.name, other_data=foreign.digest, extra=extra)

    def watch(self, job: Job) -> Watch:
        """Only the time."""
        return Watch()

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """AUROC and FPR95 of both scores, their ROC curves, and histograms of the entropy."""
        inside = posterior.predict(job.x_test, n=job.draws)
        outside = posterior.predict(job.extra["outside"], n=job.draws)
        edges = np.linspace(0, np.log(job.recipe.sizes[-1]), BINS + 1)
        entropies = [p.entropy().double().numpy().clip(0, edges[-1]) for p in (inside, outside)]
        counts = [np.histogram(entropy, edges)[0].tolist() for entropy in entropies]
        histogram = {"edges": edges.round(4).tolist(), "inside": counts[0], "outside": counts[1]}
        roc = {
            name: [round(v, 4) for v in shares] for name, shares in scores.operating(inside, outside).items()
        }
        return [{"metrics": scores.separation(inside, outside), "histogram": histogram, "roc": roc}]


def seen_by(dataset: Dataset, foreign: Dataset) -> Tensor:
    """The test rows of a foreign data set, scaled by the training rows of this one."""
    if (own := (dataset.x.shape[1], dataset.x.dtype)) != (other := (foreign.x.shape[1], foreign.x.dtype)):
        words = " and ".join(f"{width} columns of {kind}" for width, kind in (own, other))
        raise ValueError(f"task ood compares {dataset.name} with {foreign.name}, but they have {words}")
    both = replace(
        dataset,
        x=np.concatenate([dataset.x, foreign.x]),
        y=np.concatenate([dataset.y, foreign.y]),
        test=(foreign.test[0] + len(dataset.x),),
    )
    return rows(both, (0,)).x_test[0]
