"""Laplace: norms and embeddings have diagonal blocks, by brute force with nothing of ours in float64."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import bayeswise as bw
from bayeswise.networks import discover
from bayeswise.networks.curvature import backward
from bayeswise.weights import LayerGaussians

B, T, O, N, S, WORDS = 7, 5, 3, 40, 11, 6  # noqa: E741
NOISE = torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.4, 0.0], [0.0, 0.0, 0.3]]).double()
LIKELIHOODS = {"gaussian": bw.Gaussian(NOISE), "categorical": bw.Categorical(), "bernoulli": bw.Bernoulli()}
STRUCTURES = {"kronecker": bw.Kronecker(), "diagonal": bw.Diagonal(), "full": bw.Full()}
DELTA = {"words": 0.7, "layer": 1.5, "hidden": 0.4, "batch": 2.5, "last": 1.1}
OWN = ("words", "layer", "batch")  # norms and embeddings


class Net(nn.Module):
    """Words that come again in a row, a norm of positions, a norm with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.hidden = nn.Embedding(WORDS, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.batch, self.last = nn.BatchNorm1d(4), nn.Linear(4, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(self.layer(self.words(x))).tanh().mean(1)
        return self.last(self.batch(h).tanh())


def net(seed: int = 0) -> Net:
    """Weights and statistics that are nowhere 0 or 1."""
    model, rng = Net().double(), torch.Generator().manual_seed(seed)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=rng, dtype=value.dtype)
            value.copy_(noise.abs() + 0.3 if name.endswith("running_var") else 0.7 * noise + 0.2)
    return model


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (n, T), generator=torch.Generator().manual_seed(seed))


def targets(name: str, n: int) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    if name == "categorical":
        return torch.randint(O, (n,), generator=rng)
    y = torch.randn(n, O, generator=rng, dtype=torch.float64)
    return y if name == "gaussian" else (y > 0).double()


@pytest.fixture(autouse=True)
def _any_weights(monkeypatch) -> None:
    """The truth holds at any weights, trained or not."""
    monkeypatch.setattr("bayeswise.methods.laplace.require_trained", lambda *_: None)


def fit(model: nn.Module, x: Tensor, y: Tensor, likelihood: Any, batch_size: int = 16, **settings) -> Any:
    method = bw.Laplace(**{"precision": DELTA, **settings})
    return bw.fit(model, (x, y), likelihood, method, batch_size=batch_size, progress=False)


def jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """∂f/∂w (B, O, …) by the name of the parameter."""
    params = {name: p.detach() for name, p in model.named_parameters()}
    return jacrev(lambda p: functional_call(model.eval(), p, (x,)))(params)


def hessians(name: str, f: Tensor) -> Tensor:
    """Of -log p(y | f), (N, O, O)."""
    if name == "gaussian":
        return torch.linalg.inv(NOISE).expand(len(f), O, O)
    p = f.softmax(-1) if name == "categorical" else f.sigmoid()
    if name == "categorical":
        return torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return torch.diag_embed(p * (1 - p))


def precisions(model: nn.Module, x: Tensor, kind: str) -> dict[str, Tensor]:
    """The diagonal of G, with δ, by the name of the parameter."""
    h = hessians(kind, model.eval()(x).detach())
    found = {k: torch.einsum("no...,nop,np...->...", j, h, j) for k, j in jacobian(model, x).items()}
    return {k: v + DELTA[k.split(".")[0]] for k, v in found.items()}


