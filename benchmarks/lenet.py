r"""FashionMNIST with a LeNet-size CNN: MAP, Laplace, SWAG, MultiSWAG and BALI side by side.

    OMP_NUM_THREADS=1 python benchmarks/lenet.py --data-dir DIR --work FOLDER --seed 0 \
        --out benchmarks/results/scripts/lenet.jsonl [--only METHOD …]
    python benchmarks/lenet.py --out benchmarks/results/scripts/lenet.jsonl --page docs/methods/laplace.md

MAP trains once for `--epochs` on nine tenths of the training images; after every epoch it is judged by the
others. Row "best" starts from the weights of the epoch with the lowest validation NLL, row "long" from the
last. Laplace and SWAG go on from these weights, and Laplace's prior precision is chosen by the validation
images, or by the evidence in columns of its own; MultiSWAG trains each of its starts as long as MAP was
trained; BALI does not need MAP and is the same in both rows. Figures are of the 10,000 test images, which
choose nothing.

One line for each seed, row and method; what is in the file is not computed again. MAP's weights and the
checkpoints of every training are kept in `--work`, so a run that was ended goes on where it was. `--rows`
takes the first so many images of each part: to try the script.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from common import arguments, keep, kept, put_table, read
from torch import Tensor, nn

import bayeswise as bw

BATCH, BALI_BATCH, RATE = 128, 1024, 0.001
ROWS = ("best", "long")
METHODS = ("map", "laplace", "laplace_evidence", "laplace_last", "swag", "multiswag", "bali")
LABELS = ("MAP", "Laplace", "the same by evidence", "last layer, by evidence", "SWAG", "MultiSWAG", "BALI")
PRECISIONS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def lenet(seed: int) -> nn.Sequential:
    """61,706 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


@dataclass(frozen=True, eq=False)
class Images:
    """Images (N, 1, 28, 28) and labels (N,): to train on, to validate, to test."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, options: argparse.Namespace) -> Images:
        """One part in ten validates; the parts are the same for every seed."""
        data = read(options, "fashion_mnist")
        x, x_test = (torch.from_numpy(data[k]).float()[:, None] / 255 for k in ("x_train", "x_test"))
        x, x_test = (x - x.mean()) / x.std(), (x_test - x.mean()) / x.std()
        y, y_test = (torch.from_numpy(data[k]).long() for k in ("y_train", "y_test"))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        held, most = order[: len(x) // 10], options.rows
        train = order[len(x) // 10 :][:most]
        held = held[:most]
        return cls((x[train], y[train]), (x[held], y[held]), (x_test[:most], y_test[:most]))

    @property
    def epoch(self) -> int:
        """Steps of MAP over all training images."""
        return math.ceil(len(self.train[0]) / BATCH)


@dataclass
class Watch:
    """Saves MAP's network after every epoch that is the best so far by validation NLL."""

    images: Images
    folder: Path
    history: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, progress: Any) -> None:
        """After a step."""
        if progress.step % self.images.epoch:
            return
        posterior = progress.posterior()
        x, y = self.images.validation
        value = float(-posterior.predict(x).log_prob(y).mean())
        if value < min((nll for _, nll in self.history), default=math.inf):
            posterior.save(self.folder)
        self.history.append((progress.step, value))


@dataclass(frozen=True, eq=False)
class Job:
    """One seed: its images, its options, and where its networks are kept."""

    options: argparse.Namespace
    images: Images
    folder: Path

    @property
    def seed(self) -> int:
        """Of the weights and of everything random."""
        return self.options.seed

    def fit(self, name: str, model: nn.Module, method: Any, batch: int = BATCH, **own: Any) -> bw.Posterior:
        """Train on the training images, going on where an earlier run was ended."""
        own |= {"checkpoint": bw.Checkpoints(self.folder / "runs" / name)} if method_trains(method) else {}
        return bw.fit(
            model, self.images.train, bw.Categorical(), method, batch_size=batch, seed=self.seed, **own
        )

    def trained(self, row: str) -> tuple[nn.Sequential, int]:
        """MAP's network of a row, and its epochs; trained where it was not yet."""
        if not (self.folder / "epochs.json").exists():
            self.train()
        epochs = json.loads((self.folder / "epochs.json").read_text())
        model = lenet(self.seed)
        found: Any = bw.load(self.folder / row, model)
        model.load_state_dict(found.weights.params)
        return model, epochs[row]

    def train(self) -> None:
        """MAP for all epochs; the best and the last network are kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        watch, steps = Watch(self.images, self.folder / "best"), self.options.epochs * self.images.epoch
        method = bw.MAP(bw.Cosine(RATE), steps=steps)
        self.fit("map", lenet(self.seed), method, callbacks=[watch]).save(self.folder / "long")
        best = min(watch.history, key=lambda seen: seen[1])[0] // self.images.epoch
        text = json.dumps({"best": best, "long": self.options.epochs, "history": watch.history})
        (self.folder / "epochs.json").write_text(text)


def method_trains(method: Any) -> bool:
    """Whether a fit is long enough to be kept on the way."""
    return getattr(method, "first", method) is not None


# ------------------------------------------------------------------------------------------------ the columns


def map_(job: Job, row: str) -> bw.Posterior:
    """The network itself."""
    model, _ = job.trained(row)
    return bw.load(job.folder / row, model)


def laplace(job: Job, row: str) -> bw.Posterior:
    """A Gaussian around MAP's weights; the images that chose MAP's epoch choose the prior precision."""
    precision = bw.Validation(*job.images.validation, candidates=PRECISIONS)
    return job.fit("", job.trained(row)[0], bw.Laplace(precision=precision), batch=512)


def laplace_evidence(subset: str | None) -> Callable[[Job, str], bw.Posterior]:
    """The same with the precisions of the evidence."""

    def fitted(job: Job, row: str) -> bw.Posterior:
        return job.fit("", job.trained(row)[0], bw.Laplace(subset=subset), batch=512)

    return fitted


def swag(job: Job, row: str) -> bw.Posterior:
    """SGD from MAP's weights."""
    steps = job.options.swag_epochs * job.images.epoch
    method = bw.SWAG(learning_rate=rate(job), every=every(steps), warmup=0.0, steps=steps)
    return job.fit(f"swag_{row}", job.trained(row)[0], method)


