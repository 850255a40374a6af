"""The runner: whole lines or none, the same after a kill, and one file for a new method or data set."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from bayeswise.bench import jobs, results, runner, watch
from bayeswise.bench.jobs import Request
from bayeswise.bench.tasks import TASKS
from bayeswise.cli import main
from bayeswise.methods import METHODS
from bayeswise.methods.protocol import Info
from bayeswise.saving import newest_checkpoint
from bayeswise.training import Progress

CHANGING = ("seconds", "date", "commit", "curve")  # what two equal runs may differ in


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A regression table with three splits, and a classification table without."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 3))
    order = np.stack([rng.permutation(60) for _ in range(3)])
    folder = tmp_path / "data"
    folder.mkdir()
    y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=60)
    np.savez(folder / "uci_foo.npz", X=x, y=y, train_idx=order[:, :50], test_idx=order[:, 50:])
    np.savez(folder / "cls_bar.npz", X=x, y=(y > 0).astype(np.uint8))
    return folder


def request(data_dir: Path, out: Path, **changes) -> Request:
    given = {"task": "uci", "method": "bali", "datasets": ("foo",), "settings": "default", "steps": 40}
    return Request(out=out, data_dir=data_dir, progress=False, **(given | changes))


def bench(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["bench", *words])
    return result.exit_code, result.stdout, result.stderr


def kept(file: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k not in CHANGING} for line in results.read(file)]


def test_a_line_for_every_split_and_their_mean(data_dir, tmp_path):
    (found,) = runner.run(request(data_dir, tmp_path), lambda _: None)
    lines = results.read(tmp_path / "uci.jsonl")
    assert [line["split"] for line in lines] == [0, 1, 2] and found["n_splits"] == 3
    values = np.array([line["metrics"]["rmse"] for line in lines])
    assert found["rmse"] == pytest.approx(values.mean(), rel=1e-12)
    assert found["rmse_se"] == pytest.approx(values.std(ddof=1) / 3**0.5, rel=1e-12)
    one = lines[0]
    assert (one["steps"], one["train_rows"], one["draws"]) == (40, 50, 256)
    assert one["configuration"]["kind"] == "BALI" and one["versions"]["torch"] and one["threads"] >= 1
    assert set(one["metrics"]) == {"rmse", "ll", "ll_gaussian", "coverage_90", "crps"}


def test_what_is_done_is_not_done_again(data_dir, tmp_path, monkeypatch):
    first = runner.run(request(data_dir, tmp_path), lambda _: None)
    monkeypatch.setattr(runner, "train", lambda *_: pytest.fail("trained again"))
    said: list[str] = []
    assert runner.run(request(data_dir, tmp_path), said.append) == first
    assert "already in" in said[0] and len(results.read(tmp_path / "uci.jsonl")) == 3


def test_lines_that_occur_twice_are_done_too(data_dir, tmp_path, monkeypatch):
    """Of two processes that did the same, or of files that were put together."""
    first = runner.run(request(data_dir, tmp_path), lambda _: None)
    file = tmp_path / "uci.jsonl"
    file.write_bytes(2 * file.read_bytes())
    monkeypatch.setattr(runner, "train", lambda *_: pytest.fail("trained again"))
    assert runner.run(request(data_dir, tmp_path), lambda _: None) == first


def test_a_score_that_is_no_number_is_a_line_with_null_and_no_mean(data_dir, tmp_path, monkeypatch):
    task = runner.TASKS["uci"]
    score = task.score

    def failing(job, posterior, watch):
        first, *rest = score(job, posterior, watch)
        return [first | {"metrics": first["metrics"] | {"ll": -float("inf")}}, *rest]

    monkeypatch.setattr(task, "score", failing)
    (found,) = runner.run(request(data_dir, tmp_path), lambda _: None)
    lines = results.read(tmp_path / "uci.jsonl")
    assert len(lines) == 3 and lines[0]["metrics"]["ll"] is None and lines[1]["metrics"]["ll"] is not None
    (read,) = runner.run(request(data_dir, tmp_path), lambda _: None)
    for one in (found, read):
        assert one["ll"] is None and one["ll_se"] is None and one["rmse"] > 0


def test_other_steps_seeds_and_splits_are_other_runs(data_dir, tmp_path):
    for changes in ({}, {"steps": 41}, {"seed": 1}, {"splits": 2}):
        runner.run(request(data_dir, tmp_path, **changes), lambda _: None)
    assert len({line["run"] for line in results.read(tmp_path / "uci.jsonl")}) == 4


KILLED = """
import os, signal, sys
from pathlib import Path
from bayeswise.bench import jobs, runner
from bayeswise.bench.watch import Watch
jobs.CHECKPOINT_SECONDS = 0.0
after, inner = int(sys.argv[3]), Watch.__call__
def call(self, progress):
    inner(self, progress)
    if progress.step == after:
        os.kill(os.getpid(), signal.SIGKILL)
