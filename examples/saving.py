"""Save a posterior and load it again; kill a run and go on with the same bits.

python examples/saving.py
"""

import contextlib
import tempfile
from pathlib import Path

import torch
from torch import nn

import bayeswise as bw


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))


class PowerCut(Exception):
    """What no program expects."""


def power_cut(progress) -> None:
    if progress.step == 250:
        raise PowerCut


def main() -> dict[str, bool]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=rng)
    y = x[:, 0] * x[:, 1] + 0.1 * torch.randn(300, generator=rng)
    method = bw.BALI(steps=400)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        posterior = bw.fit(network(), (x, y), bw.Gaussian(), method, batch_size=100, progress=False)
        posterior.save(folder / "model")
        loaded = bw.load(folder / "model", network())
        same = torch.equal(posterior.predict(x).mean, loaded.predict(x).mean)
        print("saved:", ", ".join(sorted(file.name for file in (folder / "model").iterdir())))
        print("the loaded model predicts the same bits:", same)

        saves = bw.Checkpoints(folder / "run", every=100)
        settings = {"batch_size": 100, "progress": False, "checkpoint": saves}
        with contextlib.suppress(PowerCut):
            bw.fit(network(), (x, y), bw.Gaussian(), method, callbacks=[power_cut], **settings)
        print("checkpoints:", ", ".join(sorted(file.name for file in (folder / "run").iterdir())))
        resumed = bw.fit(network(), (x, y), bw.Gaussian(), method, **settings)
        resumes = torch.equal(posterior.predict(x).mean, resumed.predict(x).mean)
        print("the resumed run ends with the bits of the run that was not killed:", resumes)
    return {"loaded": same, "resumed": resumes}


if __name__ == "__main__":
    main()
