"""Curvature against a brute-force evaluation of its own definition, in float64."""

import pytest
import torch
from torch import Generator, Tensor, nn

import bayeswise as bw
from bayeswise.networks import LinearView, discover
from bayeswise.networks.curvature import (
    Curvature,
    EmpiricalFisher,
    GaussNewton,
    MonteCarloFisher,
    backward,
    diagonal,
    full,
    right_factors,
)

B, INPUTS, O = 7, 5, 3  # noqa: E741


class Twice(nn.Module):
    """A layer that is used two times in a pass, and one on sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(1, 4), nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x[..., None]).tanh()  # (B, 5, 4): five rows of one example
        return self.last(self.again(self.again(h).tanh()).mean(1))


class Images(nn.Module):
    """Convolutions, one of them in groups, on images of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 2, groups=2, stride=2)
        self.last = nn.Linear(8, O)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.grouped(self.first(x[:, None]).tanh()).relu().flatten(1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, 6), nn.Tanh(), nn.Linear(6, 4, bias=False), nn.ReLU(), nn.Linear(4, O)
    )


MODELS = {"mlp": mlp, "shared": Twice, "convolutions": Images}
LIKELIHOODS = {
    "gaussian": bw.Gaussian(torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.3]]).double()),
    "categorical": bw.Categorical(),
    "bernoulli": bw.Bernoulli(),
}
KINDS: dict[str, Curvature] = {
    "ggn": GaussNewton(),
    "mc": MonteCarloFisher(2),
    "empirical": EmpiricalFisher(),
}


def targets(name: str, rng: Generator) -> Tensor:
    if name == "categorical":
        return torch.randint(O, (B,), generator=rng)
    y = torch.randn(B, O, generator=rng, dtype=torch.float64)
    return y if name == "gaussian" else (y > 0).double()


@pytest.fixture(params=[(m, lik) for m in MODELS for lik in LIKELIHOODS], ids="-".join)
def problem(request):
    """Network, its parameters, rows, likelihood; and the Jacobian J (B, O, P) by brute force."""
    model, name = request.param
    rng = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    module = MODELS[model]().double()
    x = torch.randn(B, INPUTS, generator=rng, dtype=torch.float64)
    network = discover(module, x)
    params = network.layer_parameters()
    return network, params, x, targets(name, rng), LIKELIHOODS[name], jacobian(network, params, x)


def jacobian(network, params, x) -> Tensor:
    """∂f/∂W (B, O, P), each layer's W (I, O) flattened, in the order of the layers."""

    def outputs(*matrices: Tensor) -> Tensor:
        given = {}
        for view, matrix in zip(network.layers, matrices, strict=True):
            given |= view.split(matrix)
        return network(given, x)

    matrices = tuple(view.matrix(params) for view in network.layers)
    found = torch.autograd.functional.jacobian(outputs, matrices)
    return torch.cat([part.flatten(2) for part in found], -1)


def columns_of(kind: Curvature, likelihood, f: Tensor, y: Tensor):
    return list(kind.columns(likelihood, f, y, torch.Generator().manual_seed(5)))


def close(found: Tensor, wanted: Tensor) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < 1e-10


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("split", [(7,), (2, 5), (1, 3, 3)], ids=str)
def test_full_and_diagonal_are_their_definition_in_any_split(problem, kind, split):
    network, params, x, y, likelihood, jac = problem
    f = network(params, x)
    columns = columns_of(kind, likelihood, f, y)
    gradients = torch.stack([torch.einsum("bo,bop->bp", s, jac) for s in columns])  # (S, B, P)
    wanted = torch.einsum("sbp,sbq->pq", gradients, gradients)
    total, start = torch.zeros_like(wanted), 0
    squares = torch.zeros(wanted.shape[0], dtype=wanted.dtype)
    for size in split:
        part = slice(start, start + size)
        done = backward(network, params, x[part])
        own = [s[part] for s in columns]
        total += full(done, iter(own))
        squares += torch.cat([d.flatten() for d in diagonal(done, iter(own)).values()])
        start += size
    close(total, wanted)
    close(squares, wanted.diagonal())


def test_the_full_matrix_loses_nothing_in_its_products():
    """Of a float32 network: the float64 products of its float32 gradients."""
    torch.manual_seed(0)
    x = torch.randn(B, INPUTS, generator=torch.Generator().manual_seed(3))
    network = discover(mlp().float(), x)
    done = backward(network, network.layer_parameters(), x)
    columns = list(bw.Categorical().hessian_root(done.output))
    rows = torch.cat([done.flat(done.back(s)) for s in columns]).double()
    found = full(done, iter(columns))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, rows.mT @ rows, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("rows", [1, 2 * B, 10**6])
