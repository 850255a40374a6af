"""MC dropout: closed forms of a linear model, masks where the module's own act, MAP at rate 0."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.mc_dropout import Place
from bayeswise.networks import discover, evaluating
from bayeswise.problem import Problem, Units
from bayeswise.weights import Dropped, draw_masks

B, I, O, N, S = 7, 5, 3, 40, 11  # noqa: E741
QUIET = dict(progress=False)


@pytest.fixture(autouse=True)
def seeded():
    """The starting weights of modules that tests build are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regression() -> tuple[Tensor, Tensor]:
    x = random(N, I, seed=1)
    return x, x @ random(I, O, seed=2) + 0.3 * random(N, O, seed=3)


def mlp(*middle: nn.Module, hidden: int = 8) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(I, hidden), nn.Tanh(), *middle, nn.Linear(hidden, O)).double()


def problem_of(model: nn.Module, x: Tensor, members: int | None = None) -> Problem:
    with evaluating(model):
        network = discover(model, x if members is None else x[0])
    units = Units.identity(network.outputs, x.dtype, network.device)
    return Problem(network, bw.Gaussian(), N, units, members)


def places(method: bw.MCDropout, model: nn.Module, x: Tensor) -> tuple[Place, ...]:
    with evaluating(model):
        return method.places(problem_of(model, x), x)


def weights_of(posterior: bw.Posterior) -> Dropped:
    assert isinstance(posterior.weights, Dropped)
    return posterior.weights


# -------------------------------------------------------------------------------------------- closed forms


def test_the_predictions_of_a_linear_layer_have_the_moments_of_all_masks():
    x, y = regression()
    p, count = 0.3, 20_000
    method = bw.MCDropout(p, steps=20)
    posterior = bw.fit(
        nn.Linear(I, O).double(), (x, y), bw.Gaussian(0.04), method, standardise=False, **QUIET
    )
    w, b = (weights_of(posterior).params[name] for name in ("weight", "bias"))
    masks = torch.tensor(list(product([0.0, 1.0], repeat=I)), dtype=x.dtype)  # (2^I, I)
    share = (1 - p) ** masks.sum(1) * p ** (I - masks.sum(1))
    f = (x[:B, None] * masks / (1 - p)) @ w.T + b  # (B, 2^I, O)
    mean = (share[:, None] * f).sum(1)
    variance = (share[:, None] * (f - mean[:, None]).square()).sum(1)
    torch.testing.assert_close(mean, x[:B] @ w.T + b, rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, p / (1 - p) * x[:B].square() @ w.T.square(), rtol=1e-10, atol=0)
    prediction = posterior.predict(x[:B], count)
    assert float(((prediction.mean - mean) / (variance / count).sqrt()).abs().max()) < 5
    fourth = (share[:, None] * (f - mean[:, None]) ** 4).sum(1)
    error = ((fourth - variance**2) / count).sqrt()  # of the variance of draws
    assert float(((prediction.epistemic**2 - variance) / error).abs().max()) < 5


@pytest.mark.parametrize("rate", [0.2, 0.5])
def test_a_linear_model_finds_the_ridge_solution_of_its_masks(rate: float):
    x, y = regression()
    noise, precision = 0.09, 4.0
    method = bw.MCDropout(rate, bw.Cosine(0.05), precision, steps=1500)
    model = nn.Linear(I, O, bias=False).double()
    rows = (x.repeat(8, 1), y.repeat(8, 1))  # more masks a step
    posterior = bw.fit(model, rows, bw.Gaussian(noise), method, standardise=False, **QUIET)
    gram = rows[0].T @ rows[0]
    penalty = rate / (1 - rate) * gram.diagonal().diag() + precision * noise * torch.eye(I, dtype=x.dtype)
    exact = torch.linalg.solve(gram + penalty, rows[0].T @ rows[1])
    plain = torch.linalg.solve(
        gram + penalty - rate / (1 - rate) * gram.diagonal().diag(), rows[0].T @ rows[1]
    )
    found = weights_of(posterior).params["weight"].T
    assert float((found - exact).abs().max()) < 0.03
    assert float((plain - exact).abs().max()) > 0.1  # so it is the masks that are seen


