"""Runs a task: every run once, where it stopped if it was killed, its lines appended when it is done."""

from __future__ import annotations

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

TRAINED = ".trained"  # checkpoints, beside the results: of killed runs, and for tasks that share a network
Say = Callable[[str], None]


def run(request: Request, say: Say) -> list[dict[str, Any]]:
    """Carry out a request; one object per data set, method and settings."""
    if request.task not in TASKS:
        raise ValueError(f"there is no task {request.task!r}; there are {', '.join(TASKS)}")
    task, file = TASKS[request.task], results.file_of(request.out, request.task)
    lines = [line for job in task.jobs(request) for line in _lines(task, job, file, request.progress, say)]
    return summaries(lines)


def _lines(task: Task, job: Job, file: Path, progress: bool, say: Say) -> list[results.Line]:
    """The lines of a job: those in the file, or new ones."""
    name = f"{job.task} {job.dataset} {job.method} ({job.settings})"
    where = f"splits {_range(job.splits)}, seed {job.seed}"
    done = {line["split"]: line for line in results.of_run(file, job.run)}  # the last line of each
    if set(done) >= set(job.splits):
        say(f"{name}, {where}: already in {file}")
        return [done[split] for split in job.splits]
    say(f"{name}, {where}: {job.steps or 'as many'} steps" + ("" if job.steps else " as the method chooses"))
    lines = _carried_out(task, job, file.parent / TRAINED, progress)
    results.append(file, lines)
    return lines


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
    if watch.at or own.exists() or not job.steps:
        return own
    return next((other for other in sorted(folder.glob(f"{own.name}-*")) if _is_done(other, job)), own)


def _is_done(folder: Path, job: Job) -> bool:
    saved = newest_checkpoint(folder)
    return saved is not None and saved[0]["step"] == job.steps


def _range(splits: tuple[int, ...]) -> str:
    return f"{min(splits)} to {max(splits)}" if len(splits) > 1 else str(*splits)
