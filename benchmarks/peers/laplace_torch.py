r"""Laplace against laplace-torch 0.3, on the same trained weights in one go: seconds, memory, numbers.

    make peers
    OMP_NUM_THREADS=1 .venv-peers/bin/python benchmarks/peers/laplace_torch.py --data-dir DIR \
        [--out benchmarks/results/scripts/laplace_torch.jsonl] [--skip-slow]

784-256-256-10 on 10,000 FashionMNIST images. Every part runs in a process of its own, which reports its
seconds and by how much its peak of memory exceeded what it held before. The peer's diagonal is measured on
500 rows and multiplied by 20; its linearised predictive on all 2,000 rows (minutes; left out by --skip-slow).
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayeswise as bw

sys.path.append(str(Path(__file__).parents[1]))
from common import keep  # noqa: E402

ROWS, NEW, BATCH, SOME = 10_000, 2_000, 1_000, 500
SEED, STEPS, PRECISION = 0, 400, 1.0


def network() -> nn.Sequential:
    """The network of the comparison."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def images(folder: Path) -> tuple[Tensor, Tensor]:
    """The first rows of FashionMNIST, standardised."""
    with np.load(folder / "fashion_mnist.npz") as data:
        x, y = data["x_train"][: ROWS + NEW], data["y_train"][: ROWS + NEW]
    x = torch.from_numpy(x.reshape(len(x), -1).astype(np.float32) / 255)
    return (x - x.mean()) / x.std(), torch.from_numpy(y.astype(np.int64))


def trained(x: Tensor, y: Tensor) -> nn.Sequential:
    """Some steps of Adam."""
    model, rng = network(), torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        index = torch.randint(ROWS, (256,), generator=rng)
        loss = nn.functional.cross_entropy(model(x[index]), y[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


# --------------------------------------------------------------------------------------------- the parts


def passes(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """One pass forward and back over the training rows."""
    for block, labels in zip(x[:ROWS].split(BATCH), y[:ROWS].split(BATCH), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(block), labels).backward()


def forward(model: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """One pass forward over the new rows."""
    with torch.no_grad():
        model(x[ROWS:])


def ours(structure: Any) -> Callable[..., Any]:
    """Our fit, without tuning, as the peer's."""

    def fit(model: nn.Sequential, x: Tensor, y: Tensor) -> Any:
        method = bw.Laplace(structure=structure, precision=PRECISION, link=bw.Probit())
        return bw.fit(model, (x[:ROWS], y[:ROWS]), bw.Categorical(), method, batch_size=BATCH, progress=False)

    return fit


def theirs(structure: str, rows: int) -> Callable[..., Any]:
    """The peer's fit."""

    def fit(model: nn.Sequential, x: Tensor, y: Tensor) -> Any:
        from laplace import Laplace  # type: ignore[import-not-found]
        from torch.utils.data import DataLoader, TensorDataset

        peer = Laplace(copy.deepcopy(model), "classification", "all", structure, prior_precision=PRECISION)
        peer.fit(DataLoader(TensorDataset(x[:rows], y[:rows]), batch_size=BATCH))
        return peer

    return fit


def predict_ours(fitted: Any, x: Tensor) -> Tensor:
    """Probabilities of the new rows."""
    return fitted.predict(x[ROWS:]).mean


def predict_theirs(fitted: Any, x: Tensor) -> Tensor:
    """Probabilities of the new rows, in batches that fit into memory."""
    return torch.cat([fitted(block, pred_type="glm", link_approx="probit") for block in x[ROWS:].split(50)])


PARTS: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "pass": (passes, None),
    "forward": (forward, None),
    "kron": (ours(bw.Kronecker(bias="apart")), predict_ours),
    "diag": (ours(bw.Diagonal()), predict_ours),
    "peer kron": (theirs("kron", ROWS), predict_theirs),
    "peer diag, 500 rows": (theirs("diag", SOME), None),
}


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, seconds and MB of memory beyond what was held."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    return result, seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def part(name: str, folder: Path, skip: bool, queue: Any) -> None:
    """One part, in a process of its own: what it took, and the probabilities it found."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    x, y = images(folder)
    model = trained(x, y)
    fit, predict = PARTS[name]
    forward(model, x, y)  # warm
    fitted, seconds, memory = timed(lambda: fit(model, x, y))
    for _ in range(2 if name in ("pass", "forward", "kron", "diag") else 0):
        seconds = min(seconds, timed(lambda: fit(model, x, y))[1])
    line = {"part": name, "seconds": seconds, "memory": memory}
    probabilities = None
    if predict is not None and not (skip and name.startswith("peer")):
        found, seconds, memory = timed(lambda: predict(fitted, x))
        if not name.startswith("peer"):
            seconds = min(seconds, timed(lambda: predict(fitted, x))[1])
        line |= {"predict_seconds": seconds, "predict_memory": memory}
        line["nll"] = float(-found[torch.arange(NEW), y[ROWS:]].log().mean())
        probabilities = found.detach().numpy()
    queue.put((line, probabilities))


def main() -> None:
    """All parts one after another, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-slow", action="store_true")
    options = parser.parse_args()
    context, found = multiprocessing.get_context("spawn"), {}
    for name in PARTS:
        queue = context.Queue()
        process = context.Process(target=part, args=(name, options.data_dir, options.skip_slow, queue))
        process.start()
        found[name] = queue.get()
        process.join()
        print(found[name][0], flush=True)
    keep(options, ratios({name: line for name, (line, _) in found.items()}) | same(found))


def ratios(lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the issue asks for."""
    once, run = lines["pass"]["seconds"], lines["forward"]["seconds"]
    ours, diag, peer = lines["kron"], lines["diag"], lines["peer kron"]
    diag_peer = lines["peer diag, 500 rows"]["seconds"] * ROWS / SOME
    result = {
        "kron fit in passes": ours["seconds"] / once,
        "kron fit against the peer": peer["seconds"] / ours["seconds"],
        "diag fit in passes": diag["seconds"] / once,
        "diag fit against the peer": diag_peer / diag["seconds"],
        "kron predict in forward passes": ours["predict_seconds"] / run,
        "kron predict MB": ours["predict_memory"],
    }
    if "predict_seconds" in peer:
        result["kron predict against the peer"] = peer["predict_seconds"] / ours["predict_seconds"]
        result["peer predict MB"] = peer["predict_memory"]
    return {key: round(value, 3) for key, value in result.items()}


def same(found: dict[str, Any]) -> dict[str, float]:
    """How far the probabilities of both are apart."""
    ours, peer = found["kron"][1], found["peer kron"][1]
    return {} if peer is None else {"largest difference": float(np.abs(ours - peer).max())}


if __name__ == "__main__":
    main()