def multiswag(job: Job, row: str) -> bw.Posterior:
    """Several starts, each trained as long as MAP was."""
    warm, steps = job.trained(row)[1] * job.images.epoch, job.options.swag_epochs * job.images.epoch
    method = bw.SWAG(
        learning_rate=rate(job),
        every=every(steps),
        warmup=warm / (warm + steps),
        warmup_rate=bw.Cosine(RATE),
        members=job.options.members,
        steps=warm + steps,
    )
    return job.fit(f"multiswag_{row}", lenet(job.seed), method)


def bali(job: Job, row: str) -> bw.Posterior:
    """From fresh weights."""
    method = bw.BALI(step_size=0.5, effective=job.options.effective, steps=job.options.bali_steps)
    batch = min(BALI_BATCH, len(job.images.train[0]))
    return job.fit("bali", lenet(job.seed), method, batch=batch)


def rate(job: Job) -> bw.Constant:
    """SGD's."""
    return bw.Constant(job.options.swag_rate)


def every(steps: int) -> int:
    """Forty snapshots."""
    return max(1, steps // 40)


MAKE: dict[str, Callable[[Job, str], bw.Posterior]] = dict(
    zip(
        METHODS,
        (map_, laplace, laplace_evidence(None), laplace_evidence("last"), swag, multiswag, bali),
        strict=True,
    )
)


def judged(job: Job, row: str, name: str) -> dict:
    """Train, and look at the test images."""
    start = time.perf_counter()
    posterior = MAKE[name](job, row)
    fitted = time.perf_counter() - start
    x, y = job.images.test
    prediction = posterior.predict(x, n=job.options.draws)
    line = {"dataset": "fashion_mnist", "seed": job.seed, "row": row, "method": name, "n": len(x)}
    line |= {"nll": float(-prediction.log_prob(y).double().mean())}
    line |= {
        "ece": float(bw.metrics.ece(prediction.mean, y)),
        "acc": float(bw.metrics.accuracy(prediction.mean, y)),
    }
    line |= {"epochs": 0 if name == "bali" else job.trained(row)[1], "seconds_fit": round(fitted, 1)}
    return line | {"seconds": round(time.perf_counter() - start, 1)}


# --------------------------------------------------------------------------------------------------- the page


def table(lines: list[dict]) -> list[list[str]]:
    """NLL / ECE / accuracy of every row and method, the means of the seeds."""
    body = []
    for row in ROWS:
        own = [line for line in lines if line["row"] in (row, "")]
        epochs = sorted({line["epochs"] for line in own if line["method"] == "map"})
        until = "until validation NLL is best" if row == "best" else "to the end"
        words = f"{until} ({', '.join(map(str, epochs))} epochs)"
        body.append([words, *(cell([line for line in own if line["method"] == name]) for name in METHODS)])
    return [[f"MAP trained, {len({line['seed'] for line in lines})} seeds", *LABELS], *body]


def cell(lines: list[dict]) -> str:
    """The mean of the seeds; empty where there are none."""
    if not lines:
        return ""
    mean = {key: sum(line[key] for line in lines) / len(lines) for key in ("nll", "ece", "acc")}
    return f"{mean['nll']:.4f} / {mean['ece']:.4f} / {mean['acc']:.4f}"


def main() -> None:
    """Every row and method of a seed, or the page."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--work", type=Path, default=Path(".trained/lenet"), help="folder of networks and checkpoints"
    )
    parser.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--swag-epochs", type=int, default=5)
    parser.add_argument("--swag-rate", type=float, default=0.01)
    parser.add_argument("--members", type=int, default=2, help="starts of MultiSWAG")
    parser.add_argument("--bali-steps", type=int, default=1200)
    parser.add_argument("--effective", type=float, default=0.2, help="N_eff / N of BALI")
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = kept(options)
    if options.page:
        put_table(options.page, table(lines), "lenet")
        return
    done = {(line["seed"], line["row"], line["method"]) for line in lines}
    job = Job(options, Images.of(options), options.work / f"seed_{options.seed}")
    for name in options.only:
        for row in ("",) if name == "bali" else ROWS:
            if (options.seed, row, name) not in done:
                keep(options, judged(job, row, name))


if __name__ == "__main__":
    main()