def test_columns_are_joined_or_not_with_the_same_result(problem, rows, monkeypatch):
    monkeypatch.setattr("bayeswise.networks.curvature.ENOUGH_ROWS", rows)
    network, params, x, _, likelihood, _ = problem
    done = backward(network, params, x)
    columns = list(likelihood.hessian_root(done.output))
    for name, found in right_factors(done, iter(columns)).items():
        grads = [done.back(s)[name] for s in columns]
        close(found, sum((g.mT @ g for g in grads), torch.zeros(()).double()))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_kronecker_factors_are_sums_over_rows(problem, kind):
    network, params, x, y, likelihood, _ = problem
    f = network(params, x)
    columns = columns_of(kind, likelihood, f, y)
    done = backward(network, params, x)
    right = right_factors(done, iter(columns))
    for view in network.layers:
        if not isinstance(view, LinearView):
            continue  # their rows are looked at in test_convolutions.py
        rows, grads = rows_by_hooks(network, view, params, x, columns)
        close(done.rows[view.name].mT @ done.rows[view.name], torch.einsum("ri,rj->ij", rows, rows))
        close(right[view.name], torch.einsum("sri,srj->ij", grads, grads))


def rows_by_hooks(network, view, params, x, columns):
    """The layer's inputs and output gradients, call by call, by hooks and autograd."""
    inputs, outputs = [], []
    layer = network.module.get_submodule(view.name)

    def hook(_, args, out):
        inputs.append(args[0].detach().reshape(-1, args[0].shape[-1]))
        outputs.append(out)

    handle = layer.register_forward_hook(hook)
    f = network.module(x)
    handle.remove()
    grads = [torch.autograd.grad(f, outputs, s, retain_graph=True) for s in columns]
    rows = torch.cat(inputs)
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], -1) if view.bias else rows
    return rows, torch.stack([torch.cat([g.reshape(-1, g.shape[-1]) for g in of]) for of in grads])


def test_the_exact_matrix_of_one_row_is_kronecker_without_error():
    """With one row of one example the Kronecker form is no approximation."""
    torch.manual_seed(1)
    module = mlp().double()
    x = torch.randn(1, INPUTS, dtype=torch.float64)
    network = discover(module, x)
    params, likelihood = network.layer_parameters(), bw.Categorical()
    done = backward(network, params, x)
    columns = list(likelihood.hessian_root(done.output))
    wanted, start = full(done, iter(columns)), 0
    left, right = {k: x.mT @ x for k, x in done.rows.items()}, right_factors(done, iter(columns))
    for view in network.layers:
        size = view.inputs * view.outputs
        block = wanted[start : start + size, start : start + size]
        close(torch.kron(left[view.name], right[view.name]), block)
        start += size


@pytest.mark.parametrize("model", MODELS)
def test_members_equal_single_runs(model):
    torch.manual_seed(2)
    module = MODELS[model]().double()
    x = torch.randn(2, B, INPUTS, dtype=torch.float64)
    network = discover(module, x[0], members=True)
    single = network.layer_parameters()
    params = {k: torch.stack([v, 1.1 * v]) for k, v in single.items()}
    done = backward(network, params, x, lead=1)
    columns = list(bw.Categorical().hessian_root(done.output))
    found = diagonal(done, iter(columns))
    for k in range(2):
        own = backward(network, {name: v[k] for name, v in params.items()}, x[k])
        wanted = diagonal(own, bw.Categorical().hessian_root(own.output))
        for name in found:
            close(found[name][k], wanted[name])


def test_what_is_known_at_the_output_needs_no_columns(problem):
    network, params, x, y, likelihood, _ = problem
    done = backward(network, params, x)
    last = network.output_layer
    assert last is not None
    right = right_factors(done, likelihood.hessian_root(done.output))
    known = GaussNewton().sum(likelihood, done.output)
    assert known is not None
    close(known, right[last])
    assert last not in right_factors(done.without(last), likelihood.hessian_root(done.output))


def test_rows_that_belong_to_no_example_are_refused():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + self.inner(x[:1].expand(3, 2)).mean(0))

    x = torch.ones(2, 2)
    network = discover(Odd(), x)
    with pytest.raises(ValueError, match='layer "inner" has 3 rows for 2 examples'):
        backward(network, network.layer_parameters(), x)
