"""Norms and embeddings: their views, who may take them, and their curvature by brute force in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, jacrev

import bayeswise as bw
from bayeswise.networks import discover, elementwise_view, is_elementwise, unsuited
from bayeswise.networks.curvature import (
    Curvature,
    EmpiricalFisher,
    GaussNewton,
    MonteCarloFisher,
    backward,
    diagonal,
    full,
    right_factors,
    right_factors_and_diagonal,
)

B, T, O, WORDS = 7, 5, 3, 6  # noqa: E741


class Sentences(nn.Module):
    """Words that come again in a sentence, norms over the last dimensions, a table that is used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, 4), nn.LayerNorm(4)
        self.both, self.hidden = nn.LayerNorm([T, 4], bias=False), nn.Linear(4, 4)
        self.root, self.last = nn.RMSNorm(4), nn.Linear(4, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.words(x)) + 0.5 * self.words((x + 1) % WORDS)
        h = self.layer(self.hidden(self.both(h)).tanh())
        return self.last(self.root(x=h * h.cos()).mean(1))


class Pictures(nn.Module):
    """Norms of channels, with and without space, one of them behind the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.plane, self.line = nn.Embedding(WORDS, 4), nn.BatchNorm2d(1), nn.BatchNorm1d(4)
        self.groups, self.flat = nn.GroupNorm(2, 4), nn.BatchNorm1d(4)
        self.mix, self.last, self.out = nn.Conv1d(4, 4, 2), nn.Linear(4, O), nn.LayerNorm(O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.plane(self.words(x)[:, None])[:, 0].mT  # (B, 4, T)
        h = self.groups(self.mix(self.line(h)).tanh())
        return self.out(self.last(self.flat(h.mean(-1)).tanh()))


MODELS: dict[str, Callable[[], nn.Module]] = {"sentences": Sentences, "pictures": Pictures}
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


def scattered_(model: nn.Module) -> nn.Module:
    """Weights and statistics that are nowhere 0 or 1."""
    rng = torch.Generator().manual_seed(4)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=rng).to(value)
            value.copy_(noise.abs() + 0.3 if name.endswith("running_var") else 0.7 * noise + 0.2)
    return model.eval()


def sentences(rng: Generator, *lead: int) -> Tensor:
    return torch.randint(WORDS, (*lead, B, T), generator=rng)


def targets(name: str, rng: Generator) -> Tensor:
    if name == "categorical":
        return torch.randint(O, (B,), generator=rng)
    y = torch.randn(B, O, generator=rng, dtype=torch.float64)
    return y if name == "gaussian" else (y > 0).double()


def jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """∂f/∂w (B, O, …) by the name of the parameter, with nothing of ours."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    return jacrev(lambda p: functional_call(model, p, (x,)))(params)


def close(found: Tensor, wanted: Tensor) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < 1e-10


def look(make: str = "sentences") -> tuple[nn.Module, Any, Tensor]:
    model, x = scattered_(MODELS[make]().double()), sentences(torch.Generator().manual_seed(3))
    return model, discover(model, x), x


# ------------------------------------------------------------------------------------------------- curvature


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [(7,), (2, 5), (1, 3, 3)], ids=str)
@pytest.mark.parametrize("make", MODELS)
def test_diagonals_are_their_definition_in_any_split(make, likelihood, kind, split):
    model, network, x = look(make)
    wide = network.with_elementwise()
    assert not wide.fixed and len(wide.layers) == len(network.layers) + len(network.elementwise)
    y, f = targets(likelihood, torch.Generator().manual_seed(1)), model(x).detach()
    rng = torch.Generator().manual_seed(5)
    columns = list(KINDS[kind].columns(LIKELIHOODS[likelihood], f, y, rng))
    jac, start = jacobian(model, x), 0
    found: dict[str, Tensor] = {}
    beside: dict[str, Tensor] = {}  # the same, found with Kronecker factors
    for size in split:
        part = slice(start, start + size)
        done = backward(wide, wide.layer_parameters(), x[part])
        own, start = [s[part] for s in columns], start + size
        names = [view.name for view in network.elementwise]
        both = right_factors_and_diagonal(done, iter(own), names)
        assert set(both[0]) == {view.name for view in network.layers}
        for name, factor in right_factors(done.without(*names), iter(own)).items():
            assert torch.equal(both[0][name], factor)
        for into, values in ((found, diagonal(done, iter(own))), (beside, both[1])):
            for name, value in values.items():
                into[name] = into.get(name, 0) + value
    for view in wide.layers:
        for name, value in view.split(found[view.name]).items():
            g = torch.stack([torch.einsum("bo,bo...->b...", s, jac[name]) for s in columns])
            close(value, g.square().sum((0, 1)))
        if is_elementwise(view):
            close(beside[view.name], found[view.name])


