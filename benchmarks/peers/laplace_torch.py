r"""Laplace against laplace-torch 0.3, on the same trained weights in one go: seconds, memory, numbers.

    make peers
    OMP_NUM_THREADS=1 .venv-peers/bin/python benchmarks/peers/laplace_torch.py --data-dir DIR \
        [--out benchmarks/results/scripts/laplace_torch.jsonl] [--skip-slow]

784-256-256-10 on 10,000 FashionMNIST images. The fits, our predictions and the plain passes take turns in one
process; what they cost is a ratio of medians. Then every fit runs once in a process of its own, which reports
by how much its peak of memory exceeded what it held before. All seconds are the processor's. The peer's
diagonal is measured on 500 rows and multiplied by 20; its linearised predictive on all 2,000 rows (minutes;
left out by --skip-slow).
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayeswise as bw

sys.path.append(str(Path(__file__).parents[1]))
from common import keep  # noqa: E402

ROWS, NEW, BATCH, SOME = 10_000, 2_000, 1_000, 500
SEED, STEPS, PRECISION, ROUNDS = 0, 400, 1.0, 11


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
    "kron": (ours(bw.Kronecker(bias="apart")), predict_ours),
    "diag": (ours(bw.Diagonal()), predict_ours),
    "peer kron": (theirs("kron", ROWS), predict_theirs),
    "peer diag, 500 rows": (theirs("diag", SOME), None),
}


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, processor seconds and MB of memory beyond what was held."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    result = work()
    seconds = time.process_time() - start
    return result, seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def prepared(folder: Path) -> tuple[nn.Sequential, Tensor, Tensor]:
    """The trained network and the images, in a process of one thread."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import_module("laplace")  # takes seconds, which are not the fit's
    x, y = images(folder)
    model = trained(x, y)
    forward(model, x, y)  # warm
    return model, x, y


def part(queue: Any, folder: Path, name: str, skip: bool) -> None:
    """One fit and its predictions, in a process of its own: what they took, and the probabilities."""
    model, x, y = prepared(folder)
    fit, predict = PARTS[name]
    fitted, seconds, memory = timed(lambda: fit(model, x, y))
    line = {"part": name, "seconds": seconds, "memory": memory}
    probabilities = None
    if predict is not None and not (skip and name.startswith("peer")):
        found, seconds, memory = timed(lambda: predict(fitted, x))
        line |= {"predict_seconds": seconds, "predict_memory": memory}
        line["nll"] = float(-found[torch.arange(NEW), y[ROWS:]].log().mean())
        probabilities = found.detach().numpy()
    queue.put((line, probabilities))


def alternating(queue: Any, folder: Path) -> None:
    """The fits, our predictions and the plain passes taking turns in one process: median seconds of each."""
    model, x, y = prepared(folder)
    kron, diag, peer = (PARTS[name][0] for name in ("kron", "diag", "peer kron"))
    fitted = kron(model, x, y)
    turns: dict[str, Callable[[], Any]] = {
        "pass": lambda: passes(model, x, y),
        "kron": lambda: kron(model, x, y),
        "forward": lambda: forward(model, x, y),
        "predict": lambda: predict_ours(fitted, x),
        "diag": lambda: diag(model, x, y),
        "peer kron": lambda: peer(model, x, y),
    }
    rounds = [{name: timed(work)[1] for name, work in turns.items()} for _ in range(1 + ROUNDS)][1:]
    queue.put({name: statistics.median(each[name] for each in rounds) for name in turns})


def apart(work: Callable[..., None], *arguments: Any) -> Any:
    """What `work` puts into its queue, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue, *arguments))
    process.start()
    found = queue.get()
    process.join()
    return found


def main() -> None:
    """All parts one after another, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--skip-slow", action="store_true")
    options = parser.parse_args()
    medians, found = apart(alternating, options.data_dir), {}
    print(medians, flush=True)
    for name in PARTS:
        found[name] = apart(part, options.data_dir, name, options.skip_slow)
        print(found[name][0], flush=True)
    keep(options, ratios(medians, {name: line for name, (line, _) in found.items()}) | same(found))


def ratios(medians: dict[str, float], lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What our fits and predictions cost in plain passes, and beside the peer."""
    peer, diag_peer = lines["peer kron"], lines["peer diag, 500 rows"]["seconds"] * ROWS / SOME
    result = {
        "kron fit in passes": medians["kron"] / medians["pass"],
        "kron fit against the peer": medians["peer kron"] / medians["kron"],
        "diag fit in passes": medians["diag"] / medians["pass"],
        "diag fit against the peer": diag_peer / medians["diag"],
        "kron predict in forward passes": medians["predict"] / medians["forward"],
        "kron predict MB": lines["kron"]["predict_memory"],
    }
    if "predict_seconds" in peer:
        result["kron predict against the peer"] = peer["predict_seconds"] / medians["predict"]
        result["peer predict MB"] = peer["predict_memory"]
    return {key: round(value, 3) for key, value in result.items()}


def same(found: dict[str, Any]) -> dict[str, float]:
    """How far the probabilities of both are apart."""
    ours, peer = found["kron"][1], found["peer kron"][1]
    return {} if peer is None else {"largest difference": float(np.abs(ours - peer).max())}


if __name__ == "__main__":
    main()
