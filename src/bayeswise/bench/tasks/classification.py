"""Table 2: classification, by 128 draws or masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from bayeswise import metrics
from bayeswise.bench import scores
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks.protocol import datasets_of, jobs_of
from bayeswise.bench.watch import Watch
from bayeswise.posterior import Posterior

DRAWS, SPLITS, SEEDS = 128, 5, 3


class Classification:
    """Classes of tables and images."""

    summary = "classification (Table 2)"
    datasets = ("spambase", "magic", "diabetes", "mnist", "fashion_mnist")

    def jobs(self, request: Request) -> Iterator[Job]:
        """Five splits of a table, three seeds of an image set."""
        for dataset in datasets_of(request, self, "classification"):
            splits = request.splits or (SEEDS if len(dataset.train) == 1 else min(SPLITS, len(dataset.train)))
            yield from jobs_of(request, dataset, splits, DRAWS)

    def watch(self, job: Job) -> Watch:
        """Only the time."""
        return Watch()

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """Accuracy, NLL, ECE, Brier score, AUC, and how often each confidence is right."""
        return classified(job, posterior)


def classified(job: Job, posterior: Posterior) -> list[dict[str, Any]]:
    """The scores and the calibration curve of every split's test rows."""
    prediction = posterior.predict(job.x_test, n=job.draws)
    probs, log_prob, y = prediction.mean, prediction.log_prob(job.y_test), job.y_test
    if not job.batched:
        probs, log_prob, y = probs[None], log_prob[None], y[None]
    return [
        {"metrics": scores.classification(p, log_p, labels), "reliability": calibration(p, labels)}
        for p, log_p, labels in zip(probs, log_prob, y, strict=True)
    ]


def calibration(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Mean confidence, accuracy and number of rows of every bin that has rows."""
    curve = metrics.calibration_curve(probs, labels)
    return {name: values.tolist() for name, values in curve._asdict().items()}
