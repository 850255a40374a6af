"""Figure 7: how the uncertainty of the weights enters the forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.tasks.classification import DRAWS, classified
from bayeswise.bench.tasks.convergence import watched
from bayeswise.bench.tasks.protocol import datasets_of, jobs_of
from bayeswise.bench.watch import Watch
from bayeswise.methods.forward import Deterministic, LocalReparametrisation, WeightNoise
from bayeswise.posterior import Posterior

FORMS = {"weight": WeightNoise(), "local": LocalReparametrisation(), "deterministic": Deterministic()}


class Reparametrisation:
    """NLL along a run for each form of the noise; a method without forms runs once as it is."""

    summary = "noise on weights, on outputs, or none in the forward pass (Fig. 7)"
    datasets = ("spambase", "fashion_mnist")

    def jobs(self, request: Request) -> Iterator[Job]:
        """One run for each form."""
        for dataset in datasets_of(request, self, "classification"):
            for job in jobs_of(request, dataset, request.splits or 1, DRAWS):
                yield from _forms(job)

    def watch(self, job: Job) -> Watch:
        """As in Figure 2."""
        return watched(job)

    def score(self, job: Job, posterior: Posterior, watch: Watch) -> Sequence[dict[str, Any]]:
        """The figures at the end, and the curve."""
        return [one | {"curve": watch.curve()} for one in classified(job, posterior)]


def _forms(job: Job) -> Iterator[Job]:
    """The job with each form that its method takes; as it is, where it takes none."""
    found = False
    for name, form in FORMS.items():
        try:
            method: Any = replace(job.recipe.method, forward=form)  # type: ignore[type-var]
        except TypeError:  # a method without this form, or without any
            continue
        found = True
        settings = name if job.settings == "paper" else f"{name}, {job.settings}"
        yield replace(job, recipe=replace(job.recipe, method=method), settings=settings)
    if not found:
        yield job
