"""Tables 1 and 7: regression on the UCI sets, all standard splits, 256 draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bayeswise.bench import scores
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks.protocol import datasets_of, jobs_of
from bayeswise.bench.watch import Watch
from bayeswise.posterior import Posterior

DRAWS = 256


class UCI:
    """Regression on tables."""

    summary = "regression on the UCI sets (Tables 1 and 7)"
    datasets = ("yacht", "concrete", "energy", "wine_red", "kin8nm", "power", "protein")

    def jobs(self, request: Request) -> Iterator[Job]:
        """All splits of a data set in one batched run."""
        for dataset in datasets_of(request, self, "regression"):
            yield from jobs_of(request, dataset, request.splits or len(dataset.train), DRAWS)

    def watch(self, job: Job) -> Watch:
        """Only the time."""
        return Watch()

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """RMSE, log-likelihood as mixture and as moment-matched Gaussian, coverage, CRPS."""
        prediction = posterior.predict(job.x_test, n=job.draws)
        found = scores.regression(prediction, job.y_test)
        return [{"metrics": metrics} for metrics in found]