def test_the_noise_is_the_squared_residual_under_masks():
    x, y = regression()
    method = bw.MCDropout(0.2, bw.Cosine(0.02), steps=600)
    model = nn.Linear(I, O, bias=False).double()
    posterior = bw.fit(model, (x, y), bw.Gaussian(), method, standardise=False, **QUIET)
    found, w = weights_of(posterior).covariance, weights_of(posterior).params["weight"]
    residual = y - x @ w.T
    expected = (residual.T @ residual + 0.25 * w @ torch.diag(x.square().sum(0)) @ w.T) / N
    assert found is not None
    scale = expected.diagonal().rsqrt()
    assert float((scale[:, None] * (found - expected) * scale).abs().max()) < 0.08


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Gaussian(0.04), bw.Categorical()])
@pytest.mark.parametrize("members", [None, 2])
def test_without_masks_it_is_map(likelihood, members: int | None):
    x, y = regression()
    y = y.argmax(1) if isinstance(likelihood, bw.Categorical) else y
    if members is not None:
        x, y = torch.stack([x, x.flip(1)]), torch.stack([y, y.flip(0)])
    options = dict(batch_size=16, members=members, **QUIET)
    found = bw.fit(mlp(), (x, y), likelihood, bw.MCDropout(0.0, steps=30), **options)  # type: ignore[arg-type]
    point = bw.fit(mlp(), (x, y), likelihood, bw.MAP(steps=30), **options)  # type: ignore[arg-type]
    for name, value in point.sample(1).items():
        assert torch.equal(found.sample(1)[name], value)
    assert torch.equal(found.predict(x, 1).draws, point.predict(x, 1).draws)
    assert torch.equal(found.predict(x, 1).std, point.predict(x, 1).std)  # the noise, too
    assert "no input is masked" in found.summary()


# -------------------------------------------------------------------------------------------- where masks act


class Shared(nn.Module):
    """One Dropout layer used at three places of different widths, called by keyword once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(I, 6), nn.Linear(6, 4), nn.Linear(4, O)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(self.drop(x)).tanh()
        h = self.b(self.drop(input=h)).tanh()
        return self.head(self.drop(h))


def convolutional(kind: type[nn.Module]) -> nn.Sequential:
    depth = {nn.Dropout: 1, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}[kind]
    convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[depth](2, 4, 2)
    return nn.Sequential(convolution, kind(0.4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 2**depth, O)).double()


MODULES = {
    "one layer": (lambda: mlp(nn.Dropout(0.4)), (I,)),
    "one layer, three places": (lambda: Shared().double(), (I,)),
    "Dropout, channels": (lambda: convolutional(nn.Dropout), (2, 3)),
    "Dropout1d": (lambda: convolutional(nn.Dropout1d), (2, 3)),
    "Dropout2d": (lambda: convolutional(nn.Dropout2d), (2, 3, 3)),
    "Dropout3d": (lambda: convolutional(nn.Dropout3d), (2, 3, 3, 3)),
}


def own_masks(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """What the module's own dropout does in train mode: its output, and the ratio out / in of every call."""
    seen: dict[str, list[Tensor]] = {}
    handles = []
    for name, m in model.named_modules():
        if isinstance(m, nn.modules.dropout._DropoutNd):
            handles.append(
                m.register_forward_hook(
                    lambda _, a, k, out, n=name: seen.setdefault(n, []).append(
                        out / (a[0] if a else k["input"])
                    ),
                    with_kwargs=True,
                )
            )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        f = model.train()(x).detach()
    for handle in handles:
        handle.remove()
    model.eval()
    return f, seen


