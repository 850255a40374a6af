r"""The paper's UCI regression with the paper's settings: all standard splits in one batched run.

    OMP_NUM_THREADS=1 python benchmarks/uci.py --dataset yacht --data-dir DIR \
        --out benchmarks/results/uci.jsonl

RMSE and log-likelihood (mixture over 256 draws, and moment-matched Gaussian) of the test rows in the original
units, as mean and standard error over the splits.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from common import arguments, keep, mlp, read
from torch import Tensor, nn

import bayeswise as bw

FULL = 10**9
PAPER = {  # step size, update rate, σ_r², N_eff / N, batch, iterations, hidden units
    "yacht": (0.3, 0.2, 40.0, 1.0, FULL, 20_000, 50),
    "concrete": (0.3, 0.2, 40.0, 1.0, FULL, 20_000, 50),
    "energy": (0.3, 0.2, 40.0, 1.0, FULL, 20_000, 50),
    "wine_red": (0.3, 0.2, 40.0, 1.0, 1024, 20_000, 50),
    "kin8nm": (0.3, 0.2, 40.0, 0.25, 1024, 20_000, 50),
    "power": (0.3, 0.2, 40.0, 0.25, 1024, 20_000, 50),
    "protein": (0.3, 0.1, 20.0, 0.25, 2048, 30_000, 100),
}
TOLERANCE = 1e-9  # a column whose spread is a smaller share of its size is constant


def splits(data: dict[str, np.ndarray], count: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test rows of every split (K, N, D), (K, N, 1); inputs standardised by the former."""
    x, y = data["X"], data["y"][:, None]
    train, test = data["train_idx"][:count], data["test_idx"][:count]
    mean, std = x[train].mean(1, keepdims=True), x[train].std(1, keepdims=True)
    std[std <= TOLERANCE * np.abs(mean)] = 1.0
    arrays = ((x[train] - mean) / std, y[train], (x[test] - mean) / std, y[test])
    x_train, y_train, x_test, y_test = (torch.from_numpy(a).float() for a in arrays)
    return x_train, y_train, x_test, y_test


def paper_method(name: str, steps: int | None) -> bw.BALI:
    """The settings of Table 4, with the noise floor 0.01² and the first layer as printed."""
    step_size, rate, variance, effective, _, iterations, _ = PAPER[name]
    return bw.BALI(
        step_size=step_size,
        update_rate=bw.StepDecay(rate),
        steps=steps or iterations,
        effective=effective,
        prior=bw.FanIn(variance),
        first_prior=bw.Isotropic(variance),
        forward=bw.WeightNoise(),
    )


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean and standard error over the splits."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def main() -> None:
    """Train, test, keep."""
    parser = arguments(__doc__)
    parser.add_argument("--dataset", choices=list(PAPER), required=True)
    parser.add_argument("--splits", type=int)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    x, y, x_test, y_test = splits(read(options, f"uci_{options.dataset}"), options.splits)
    model = mlp((x.shape[-1], PAPER[options.dataset][-1], 1), nn.ReLU)
    method = paper_method(options.dataset, options.steps)
    batch = min(PAPER[options.dataset][4], x.shape[1])
    start = time.perf_counter()
    posterior = bw.fit(
        model, (x, y), bw.Gaussian(), method, members=len(x), batch_size=batch, seed=options.seed
    )
    seconds = time.perf_counter() - start
    prediction = posterior.predict(x_test, n=256)
    rmse = (prediction.mean - y_test).square().mean((1, 2)).sqrt()  # (K,)
    low, high = prediction.interval(0.9)
    line = {"dataset": options.dataset, "method": "bali", "settings": "paper", "n_splits": len(x)}
    line |= dict(zip(("rmse", "rmse_se"), mean_and_error(rmse), strict=True))
    line |= dict(zip(("ll", "ll_se"), mean_and_error(prediction.log_prob(y_test).mean(1)), strict=True))
    more = posterior.predict(x_test, n=2048).log_prob(y_test).mean(1)  # what 256 draws lose
    line |= dict(zip(("ll_2048_draws", "ll_2048_draws_se"), mean_and_error(more), strict=True))
    line["ll_gaussian"] = float(prediction.log_prob_gaussian(y_test).mean())
    line["coverage_90"] = float(((low <= y_test) & (y_test <= high)).float().mean())
    keep(options, line | {"steps": method.steps, "seconds": round(seconds, 1), "seed": options.seed})


if __name__ == "__main__":
    main()
