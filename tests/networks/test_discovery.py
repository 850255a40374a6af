"""What one look at a module finds: its layers in order, its output layer, and what cannot be inferred."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import hardshrink, leaky_relu, softplus
from torch.nn.utils.parametrizations import weight_norm

import bayeswise as bw
from bayeswise.networks import discover, evaluating

B, I, O = 7, 5, 3  # noqa: E741


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def look(module: nn.Module, *args, x: Tensor | None = None):
    with evaluating(module):
        return discover(module.double(), random(B, I) if x is None else x, *args)


class Head(nn.Module):
    """Two layers and a last word of the test's own."""

    def __init__(self, head, width: int = I, outputs: int = O) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(width, outputs), nn.Linear(I, width)  # declared in the wrong order
        self.unused = nn.Linear(2, 2)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.head(self.last(h), h)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_layers_come_in_the_order_of_their_first_call():
    network = look(Head(lambda z, h: z))
    assert [layer.name for layer in network.layers] == ["first", "last"]


def test_a_layer_that_is_never_called_is_fixed():
    network = look(Head(lambda z, h: z))
    assert network.fixed == {"unused.weight": 4, "unused.bias": 2}


@pytest.mark.parametrize(
    "head",
    [
        lambda z, h: z,
        lambda z, h: z.reshape(-1, 1, O).squeeze(1),
        lambda z, h: z + 0,
        lambda z, h: 1.0 * z,
    ],
)
def test_output_layer_found(head):
    assert look(Head(head)).output_layer == "last"


def test_output_layer_found_behind_a_squeeze():
    network = look(Head(lambda z, h: z.squeeze(-1), outputs=1))
    assert (network.output_layer, network.outputs) == ("last", 1)


@pytest.mark.parametrize(
    "head",
    [
        lambda z, h: softplus(z),
        lambda z, h: 2 * z,
        lambda z, h: z + h[:, :O],  # a skip around the last layer
        lambda z, h: z - z.mean(0),
        lambda z, h: z.flip(0),
        lambda z, h: z.flip(-1),
    ],
)
def test_output_layer_not_found(head):
    assert look(Head(head)).output_layer is None


@pytest.mark.parametrize(
    "head",
    [
        lambda z, h: z.relu(),
        lambda z, h: z.abs(),
        lambda z, h: z.clamp(min=-100.0),
        lambda z, h: z.clamp(max=100.0),
        lambda z, h: leaky_relu(z, 0.1),
        lambda z, h: hardshrink(z),
        lambda z, h: torch.cat([z[:, :2], z[:, 2:].relu()], -1),  # a variance beside two means
    ],
)
@pytest.mark.parametrize("rows", [1, B])
def test_output_layer_not_found_behind_what_is_the_identity_for_these_rows_only(head, rows: int):
    model = Head(head)
    nn.init.constant_(model.last.bias, 50.0)  # all outputs are positive
    assert look(model, x=random(rows, I)).output_layer is None
    model.head = lambda z, h: z
    assert look(model, x=random(rows, I)).output_layer == "last"


def test_output_layer_not_found_where_a_skip_happens_to_be_zero():
    # The skip adds nothing to the values here, but it passes gradients to the layer a second time.
    assert look(Head(lambda z, h: z + (z - z.detach()))).output_layer is None


def test_output_layer_not_found_where_its_rows_are_not_the_modules():
    class PerStep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(I, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).squeeze(-1)  # (B, T, 1) -> (B, T): T outputs from one

    network = look(PerStep(), x=random(B, O, I))
    assert (network.outputs, network.output_layer) == (O, None)


def test_an_output_without_gradient_is_refused():
    with pytest.raises(ValueError, match="remove detach"):
        look(Head(lambda z, h: z.detach()))


def test_output_layer_not_found_where_it_is_called_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(I, I)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    assert look(Twice()).output_layer is None


def test_a_linear_map_behind_the_last_activation_is_not_taken_for_the_output():
    assert look(nn.Sequential(nn.Linear(I, O), nn.Identity())).output_layer == "0"
    assert look(nn.Sequential(nn.Linear(I, O), nn.Sigmoid())).output_layer is None