@pytest.mark.parametrize("which", MODULES)
def test_masks_act_exactly_where_the_modules_own_dropout_acts(which: str):
    build, shape = MODULES[which]
    model, x = build(), random(B, *shape, seed=4)
    f, seen = own_masks(model, x)
    problem, found = problem_of(model, x), places(bw.MCDropout(), model, x)
    calls = [(name, i) for name, masks in seen.items() for i in range(len(masks))]
    assert [p.rate for p in found] == [0.4] * len(calls)
    masks = {}
    for place, (name, i) in zip(found, calls, strict=True):
        assert place.key == f"{name}:mask" + (str(i + 1) if i else "")
        mask = seen[name][i]
        index = tuple(slice(0, size) for size in place.shape(B))
        torch.testing.assert_close(
            mask[index].expand_as(mask), mask, rtol=0, atol=1e-12
        )  # ours has its shape
        masks[place.key] = (mask[index] > 0).double() / 0.6
        assert 0 < float((masks[place.key] == 0).double().mean()) < 1
    params = problem.network.layer_parameters()
    torch.testing.assert_close(problem.network(params | masks, x), f, rtol=0, atol=1e-12)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(problem.network(params, x), f, rtol=0, atol=1e-3)


def test_a_rate_holds_for_all_and_without_dropout_layers_the_inputs_of_chosen_layers_are_masked():
    x, own = regression()[0], mlp(nn.Dropout(0.4))
    assert [(p.key, p.rate) for p in places(bw.MCDropout(0.25), own, x)] == [("2:mask", 0.25)]
    assert [(p.key, p.rate, p.shape(B), p.shared) for p in places(bw.MCDropout(), mlp(), x)] == [
        ("0:mask", 0.1, (B, I), (1, I)),
        ("2:mask", 0.1, (B, 8), (1, 8)),
    ]
    posterior = bw.fit(mlp(), regression(), bw.Gaussian(), bw.MCDropout(steps=2), select=["2"], **QUIET)
    assert set(weights_of(posterior).rates) == {"2:mask"}
    assert 'masks on the inputs of "2" (0.1)' in posterior.summary()


