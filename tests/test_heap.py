"""Commands keep the memory that a step frees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bayeswise.cli import heap

FAULTS = """
import resource, torch
from bayeswise.cli.heap import keep_freed_memory
torch.set_num_threads(1)
print(keep_freed_memory())

def step(size):
    x = torch.ones(size, dtype=torch.float64)
    for _ in range(6):
        x = (x + 1).square() + x

faults = 0
for size in (100_000, 600_000, 2_000_000):
    for _ in range(5):
        step(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step(size)
    faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_what_a_step_frees_is_there_for_the_next() -> None:
    """Without the setting some 280,000 pages were mapped anew, with it 5,000."""
    out = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True, text=True).stdout
    kept, faults = out.split()
    if kept == "False":
        pytest.skip("the C library has no mallopt, or the environment has its own setting")
    assert int(faults) < 50_000


def test_a_setting_of_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    assert not heap.keep_freed_memory()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not heap.keep_freed_memory()
