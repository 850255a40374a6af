"""A classifier that knows when it does not know: rows far from all training data stand out.

The rows count for less than they are (`effective`) to show this clearly; with the default some far places
look as sure as near ones, so try your own data before you rely on it.

    python examples/classifier.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayeswise as bw

CENTRES = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])


def clusters(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three clusters in the plane, and which one each row belongs to."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=rng)
    return CENTRES[y] + 0.6 * torch.randn(n, 2, generator=rng), y


def main() -> dict[str, bw.Predictive]:
    model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 3))
    loader = DataLoader(TensorDataset(*clusters(600, seed=0)), batch_size=200, shuffle=True)
    method = bw.BALI(steps=300, effective=0.2)  # the 600 rows count as 120: more doubt where there are none
    posterior = bw.fit(model, loader, bw.Categorical(), method, progress=False)

    x, y = clusters(500, seed=1)
    rows = {
        "like the training data": x,
        "between the clusters": torch.zeros(1, 2),
        "far away from them": torch.tensor([[8.0, 8.0], [-9.0, 0.0], [4.0, -9.0]]),
    }
    predictions = {name: posterior.predict(places) for name, places in rows.items()}

    known = predictions["like the training data"]
    accuracy = (known.mean.argmax(-1) == y).float().mean()
    print(f"held-out accuracy {accuracy:.3f}, mean log-likelihood {known.log_prob(y).mean():.3f}\n")
    print(f"{'rows':24s} largest probability   entropy   epistemic part")
    for name, p in predictions.items():
        sure, entropy, epistemic = p.mean.amax(-1).mean(), p.entropy().mean(), p.epistemic.mean()
        print(f"{name:24s} {sure:19.2f} {entropy:9.3f} {epistemic:16.3f}")
    return predictions


if __name__ == "__main__":
    main()
