r"""Seconds until the test NLL of FashionMNIST is as good as Adam's best: BALI and Adam in one run.

    OMP_NUM_THREADS=1 python benchmarks/time_to_quality.py --data-dir DIR \
        --out benchmarks/results/scripts/time_to_quality.jsonl
    python benchmarks/time_to_quality.py --out benchmarks/results/scripts/time_to_quality.jsonl \
        --page docs/cost.md

784-256-256-10 with Leaky-Tanh, batch 2048. Adam has weight decay 1e-4 and four learning rates, 0.002 being
the paper's; BALI step size 0.5, N_eff = 0.2 N and a cosine update rate from 0.3 over 300 steps, by default
and with an exact posterior at every step. Test NLL every 10 steps, by 16 draws; looking is not counted.
Seconds are those of the processor, which other work on the machine spoils less. One JSON line per run;
`seconds_to_adam` is the time to the best NLL of the paper's Adam with that seed. The second form writes the
table of a page and draws the curves; of lines that are there twice it takes the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from common import LeakyTanh, arguments, keep, kept, mlp, put_table, read
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.report import drawing as pen

SIZES, BATCH, EVERY = (784, 256, 256, 10), 2048, 10
RATES = (0.002, 0.0005, 0.001, 0.004)
Curve = list[tuple[int, float, float]]  # step, seconds, test NLL


class Clock:
    """Processor seconds, without those spent looking."""

    def __init__(self) -> None:
        """It starts."""
        self.seconds, self._since = 0.0, time.process_time()

    def pause(self) -> None:
        """Before looking."""
        self.seconds += time.process_time() - self._since

    def go_on(self) -> None:
        """After looking."""
        self._since = time.process_time()


def adam(rows: TensorRows, look: Callable[[Tensor], float], x_test: Tensor, rate: float, options) -> Curve:
    """A plain loop; the network as it is answers."""
    torch.manual_seed(options.seed)
    model = mlp(SIZES, LeakyTanh)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-4)
    curve, clock, step = [], Clock(), 0
    for epoch in count():
        for x, y in rows.epoch(epoch, options.seed):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
            step += 1
            if step % EVERY == 0:
                clock.pause()
                with torch.no_grad():
                    curve.append((step, clock.seconds, look(model(x_test).log_softmax(-1))))
                clock.go_on()
            if step == options.adam_steps:
                return curve
    raise AssertionError


def bali(rows: TensorRows, look, x_test: Tensor, method: bw.BALI, options) -> tuple[Curve, bw.Posterior]:
    """The method as a user calls it; 16 draws answer."""
    curve, clock = [], Clock()

    def watch(progress) -> None:
        if progress.step % EVERY == 0:
            clock.pause()
            mean = progress.posterior().predict(x_test, n=16).mean
            curve.append((progress.step, clock.seconds, look(mean.clamp_min(1e-30).log())))
            clock.go_on()

    posterior = bw.fit(
        mlp(SIZES, LeakyTanh),
        (rows.x, rows.y),
        bw.Categorical(),
        method,
        batch_size=BATCH,
        seed=options.seed,
        progress=False,
        callbacks=[watch],
    )
    return curve, posterior


def reached(curve: Curve, nll: float) -> float | None:
    """Seconds to this NLL."""
    return next((seconds for _, seconds, found in curve if found <= nll), None)


def told(curve: Curve, target: float) -> dict:
    """What a line says of a curve."""
    at, value = reached(curve, target), min(found for _, _, found in curve)
    rounded = [[step, round(seconds, 2), round(found, 4)] for step, seconds, found in curve]
    return {"best_nll": round(value, 4), "seconds_to_adam": at and round(at, 2), "curve": rounded}


# --------------------------------------------------------------------------------------------------- the page


def latest(lines: list[dict]) -> dict[int, dict[str, dict]]:
    """The last line of every seed and run; Adam's are called by their rate."""
    found: dict[int, dict[str, dict]] = {}
    for line in lines:
        name = f"Adam {line['rate']:g}" if line["method"] == "adam" else line["method"]
        found.setdefault(line["seed"], {})[name] = line
    return dict(sorted(found.items()))


def better(runs: dict[str, dict]) -> str:
    """The rate of Adam with the lowest NLL."""
    return min((name for name in runs if name.startswith("Adam")), key=lambda name: runs[name]["best_nll"])