@pytest.mark.parametrize("make", MODELS)
def test_the_full_matrix_has_every_product_between_layers(make):
    model, network, x = look(make)
    wide, jac = network.with_elementwise(), jacobian(model, x)
    done = backward(wide, wide.layer_parameters(), x)
    columns = list(bw.Categorical().hessian_root(done.output))
    parts = []
    for view in wide.layers:  # W by the names of its parts, and so J in the order of W
        own = {name: jac[name] for name in view.parameters}
        parts.append(view.matrix(own).flatten(2))
    flat = torch.cat(parts, -1)  # (B, O, P)
    g = torch.stack([torch.einsum("bo,bop->bp", s, flat) for s in columns])
    close(full(done, iter(columns)), torch.einsum("sbp,sbq->pq", g, g))
    blocks = [block for s in columns for block in done.blocks(done.back(s))]
    close(torch.cat(blocks), g.flatten(0, 1))


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("vectorised", [True, False])
def test_members_equal_single_runs(make, vectorised):
    model, x = scattered_(MODELS[make]().double()), sentences(torch.Generator().manual_seed(6), 2)
    wide: Any = discover(model, x[0], members=True).with_elementwise()
    assert wide.vectorised
    object.__setattr__(wide, "vectorised", vectorised)
    single = wide.layer_parameters() | {k: v for k, v in wide.constants.items() if v.is_floating_point()}
    params = {k: torch.stack([v, 1.1 * v]) for k, v in single.items()}  # running statistics as well
    done = backward(wide, params, x, lead=1)
    found = diagonal(done, bw.Categorical().hessian_root(done.output))
    for k in range(2):
        own = backward(wide, {name: v[k] for name, v in params.items()}, x[k])
        for name, wanted in diagonal(own, bw.Categorical().hessian_root(own.output)).items():
            close(found[name][k], wanted)


# ----------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.LayerNorm(4), (B, T, 4)),
        (nn.LayerNorm([T, 4], bias=False), (B, 2, T, 4)),
        (nn.RMSNorm(4), (B, 4)),
        (nn.GroupNorm(2, 4), (B, 4, 3, 2)),
        (nn.BatchNorm1d(4), (B, 4)),
        (nn.BatchNorm1d(4), (B, 4, T)),
        (nn.BatchNorm2d(4), (B, 4, 3, 2)),
        (nn.BatchNorm3d(4), (B, 4, 3, 2, 2)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_a_norm_is_a_linear_map_of_its_rows(norm: nn.Module, shape: tuple[int, ...]):
    norm = scattered_(norm.double())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    view, z = elementwise_view("", norm), norm(x).detach()
    assert view is not None and view.size == sum(p.numel() for p in norm.parameters())
    params = {name: p.detach() for name, p in norm.named_parameters()}
    w, rows = view.matrix(params), view.rows(x, 0)
    assert w.shape == (*view.groups, view.inputs, view.outputs)
    torch.testing.assert_close(rows @ w, view.output_rows(z, 0), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(value, params[name]) for name, value in view.split(w).items())
    assert all(value.is_contiguous() for value in view.split(w).values())
    assert torch.equal(view.unrows(view.output_rows(z, 0), z), z)
    both, double = torch.stack([z, 2 * z]), {k: torch.stack([v, 2 * v]) for k, v in params.items()}
    assert torch.equal(view.output_rows(both, 1)[1], view.output_rows(2 * z, 0))
    assert torch.equal(view.unrows(view.output_rows(both, 1), both), both)
    assert torch.equal(view.split(view.matrix(double))["weight"], double["weight"])


def test_an_embedding_picks_the_rows_of_its_weight():
    table, x = nn.Embedding(WORDS, 4), sentences(torch.Generator().manual_seed(0))
    view = elementwise_view("", table)
    assert view is not None and (view.inputs, view.outputs, view.size) == (WORDS, 4, 4 * WORDS)
    weight = table.weight.detach()
    w, rows = view.matrix({"weight": weight}), view.rows(x, 0)
    assert torch.equal(w[rows[:, 0]], view.output_rows(table(x).detach(), 0))
    assert torch.equal(view.unrows(w[rows[:, 0]], table(x)), table(x).detach())
    assert torch.equal(view.split(w)["weight"], weight)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.LayerNorm(4, elementwise_affine=False), "LayerNorm is none"),
        (nn.BatchNorm1d(4, track_running_stats=False), "statistics from the batch"),
        (nn.LazyBatchNorm1d(), "LazyBatchNorm1d is none"),
        (nn.InstanceNorm1d(4, affine=True), "InstanceNorm1d is none"),
        (nn.Embedding(WORDS, 4, padding_idx=0), "padding vector, which must stay"),
        (nn.Embedding(WORDS, 4, max_norm=1.0), r"changes its own weights \(max_norm\)"),
        (nn.EmbeddingBag(WORDS, 4), "EmbeddingBag is none"),
        (nn.Linear(4, 4), "Linear is none"),
    ],
)
def test_others_have_no_view_and_a_reason(module: nn.Module, why: str):
    reason = unsuited(module)
    assert elementwise_view("", module) is None and reason is not None
    with pytest.raises(ValueError, match=why):
        raise ValueError(reason)