def spread(jac: dict[str, Tensor], precision: dict[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """J diag⁻¹ Jᵀ (B, O, B, O) of the parameters of these layers."""
    total = torch.zeros(())
    for name, j in jac.items():
        if name.split(".")[0] in names:
            total = total + torch.einsum("bo...,...,cp...->bocp", j, 1 / precision[name], j)
    return total


def close(found: Tensor, wanted: Tensor) -> None:
    assert float((found - wanted).norm() / wanted.norm()) < 1e-10


# ------------------------------------------------------------------------- its own definition by brute force


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("batch", [N, 16, 7])
def test_blocks_are_the_diagonal_of_the_definition(structure, kind, batch):
    model, x, y = net(), rows(N), targets(kind, N)
    posterior = fit(model, x, y, LIKELIHOODS[kind], batch, structure=STRUCTURES[structure])
    wanted, names = precisions(model, x, kind), OWN if structure == "kronecker" else tuple(DELTA)
    views = {view.name: view for view in posterior.problem.network.layers}
    assert set(views) == set(DELTA)
    for name in names:
        layer = posterior.weights.layers[name]
        for key, value in views[name].split(layer.eigenvalues + layer.precision).items():
            close(value, wanted[key])


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_linearised_outputs_have_the_covariance_of_the_definition(structure, kind):
    model, x, y, new = net(), rows(N), targets(kind, N), rows(B, 1)
    settings: dict[str, Any] = dict(structure=STRUCTURES[structure])
    jac, precision = jacobian(model, new), precisions(model, x, kind)
    names = OWN if structure == "kronecker" else tuple(DELTA)
    posterior = fit(model, x, y, LIKELIHOODS[kind], subset=names, **settings)
    wanted = spread(jac, precision, names)
    own = torch.stack([wanted[b, :, b] for b in range(B)])  # (B, O, O)
    close(posterior.function_covariance(new), wanted.reshape(B * O, B * O))
    close(posterior.predict(new).covariance, own)
    network = posterior.problem.network
    done = backward(network, network.layer_parameters(), new)
    variance = posterior.weights.function_variance(done, network.output_layer)
    close(variance, own.diagonal(dim1=-2, dim2=-1))
    if structure == "kronecker":  # independent of the others, which are as if they were alone
        rest = fit(model, x, y, LIKELIHOODS[kind], subset=["hidden", "last"], **settings)
        both = fit(model, x, y, LIKELIHOODS[kind], **settings)
        close(both.predict(new).covariance, own + rest.predict(new).covariance)


def test_the_full_form_has_all_products():
    model, x, y, new = net(), rows(N), targets("categorical", N), rows(B, 1)
    posterior = fit(model, x, y, bw.Categorical(), structure=bw.Full())
    jac, far, names = jacobian(model, x), jacobian(model, new), [k for k, _ in model.named_parameters()]
    flat = torch.cat([jac[k].flatten(2) for k in names], -1)  # (N, O, P)
    h = hessians("categorical", model.eval()(x).detach())
    delta = torch.cat([torch.full_like(jac[k][0, 0].flatten(), DELTA[k.split(".")[0]]) for k in names])
    inverse = torch.linalg.inv(torch.einsum("nop,noq,nqr->pr", flat, h, flat) + torch.diag(delta))
    rows_ = torch.cat([far[k].flatten(2) for k in names], -1).flatten(0, 1)
    close(posterior.function_covariance(new), rows_ @ inverse @ rows_.T)


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_the_evidence_counts_every_block(structure):
    model, x, y = net(), rows(N), targets("categorical", N)
    settings: dict[str, Any] = dict(structure=STRUCTURES[structure])
    whole = fit(model, x, y, bw.Categorical(), **settings)
    rest = fit(model, x, y, bw.Categorical(), subset=["hidden", "last"], **settings)
    extra = 0.0  # of norms and embeddings, to be added to that of the others
    params = dict(model.named_parameters())
    for name, precision in precisions(model, x, "categorical").items():
        delta, own = DELTA[name.split(".")[0]], name.split(".")[0] in OWN
        w = params[name].detach()
        term = math.log(delta) * w.numel() - delta * w.square().sum() - precision.log().sum()
        extra += float(term) / 2 if own else 0.0
    assert float(whole.log_evidence - rest.log_evidence) == pytest.approx(extra, rel=1e-10)
    free = fit(model, x, y, bw.Categorical(), precision=bw.Evidence(), **settings)
    assert float(free.log_evidence) > float(whole.log_evidence)
    for name in OWN:  # ∂ log Z / ∂δ = 0
        layer, mean = free.weights.layers[name], free.weights.means[name]
        gamma = (layer.eigenvalues / (layer.eigenvalues + layer.precision)).sum()
        assert float(layer.precision.reshape(-1)[0] * mean.square().sum() / gamma) == pytest.approx(
            1, rel=1e-5
        )


# ------------------------------------------------------------------------------------------ draws and storage


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_draws_have_the_stated_variance(structure):
    model, x, y, draws = net(), rows(N), targets("categorical", N), 5_000
    posterior = fit(model, x, y, bw.Categorical(), structure=STRUCTURES[structure])
    found, precision = posterior.sample(draws), precisions(model, x, "categorical")
    for name, p in model.state_dict().items():
        if name in precision and name.split(".")[0] in OWN:
            variance = 1 / precision[name]
            error = (found[name].var(0) / variance - 1).abs().max() / math.sqrt(2 / draws)
            assert float(error) < 5
            assert float(((found[name].mean(0) - p).abs() / (variance / draws).sqrt()).max()) < 5
    new = rows(B, 1)
    functions = posterior.draw(draws)(new).flatten(1)  # linear in the weights of all layers
    wanted = posterior.function_covariance(new)
    error = (wanted.diagonal()[:, None] * wanted.diagonal() + wanted**2).sqrt() / math.sqrt(draws)
    assert float(((torch.cov(functions.T) - wanted).abs() / error).max()) < 5


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("link", [bw.Probit(), None], ids=["linearised", "networks"])
def test_it_saves_and_loads(structure, link, tmp_path):
    model, x, y, new = net(), rows(N), targets("categorical", N), rows(B, 1)
    posterior = fit(model, x, y, bw.Categorical(), structure=STRUCTURES[structure], link=link)
    posterior.save(tmp_path / "saved")
    loaded: Any = bw.load(tmp_path / "saved", net(5))
    assert torch.equal(posterior.predict(new, S).mean, loaded.predict(new, S).mean)
    assert torch.equal(posterior.draw(S)(new), loaded.draw(S)(new))
    assert torch.equal(posterior.log_evidence, loaded.log_evidence)
    assert posterior.summary() == loaded.summary()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_members_equal_single_runs_after_training(structure):
    """Every split has norms, statistics and words of its own."""
    x, y = torch.stack([rows(N, 1), rows(N, 2)]), torch.stack([rows(N, 1)[:, 0] % O, rows(N, 2)[:, 1] % O])
    method = bw.Laplace(structure=STRUCTURES[structure], first=bw.MAP(steps=60))
    both: Any = bw.fit(net(), (x, y), bw.Categorical(), method, members=2, progress=False)
    new = torch.stack([rows(B, 3), rows(B, 4)])
    for k in range(2):
        one: Any = bw.fit(net(), (x[k], y[k]), bw.Categorical(), method, progress=False)
        torch.testing.assert_close(
            both.predict(new).covariance[k], one.predict(new[k]).covariance, rtol=1e-5, atol=1e-8
        )
        torch.testing.assert_close(both.log_evidence[k], one.log_evidence, rtol=1e-6, atol=1e-6)


def test_the_diagonal_goes_on_from_a_posterior():
    """With the weights where they are, curvatures add up: two halves are the whole."""
    model, x, y = net(), rows(2 * N), targets("categorical", 2 * N)
    old = fit(model, x[:N], y[:N], bw.Categorical(), structure=bw.Diagonal())
    method = bw.Laplace(structure=bw.Diagonal())
    new: Any = bw.fit(model, (x[N:], y[N:]), bw.Categorical(), method, prior=old, progress=False)
    for name, value in precisions(model, x, "categorical").items():
        view = next(v for v in new.problem.network.layers if name in v.parameters)
        layer = new.weights.layers[view.name]
        close(view.split(layer.eigenvalues + layer.precision)[name], value)


# ------------------------------------------------------------------------------------------- who takes them


def test_other_methods_leave_them_alone():
    model, x, y = net(), rows(N), targets("categorical", N)
    with pytest.warns(
        bw.FixedParametersWarning, match="words.weight, layer.weight, layer.bias, batch.weight"
    ):
        posterior = bw.fit(model, (x, y), bw.Categorical(), bw.BALI(steps=2), progress=False)
    assert set(posterior.sample(1)) == {"hidden.weight", "hidden.bias", "last.weight", "last.bias"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, x, y, bw.Categorical())


def test_a_network_without_them_is_taken_as_it_is():
    x = torch.randn(N, T, generator=torch.Generator().manual_seed(0))
    network = discover(nn.Sequential(nn.Linear(T, 4), nn.Tanh(), nn.Linear(4, O)), x)
    assert network.with_elementwise() is network and not network.elementwise and not network.barred


def test_subsets_and_precisions_name_them():
    model, x, y = net(), rows(N), targets("categorical", N)
    posterior = fit(model, x, y, bw.Categorical(), subset={k: k in OWN for k in DELTA})
    assert isinstance(posterior.weights, LayerGaussians) and set(posterior.weights.layers) == set(OWN)
    assert 'layer "hidden": fixed, not in the subset' in posterior.summary()
    assert 'layer "layer": diagonal 4 x 2 x 1, prior precision 1.5' in posterior.summary()
    with pytest.raises(ValueError, match='subset says nothing of layer "words"; give True or False'):
        fit(model, x, y, bw.Categorical(), subset={"hidden": True, "last": True})
    with pytest.raises(ValueError, match='precision has no number for layer "words"'):
        fit(model, x, y, bw.Categorical(), precision={"hidden": 1.0, "last": 1.0})


def test_the_users_model_is_as_before():
    model, x, y = net().train(), rows(N), targets("categorical", N)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(model, x, y, bw.Categorical()).predict(x)
    assert model.training and model.batch.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
