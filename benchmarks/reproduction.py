r"""What moves BALI away from, or towards, the paper's UCI figures: one change at a time, on validation rows.

    OMP_NUM_THREADS=1 python benchmarks/reproduction.py --data-dir DIR \
        --out benchmarks/results/reproduction.jsonl [--only CHANGE …] [--dataset NAME …]

Every split's training rows are parted once more, nine to one; the smaller part is what the figures are for.
No test row is read. A line that is already in the file is not computed again.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import torch
from common import arguments, keep, mlp, read
from torch import Tensor, nn
from uci import FULL, PAPER, TOLERANCE, mean_and_error, paper_method

import bayeswise as bw

STEPS, SPLITS, PART = 5_000, 10, 10
CHANGES: dict[str, dict] = {
    "as printed": {},
    "step size 0.1": {"step_size": 0.1},
    "step size 1": {"step_size": 1.0},
    "rate 0.5": {"update_rate": bw.StepDecay(0.5)},
    "cosine rate from 0.5": {"update_rate": bw.Cosine(0.5)},
    "rows counted fully": {"effective": 1.0},
    "rows counted 0.25": {"effective": 0.25},
    "rows counted 0.1": {"effective": 0.1},
    "noise floor 0.01": {"noise_floor": 1e-2, "hidden_noise_floor": 1e-2},
    "noise floor 0.01, hidden only": {"hidden_noise_floor": 1e-2},
    "prior variance squared": {"square": True},
    "first layer divided": {"first_prior": None},
    "first start undivided": {"undivided": True},
    "means in the forward pass": {"forward": bw.Deterministic()},
    "noise on outputs": {"forward": bw.LocalReparametrisation()},
    "noise drawn": {"noise": "drawn"},
}


def parts(data: dict[str, np.ndarray], splits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and validation rows of every split's training rows, inputs standardised by the former."""
    train = data["train_idx"][:splits]
    order = np.random.default_rng(0).permutation(train.shape[1])
    held = train.shape[1] // PART
    x, y = data["X"], data["y"][:, None]
    rest, validation = train[:, order[held:]], train[:, order[:held]]
    mean, std = x[rest].mean(1, keepdims=True), x[rest].std(1, keepdims=True)
    std[std <= TOLERANCE * np.abs(mean)] = 1.0
    arrays = ((x[rest] - mean) / std, y[rest], (x[validation] - mean) / std, y[validation])
    a, b, c, d = (torch.from_numpy(v).float() for v in arrays)
    return a, b, c, d


def changed(name: str, inputs: int, steps: int, change: dict) -> bw.BALI:
    """The paper's settings with one change."""
    method = paper_method(name, steps)
    change = dict(change)
    if change.pop("square", False):
        variance = PAPER[name][2] ** 2
        change |= {"prior": bw.FanIn(variance), "first_prior": bw.Isotropic(variance)}
    if change.pop("undivided", False):
        change["first_initial_scale"] = (inputs + 1) ** 0.5
    return replace(method, **change)


def main() -> None:
    """Every change on every data set."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", nargs="*", default=list(PAPER))
    parser.add_argument("--only", nargs="*", default=list(CHANGES))
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    done = {(d["dataset"], d["change"], d["steps"]) for d in map(json.loads, lines)}
    for change in options.only:
        for name in options.dataset:
            if (name, change, options.steps) not in done:
                keep(options, judged(options, name, change))


def judged(options, name: str, change: str) -> dict:
    """Train with a change, and look at the validation rows."""
    data = read(options, f"uci_{name}")
    x, y, x_held, y_held = parts(data, min(SPLITS, len(data["train_idx"])))
    method = changed(name, x.shape[-1], options.steps, CHANGES[change])
    batch = min(PAPER[name][4], FULL, x.shape[1])
    start = time.perf_counter()
    model = mlp((x.shape[-1], PAPER[name][-1], 1), nn.ReLU)
    posterior = bw.fit(
        model,
        (x, y),
        bw.Gaussian(),
        method,
        members=len(x),
        batch_size=batch,
        seed=options.seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    prediction = posterior.predict(x_held, n=256)
    rmse = (prediction.mean - y_held).square().mean((1, 2)).sqrt()
    line = {"dataset": name, "change": change, "steps": options.steps, "n_splits": len(x)}
    line |= dict(zip(("rmse", "rmse_se"), mean_and_error(rmse), strict=True))
    line |= dict(zip(("ll", "ll_se"), mean_and_error(prediction.log_prob(y_held).mean(1)), strict=True))
    return line | {"seconds": round(seconds, 1), "seed": options.seed}


if __name__ == "__main__":
    main()
