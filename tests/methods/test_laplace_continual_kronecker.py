"""Laplace that goes on from a Kronecker posterior: the nearest product, by brute force in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.distributions import KroneckerGaussian

B, I, O, N = 7, 5, 3, 40  # noqa: E741
NO_PROGRESS: dict[str, Any] = dict(progress=False)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kron(a: Tensor, b: Tensor) -> Tensor:
    return torch.kron(a.contiguous(), b.contiguous())


def fit(model: nn.Module, x: Tensor, y: Tensor, prior: Any = None, likelihood: Any = None, **settings) -> Any:
    method = bw.Laplace(**{"structure": bw.Kronecker(), "precision": 0.7} | settings)
    likelihood = bw.Categorical() if likelihood is None else likelihood
    return bw.fit(model, (x, y), likelihood, method, prior=prior, batch_size=16, progress=False)


def curvature(layer: KroneckerGaussian) -> Tensor:
    """G (…, P, P), dense."""
    groups = layer.eigenvalues.shape[:-2].numel()
    parts = [part.reshape(groups, *part.shape[-2:]) for part in (layer.left, layer.right, layer.eigenvalues)]
    dense = []
    for left, right, values in zip(*parts, strict=True):
        q = kron(left, right)
        dense.append(q @ torch.diag(values.flatten()) @ q.T)
    return torch.stack(dense)


def nearest(total: Tensor, inputs: int, outputs: int) -> Tensor:
    """The first singular pair of the rearranged matrix."""
    table = total.reshape(inputs, outputs, inputs, outputs).permute(0, 2, 1, 3)
    u, s, v = torch.linalg.svd(table.reshape(inputs**2, outputs**2), full_matrices=False)
    product = (s[0] * torch.outer(u[:, 0], v[0])).reshape(inputs, inputs, outputs, outputs)
    return product.permute(0, 2, 1, 3).reshape(total.shape)


def at_means(model: nn.Module, posterior: Any) -> nn.Module:
    """The model at a posterior's means."""
    model = copy.deepcopy(model)
    values = posterior.weights.values(posterior.problem.network)
    model.load_state_dict(
        model.state_dict() | {k: v.reshape(model.state_dict()[k].shape) for k, v in values.items()}
    )
    return model


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(I, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, O)).double()


def cnn() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, O)).double()


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {"mlp": (mlp, (I,)), "cnn": (cnn, (2, 4, 4))}


def task(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    """Rows of a task; every one has inputs of another scale."""
    x = normal(N, *shape, seed=seed) * (1 + seed)
    flat = x.flatten(1)
    return x, (flat[:, 0] > 0).long() + (flat[:, 1] > 0.5).long()


@pytest.mark.parametrize("name", NETWORKS)
def test_three_tasks_in_a_row_are_what_the_definition_says(name, tmp_path):
    """The nearest product of old and new every time, diagonals that add, and the evidence of the new rows."""
    build, shape = NETWORKS[name]
    model, settings = build(), dict(first=bw.MAP(steps=60))
    old = fit(model, *task(shape, 0), **settings)
    for seed in (1, 2):
        old.save(tmp_path / f"{seed}")
        x, y = task(shape, seed)
        new = fit(model, x, y, bw.load(tmp_path / f"{seed}", model), **settings)
        at = at_means(model, new)
        alone = fit(at, x, y, precision=1e-9)
        value = bw.Categorical().log_prob(at.eval()(x), y).sum().detach()
        assert any(isinstance(layer, KroneckerGaussian) for layer in new.weights.layers.values())
        for key, layer in new.weights.layers.items():
            before, extra = old.weights.layers[key], alone.weights.layers[key]
            move = new.weights.means[key] - old.weights.means[key]
            torch.testing.assert_close(layer.precision, before.precision, rtol=0, atol=0)
            if not isinstance(layer, KroneckerGaussian):
                total = before.eigenvalues + extra.eigenvalues
                torch.testing.assert_close(layer.eigenvalues, total, rtol=1e-9, atol=1e-12)
                p = (before.eigenvalues + before.precision).flatten()
                change = p.log().sum() - (total + before.precision).log().sum()
                value = value - 0.5 * (p * move.flatten().square()).sum() + 0.5 * change
                continue
            moves = move.reshape(-1, *move.shape[-2:])  # of every group
            dense = zip(*(curvature(part) for part in (before, extra, layer)), moves, strict=True)
            for g_old, g_new, found, d in dense:
                delta = float(before.precision.flatten()[0]) * torch.eye(len(g_old)).double()
                wanted = nearest(g_old + g_new, *move.shape[-2:])
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))
                change = torch.logdet(g_old + delta) - torch.logdet(found + delta)
                value = value - 0.5 * d.flatten() @ (g_old + delta) @ d.flatten() + 0.5 * change
        assert float(new.log_evidence) == pytest.approx(float(value), rel=1e-8)
        assert (
            f"an earlier fit, of {seed * N} rows, precision and all: {(seed + 1) * N} rows in all"
            in new.summary()
        )
        assert "the nearest Kronecker product to their sum, which misses at most" in new.summary()
        old = new


