r"""Test NLL of BALI on FashionMNIST along a short run, for three seeds.

    OMP_NUM_THREADS=1 python benchmarks/fashion_mnist.py --data-dir DIR \
        --out benchmarks/results/scripts/fashion_mnist.jsonl

784-256-256-10 with Leaky-Tanh, batch 2048, step size 0.5, cosine update rate from 0.3 over 300 steps,
N_eff = 0.2 N; the curve by 16 draws, the last line by 64.
"""

from __future__ import annotations

import time

import torch
from common import LeakyTanh, arguments, keep, mlp, read

import bayeswise as bw


def main() -> None:
    """Train, look at the test rows on the way, keep."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    data = read(options, "fashion_mnist")
    x, x_test = (torch.from_numpy(data[k]).float().flatten(1) / 255 for k in ("x_train", "x_test"))
    mean, std = x.mean(), x.std()
    x, x_test = (x - mean) / std, (x_test - mean) / std
    y, y_test = (torch.from_numpy(data[k]).long() for k in ("y_train", "y_test"))
    for seed in range(options.seeds):
        curve: dict[int, float] = {}

        def look(progress, curve=curve) -> None:
            if progress.step in (30, 100, 200):
                prediction = progress.posterior().predict(x_test, n=16)
                curve[progress.step] = float(-prediction.log_prob(y_test).mean())

        method = bw.BALI(step_size=0.5, update_rate=bw.Cosine(0.3), steps=options.steps, effective=0.2)
        start = time.perf_counter()
        posterior = bw.fit(
            mlp((784, 256, 256, 10), LeakyTanh),
            (x, y),
            bw.Categorical(),
            method,
            batch_size=2048,
            seed=seed,
            callbacks=[look],
        )
        seconds = time.perf_counter() - start
        prediction = posterior.predict(x_test, n=64)
        line = {"dataset": "fashion_mnist", "seed": seed, "steps": options.steps}
        line |= {f"nll_{step}": round(value, 4) for step, value in curve.items()}
        line["nll"] = round(float(-prediction.log_prob(y_test).mean()), 4)
        line["acc"] = round(bw.metrics.accuracy(prediction.mean, y_test).item(), 4)
        line["ece"] = round(bw.metrics.ece(prediction.mean, y_test).item(), 4)
        keep(options, line | {"seconds": round(seconds, 1)})


if __name__ == "__main__":
    main()
