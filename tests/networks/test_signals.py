"""Rows, outputs and output gradients of every layer, against a brute-force evaluation of their definition."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayeswise.linalg import solve_lower
from bayeswise.networks import LocalNoise, Network, Params, Signals, discover, evaluating, layer_signals

B, T, I, O, K = 7, 2, 5, 3, 4  # noqa: E741
EXACT = dict(rtol=0, atol=1e-12)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(I, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        return self.head(h + self.b(h).tanh())


class InPlaceResidual(Residual):
    """The way many people write it: the input of a layer is changed after its call."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h += self.b(h)
        h += self.b(h.tanh())
        return self.head(h)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(I, 6), nn.Linear(6, 6), nn.Linear(6, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        for _ in range(3):
            h = self.b(h).tanh()
        return self.head(input=h)


class Sequence(nn.Module):
    """3-d inputs: a row for every step of every sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(I, 6), nn.Linear(6, O)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x).tanh().mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(I, 6, batch_first=True), nn.Linear(6, O)
        self.mix = nn.Linear(I, I)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.mix(x))[0][:, -1])


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(I, O)
        self.register_buffer("centre", torch.full((I,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x -= self.centre
        return self.head(x)


def sequential(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(I, 6), activation, nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, O))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "bare": lambda: nn.Linear(I, O),
    "sequential": lambda: sequential(nn.Tanh()),
    "in-place ReLU": lambda: sequential(nn.ReLU(inplace=True)),
    "residual": Residual,
    "in-place residual": InPlaceResidual,
    "shared": Shared,
    "sequence": Sequence,
    "recurrent": Recurrent,
    "changes its input": ChangesItsInput,
    "norm": lambda: nn.Sequential(nn.Linear(I, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, O)),
}


def rows(name: str, *lead: int, seed: int = 0) -> Tensor:
    shape = (B, T, I) if name in ("sequence", "recurrent") else (B, I)
    return torch.randn(*lead, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_lik(f: Tensor) -> Tensor:
    """Any smooth function of one row's outputs, different in every row."""
    weight = torch.linspace(0.5, 2, B, dtype=f.dtype)
    return -weight * (f.square().sum(-1) + (f[..., 0] * f[..., -1]).sin())


def build(name: str) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = MODULES[name]().double()
    with evaluating(module):
        return discover(module, rows(name))


def weights(network: Network, *lead: int, seed: int = 5) -> Params:
    rng = torch.Generator().manual_seed(seed)
    return {
        name: 0.4 * torch.randn(*lead, *value.shape, generator=rng, dtype=torch.float64)
        for name, value in network.layer_parameters().items()
    }


def signals(network: Network, params: Params, x: Tensor, lead: int = 0, noise=None) -> Signals:
    with evaluating(network.module):
        return layer_signals(network, params, x, log_lik, lead, noise)


def brute_force(network: Network, params: Params, x: Tensor) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """x, z and g of every layer: gradients with respect to explicit perturbations, one tensor per call."""
    inputs: dict[str, list[Tensor]] = {v.name: [] for v in network.layers}
    outputs: dict[str, list[Tensor]] = {v.name: [] for v in network.layers}
    nudges: dict[str, list[Tensor]] = {v.name: [] for v in network.layers}

    class Perturbed(nn.Module):
        def __init__(self, name: str, inner: nn.Module) -> None:
            super().__init__()
            self.name, self.inner = name, inner

        def forward(self, input: Tensor) -> Tensor:
            z = self.inner(input)
            nudge = torch.zeros_like(z).requires_grad_()
            inputs[self.name].append(input.detach().clone())
            outputs[self.name].append(z.detach().clone())
            nudges[self.name].append(nudge)
            return z + nudge

    module = copy.deepcopy(network.module).requires_grad_(False)
    module.load_state_dict({**module.state_dict(), **params})
    for view in network.layers:
        if not view.name:
            module = Perturbed("", module)
            continue
        parent, _, child = view.name.rpartition(".")
        setattr(module.get_submodule(parent), child, Perturbed(view.name, module.get_submodule(view.name)))
    with evaluating(module):
        log_lik(module(x.clone())).sum().backward()
    ones = {v.name: v.inputs > inputs[v.name][0].shape[-1] for v in network.layers}
    return {
        name: (
            torch.cat([with_ones(flat(part), ones[name]) for part in inputs[name]]),
            torch.cat([flat(part) for part in outputs[name]]),
            torch.cat([flat(part.grad) for part in nudges[name]]),
        )
        for name in inputs
    }


def flat(value: Tensor | None) -> Tensor:
    assert value is not None
    return value.reshape(-1, value.shape[-1])


def with_ones(value: Tensor, wanted: bool) -> Tensor:
    return torch.cat([value, torch.ones(len(value), 1, dtype=value.dtype)], 1) if wanted else value


@pytest.mark.parametrize("name", MODULES)
def test_signals_are_what_they_are_defined_to_be(name: str):
    network = build(name)
    params, x = weights(network), rows(name, seed=1)
    found, expected = signals(network, params, x.clone()), brute_force(network, params, x)
    for layer, (xs, zs, gs) in expected.items():
        torch.testing.assert_close(found.layers[layer].x, xs, **EXACT)
        torch.testing.assert_close(found.layers[layer].z, zs, **EXACT)
        torch.testing.assert_close(found.layers[layer].g, gs, **EXACT)
    with evaluating(network.module):
        f = functional_call(network.module, (params, network.constants), (x.clone(),))
    torch.testing.assert_close(found.output, f.detach(), **EXACT)
    torch.testing.assert_close(found.log_lik, log_lik(f).detach(), **EXACT)


def test_gradients_against_finite_differences():
    network = build("shared")
    params, x = weights(network), rows("shared")
    g, width, step = signals(network, params, x).layers["b"].g, 6, 1e-5

    def total(call: int, row: int, unit: int, size: float) -> float:
        seen = [0]

        def hook(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
            out = out.clone()
            out[row, unit] += size if seen[0] == call else 0.0
            seen[0] += 1
            return out

        handle = network.module.get_submodule("b").register_forward_hook(hook)
        with torch.no_grad():
            value = log_lik(functional_call(network.module, params, (x,))).sum()
        handle.remove()
        return float(value)

    for call, row, unit in ((0, 1, 4), (1, 6, 0), (2, 3, 5), (2, 0, width - 1)):
        slope = (total(call, row, unit, step) - total(call, row, unit, -step)) / (2 * step)
        assert float(g[call * B + row, unit]) == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("members", [1, K])
@pytest.mark.parametrize("name", MODULES)
def test_members_are_single_runs(name: str, members: int):
    network = build(name)
    params, x = weights(network, members), rows(name, members)
    single = [signals(network, {n: v[k] for n, v in params.items()}, x[k].clone()) for k in range(members)]
    ways = [replace(network, vectorised=False, cache={})]
    ways += [replace(network, cache={})] if network.vectorised else []
    for way in ways:
        together = signals(way, params, x.clone(), 1)
        torch.testing.assert_close(together.output, torch.stack([s.output for s in single]), **EXACT)
        torch.testing.assert_close(together.log_lik, torch.stack([s.log_lik for s in single]), **EXACT)
        for layer in together.layers:
            for part in ("x", "z", "g"):
                expected = torch.stack([getattr(s.layers[layer], part) for s in single])
                torch.testing.assert_close(getattr(together.layers[layer], part), expected, **EXACT)


def test_members_go_through_vmap_where_it_can_run_the_module():
    assert {name for name in MODULES if not build(name).vectorised} == {"recurrent"}


@pytest.mark.parametrize("name", MODULES)
def test_networks_by_vmap_are_networks_one_by_one(name: str):
    network = build(name)
    params, x = weights(network, K), rows(name)
    with torch.no_grad(), evaluating(network.module):
        together = network(params, x.clone(), lead=1)
        for k in range(K):
            one = network({n: v[k] for n, v in params.items()}, x.clone())
            torch.testing.assert_close(together[k], one, **EXACT)


@pytest.mark.parametrize("name", ["sequential", "shared", "sequence"])
@pytest.mark.parametrize("lead", [(), (K,)])
def test_local_noise_is_added_to_every_row_of_a_layers_output(name: str, lead: tuple[int, ...]):
    network = build(name)
    params, x = weights(network, *lead), rows(name, *lead)
    quiet = signals(network, params, x, len(lead))
    rng = torch.Generator().manual_seed(9)
    view = network.layers[1] if name != "sequence" else network.layers[0]
    size = quiet.layers[view.name].z.shape
    factor = torch.randn(*lead, view.inputs, view.inputs, generator=rng, dtype=torch.float64).tril(-1)
    factor = factor + 2 * torch.eye(view.inputs, dtype=torch.float64)
    base = torch.randn(size, generator=rng, dtype=torch.float64)
    noisy = signals(network, params, x, len(lead), {view.name: LocalNoise(factor, base)}).layers[view.name]
    matrix = view.matrix(params)
    spread = solve_lower(factor, noisy.x.mT).square().sum(-2).sqrt()[..., None]
    torch.testing.assert_close(noisy.z, noisy.x @ matrix + spread * base, **EXACT)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("lead", [(), (K,)])
def test_nothing_is_left_on_the_module_or_the_data(name: str, lead: tuple[int, ...]):
    network = build(name)
    module = network.module.train()
    params, x = weights(network, *lead), rows(name, *lead)
    before = fingerprint(module), {n: v.clone() for n, v in params.items()}, x.clone()
    layer_signals_in_eval = signals(network, params, x, len(lead))
    assert layer_signals_in_eval.output.shape == (*lead, B, O)
    assert fingerprint(module) == before[0] and module.training
    assert all(torch.equal(before[1][n], v) and not v.requires_grad for n, v in params.items())
    assert torch.equal(x, before[2])


@pytest.mark.parametrize("lead", [(), (K,)])
def test_nothing_is_left_after_an_exception(lead: tuple[int, ...]):
    network = build("sequential")
    before = fingerprint(network.module)

    def broken(f: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        layer_signals(network, weights(network, *lead), rows("sequential", *lead), broken, len(lead))
    with pytest.raises(RuntimeError):
        signals(network, weights(network, *lead), torch.ones(*lead, B, I + 1, dtype=torch.float64), len(lead))
    assert fingerprint(network.module) == before


def fingerprint(module: nn.Module) -> list:
    """Everything on a module that a hasty library might change."""
    state = []
    for name, m in module.named_modules():
        hooks = [len(v) for k, v in sorted(vars(m).items()) if "hooks" in k and v is not None]
        state.append((name, type(m), sorted(vars(m)), m.training, hooks, type(m).forward))
    for name, p in module.named_parameters():
        state.append((name, id(p), p.requires_grad, p.grad is None, p.tolist()))
    for name, b in module.named_buffers():
        state.append((name, id(b), b.tolist()))
    return state


def test_a_buffer_that_the_forward_moves_does_not_move_the_network():
    """A counter in the forward pass: every call sees the value that was found; the module keeps its own."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2).double()
            self.register_buffer("c", torch.ones((), dtype=torch.float64))

        def forward(self, x):
            self.c.add_(1)
            return self.fc(x) * self.c

    module, x = Counting(), torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network = discover(module, x)
    params = network.layer_parameters()
    outputs = [network(params, x) for _ in range(3)]
    assert torch.equal(outputs[0], outputs[2]) and float(network.constants["c"]) == 1 and float(module.c) == 1


def test_a_submodule_that_was_exchanged_takes_the_given_values():
    module = nn.Sequential(nn.Linear(3, 2)).double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    network = discover(module, x)
    params = network.layer_parameters()
    before = network(params, x)
    module[0] = nn.Linear(3, 2).double()
    assert torch.equal(network(params, x), before)


def test_local_noise_has_a_finite_gradient_at_a_row_of_zeros():
    noise = LocalNoise(torch.eye(3, dtype=torch.float64), torch.ones(2, 4, dtype=torch.float64))
    rows = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    noise(rows).sum().backward()
    assert rows.grad is not None and rows.grad.isfinite().all()