@pytest.mark.parametrize("kind, depth", [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_channels_are_dropped_as_a_whole(kind: type[nn.Module], depth: int):
    (place,) = places(bw.MCDropout(), convolutional(kind), random(B, 2, *[3] * depth))
    assert place.shape(B) == (B, 4, *[1] * depth) and place.shared == (1, 4, *[1] * depth)
    (place,) = places(bw.MCDropout(), convolutional(nn.Dropout), random(B, 2, 3))
    assert place.shape(B) == (B, 4, 2) and place.shared == (1, 4, 2)


class Turned(nn.Module):
    """Rows are the second dimension where the mask acts, and are joined with positions at the head."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.layer, self.head = nn.Dropout(0.4), nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.drop(x.transpose(0, 1))).transpose(0, 1)  # (B, 4, 3)
        return self.head(h.reshape(-1, 3)).reshape(len(x), 4).sum(1)


def test_rows_are_found_in_any_dimension():
    x, model = random(B, 4, 2), Turned().double()
    (place,) = places(bw.MCDropout(), model, x)
    assert place.shape(B) == (4, B, 2) and place.shared == (4, 1, 2)
    found = places(
        bw.MCDropout(0.3),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 1), nn.Flatten()),
        x[:, 0].repeat(1, 2).float(),
    )
    assert [(p.shape(B), p.shared) for p in found] == [((B, 2, 2), (1, 2, 2))]
    posterior = bw.fit(model, (x, x[:, 0, 0]), bw.Gaussian(), bw.MCDropout(steps=3), **QUIET)
    assert posterior.predict(x[:3], S).mean.shape == (3, 1)


def test_draws_are_coherent_functions():
    x, y = regression()
    posterior = bw.fit(mlp(), (x, y), bw.Gaussian(), bw.MCDropout(0.3, steps=10), **QUIET)
    functions = posterior.draw(S)
    together, params = functions(x), posterior.sample(S)
    torch.testing.assert_close(
        torch.cat([functions(x[:B]), functions(x[B:])], 1), together, rtol=0, atol=1e-12
    )
    units = posterior.problem.units
    for s in range(S):  # by hand
        h = (x * params["0:mask"][s]) @ params["0.weight"][s].T + params["0.bias"][s]
        f = (h.tanh() * params["2:mask"][s]) @ params["2.weight"][s].T + params["2.bias"][s]
        torch.testing.assert_close(units.to_user(f), together[s], rtol=0, atol=1e-10)
    assert float(posterior.predict(x, S).epistemic.min()) > 0


def test_masks_have_their_rate_and_keep_the_mean():
    network, rng = problem_of(mlp(), regression()[0]).network, torch.Generator().manual_seed(0)
    masks = draw_masks((200, 1000), 0.2, network, rng)
    assert set(masks.unique().tolist()) == {0.0, 1.25}
    assert abs(float(masks.mean()) - 1) < 5 * (0.25 / masks.numel()) ** 0.5


# --------------------------------------------------------------------------------------------- members, modes


@pytest.mark.parametrize("middle", [(), (nn.Dropout(0.3),), (nn.BatchNorm1d(8), nn.Dropout(0.3))])
def test_members_are_single_runs_where_their_masks_are_the_same(middle, monkeypatch):
    import bayeswise.methods.mc_dropout as module

    x, y = regression()
    xs, ys = torch.stack([x, x.flip(1)]), torch.stack([y, -5 * y])

    def same(shape: tuple[int, ...], rate: float, network, rng: torch.Generator) -> Tensor:
        own = shape[1:] if shape[0] == 2 else shape
        return draw_masks(own, rate, network, rng).expand(shape)

    monkeypatch.setattr(module, "draw_masks", same)
    method = bw.MCDropout(steps=20)
    together = bw.fit(mlp(*middle), (xs, ys), bw.Gaussian(), method, members=2, **QUIET).weights.tensors()
    for k in range(2):
        alone = bw.fit(mlp(*middle), (xs[k], ys[k]), bw.Gaussian(), method, **QUIET).weights.tensors()
        for name, value in alone.items():
            torch.testing.assert_close(together[name][k], value, rtol=0, atol=1e-9)


def test_training_uses_our_masks_in_place_of_the_modules_own():
    """The step is that of a module without dropout on masked inputs."""
    x, y = regression()
    model, plain = nn.Sequential(nn.Dropout(0.4), nn.Linear(I, O)).double(), nn.Linear(I, O).double()
    plain.load_state_dict(model[1].state_dict())
    method, rng = bw.MCDropout(steps=1), torch.Generator().manual_seed(3)
    problem = problem_of(model, x)
    state = method.init(problem, TensorRows(x, y, N), rng)
    mask = draw_masks((N, I), 0.4, problem.network, rng)
    state, info = method.step(problem, state, (x, y), rng.manual_seed(3))
    point, alone = bw.MAP(steps=1), problem_of(plain, x)
    expected, wanted = point.step(alone, point.init(alone, TensorRows(x, y, N), rng), (x * mask, y), rng)
    torch.testing.assert_close(info.log_lik, wanted.log_lik, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.params["1.weight"], expected.params["weight"], rtol=0, atol=1e-12)
    assert all(m.training for m in model.modules())


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("settings", [dict(rate=1.0), dict(rate=-0.1), dict(steps=0), dict(precision=-1.0)])
def test_settings_without_meaning_are_refused(settings: dict):
    with pytest.raises(ValueError, match="MCDropout: "):
        replace(bw.MCDropout(), **settings)
    with pytest.raises(TypeError, match=r"MCDropout: learning_rate is a schedule.*use bw.Constant\(0.1\)"):
        bw.MCDropout(learning_rate=0.1)  # type: ignore[arg-type]
    assert bw.MCDropout(steps=np.int64(3)).steps == 3


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_of_another_kind_is_refused_by_name(kind: type[nn.Module]):
    with pytest.raises(
        ValueError, match=f'MCDropout cannot draw masks for "2", a {kind.__name__}; use nn.Dropout'
    ):
        bw.fit(mlp(kind()), regression(), bw.Gaussian(), bw.MCDropout(steps=2), **QUIET)


def test_what_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match='MCDropout: "2" drops all of its input'):
        bw.fit(mlp(nn.Dropout(1.0)), regression(), bw.Gaussian(), bw.MCDropout(steps=2), **QUIET)
    x = random(N, 1, 3)
    model = nn.Sequential(nn.Conv1d(1, O, 3), nn.Flatten()).double()
    with pytest.raises(ValueError, match="MCDropout found no input to mask: add nn.Dropout"):
        bw.fit(model, (x, x[:, 0]), bw.Gaussian(), bw.MCDropout(steps=2), **QUIET)