# ---------------------------------------------------------------------------------------------- who has them


def test_other_methods_see_the_network_that_they_saw():
    model, network, x = look()
    assert [view.name for view in network.layers] == ["hidden", "last"]
    assert [view.name for view in network.elementwise] == ["words", "layer", "both", "root"]
    assert network.output_layer == "last" and set(network.fixed) == {
        name for name, _ in model.named_parameters() if name.split(".")[0] not in ("hidden", "last")
    }
    wide = network.with_elementwise()
    assert wide is network.with_elementwise() and wide.with_elementwise() is wide
    assert torch.equal(wide(wide.layer_parameters(), x), model(x))
    plain = discover(nn.Linear(T, O), x.float())
    assert plain.with_elementwise() is plain


def test_values_of_the_network_are_those_of_its_norms():
    _, network, x = look()
    moved = network.at({"layer.weight": torch.full((4,), 3.0).double()})
    wide = moved.with_elementwise()
    assert torch.equal(wide.layer_parameters()["layer.weight"], torch.full((4,), 3.0).double())
    assert torch.equal(wide.layer_parameters()["root.weight"], network.constants["root.weight"])
    assert torch.equal(wide(wide.present(), x), moved(moved.present(), x))


class Places(nn.Module):
    """A table of places that all examples share, and a norm of examples in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Embedding(T, 4)
        self.turned, self.last = nn.LayerNorm(4), nn.Linear(4, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(T))
        return self.last(self.turned(h.transpose(0, 1)).mean(0))


@pytest.mark.parametrize("rows", [2, T, B])
def test_rows_that_belong_to_no_example_are_left_out(rows: int):
    network = discover(Places(), sentences(torch.Generator().manual_seed(0))[:rows])
    assert [view.name for view in network.elementwise] == ["words"]
    why = "it has no rows of its own for every example"
    assert network.barred == {"places": why, "turned": why}


def test_shared_parameters_and_a_selection_leave_norms_out():
    model = nn.Sequential(nn.LayerNorm(T), nn.Linear(T, T), nn.LayerNorm(T), nn.LayerNorm(T), nn.Linear(T, O))
    model[2].weight = model[0].weight
    x = torch.randn(B, T, generator=torch.Generator().manual_seed(0))
    network = discover(model, x)
    assert [view.name for view in network.elementwise] == ["3"]
    assert network.barred == dict.fromkeys(("0", "2"), "another layer has its parameter too")
    chosen = discover(model, x, ["1", "4"])
    assert not chosen.elementwise and chosen.barred == dict.fromkeys(("0", "2", "3"), "not selected")
    again = nn.Sequential(nn.Linear(T, T), norm := nn.LayerNorm(T), nn.Tanh(), norm, nn.Linear(T, O))
    assert [view.name for view in discover(again, x).elementwise] == ["1"]  # one layer, used twice


def test_a_model_for_batches_of_one_size_still_runs():
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.LayerNorm(T), nn.Linear(T, O)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(x)).view(B, O)

    network = discover(Fixed(), torch.randn(B, T, generator=torch.Generator().manual_seed(0)))
    assert [view.name for view in network.layers] == ["last"] and list(network.barred) == ["norm"]
