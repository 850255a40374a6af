"""Twenty SIGKILLs at random moments of training: every resumed run ends with the bits of the unkilled one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
KILLS = 5  # in each of four tests

# A process that has loaded torch once forks one process per run, so that a kill costs no start-up time. A run
# tells its parent of its first step, pauses a little in every step, so that a kill has time to hit any of
# them, and saves so often that kills hit writes, too.
SCRIPT = """
import hashlib, json, os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import bayeswise as bw
torch.set_num_threads(1)
form, folder, kills = sys.argv[2], sys.argv[3], int(sys.argv[4])

def run(folder, pause, first_step):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 5, generator=rng)
    y = x[:, :3].sin() + 0.1 * torch.randn(40, 3, generator=rng)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))
    torch.manual_seed(time.time_ns() % 2**31)  # the global generator must not matter
    data = DataLoader(TensorDataset(x, y), 12, shuffle=True) if "loader" in form else (x, y)
    method = bw.MAP(steps=60) if "map" in form else bw.BALI(steps=60, forward=bw.WeightNoise())
    steps = []

    def callback(progress):
        steps.append(progress.step)
        if len(steps) == 1:
            first_step()
        time.sleep(pause)

    checkpoint = bw.Checkpoints(folder, every=2) if folder else None
    posterior = bw.fit(model, data, bw.Gaussian(), method, batch_size=12, progress=False,
                       callbacks=[callback], checkpoint=checkpoint)
    p = posterior.predict(x, 11)
    content = torch.cat([p.mean.flatten(), p.std.flatten(), p.draws.flatten()]).numpy().tobytes()
    return [hashlib.sha256(content).hexdigest(), steps[0]]

def child(folder, pause):
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        answer = run(folder, pause, lambda: os.write(write, b"."))
        os.write(write, json.dumps(answer).encode())
    finally:
        os._exit(0)

def finished(folder):
    pid, read = child(folder, 0.0)
    os.waitpid(pid, 0)
    return json.loads(os.read(read, 1000)[1:])

chance, ends = random.Random(form), []
for _ in range(kills):
    pid, read = child(folder, 0.03)  # 1.8 s in all
    assert os.read(read, 1) == b"."
    time.sleep(chance.uniform(0, 0.3))
    os.kill(pid, signal.SIGKILL)
    ends.append(os.waitpid(pid, 0)[1])
whole, resumed = finished(None), finished(folder)
print(json.dumps({"ends": ends, "whole": whole, "resumed": resumed}))
"""


@pytest.mark.parametrize("form", ["bali pair", "bali loader", "map pair", "map loader"])
def test_killed_runs_end_with_the_same_bits(form: str, tmp_path: Path):
    """Five kills of one run, each going on from what the one before left; then it runs to its end."""
    arguments = [sys.executable, "-c", SCRIPT, str(SRC), form, str(tmp_path / "run"), str(KILLS)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ends"] == [9] * KILLS  # SIGKILL
    assert found["whole"][1] == 1 and found["resumed"][1] > 1  # the last one did not start afresh
    assert found["resumed"][0] == found["whole"][0]
