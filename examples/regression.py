"""Uncertainty for a PyTorch regression: small at the data, large in the gap between them.

The prior was made wide to show this clearly; with the default settings the gap stands out much less.

    python examples/regression.py
"""

import math

import torch
from torch import nn

import bayeswise as bw


def gap_data(n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy values of a wave on [-3, -1] and [1, 3]; nothing between."""
    rng = torch.Generator().manual_seed(seed)
    x = 1 + 2 * torch.rand(n, 1, generator=rng)
    x = torch.where(torch.rand(n, 1, generator=rng) < 0.5, -x, x)
    y = 50 + 10 * torch.sin(math.pi * x / 2) + torch.randn(n, 1, generator=rng)
    return x, y


def main() -> bw.Predictive:
    x, y = gap_data()
    model = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    method = bw.BALI(steps=500, prior=bw.FanIn(400.0), initial_scale=3.0)  # a wide prior lets it bend

    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, progress=False)
    places = torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0], [4.0]])
    prediction = posterior.predict(places)

    print(posterior.summary(), end="\n\n")
    low, high = prediction.interval(0.9)
    parts = (places, prediction.mean, low, high, prediction.epistemic, prediction.aleatoric)
    print("     x    mean    90 % interval    epistemic  noise")
    for row in torch.cat(parts, 1).tolist():
        print("{:6.1f}  {:6.1f}  {:6.1f} … {:6.1f}     {:6.2f}  {:6.2f}".format(*row))
    return prediction


if __name__ == "__main__":
    main()