def test_the_pull_is_the_gradient_of_the_quadratic_form():
    """Of autograd through our penalty, and P (w - m) with a dense P."""
    model = mlp()
    old = fit(model, *task((I,), 0), first=bw.MAP(steps=60))
    before = bw.Laplace(first=bw.MAP(steps=5)).after(old).before
    assert before is not None
    params = {
        k: (v + 0.1 * normal(*v.shape)).requires_grad_()
        for k, v in before.start().items()
        if k in before.names
    }
    (before.penalty(params)).backward()
    for view in before.problem.network.layers:
        layer = old.weights.layers[view.name]
        move = (view.matrix(params) - old.weights.means[view.name]).detach()
        got = view.matrix({k: p.grad for k, p in params.items() if p.grad is not None})
        if isinstance(layer, KroneckerGaussian):
            p = curvature(layer)[0] + float(layer.precision) * torch.eye(move.numel()).double()
            wanted = (p @ move.flatten()).reshape(move.shape)
        else:
            wanted = (layer.eigenvalues + layer.precision) * move
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["one output", "the same inputs"])
def test_it_is_all_rows_at_once_where_a_factor_is_shared(case):
    """One output: a number on the right. The same inputs under another noise: one matrix on the left."""
    outputs = 1 if case == "one output" else O
    eye, root = torch.eye(outputs).double(), normal(outputs, outputs, seed=2)
    noises = 0.3 * eye, root @ root.T + 0.2 * eye
    x = normal(N, I)
    inputs = (x, 3 * normal(B, I, seed=1).abs() if case == "one output" else x)
    designs = [torch.cat([a, torch.ones(len(a), 1).double()], 1) for a in inputs]
    truth = normal(I + 1, outputs, seed=5)
    y = [d @ truth + 0.5 * normal(len(d), outputs, seed=k) for k, d in enumerate(designs)]
    terms = [kron(d.T @ d, torch.linalg.inv(n)) for d, n in zip(designs, noises, strict=True)]
    pulls = [(d.T @ t @ torch.linalg.inv(n)).flatten() for d, t, n in zip(designs, y, noises, strict=True)]
    precision = terms[0] + 0.7 * torch.eye((I + 1) * outputs).double()
    start = torch.linalg.solve(precision, pulls[0])
    mean = torch.linalg.solve(precision + terms[1], pulls[0] + pulls[1])
    old = fit(_linear(start, outputs), inputs[0], y[0], None, bw.Gaussian(noises[0]))
    new = fit(_linear(mean, outputs), inputs[1], y[1], old, bw.Gaussian(noises[1]))
    dense = curvature(new.weights.layers[""])[0] + 0.7 * torch.eye(len(precision)).double()
    torch.testing.assert_close(dense, precision + terms[1], rtol=1e-10, atol=1e-10)
    features = torch.cat([kron(d, eye) for d in designs])
    noise = torch.block_diag(
        *(kron(torch.eye(len(d)).double(), n) for d, n in zip(designs, noises, strict=True))
    )
    whole = torch.distributions.MultivariateNormal(
        torch.zeros(len(noise)).double(), noise + features @ features.T / 0.7
    )
    wanted = float(whole.log_prob(torch.cat([t.flatten() for t in y])))
    assert float(old.log_evidence + new.log_evidence) == pytest.approx(wanted, rel=1e-9)


def _linear(mean: Tensor, outputs: int) -> nn.Linear:
    model, w = nn.Linear(I, outputs).double(), mean.reshape(I + 1, outputs)
    with torch.no_grad():
        model.weight.copy_(w[:-1].T)
        model.bias.copy_(w[-1])
    return model


def test_each_split_goes_on_from_its_own():
    x = torch.stack([task((I,), k)[0] for k in range(2)])
    y = torch.stack([task((I,), k)[1] for k in range(2)])
    model, common = mlp(), NO_PROGRESS
    method = bw.Laplace(first=bw.MAP(steps=60))
    old: Any = bw.fit(model, (x, y), bw.Categorical(), method, members=2, **common)
    new: Any = bw.fit(model, (x + 0.1, y), bw.Categorical(), method, members=2, prior=old, **common)
    for k in range(2):
        one: Any = bw.fit(model, (x[k], y[k]), bw.Categorical(), method, **common)
        two: Any = bw.fit(model, (x[k] + 0.1, y[k]), bw.Categorical(), method, prior=one, **common)
        torch.testing.assert_close(new.log_evidence[k], two.log_evidence, rtol=1e-6, atol=1e-6)
        new_rows = normal(B, I, seed=8)
        got = new.function_covariance(new_rows.expand(2, B, I))[k]
        torch.testing.assert_close(got, two.function_covariance(new_rows), rtol=1e-5, atol=1e-8)
