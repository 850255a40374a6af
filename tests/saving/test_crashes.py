"""Whenever the writer dies, the newest complete save loads and the next writer cleans up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

HARNESS = """
import os, random, signal, sys, time, torch
from pathlib import Path
from bayeswise.saving import files, newest_checkpoint, read_directory, write_checkpoint, write_directory

def save(kind, path, value):
    tensors = {"a": torch.full((150, 100), value), "b": torch.full((7,), value, dtype=torch.float64)}
    if kind == "model":
        write_directory(path, {"value": value}, tensors)
    else:
        write_checkpoint(path, value, {"value": value}, tensors)

def load(kind, path):
    if kind == "model":
        saved = read_directory(path) if os.path.exists(path) else None
    else:
        saved = newest_checkpoint(path)
    if saved is None:
        return 0
    value = saved[0]["value"]
    assert all((tensor == value).all() for tensor in saved[1].values())
    return value

def strays(path):
    return len(list(Path(path).parent.rglob(".*.tmp")))
"""

KILLS = (
    HARNESS
    + """
def write_until_killed(kind, path, value, pipe):
    files._STARTED = time.time()  # the child stands for a new process
    while True:
        value += 1
        save(kind, path, value)
        os.write(pipe, value.to_bytes(8, "little"))

chance, kind, path, found, left = random.Random(0), sys.argv[1], sys.argv[2], 0, 0
for _ in range(15):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_until_killed(kind, path, found, writer)
    os.close(writer)
    first = os.read(reader, 8)  # one save is finished; kill during one of the next
    time.sleep(chance.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        finished = int.from_bytes((first + pipe.read())[-8:], "little")
    found = load(kind, path)
    left += strays(path)
    assert found in (finished, finished + 1), (found, finished)
files._STARTED = time.time()
save(kind, path, found + 1)
print(found, left, strays(path))
"""
)

CRASH_POINTS = (
    HARNESS
    + """
def die_at(count):
    def dying(call):
        def wrapped(*arguments, **named):
            nonlocal count
            count -= 1
            if count == 0:
                os._exit(9)
            return call(*arguments, **named)
        return wrapped
    for name in ("open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))

kind, path, points = sys.argv[1], sys.argv[2], 0
for value in (1, 2) if kind == "model" else (1, 2, 3):  # new, replaced, pruned
    count, status = 0, None
    while status != 0:
        count += 1
        child = os.fork()
        if child == 0:
            files._STARTED = time.time()
            die_at(count)
            save(kind, path, value)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        found = load(kind, path)
        assert found == value or (status == 9 and found == value - 1), (value, count, found)
    points += count - 1
print(points, strays(path))
"""
)


def run(script: str, *arguments: str) -> list[int]:
    """Run a script in one fresh interpreter, which forks the writers that are to die."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")


@needs_fork
@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_killed_writer_leaves_the_last_complete_save(tmp_path: Path, kind: str) -> None:
    found, _, strays = run(KILLS, kind, str(tmp_path / "saved"))
    assert found >= 15 and strays == 0


@needs_fork
@pytest.mark.parametrize("kind", ["model", "checkpoint"])
def test_a_writer_may_die_at_any_system_call(tmp_path: Path, kind: str) -> None:
    points, strays = run(CRASH_POINTS, kind, str(tmp_path / "saved"))
    assert points >= 12 and strays == 0