def test_tied_parameters_are_refused_by_name():
    model = nn.Sequential(nn.Linear(I, I), nn.Tanh(), nn.Linear(I, I), nn.Linear(I, O))
    model[2].weight = model[0].weight
    with pytest.raises(ValueError, match='layers "0" and "2" share a parameter.*select'):
        look(model)
    assert [layer.name for layer in look(model, ["3"]).layers] == ["3"]
    words = nn.Sequential(nn.Linear(I, I), nn.Embedding(I, I))
    words[1].weight = words[0].weight  # not only layers that can be inferred
    with pytest.raises(ValueError, match='layers "0" and "1" share a parameter.*select'):
        look(words)


def test_one_module_used_twice_is_one_layer():
    fc = nn.Linear(I, I)
    weight = fc.weight
    network = look(nn.Sequential(fc, nn.Tanh(), fc, nn.Linear(I, O)))
    assert [layer.name for layer in network.layers] == ["0", "3"] and not network.fixed
    assert fc.weight is weight  # the module is as before


def test_select_by_names_function_or_one_name():
    model = Head(lambda z, h: z)
    assert [v.name for v in look(model, ["last"]).layers] == ["last"]
    assert [v.name for v in look(model, "last").layers] == ["last"]
    assert [v.name for v in look(model, lambda name, m: m.in_features == I).layers] == ["first", "last"]
    assert [v.name for v in look(model, lambda name, m: name == "first").layers] == ["first"]
    assert set(look(model, ["last"]).fixed) == {"first.weight", "first.bias", "unused.weight", "unused.bias"}


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match=r"'middle'.*'last', 'first'"):
        look(Head(lambda z, h: z), ["middle"])


def test_layers_that_compute_something_else_are_fixed():
    model = nn.Sequential(
        Doubled(I, I), nn.Tanh(), weight_norm(nn.Linear(I, I)), nn.LayerNorm(I), nn.Linear(I, O)
    )
    network = look(model)
    assert [v.name for v in network.layers] == ["4"]
    assert set(network.fixed) == {name for name, _ in model.named_parameters()} - {"4.weight", "4.bias"}


def test_a_compiled_module_gives_the_same_answer():
    model = Head(lambda z, h: z).double()
    compiled = torch.compile(model, backend="eager")  # the wrapper of every backend
    plain, wrapped = look(model), look(compiled)
    assert wrapped.module is model
    assert wrapped.layers == plain.layers and wrapped.output_layer == plain.output_layer
    data, means = (random(B, I), random(B, O, seed=1)), []
    for module in (model, compiled):
        with pytest.warns(UserWarning, match="unused"):
            posterior = bw.fit(module, data, bw.Gaussian(), bw.BALI(steps=3), progress=False)
        means.append(posterior.predict(data[0], 5).mean)
    assert torch.equal(*means)


@pytest.mark.parametrize(
    ("inputs", "weights", "expected"),
    [
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float64, torch.float32),
        (torch.float16, torch.float16, torch.float32),
        (torch.float32, torch.bfloat16, torch.float32),
    ],
)
def test_floating_inputs_decide_the_precision(inputs, weights, expected):
    model = nn.Linear(I, O, dtype=weights)
    network = discover(model, random(B, I).to(inputs).to(expected))
    assert network.dtype == expected
    assert network(network.layer_parameters(), random(B, I).to(expected)).dtype == expected


def test_whole_number_inputs_keep_the_modules_precision():
    model = nn.Sequential(nn.Embedding(4, I), nn.Flatten(), nn.Linear(I, O)).double()
    network = look(model, x=torch.arange(4)[:, None])
    assert network.dtype == torch.float64 and set(network.fixed) == {"0.weight"}


def test_an_output_of_another_kind_is_refused_with_its_shape():
    with pytest.raises(ValueError, match=r"\(7, 1, 3\).*flatten"):
        look(Head(lambda z, h: z[:, None]))


@pytest.mark.parametrize(
    ("head", "kind"), [(lambda z, h: (z, h), "tuple"), (lambda z, h: {"logits": z}, "dict")]
)
def test_an_output_that_is_no_tensor_is_refused(head, kind: str):
    with pytest.raises(TypeError, match=f"the model returned a {kind}; it must return one tensor"):
        look(Head(head))


def test_an_output_with_other_rows_is_refused():
    with pytest.raises(ValueError, match=r"x of shape \(7, 5\) has shape \(1, 3\); it must have 7 rows"):
        look(Head(lambda z, h: z.mean(0, keepdim=True)))


def test_the_module_is_left_as_it_was():
    model = Head(lambda z, h: z).double().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attributes = set(vars(model.first))
    look(model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())
    assert set(vars(model.first)) == attributes and not model.first._forward_hooks