def race(runs: dict[str, dict], name: str) -> tuple[str, str, str, str]:
    """The best NLL of an Adam, its seconds to there and BALI's, and their ratio."""
    target = runs[name]["best_nll"]
    theirs, ours = (reached(runs[side]["curve"], target) for side in (name, "bali"))
    assert theirs is not None and ours is not None
    return f"{target:.4f}", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}"


def table(lines: list[dict]) -> list[list[str]]:
    """Seconds to the best NLL of the paper's Adam and of the better one, seed by seed."""
    head = [
        "seed",
        "Adam 0.002: best NLL",
        "its seconds",
        "BALI's",
        "ratio",
        "better Adam: best NLL",
        "ratio",
    ]
    body = []
    for seed, runs in latest(lines).items():
        paper, best = "Adam 0.002", better(runs)
        nll, theirs, ours, ratio = race(runs, paper)
        body.append(
            [str(seed), nll, theirs, ours, ratio, f"{race(runs, best)[0]} ({best})", race(runs, best)[-1]]
        )
    return [head, *body]


def draw(lines: list[dict], out: Path) -> None:
    """Test NLL against processor seconds, of every seed."""
    looks = {
        "better": (pen.GREY, pen.DASHED, "the better Adam"),
        "paper": (pen.VERMILLION, "-", "Adam 0.002"),
        "bali": (pen.BLUE, "-", "BALI, 16 draws"),
    }
    with pen.style():
        (ax,) = pen.new_axes(7.2, 4.2)
        for k, runs in enumerate(latest(lines).values()):
            names = {"better": better(runs), "paper": "Adam 0.002", "bali": "bali"}
            for side, (color, dash, label) in looks.items():
                _, seconds, nll = zip(*runs[names[side]]["curve"], strict=True)
                ax.plot(seconds, nll, color=color, ls=dash, lw=1.4, label=label if k == 0 else None)
        ax.set(xlabel="processor seconds of training", ylabel="test NLL", ylim=(0.29, 0.5))
        ax.legend()
        out.parent.mkdir(parents=True, exist_ok=True)
        figure: Any = ax.figure
        figure.savefig(out, dpi=110, metadata={"Software": None})


def main() -> None:
    """Adam with every rate, then BALI, for one seed; or the page."""
    parser = arguments(__doc__)
    parser.add_argument("--rates", type=float, nargs="*", default=list(RATES))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--adam-steps", type=int, default=500)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.page:
        put_table(options.page, table(kept(options)), "quality")
        draw(kept(options), options.page.parent / "images" / "time_to_quality.png")
        return
    data = read(options, "fashion_mnist")
    x, x_test = (torch.from_numpy(data[k]).float().flatten(1) / 255 for k in ("x_train", "x_test"))
    x, x_test = (x - x.mean()) / x.std(), (x_test - x.mean()) / x.std()
    y, y_test = (torch.from_numpy(data[k]).long() for k in ("y_train", "y_test"))
    rows = TensorRows(x, y, BATCH)

    def look(log_probs: Tensor) -> float:
        return float(nn.functional.nll_loss(log_probs, y_test))

    target = 0.0
    about = {"dataset": "fashion_mnist", "seed": options.seed}
    for rate in options.rates:
        curve = adam(rows, look, x_test, rate, options)
        target = min(found for _, _, found in curve) if rate == options.rates[0] else target
        keep(options, about | {"method": "adam", "rate": rate} | told(curve, target))
    plain = bw.BALI(step_size=0.5, update_rate=bw.Cosine(0.3), steps=options.steps, effective=0.2)
    exact = bw.BALI(
        step_size=0.5,
        update_rate=bw.Cosine(0.3),
        steps=options.steps,
        effective=0.2,
        update=NaturalUpdate(),
    )
    for name, method in (("bali", plain), ("bali, exact", exact)):
        curve, posterior = bali(rows, look, x_test, method, options)
        prediction = posterior.predict(x_test, n=64)
        line = about | {"method": name, "nll": round(float(-prediction.log_prob(y_test).mean()), 4)}
        line["acc"] = round(float(bw.metrics.accuracy(prediction.mean, y_test)), 4)
        line["ece"] = round(float(bw.metrics.ece(prediction.mean, y_test)), 4)
        keep(options, line | told(curve, target))


if __name__ == "__main__":
    main()
