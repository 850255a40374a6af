r"""The same numbers as laplace-torch 0.3: evidence and linearised predictive on an MLP and a small CNN.

    make peers
    OMP_NUM_THREADS=1 .venv-peers/bin/python benchmarks/peers/agreement.py \
        [--out benchmarks/results/scripts/laplace_agreement.jsonl]

Relative differences of the log marginal likelihood, and of the covariance of linearised outputs at new rows,
at the same weights and the same prior precision. The peer keeps a bias apart from its weights, and so do we.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from laplace_torch import keep
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayeswise as bw

PRECISION, NOISE, BATCH, STEPS = 0.7, 0.3, 25, 300
STRUCTURES: dict[str, Any] = {"kron": bw.Kronecker(bias="apart"), "diag": bw.Diagonal(), "full": bw.Full()}


def rows(image: bool, n: int, dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    """Inputs of a table, or small images."""
    shape = (n, 1, 8, 8) if image else (n, 5)
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype)


def network(image: bool, outputs: int) -> nn.Sequential:
    """An MLP, or a small CNN."""
    torch.manual_seed(0)
    if image:
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(27, outputs))
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, outputs))


def problem(image: bool, task: str, dtype: torch.dtype) -> tuple[nn.Sequential, Tensor, Tensor, Tensor]:
    """A trained network, its rows and targets, and new rows."""
    rng = torch.Generator().manual_seed(1)
    x, new = rows(image, 60, dtype, rng), rows(image, 7, dtype, rng)
    flat = x.flatten(1)
    y = torch.stack([flat[:, 0].sin(), flat[:, 1] * flat[:, 2]], 1)
    y = (flat[:, 0] > 0).long() + (flat[:, 1] > 0.5).long() if task == "classification" else y
    model = network(image, 3 if task == "classification" else 2).to(dtype)
    loss = nn.functional.cross_entropy if task == "classification" else nn.functional.mse_loss
    optimiser = torch.optim.Adam(model.parameters(), 0.02, weight_decay=1e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
    return model, x, y, new


def compared(image: bool, task: str, structure: str, dtype: torch.dtype) -> dict[str, Any]:
    """Both on one problem."""
    from laplace import Laplace  # type: ignore[import-not-found]

    model, x, y, new = problem(image, task, dtype)
    noise = {} if task == "classification" else {"sigma_noise": NOISE}
    peer = Laplace(copy.deepcopy(model), task, "all", structure, prior_precision=PRECISION, **noise)
    peer.fit(DataLoader(TensorDataset(x, y), batch_size=BATCH))
    likelihood = bw.Categorical() if task == "classification" else bw.Gaussian(NOISE**2)
    method = bw.Laplace(structure=STRUCTURES[structure], precision=PRECISION)
    ours: Any = bw.fit(model, (x, y), likelihood, method, batch_size=BATCH, progress=False)
    evidence, (_, spread) = peer.log_marginal_likelihood(), peer._glm_predictive_distribution(new)
    found = ours.predict(new).covariance
    return {
        "network": "cnn" if image else "mlp",
        "task": task,
        "structure": structure,
        "dtype": str(dtype).removeprefix("torch."),
        "evidence": float(abs((evidence - ours.log_evidence) / evidence)),
        "covariance": float((spread - found).abs().max() / spread.abs().max()),
    }


def main() -> None:
    """Every network, task, structure and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for dtype in (torch.float64, torch.float32):
        for image in (False, True):
            for task in ("classification", "regression"):
                for structure in STRUCTURES:
                    keep(options, compared(image, task, structure, dtype))


if __name__ == "__main__":
    main()
