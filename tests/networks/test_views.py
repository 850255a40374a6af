"""A layer as rows: z = x W, and back to the module's own parameters."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bayeswise.networks import VIEWS, LinearView, view_of

B, T, I, O, S = 7, 4, 5, 3, 11  # noqa: E741


class Doubled(nn.Linear):
    """A subclass with a forward of its own: not the map that its weight says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Renamed(nn.Linear):
    """A subclass that computes what Linear computes."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(B, I), (B, T, I), (I,)])
def test_rows_times_matrix_are_the_layers_outputs(bias: bool, shape: tuple[int, ...]):
    layer = nn.Linear(I, O, bias=bias, dtype=torch.float64)
    view = view_of("fc", layer)
    assert view is not None
    x, named = random(*shape), {f"fc.{k}": v.detach() for k, v in layer.named_parameters()}
    z = layer(x).detach()
    assert torch.allclose(view.rows(x, 0) @ view.matrix(named), view.output_rows(z, 0), rtol=0, atol=1e-14)
    assert torch.equal(view.unrows(view.output_rows(z, 0), z), z)
    assert view.inputs == (I + 1 if bias else I) and view.outputs == O


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (S,), (S, 2)])
def test_split_inverts_matrix(bias: bool, lead: tuple[int, ...]):
    view = LinearView("block.fc", I, O, bias)
    matrix = random(*lead, view.inputs, O)
    parts = view.split(matrix)
    assert torch.equal(view.matrix(parts), matrix)
    assert torch.equal(parts["block.fc.weight"], matrix[..., :I, :].mT)
    assert tuple(parts) == view.parameters
    if bias:
        assert torch.equal(parts["block.fc.bias"], matrix[..., I, :])


@pytest.mark.parametrize("bias", [True, False])
def test_members_keep_their_rows_apart(bias: bool):
    view, x, z = LinearView("fc", I, O, bias), random(2, B, T, I), random(2, B, T, O)
    for k in range(2):
        assert torch.equal(view.rows(x, 1)[k], view.rows(x[k], 0))
        assert torch.equal(view.output_rows(z, 1)[k], view.output_rows(z[k], 0))
    assert torch.equal(view.rows(x, 1)[1, T * 3 + 2, :I], x[1, 3, 2])


def test_the_bias_is_a_column_of_ones_at_the_end():
    x = random(B, I)
    rows = LinearView("fc", I, O, True).rows(x, 0)
    assert torch.equal(rows[:, :I], x) and torch.equal(rows[:, I], torch.ones(B, dtype=torch.float64))
    assert torch.equal(LinearView("fc", I, O, False).rows(x, 0), x)


def test_a_bare_layer_has_the_modules_own_names():
    assert LinearView("", I, O, True).parameters == ("weight", "bias")


def test_only_plain_linear_maps_are_viewed():
    assert view_of("fc", Renamed(I, O)) == LinearView("fc", I, O, True)
    assert view_of("fc", nn.Linear(I, O, bias=False)) == LinearView("fc", I, O, False)
    for other in (Doubled(I, O), weight_norm(nn.Linear(I, O)), nn.Conv3d(I, O, 1), nn.Bilinear(I, I, O)):
        assert view_of("fc", other) is None


def test_a_registered_view_is_found_first_come_first_served():
    try:
        VIEWS.append(lambda name, m: LinearView(name, 1, 1, False) if isinstance(m, nn.Identity) else None)
        assert view_of("id", nn.Identity()) == LinearView("id", 1, 1, False)
        assert view_of("fc", nn.Linear(I, O)) == LinearView("fc", I, O, True)
    finally:
        VIEWS.pop()
