"""What a line of results says of its run: seconds, names, steps and notes; and lines of several writers."""

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bayeswise as bw
from bayeswise.bench import results, runner
from bayeswise.bench.jobs import Job, Request
from bayeswise.bench.originals import digest
from bayeswise.bench.tasks import TASKS
from bayeswise.bench.watch import Watch
from bayeswise.methods.protocol import Info
from bayeswise.training import Progress

SRC = Path(runner.__file__).parents[2]


@dataclass
class Clock:
    """Time passes where a test says so, and by `tick` at every look at it."""

    now: float = 0.0
    tick: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


def clock(monkeypatch, **given: float) -> Clock:
    made = Clock(**given)
    monkeypatch.setattr("bayeswise.bench.watch.time.perf_counter", made)
    return made


def after(step: int, total: int = 9) -> Progress:
    posterior: Any = SimpleNamespace
    return Progress(step, total, Info(torch.zeros(())), posterior)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A table of numbers with three splits, and one of classes."""
    rng = np.random.default_rng(0)
    x, order = rng.normal(size=(60, 3)), np.stack([rng.permutation(60) for _ in range(3)])
    np.savez(tmp_path / "uci_yacht.npz", X=x, y=x.sum(1), train_idx=order[:, :50], test_idx=order[:, 50:])
    np.savez(tmp_path / "cls_spambase.npz", X=x, y=(x.sum(1) > 0).astype(np.uint8))
    return tmp_path


def request(data_dir: Path, task: str = "uci", dataset: str = "yacht", **changes) -> Request:
    given = {"method": "map", "settings": "default", "progress": False}
    return Request(task, out=data_dir / "out", data_dir=data_dir, datasets=(dataset,), **(given | changes))


def first(asked: Request) -> Job:
    return next(iter(TASKS[asked.task].jobs(asked)))


# ---------------------------------------------------------------------------------------------------- seconds


def test_every_step_adds_its_seconds(monkeypatch):
    clock(monkeypatch, tick=1.0)
    watch = Watch()
    for step in range(1, 8):
        watch(after(step))
        assert watch.seconds == step


def test_seconds_of_looking_are_not_counted(monkeypatch):
    time = clock(monkeypatch)

    def look(posterior) -> dict[str, float]:
        time.now += 100
        return {"nll": 0.5}

    watch = Watch(at=(1, 3), look=look)
    for step in range(1, 5):
        time.now += 2
        watch(after(step))
    assert watch.seconds == 8
    assert watch.curve() == {"step": [1, 3], "seconds": [2, 6], "nll": [0.5, 0.5]}


def test_an_interrupted_watch_adds_to_what_it_had(monkeypatch):
    time = clock(monkeypatch)
    watch = Watch(history=[(50.0, 9)])
    time.now += 3
    watch(after(6))
    assert watch.seconds == 53 and watch.steps == 9


# ---------------------------------------------------------------------------------------------- names of runs


def test_other_values_of_a_data_set_are_another_run(data_dir):
    before = first(request(data_dir))
    with np.load(data_dir / "uci_yacht.npz") as found:
        np.savez(data_dir / "uci_yacht.npz", **{**found, "y": found["y"] + 1})
    assert first(request(data_dir)).run != before.run


def test_the_same_values_are_the_same_run(data_dir):
    assert first(request(data_dir)).run == first(request(data_dir)).run


def test_other_batches_are_another_run(data_dir):
    job = first(request(data_dir))
    names = {replace(job, recipe=replace(job.recipe, batch=rows)).run for rows in (7, 11, None)}
    assert len(names) == 3


def test_another_known_noise_is_another_run(data_dir):
    job = first(request(data_dir))
    kinds = (bw.Gaussian(), bw.Gaussian(0.25), bw.Gaussian(0.5))
    assert len({replace(job, recipe=replace(job.recipe, likelihood=kind)).run for kind in kinds}) == 3


def test_settings_of_another_name_and_the_same_values_share_a_training(data_dir):
    asked = request(data_dir, "convergence", "spambase", method="bali", settings="paper")
    job = first(asked)
    forms = list(TASKS["reparametrisation"].jobs(replace(asked, task="reparametrisation")))
    watch = TASKS["convergence"].watch(job)
    assert [form.settings for form in forms] == ["weight", "local", "deterministic"]
    assert [form.training(watch) == job.training(watch) for form in forms] == [True, False, False]
    assert job.run not in {form.run for form in forms}


def test_negative_zero_has_the_fingerprint_of_zero():
    rows = np.array([[0.0, 1.5], [2.5, 0.0]])
    assert digest({"X": rows * [[-1, 1], [1, -1]]}) == digest({"X": rows})
    assert digest({"X": -rows}) != digest({"X": rows})


# --------------------------------------------------------------------------------------------- what lines say


def line_of(job: Job, watch: Watch) -> dict[str, Any]:
    return job.lines([{"metrics": {}} for _ in job.splits], watch)[0]


def test_a_line_has_the_steps_that_a_method_chose(data_dir):
    job = first(request(data_dir, method="bali"))
    assert job.steps == 0 and line_of(job, Watch(history=[(3.0, 77)]))["steps"] == 77


def test_a_line_has_the_steps_that_were_given(data_dir):
    job = first(request(data_dir, method="bali", steps=12))
    assert line_of(job, Watch(history=[(3.0, 12)]))["steps"] == 12


@pytest.mark.parametrize("steps, notes", [(None, ["seven starts", "one is kept"]), (12, None)])
def test_what_a_method_chose_is_kept_with_its_lines(data_dir, monkeypatch, steps, notes):
    posterior = SimpleNamespace(notes=("seven starts", "one is kept"))
    monkeypatch.setattr(runner, "train", lambda *_: posterior)
    monkeypatch.setattr(TASKS["uci"], "score", lambda job, *_: [{"metrics": {"rmse": 1.0}}] * 3)
    asked = request(data_dir, method="bali", steps=steps)
    runner.run(asked, lambda _: None)
    lines = results.read(asked.out / "uci.jsonl")
    assert [line.get("notes") for line in lines] == [notes] * 3


# -------------------------------------------------------------------------------------------- several writers

WRITER = """
import sys
from pathlib import Path
from bayeswise.bench import results
print("ready", flush=True)
sys.stdin.read()  # until all are ready
for number in range(200):
    results.append(Path(sys.argv[1]), [{"who": sys.argv[2], "number": number}])
"""


def write_together(file: Path, writers: int) -> None:
    words, env = [sys.executable, "-c", WRITER, str(file)], os.environ | {"PYTHONPATH": str(SRC)}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([*words, str(who)], env=env, **pipes))
            for who in range(writers)
        ]
        for one in started:
            assert one.stdout is not None and one.stdout.readline() == b"ready\n"
        for one in started:
            assert one.stdin is not None
            one.stdin.close()
    assert [one.returncode for one in started] == [0] * writers


def test_no_line_is_lost_where_four_write_at_once(tmp_path):
    write_together(tmp_path / "uci.jsonl", 4)
    lines = results.read(tmp_path / "uci.jsonl")
    assert len(lines) == 800
    for who in "0123":
        assert [line["number"] for line in lines if line["who"] == who] == list(range(200))
