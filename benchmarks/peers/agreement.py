r"""The same numbers as laplace-torch 0.3: evidence and linearised predictive on an MLP and a small CNN.

    make peers
    OMP_NUM_THREADS=1 .venv-peers/bin/python benchmarks/peers/agreement.py \
        [--out benchmarks/results/scripts/laplace_agreement.jsonl]

Relative differences of the log marginal likelihood, and of the covariance of linearised outputs at new rows,
at the same weights and the same prior precision. The peer keeps a bias apart from its weights, and so do we.
Diagonal and full are also compared with their definition, dense and in float64: `ours exact`, `peer exact`.

The peer's full matrix is a product with `torch.eye(P)`, which is float32 whatever the model is. `eye
repaired` is the difference where torch's default is the model's precision while the peer works.
"""

from __future__ import annotations

import argparse
import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from laplace_torch import keep
from torch import Tensor, nn
from torch.func import functional_call, jacrev
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


def exact(model: nn.Sequential, task: str, structure: str, data: tuple[Tensor, Tensor, Tensor]) -> Any:
    """Evidence and covariance by the definition: a dense Jacobian in float64, nothing of either library."""
    big = copy.deepcopy(model).double()
    params = {name: value.detach() for name, value in big.named_parameters()}
    (x, y, new), f = data, big(data[0].double()).detach()

    def jacobian(rows: Tensor) -> Tensor:
        found = jacrev(lambda p: functional_call(big, p, rows.double()))(params)
        return torch.cat([found[name].flatten(2) for name in params], 2)  # (B, O, P)

    if task == "classification":
        p = f.softmax(-1)
        hessian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        log_lik = f.log_softmax(-1).gather(1, y[:, None]).sum()
    else:
        hessian = (torch.eye(f.shape[1]).double() / NOISE**2).expand(len(f), -1, -1)
        log_lik = torch.distributions.Normal(f, NOISE).log_prob(y.double()).sum()
    j, j_new = jacobian(x), jacobian(new)
    g = torch.einsum("bop,boq,bqr->pr", j, hessian, j)
    g = torch.diag(g.diagonal()) if structure == "diag" else g
    total, w = g + PRECISION * torch.eye(len(g)).double(), torch.cat([v.flatten() for v in params.values()])
    prior = len(w) * math.log(PRECISION) - PRECISION * w.square().sum()
    return log_lik + 0.5 * (prior - torch.logdet(total)), j_new @ torch.linalg.solve(total, j_new.mT)


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this precision for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def theirs(model: nn.Sequential, task: str, structure: str, data: tuple[Tensor, Tensor, Tensor]) -> Any:
    """The peer's evidence and covariance."""
    from laplace import Laplace  # type: ignore[import-not-found]

    noise = {} if task == "classification" else {"sigma_noise": NOISE}
    peer = Laplace(copy.deepcopy(model), task, "all", structure, prior_precision=PRECISION, **noise)
    peer.fit(DataLoader(TensorDataset(*data[:2]), batch_size=BATCH))
    return peer.log_marginal_likelihood().detach(), peer._glm_predictive_distribution(data[2])[1]


def mine(model: nn.Sequential, task: str, structure: str, data: tuple[Tensor, Tensor, Tensor]) -> Any:
    """Our evidence and covariance."""
    likelihood = bw.Categorical() if task == "classification" else bw.Gaussian(NOISE**2)
    method = bw.Laplace(structure=STRUCTURES[structure], precision=PRECISION)
    found: Any = bw.fit(model, data[:2], likelihood, method, batch_size=BATCH, progress=False)
    return found.log_evidence, found.predict(data[2]).covariance


def apart(one: Any, two: Any) -> dict[str, float]:
    """Relative differences of evidence and covariance."""
    (a, c), (b, d) = one, two
    return {
        "evidence": float(abs((a - b) / b)),
        "covariance": float((c.double() - d.double()).abs().max() / d.double().abs().max()),
    }


def compared(image: bool, task: str, structure: str, dtype: torch.dtype) -> dict[str, Any]:
    """Both on one problem, and against the definition."""
    model, *rest = problem(image, task, dtype)
    args: Any = (model, task, structure, tuple(rest))
    ours, peer = mine(*args), theirs(*args)
    line: dict[str, Any] = {
        "network": "cnn" if image else "mlp",
        "task": task,
        "structure": structure,
        "dtype": str(dtype).removeprefix("torch."),
        **apart(ours, peer),
    }
    if structure == "kron":
        return line
    right = exact(*args)
    line |= {f"{k}, ours exact": v for k, v in apart(ours, right).items()}
    line |= {f"{k}, peer exact": v for k, v in apart(peer, right).items()}
    if structure == "full":
        with default(dtype):
            line |= {f"{k}, eye repaired": v for k, v in apart(mine(*args), theirs(*args)).items()}
    return line


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
