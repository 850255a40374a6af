"""A convolution as rows of patches: the module's own outputs and gradients, whatever its settings."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bayeswise.networks import (
    ConvolutionView,
    LocalNoise,
    Network,
    Params,
    Signals,
    discover,
    evaluating,
    layer_signals,
    row_counts,
    view_of,
)

B, I, O, S, K = 7, 5, 3, 11, 4  # noqa: E741
LENGTH, IMAGE = (13,), (9, 6)  # sizes of the inputs

LINES: list[dict[str, Any]] = [
    dict(kernel_size=3),
    dict(kernel_size=1),
    dict(kernel_size=4, stride=3, padding=2),
    dict(kernel_size=3, stride=2, dilation=3, padding=4),
    dict(kernel_size=4, padding="same"),
    dict(kernel_size=4, padding="same", dilation=3, padding_mode="circular"),
    dict(kernel_size=3, padding="valid", padding_mode="reflect"),
    dict(kernel_size=5, padding=2, padding_mode="reflect", stride=2),
    dict(kernel_size=3, padding=3, padding_mode="replicate"),
    dict(kernel_size=13),
]
PLANES: list[dict[str, Any]] = [
    dict(kernel_size=3),
    dict(kernel_size=1),
    dict(kernel_size=(4, 2), stride=(2, 3), padding=(2, 0)),
    dict(kernel_size=(3, 2), dilation=(2, 3), padding=(0, 1), stride=(1, 2)),
    dict(kernel_size=(4, 3), padding="same"),
    dict(kernel_size=(2, 4), padding="same", dilation=(3, 1), padding_mode="reflect"),
    dict(kernel_size=3, padding="valid"),
    dict(kernel_size=(3, 5), padding=(1, 2), padding_mode="circular"),
    dict(kernel_size=(5, 3), padding=(2, 1), padding_mode="replicate", stride=2),
    dict(kernel_size=(3, 3), padding=(2, 1), padding_mode="reflect", dilation=2),
    dict(kernel_size=IMAGE),
]
CASES = [(nn.Conv1d, LENGTH, s) for s in LINES] + [(nn.Conv2d, IMAGE, s) for s in PLANES]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make, *args, **settings) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make(*args, **settings).double()


def view_and_values(layer: nn.Module) -> tuple[ConvolutionView, Params]:
    view = view_of("conv", layer)
    assert isinstance(view, ConvolutionView)
    return view, {f"conv.{k}": v.detach() for k, v in layer.named_parameters()}


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert (a - b).abs().max() <= 1e-12 * b.abs().max()


# ------------------------------------------------------------------------------------------- one layer


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind, size, settings", CASES)
def test_rows_times_matrix_are_the_layers_outputs(kind, size, settings, groups: int, bias: bool):
    layer = seeded(kind, 2 * groups, O * groups, groups=groups, bias=bias, **settings)
    view, values = view_and_values(layer)
    x = random(B, 2 * groups, *size)
    z = layer(x).detach()
    close(view.rows(x, 0) @ view.matrix(values), view.output_rows(z, 0))
    assert torch.equal(view.unrows(view.output_rows(z, 0), z), z)
    assert view.groups == (() if groups == 1 else (groups,))
    assert view.size == sum(p.numel() for p in layer.parameters())
    assert view.inputs * view.outputs * groups == view.size and view.outputs == O


@pytest.mark.parametrize("groups", [4, 12])
def test_every_channel_may_be_a_group(groups: int):
    layer = seeded(nn.Conv2d, 4, 12, 3, groups=4) if groups == 4 else seeded(nn.Conv1d, 12, 12, 3, groups=12)
    view, values = view_and_values(layer)
    x = random(B, 4, *IMAGE) if groups == 4 else random(B, 12, *LENGTH)
    close(view.unrows(view.rows(x, 0) @ view.matrix(values), layer(x)), layer(x).detach())


@pytest.mark.parametrize("kind, size", [(nn.Conv1d, LENGTH), (nn.Conv2d, IMAGE)])
def test_an_input_without_a_batch_is_one_input(kind, size):
    layer = seeded(kind, 4, 6, 3, groups=2)
    view, values = view_and_values(layer)
    x = random(4, *size)
    z = layer(x).detach()
    close(view.rows(x, 0) @ view.matrix(values), view.output_rows(z, 0))
    assert torch.equal(view.unrows(view.output_rows(z, 0), z), z)


def test_rows_are_the_positions_of_one_input_after_another():
    layer = seeded(nn.Conv2d, 4, 6, (3, 2), stride=(2, 1), groups=2)
    view, _ = view_and_values(layer)
    x = random(B, 4, *IMAGE)
    rows = view.rows(x, 0)  # (G, B·4·5, I)
    assert rows.shape == (2, B * 4 * 5, 2 * 3 * 2 + 1)
    patch = x[5, 2:, 4:7, 3:5]  # second group, position (2, 3)
    assert torch.equal(rows[1, 5 * 20 + 2 * 5 + 3, :-1], patch.flatten())
    assert torch.equal(rows[..., -1], torch.ones(2, B * 20, dtype=torch.float64))


@pytest.mark.parametrize("kind, kernel", [(nn.Conv1d, (3,)), (nn.Conv2d, (3, 2))])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("lead", [(), (S,), (S, 2)])
def test_split_inverts_matrix(kind, kernel, bias: bool, groups: int, lead: tuple[int, ...]):
    layer = seeded(kind, 4, 6, kernel, groups=groups, bias=bias)
    view, values = view_and_values(layer)
    matrix = random(*lead, *view.groups, view.inputs, view.outputs)
    parts = view.split(matrix)
    assert torch.equal(view.matrix(parts), matrix) and tuple(parts) == view.parameters
    assert all(parts[name].shape == (*lead, *values[name].shape) for name in values)
    again = view.split(view.matrix(values))
    assert all(torch.equal(again[name], values[name]) for name in values)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_members_keep_their_rows_apart(groups: int, mode: str):
    layer = seeded(nn.Conv2d, 4, 6, 3, padding=1, stride=2, groups=groups, padding_mode=mode)
    view, _ = view_and_values(layer)
    x, z = random(S, K, B, 4, *IMAGE), random(S, K, B, 6, 5, 3)
    for s, k in ((0, 0), (10, 3), (4, 2)):
        assert torch.equal(view.rows(x, 2)[s, k], view.rows(x[s, k], 0))
        assert torch.equal(view.output_rows(z, 2)[s, k], view.output_rows(z[s, k], 0))
    assert torch.equal(view.unrows(view.output_rows(z, 2), z), z)


@pytest.mark.parametrize("channels, kernel", [(1, 1), (1, 3), (4, 1)])
def test_rows_are_a_copy(channels: int, kernel: int):
    layer = seeded(nn.Conv1d, channels, O, kernel, bias=False)
    view, _ = view_and_values(layer)
    x = random(B, channels, 3)
    before = view.rows(x, 0)
    kept = before.clone()
    x.add_(1)
    assert torch.equal(before, kept)


# ------------------------------------------------------------------------------ what has a view and what not


class Doubled(nn.Conv1d):
    """A subclass with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Standardised(nn.Conv2d):
    """A subclass that changes its weight on the way: forward itself is the same."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight - weight.mean(), bias)


class Renamed(nn.Conv2d):
    """A subclass that computes what Conv2d computes."""


def test_only_plain_convolutions_are_viewed():
    assert view_of("c", Renamed(4, 6, 3)) == view_of("c", nn.Conv2d(4, 6, 3))
    others = (Doubled(I, O, 3), Standardised(I, O, 3), weight_norm(nn.Conv1d(I, O, 3)), nn.Conv3d(I, O, 3))
    lazy = (nn.LazyConv1d(O, 3), nn.LazyConv2d(O, 3), nn.LazyLinear(O))
    for other in (*others, *lazy, nn.ConvTranspose1d(I, O, 3), nn.ConvTranspose2d(I, O, 3)):
        assert view_of("c", other) is None


def test_a_lazy_convolution_is_viewed_once_it_has_weights():
    layer = nn.LazyConv2d(O, 3)
    layer(torch.zeros(B, I, *IMAGE))
    assert view_of("c", layer) == view_of("c", nn.Conv2d(I, O, 3))


def flat(*layers: nn.Module) -> nn.Module:
    return seeded(nn.Sequential, *layers, nn.Flatten())


@pytest.mark.parametrize(
    "module, shape, expected",
    [
        (flat(nn.Conv1d(2, O, 4)), (2, 4), "0"),  # one position: its output is the module's
        (flat(nn.Conv2d(2, O, IMAGE)), (2, *IMAGE), "0"),
        (flat(nn.Conv1d(2, 1, 3)), (2, 5), None),  # positions as outputs: not rows of the module's output
        (flat(nn.Conv1d(2, O, 3)), (2, 5), None),
        (flat(nn.Conv1d(2, 4, 4, groups=2)), (2, 4), None),  # two regressions, one output
        (flat(nn.Conv1d(2, O, 4), nn.ReLU()), (2, 4), None),
        (flat(nn.Conv1d(2, O, 4), nn.Conv1d(O, O, 1)), (2, 4), "1"),
        (nn.Sequential(flat(nn.Conv1d(2, I, 3)), nn.Linear(3 * I, O)).double(), (2, 5), "1"),
    ],
)
@pytest.mark.parametrize("batch", [1, B])
def test_a_convolution_is_the_output_only_where_its_rows_are(module, shape, expected, batch: int):
    with evaluating(module):
        assert discover(module, random(batch, *shape)).output_layer == expected


# --------------------------------------------------------------------------------------------- signals


class Twice(nn.Module):
    """A grouped convolution used twice, once by keyword, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1, stride=2)
        self.again = nn.Conv2d(4, 4, 3, padding="same", groups=2)
        self.head = nn.Linear(4 * 5 * 3, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h = h + self.again(h).tanh()
        h = h + self.again(input=h).tanh()
        return self.head(h.flatten(1))


class Line(nn.Module):
    """Convolutions of sequences, circular and dilated, with a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 6, 3, padding=1, padding_mode="circular", bias=False)
        self.second = nn.Conv1d(6, 4, 2, groups=2, dilation=2)
        self.head = nn.Conv1d(4, O, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.relu_(self.first(x))
        return self.head(self.second(h).tanh()).mean(-1)


MODULES = {"twice": (Twice, (1, *IMAGE)), "line": (Line, (2, *LENGTH))}


def build(name: str, *lead: int) -> tuple[Network, Params, Tensor]:
    make, shape = MODULES[name]
    module, x = seeded(make), random(*lead, B, *shape, seed=1)
    with evaluating(module):
        network = discover(module, x[(0,) * len(lead)])
    rng = torch.Generator().manual_seed(5)
    params = {
        key: 0.4 * torch.randn(*lead, *value.shape, generator=rng, dtype=torch.float64)
        for key, value in network.layer_parameters().items()
    }
    return network, params, x


def log_lik(f: Tensor) -> Tensor:
    weight = torch.linspace(0.5, 2, B, dtype=f.dtype)
    return -weight * (f.square().sum(-1) + (f[..., 0] * f[..., -1]).sin())


def signals(network: Network, params: Params, x: Tensor, lead: int = 0, noise=None) -> Signals:
    with evaluating(network.module):
        return layer_signals(network, params, x, log_lik, lead, noise)


@pytest.mark.parametrize("name", MODULES)
def test_rows_and_gradients_give_the_weights_gradient(name: str):
    network, params, x = build(name)
    found = signals(network, params, x)
    leaves = {key: value.clone().requires_grad_() for key, value in params.items()}
    f = network(leaves, x)
    expected = dict(zip(leaves, torch.autograd.grad(log_lik(f).sum(), list(leaves.values())), strict=True))
    close(found.output, f.detach())
    for view in network.layers:
        layer = found.layers[view.name]
        close(layer.x @ view.matrix(params), layer.z)
        for key, value in view.split(layer.x.mT @ layer.g).items():
            close(value, expected[key])


def test_gradients_are_those_of_the_outputs():
    """By hand: the first convolution, a nudge to its output, and what follows it."""
    network, params, x = build("line")
    module, view = copy.deepcopy(network.module), network.layers[0]
    module.load_state_dict(params)
    assert isinstance(module, Line)
    z = module.first(x).detach().requires_grad_()
    f = module.head(module.second(z.relu()).tanh()).mean(-1)
    (g,) = torch.autograd.grad(log_lik(f).sum(), [z])
    layer = signals(network, params, x).layers["first"]
    close(layer.z, z.detach().mT.flatten(0, 1))
    close(layer.g, g.mT.flatten(0, 1))
    assert view.name == "first"


def test_a_layer_used_twice_has_twice_the_rows():
    network, params, x = build("twice")
    found = signals(network, params, x).layers["again"]
    assert found.x.shape == (2, 2 * B * 15, 2 * 9 + 1) and found.g.shape == (2, 2 * B * 15, 2)
    assert row_counts(network, x, 0) == {"first": B * 15, "again": 2 * B * 15, "head": B}
    module = copy.deepcopy(network.module)
    module.load_state_dict(params)
    assert isinstance(module, Twice)
    view = next(v for v in network.layers if v.name == "again")
    h = module.first(x).tanh()
    second = h + module.again(h).tanh()
    close(found.x, torch.cat([view.rows(h.detach(), 0), view.rows(second.detach(), 0)], -2))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("noisy", [False, True])
def test_members_by_vmap_are_the_loop(name: str, noisy: bool):
    network, params, x = build(name, K)
    assert network.vectorised
    counts = row_counts(network, x, 1)
    noise = {}
    for view in network.layers if noisy else ():
        root = 0.1 * random(K, *view.groups, view.inputs, view.inputs, seed=7).tril()
        root.diagonal(dim1=-2, dim2=-1).add_(2)
        noise[view.name] = LocalNoise(root, random(K, *view.groups, counts[view.name], view.outputs, seed=8))
    at_once = signals(network, params, x, 1, noise)
    looped = signals(replace(network, vectorised=False), params, x, 1, noise)
    for k in range(K):
        own = {name: LocalNoise(n.precision_factor[k], n.base[k]) for name, n in noise.items()}
        single = signals(network, {key: value[k] for key, value in params.items()}, x[k], 0, own)
        for view in network.layers:
            for part in ("x", "z", "g"):
                expected = getattr(single.layers[view.name], part)
                close(getattr(at_once.layers[view.name], part)[k], expected)
                close(getattr(looped.layers[view.name], part)[k], expected)


def test_noise_lands_on_its_own_rows():
    network, params, x = build("twice")
    view = next(v for v in network.layers if v.name == "again")
    rows = row_counts(network, x, 0)["again"]
    eye = torch.eye(view.inputs, dtype=torch.float64).expand(2, -1, -1)
    noise = LocalNoise(eye, random(2, rows, view.outputs, seed=8))
    layer = signals(network, params, x, 0, {"again": noise}).layers["again"]
    spread = layer.x.square().sum(-1, keepdim=True).sqrt()
    close(layer.z, layer.x @ view.matrix(params) + spread * noise.base)


@pytest.mark.parametrize("name", MODULES)
def test_the_model_is_left_as_it_was(name: str):
    network, params, x = build(name, K)
    module = network.module
    state, mode = copy.deepcopy(module.state_dict()), module.training
    signals(network, params, x, 1)
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    assert module.training == mode
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert all(p.grad is None for p in module.parameters())


def test_the_widest_output_of_a_row_is_known():
    network, _, _ = build("line")
    assert network.width == 6 * 13  # channels and positions of the first convolution
    assert network.bare().width == 6 * 13