Watch.__call__ = call
runner.run(jobs.Request("uci", "bali", Path(sys.argv[2]), Path(sys.argv[1]), ("foo",), "default",
    steps=40, progress=False), print)
"""


def test_how_a_method_would_choose_is_part_of_a_run_that_chooses_only(data_dir, tmp_path):
    task, given = runner.TASKS["uci"], request(data_dir, tmp_path)
    (chosen,), (choosing,) = task.jobs(given), task.jobs(replace(given, steps=None))
    assert "tuning" not in chosen.about["configuration"]
    assert "tuning" in choosing.about["configuration"]


def test_a_killed_run_goes_on_and_gives_the_same_lines(data_dir, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    runner.run(request(data_dir, whole), lambda _: None)
    src = str(Path(jobs.__file__).parents[2])
    for after in (13, 29):
        words = [sys.executable, "-c", KILLED, str(data_dir), str(broken), str(after)]
        killed = subprocess.run(words, env=os.environ | {"PYTHONPATH": src}, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        assert not (broken / "uci.jsonl").exists()
    (training,) = (broken / runner.TRAINED).iterdir()
    saved = newest_checkpoint(training)
    assert saved is not None and saved[0]["step"] == 28, "the last run will not begin at a checkpoint"
    runner.run(request(data_dir, broken), lambda _: None)
    assert kept(broken / "uci.jsonl") == kept(whole / "uci.jsonl")


def test_a_line_says_with_what_it_was_trained_not_with_what_scored(data_dir, tmp_path, monkeypatch):
    given = request(data_dir, tmp_path)
    for module in (watch, jobs):
        monkeypatch.setattr(module, "commit", lambda: "trained")
    runner.run(given, lambda _: None)
    (tmp_path / "uci.jsonl").unlink()
    for module in (watch, jobs):
        monkeypatch.setattr(module, "commit", lambda: "scored")
    runner.run(given, lambda _: None)
    lines = results.read(tmp_path / "uci.jsonl")
    assert {(one["commit"], one["scored"]) for one in lines} == {("trained", "scored")}


def test_a_line_says_nothing_of_a_training_that_did_not(data_dir, tmp_path):
    (job,) = TASKS["uci"].jobs(request(data_dir, tmp_path))
    (line, *_) = job.lines([{"metrics": {}}] * 3, watch.Watch(history=[(50.0, 9)]))
    assert "threads" not in line and "commit" not in line and line["scored"] == watch.commit()
    begun = watch.Watch(history=[(50.0, 9, {"threads": 64})])
    begun(Progress(10, 10, Info(torch.zeros(())), lambda: pytest.fail("it looked")))
    assert begun.environment == {"threads": 64} and begun.seconds >= 50


@pytest.mark.parametrize("lost", ["split", "metrics"])
def test_a_spoilt_line_is_named_before_anything_trains(data_dir, tmp_path, monkeypatch, lost):
    runner.run(request(data_dir, tmp_path), lambda _: None)
    file = tmp_path / "uci.jsonl"
    spoilt = [{k: v for k, v in one.items() if k != lost} for one in results.read(file)]
    file.write_text("".join(json.dumps(one) + "\n" for one in spoilt))
    monkeypatch.setattr(runner, "train", None)
    with pytest.raises(results.ResultsError, match=f'uci.jsonl, line 1: "{lost}" must be'):
        runner.run(request(data_dir, tmp_path), lambda _: None)


def test_classes_come_with_their_calibration(data_dir, tmp_path):
    given = request(data_dir, tmp_path, task="classification", datasets=("bar",), method="map", steps=3)
    runner.run(given, lambda _: None)
    for one in results.read(tmp_path / "classification.jsonl"):
        bins, rows = one["reliability"], sum(one["reliability"]["count"])
        gaps = (
            abs(c - a) * n
            for c, a, n in zip(bins["confidence"], bins["accuracy"], bins["count"], strict=True)
        )
        assert sum(gaps) / rows == pytest.approx(one["metrics"]["ece"], abs=1e-9)


def test_a_full_disk_leaves_no_part_of_a_line(data_dir, tmp_path, monkeypatch):
    file = tmp_path / "uci.jsonl"
    runner.run(request(data_dir, tmp_path), lambda _: None)
    before, write = file.read_bytes(), os.write

    def full(descriptor: int, text: bytes) -> int:
        if text.startswith(b'{"task"') or b'"metrics"' in text:
            write(descriptor, text[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", full)
    words = ("--dataset", "foo", "--settings", "default", "--steps", "41", "--data-dir", str(data_dir))
    code, out, err = bench("run", "uci", *words, "--out", str(tmp_path))
    assert code == 1 and out == "" and err.splitlines()[-1] == "Error: No space left on device"
    assert file.read_bytes() == before
    monkeypatch.undo()
    assert bench("run", "uci", *words, "--out", str(tmp_path))[0] == 0
    assert len(results.read(file)) == 6


def test_half_a_line_of_a_killed_writer_is_not_a_line(tmp_path):
    file = tmp_path / "uci.jsonl"
    results.append(file, [{"a": 1}])
    with file.open("a") as stream:
        stream.write('{"a": 2, "b')
    assert results.read(file) == [{"a": 1}]
    results.append(file, [{"a": 3}])
    assert file.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_last_line_without_its_end_is_kept(tmp_path):
    file = tmp_path / "uci.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}')
    assert results.read(file) == [{"a": 1}, {"a": 2}]
    results.append(file, [{"a": 3}])
    assert file.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def test_a_split_whose_test_rows_are_of_one_class_has_no_auc(data_dir, tmp_path):
    rng = np.random.default_rng(0)
    y = np.zeros(60, np.uint8)
    y[:3] = 1
    np.savez(data_dir / "cls_rare.npz", X=rng.normal(size=(60, 3)), y=y)
    given = request(data_dir, tmp_path, task="classification", datasets=("rare",), method="map", steps=3)
    (found,) = runner.run(given, lambda _: None)
    with_auc = ["auc" in line["metrics"] for line in results.read(tmp_path / "classification.jsonl")]
    assert len(with_auc) == 5 and 0 < sum(with_auc) < 5 and 0 <= found["auc"] <= 1


def test_json_is_one_line_for_each_data_set_and_method(data_dir, tmp_path):
    code, out, err = bench(
        *("run", "uci", "--dataset", "foo", "--settings", "default", "--steps", "30", "--json"),
        *("--data-dir", str(data_dir), "--out", str(tmp_path)),
    )
    (line,) = out.splitlines()
    answer = json.loads(line)
    assert code == 0 and "30 steps" in err
    wanted = ["dataset", "method", "settings", "n_splits", "rmse", "rmse_se", "ll", "ll_se", "seconds"]
    assert [key for key in answer if key in wanted] == wanted


def test_seconds_that_no_line_has_are_a_dash(data_dir, tmp_path):
    words = ("run", "uci", "--dataset", "foo", "--settings", "default", "--steps", "3", "--method", "map")
    words += ("--data-dir", str(data_dir), "--out", str(tmp_path))
    assert bench(*words)[0] == 0
    file = tmp_path / "uci.jsonl"
    lines = [one | {"seconds": None} for one in results.read(file)]
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    code, out, _ = bench(*words)
    assert code == 0 and ["seconds", "–"] in [row.split() for row in out.splitlines()]


def test_methods_run_one_after_another(data_dir, tmp_path):
    code, out, _ = bench(
        *("run", "uci", "--dataset", "foo", "--settings", "default", "--steps", "3", "--json"),
        *("--method", "map", "--method", "mc_dropout", "--method", "map", "--splits", "1"),
        *("--data-dir", str(data_dir), "--out", str(tmp_path)),
    )
    assert code == 0 and [json.loads(one)["method"] for one in out.splitlines()] == ["map", "mc_dropout"]
    assert [one["splits_there"] for one in results.read(tmp_path / "uci.jsonl")] == [3, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list", "--data-dir", "nowhere"), 'no data directory "nowhere"'),
        (("run", "uci", "--dataset", "fo"), "no data set"),
        (("run", "uci", "--dataset", "broken"), "broken"),
        (("run", "uci", "--dataset", "keyless"), '"y"'),
        (("run", "uci", "--dataset", "bar"), "is for classification"),
        (("run", "classification", "--dataset", "foo"), "did you mean cls_foo?"),
        (("run", "uci", "--dataset", "foo", "--settings", "default", "--splits", "9"), "--splits 3 at most"),
        (("run", "uci", "--dataset", "foo", "--settings", "paper"), "no settings for data set foo"),
        (("run", "uci", "--dataset", "foo", "--settings", "papers"), "no settings 'papers'"),
        (("run", "uci", "--dataset", "foo", "--method", "bal"), "no method 'bal'"),
        (("run", "uici", "--dataset", "foo"), "no task 'uici'"),
        (("run", "synthetic", "--dataset", "foo"), "no problem 'foo'"),
    ],
)
def test_mistakes_take_one_line_and_leave_nothing(data_dir, tmp_path, words, message):
    (data_dir / "uci_broken.npz").write_bytes(b"PK\x03\x04 this is no archive")
    np.savez(data_dir / "uci_keyless.npz", X=np.zeros((4, 2)))
    np.savez(data_dir / "cls_foo.npz", X=np.zeros((4, 2)), y=np.arange(4))
    places = () if words[0] == "list" else ("--data-dir", str(data_dir), "--out", str(tmp_path / "out"))
    code, out, err = bench(*words, *places)
    assert code == 1 and out == "" and err.startswith("Error: ") and len(err.splitlines()) == 1
    assert message in err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("uci", "--dataset", "foo", "--dataset", "folds", "--splits", "3"), "folds has 2 splits"),
        (
            ("uci", "--dataset", "yacht", "--dataset", "foo", "--settings", "paper"),
            "no settings for data set",
        ),
        (("synthetic", "--dataset", "sinc", "--dataset", "moons"), "no problem 'moons'; it knows sinc, "),
        (("ood", "--dataset", "mnist", "--dataset", "bar"), "no foreign rows for 'bar'; it knows mnist, "),
        (("uci", "--dataset", "foo", "--method", "map", "--method", "mop"), "no method 'mop'"),
        (("uci", "--dataset", "mnist"), "data set mnist is for classification; task uci needs regression\n"),
        (
            ("uci", "--dataset", "yacht", "--method", "map", "--settings", "single"),
            "settings single are BALI's; use --settings default for map",
        ),
        (
            ("uci", "--dataset", "yacht", "--method", "bbb", "--settings", "reproduction"),
            "settings reproduction are BALI's; use --settings paper or default for bbb",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_trains(data_dir, tmp_path, monkeypatch, words, message):
    rng = np.random.default_rng(0)
    fold = np.arange(20) % 2
    np.savez(data_dir / "uci_folds.npz", X=rng.normal(size=(20, 2)), y=rng.normal(size=20), fold=fold)
    np.savez(data_dir / "uci_yacht.npz", X=rng.normal(size=(20, 6)), y=rng.normal(size=20))
    for name in ("mnist", "fashion_mnist"):
        x = rng.integers(0, 255, (30, 4), dtype=np.uint8)
        np.savez(data_dir / f"{name}.npz", X=x, y=np.arange(30) % 3, fold=np.arange(30) % 2)
    monkeypatch.setattr(runner, "train", lambda *_: pytest.fail("it trained"))
    given = () if "--settings" in words else ("--settings", "default")
    code, out, err = bench("run", *words, *given, "--data-dir", str(data_dir), "--out", str(tmp_path / "out"))
    assert code == 1 and out == "" and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


METHOD = '''
from dataclasses import dataclass, replace

import torch

from bayeswise.methods.protocol import Info, Passes
from bayeswise.posterior import Posterior
from bayeswise.weights import Point


@dataclass(frozen=True)
class Untrained:
    """The module as it is."""

    standardises = infers_all = starts_from_model = True

    def plan(self, problem):
        return Passes(1)

    def init(self, problem, data, rng):
        return {}

    def step(self, problem, state, batch, rng):
        return state, Info(torch.zeros(problem.lead))

    def posterior(self, problem, state, data):
        own = {**problem.network.layer_parameters(), **problem.network.constants}
        params = {k: v.expand(*problem.lead, *v.shape) for k, v in own.items()}
        plain = replace(problem, network=replace(problem.network, constants={}, layers=()))
        return Posterior(plain, Point(params, torch.eye(1, dtype=torch.float64)), "Untrained")
'''


def test_a_data_set_is_a_file_and_a_method_is_a_file(data_dir, tmp_path, monkeypatch):
    """Both are dropped in; the only other line is the method's in the registry."""
    (tmp_path / "untrained.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    import untrained  # pyright: ignore[reportMissingImports]

    monkeypatch.setitem(METHODS, "untrained", untrained.Untrained)
    rng = np.random.default_rng(0)
    np.savez(data_dir / "uci_mine.npz", X=rng.normal(size=(40, 2)), y=rng.normal(size=40))
    code, out, err = bench("list", "--json", "--data-dir", str(data_dir))
    listed = json.loads(out)
    assert {"name": "mine", "kind": "regression"} in listed["datasets"] and "untrained" in listed["methods"]
    for task, dataset in (("uci", "mine"), ("classification", "bar"), ("synthetic", "sines_trend")):
        code, out, err = bench(
            *("run", task, "--dataset", dataset, "--method", "untrained", "--settings", "default"),
            *("--splits", "2", "--json", "--data-dir", str(data_dir), "--out", str(tmp_path / "out")),
        )
        assert code == 0, err
        (answer,) = map(json.loads, out.splitlines())
        assert answer["dataset"] == dataset and answer["method"] == "untrained" and answer["n_splits"] == 2
