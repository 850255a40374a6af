"""Runs a task: every run once, where it stopped if it was killed, its lines appended when it is done.

A run is not trained where its lines are in the file, where `convergence` has asked the same networks the
same, or where another task has left the trained networks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayeswise.bench import results
from bayeswise.bench.jobs import Job, Request, train
from bayeswise.bench.summary import summaries
from bayeswise.bench.tasks import TASKS, Task
from bayeswise.bench.watch import Watch
from bayeswise.methods.protocol import is_open
from bayeswise.plain import finite
from bayeswise.saving import newest_checkpoint

CURVES = "convergence"  # its lines hold the figures of these tasks, too
IN_CURVES = ("classification", "reparametrisation")
TRAINED = ".trained"  # checkpoints, beside the results: of killed runs, and for tasks that share a network
Say = Callable[[str], None]


def run(request: Request, say: Say) -> list[dict[str, Any]]:
    """Carry out a request; one object per data set, method and settings."""
    task, file = _task(request), results.file_of(request.out, request.task)
    lines = [line for job in task.jobs(request) for line in _lines(task, job, file, request.progress, say)]
    return summaries(lines)


def check(request: Request) -> None:
    """Refuse what cannot be carried out, without training."""
    next(iter(_task(request).jobs(request)))


def _task(request: Request) -> Task:
    if request.task not in TASKS:
        raise ValueError(f"there is no task {request.task!r}; there are {', '.join(TASKS)}")
    return TASKS[request.task]


def _lines(task: Task, job: Job, file: Path, progress: bool, say: Say) -> list[results.Line]:
    """The lines of a job: those in the file, or new ones."""
    name = f"{job.task} {job.dataset} {job.method} ({job.settings})"
    where = f"splits {_range(job.splits)}, seed {job.seed}"
    done = {line["split"]: line for line in results.of_run(file, job.run)}  # the last line of each
    if set(done) >= set(job.splits):
        say(f"{name}, {where}: already in {file}")
        return [done[split] for split in job.splits]
    lines = _of_curves(task, job, file.parent)
    if lines:
        say(f"{name}, {where}: from {results.file_of(file.parent, CURVES)}")
        results.append(file, lines)
        return lines
    say(f"{name}, {where}: {job.steps or 'as many'} steps" + ("" if job.steps else " as the method chooses"))
    lines = _carried_out(task, job, file.parent / TRAINED, progress)
    results.append(file, lines)
    return lines


def _of_curves(task: Task, job: Job, folder: Path) -> list[results.Line]:
    """The lines of a finished `convergence` run of the same networks as this job's, unless one is missing."""
    if job.task not in IN_CURVES:
        return []
    same = {
        key: value
        for key, value in json.loads(json.dumps(job.about)).items()
        if key not in ("task", "settings")
    }
    stored = [line for line in results.read(results.file_of(folder, CURVES)) if same.items() <= line.items()]
    found = {line["split"]: line for line in stored}
    if not set(found) >= set(job.splits):
        return []
    own = {"task": job.task, "settings": job.settings, "run": job.run}
    unasked = set() if task.watch(job).at else {"curve"}
    return [{k: v for k, v in found[split].items() if k not in unasked} | own for split in job.splits]


def _carried_out(task: Task, job: Job, folder: Path, progress: bool) -> list[results.Line]:
    """Trained and scored, null for what is no number; what a method chose is kept with the lines."""
    watch = task.watch(job)
    posterior = train(job, _place(folder, job, watch), watch, progress)
    lines = job.lines(task.score(job, posterior, watch), watch)
    chosen = {"notes": list(posterior.notes)} if is_open(job.recipe.method) else {}
    return [finite(line | chosen) for line in lines]


def _place(folder: Path, job: Job, watch: Watch) -> Path:
    """Where the run is kept; the networks of a finished run with looks serve a task that takes none."""
    own = folder / job.training(watch)
    if watch.at or not job.steps:
        return own
    return next(
        (place for place in (own, *sorted(folder.glob(f"{own.name}-*"))) if _is_done(place, job)), own
    )


def _is_done(folder: Path, job: Job) -> bool:
    saved = newest_checkpoint(folder)
    return saved is not None and saved[0]["step"] == job.steps


def _range(splits: tuple[int, ...]) -> str:
    return f"{min(splits)} to {max(splits)}" if len(splits) > 1 else str(*splits)
