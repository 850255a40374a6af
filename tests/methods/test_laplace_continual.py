"""Laplace that goes on from a posterior: halves of the data one after the other are all data at once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw

B, I, O, N = 7, 5, 3, 40  # noqa: E741
NOISE = torch.tensor([[0.5, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 0.3]]).double()
DELTA = 0.7


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, I, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def kron(a: Tensor, b: Tensor) -> Tensor:
    return torch.kron(a.contiguous(), b.contiguous())


def targets(x: Tensor, seed: int = 9) -> Tensor:
    e = torch.randn(len(x), O, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return with_ones(x) @ torch.linspace(-1, 1, (I + 1) * O).double().reshape(I + 1, O) + e @ NOISE


def linear(mean: Tensor) -> nn.Linear:
    """The model y = x W at given weights."""
    model, w = nn.Linear(I, O).double(), mean.reshape(I + 1, O)
    with torch.no_grad():
        model.weight.copy_(w[:-1].T)
        model.bias.copy_(w[-1])
    return model


def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision of the weights, for all rows at once."""
    design, inverse = with_ones(x), torch.linalg.inv(NOISE)
    precision = kron(design.T @ design, inverse) + DELTA * torch.eye((I + 1) * O).double()
    return torch.linalg.solve(precision, (design.T @ y @ inverse).flatten()), precision


def fit(model: nn.Module, x: Tensor, y: Tensor, prior: Any = None, likelihood: Any = None, **settings) -> Any:
    method = bw.Laplace(**{"structure": bw.Full(), "precision": DELTA} | settings)
    likelihood = bw.Gaussian(NOISE) if likelihood is None else likelihood
    batch = 16 if method.first is None else None
    return bw.fit(model, (x, y), likelihood, method, prior=prior, batch_size=batch, progress=False)


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Full()])
def test_halves_one_after_the_other_are_all_rows_at_once(structure, tmp_path):
    """Covariance, predictions, log p(first) + log p(second | first); the old one may have been saved.

    In a linear model of known noise Σ both Kronecker factors of the outputs are multiples of Σ⁻¹.
    """
    x = rows(N)
    y = targets(x)
    half, new = N // 2, rows(B, 1)
    mean, precision = exact(x, y)
    first = fit(linear(exact(x[:half], y[:half])[0]), x[:half], y[:half], structure=structure)
    first.save(tmp_path / "first")
    model = linear(mean)
    for old in (first, bw.load(tmp_path / "first", model)):
        second = fit(model, x[half:], y[half:], old, structure=structure)
        whole = fit(model, x, y, structure=structure)
        features = kron(with_ones(new), torch.eye(O).double())
        wanted = features @ torch.linalg.inv(precision) @ features.T
        torch.testing.assert_close(second.function_covariance(new), wanted, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(second.predict(new).std, whole.predict(new).std, rtol=1e-8, atol=0)
        total = float(first.log_evidence + second.log_evidence)
        assert total == pytest.approx(float(whole.log_evidence), rel=1e-8)
    assert "the prior is the posterior of an earlier fit, of 20 rows" in second.summary()
    third = fit(
        model, x[half:], y[half:], second, structure=structure, temperature=1e9
    )  # rows that count for nothing
    torch.testing.assert_close(third.function_covariance(new), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Full()])
def test_training_is_drawn_to_the_old_posterior(structure):
    """MAP on the second half alone ends at the mean of all rows, and the evidence is the chain rule's."""
    x = rows(N)
    y = targets(x)
    half = N // 2
    mean, _ = exact(x, y)
    training = bw.MAP(steps=1500, learning_rate=bw.Cosine(0.05), precision=DELTA)
    first = fit(linear(exact(x[:half], y[:half])[0]), x[:half], y[:half], structure=structure)
    start = linear(torch.randn((I + 1) * O, generator=torch.Generator().manual_seed(3)).double())
    method = bw.Laplace(structure=structure, first=training)
    second: Any = bw.fit(start, (x[half:], y[half:]), bw.Gaussian(NOISE), method, prior=first, progress=False)
    torch.testing.assert_close(second.weights.means[""].flatten(), mean, rtol=1e-6, atol=1e-6)
    whole = fit(linear(mean), x, y, structure=structure)
    total = float(first.log_evidence + second.log_evidence)
    assert total == pytest.approx(float(whole.log_evidence), rel=1e-8)


def test_the_diagonal_adds_weight_by_weight():
    """P_old + G of a network, its distance and its evidence, from the definition."""
    x = rows(2 * N)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(I, 6), nn.Tanh(), nn.Linear(6, O)).double()
    old = fit(model, x[:N], y[:N], None, bw.Categorical(), structure=bw.Diagonal(), first=bw.MAP(steps=200))
    first = bw.MAP(steps=600, learning_rate=bw.Cosine(0.03))
    settings: dict[str, Any] = dict(structure=bw.Diagonal(), first=first)
    new = fit(model, x[N:], y[N:], old, bw.Categorical(), **settings)
    params = {
        k: v
        for view in new.problem.network.layers
        for k, v in view.split(new.weights.means[view.name]).items()
    }
    at = nn.Sequential(nn.Linear(I, 6), nn.Tanh(), nn.Linear(6, O)).double()
    at.load_state_dict(params)
    alone = fit(at, x[N:], y[N:], None, bw.Categorical(), structure=bw.Diagonal(), precision=1e-9)
    log_lik = bw.Categorical().log_prob(at(x[N:]), y[N:]).sum()
    distance, change = 0.0, 0.0
    for name, layer in new.weights.layers.items():
        before = old.weights.layers[name].eigenvalues + old.weights.layers[name].precision
        after = before + alone.weights.layers[name].eigenvalues
        torch.testing.assert_close(layer.eigenvalues + layer.precision, after, rtol=1e-9, atol=1e-12)
        move = new.weights.means[name] - old.weights.means[name]
        distance += float((before * move.square()).sum())
        change += float(before.log().sum() - after.log().sum())
    wanted = float(log_lik.detach()) - distance / 2 + change / 2
    assert float(new.log_evidence) == pytest.approx(wanted, rel=1e-9)
    objective = 0.0
    for k in ("0", "2"):  # the gradient of the objective is small there: the pull is the right one
        layer = old.weights.layers[k]
        objective = (
            objective
            + 0.5
            * (
                (layer.eigenvalues + layer.precision) * (with_bias(at, k) - old.weights.means[k]).square()
            ).sum()
        )
    objective = objective - bw.Categorical().log_prob(at(x[N:]), y[N:]).sum()
    grads = torch.autograd.grad(objective, list(at.parameters()))
    free = torch.autograd.grad(-bw.Categorical().log_prob(at(x[N:]), y[N:]).sum(), list(at.parameters()))
    assert norm(grads) < 0.02 * norm(free)


def with_bias(model: Any, name: str) -> Tensor:
    layer = model.get_submodule(name)
    return torch.cat([layer.weight.T, layer.bias[None]])


def norm(parts: Any) -> float:
    return float(torch.cat([p.flatten() for p in parts]).norm())


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Diagonal(), bw.Full()])
def test_what_is_not_inferred_stays_as_the_old_fit_left_it(structure):
    """Targets keep the old units, norms and other layers the old values, and each split its own."""
    x = torch.stack([rows(N, 1), rows(N, 2)])
    y = torch.stack([100 + 30 * targets(x[0]), 7 + 2 * targets(x[1])])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(I, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, O)).double()
    method = bw.Laplace(structure=structure, subset="last", first=bw.MAP(steps=100))
    settings: dict[str, Any] = dict(members=2, progress=False)
    old: Any = bw.fit(model, (x, y), bw.Gaussian(), method, **settings)
    new: Any = bw.fit(model, (x + 0.1, y + 50), bw.Gaussian(), method, prior=old, **settings)
    assert torch.equal(new.problem.units.shift, old.problem.units.shift)
    assert torch.equal(new.problem.units.scale, old.problem.units.scale)
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        assert torch.equal(new.weights.fixed[name], old.weights.fixed[name])
        assert not torch.equal(old.weights.fixed[name][0], model.state_dict()[name])
    assert not torch.allclose(new.weights.means["3"], old.weights.means["3"])
    for k in range(2):
        one: Any = bw.fit(model, (x[k], y[k]), bw.Gaussian(), method, progress=False)
        two: Any = bw.fit(model, (x[k] + 0.1, y[k] + 50), bw.Gaussian(), method, prior=one, progress=False)
        torch.testing.assert_close(new.log_evidence[k], two.log_evidence, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(new.weights.covariance[k], two.weights.covariance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Diagonal(), bw.Full()])
def test_inferred_noise_is_that_of_the_new_rows(structure):
    """At the chosen scale s the derivative of log p(new | old) vanishes: the neighbours are worse."""
    x = rows(N)
    y = targets(x)
    model = linear(exact(x, y)[0])
    old = fit(model, x[:20], y[:20], None, bw.Gaussian(), structure=structure)
    new = fit(model, x[20:], y[20:], old, bw.Gaussian(), structure=structure)
    noise, best = new.weights.covariance, float(new.log_evidence)
    same = fit(model, x[20:], y[20:], old, bw.Gaussian(noise), structure=structure)
    assert float(same.log_evidence) == pytest.approx(best, rel=1e-9)
    for factor in (0.9, 1.1):
        other = fit(model, x[20:], y[20:], old, bw.Gaussian(noise * factor), structure=structure)
        assert float(other.log_evidence) < best


class Own:
    """A training from elsewhere, which knows nothing of priors."""

    standardises, starts_from_model, steps = False, True, 5

    def step(self) -> None:
        raise AssertionError


def test_a_posterior_of_another_kind_is_refused():
    x = rows(N)
    y = targets(x)
    model = linear(exact(x, y)[0])
    short: Any = bw.fit(model, (x, y), bw.Gaussian(NOISE), bw.BALI(steps=5), progress=False)
    for own, remedy in (({"structure": bw.Kronecker()}, r"bw.Laplace\(\)"), ({}, r"structure=bw.Full\(\)")):
        with pytest.raises(ValueError, match=f"a BALI posterior, a Laplace posterior is needed.*{remedy}"):
            fit(model, x, y, short, **own)
    old = fit(model, x, y)
    with pytest.raises(ValueError, match=r"likelihood Gaussian\(\), here it is Bernoulli\(\); use the same"):
        fit(model, x, (y > 0).double(), old, bw.Bernoulli())
    with pytest.raises(TypeError, match=r"before is set by fit and cannot be a Posterior; use .*prior=old"):
        bw.Laplace(before=old)


def test_biases_may_be_joint_in_one_fit_and_apart_in_the_other():
    """Known noise: both products share Σ⁻¹, so the sum is exact; apart has no cross terms with the ones."""
    x, new = rows(N) + 0.5, rows(B, 1)
    y = targets(x)
    mean, precision = exact(x, y)
    cross = with_ones(x).T @ with_ones(x)
    cross[-1, :-1] = cross[:-1, -1] = 0
    total = precision + kron(cross, torch.linalg.inv(NOISE))
    features = kron(with_ones(new), torch.eye(O).double())
    wanted = features @ torch.linalg.inv(total) @ features.T
    joint, apart = bw.Kronecker("joint"), bw.Kronecker("apart")
    for then, now in ((joint, apart), (apart, joint)):
        old = fit(linear(mean), x, y, structure=then)
        found = fit(linear(mean), x, y, old, structure=now)
        torch.testing.assert_close(found.function_covariance(new), wanted, rtol=1e-8, atol=1e-12)


def test_all_earlier_rows_are_counted_and_a_precision_that_is_not_used_is_named(tmp_path):
    x = rows(N)
    y = targets(x)
    model = linear(exact(x, y)[0])
    first = fit(model, x[:10], y[:10])
    second = fit(model, x[10:30], y[10:30], first, precision=5.0)
    second.save(tmp_path / "second")
    for old in (second, bw.load(tmp_path / "second", model)):
        third = fit(model, x[30:], y[30:], old, precision=bw.Evidence())
        assert "an earlier fit, of 30 rows, precision and all: 40 rows in all" in third.summary()
        assert third.problem.n == 40 and "40 rows)" in repr(third) and "not used" not in third.summary()
    assert "precision=5.0 is not used: the prior precision is that of the earlier fit" in second.summary()
    other = fit(model, x[30:], y[30:], second, precision=bw.Validation(x, y))
    assert "precision=Validation(…) is not used" in other.summary()
    torch.testing.assert_close(other.function_covariance(x), third.function_covariance(x))


def test_a_prior_that_cannot_be_used_is_refused_in_one_line():
    x = rows(N)
    y = targets(x)
    model = linear(exact(x, y)[0])
    full = fit(model, x, y)
    data: Any = (x, y)
    for method in (bw.BALI(), bw.MAP(), bw.SWAG(), bw.Ensemble(), bw.BayesByBackprop(), bw.MCDropout()):
        with pytest.raises(
            TypeError, match=f"{type(method).__name__} cannot take a posterior as its prior; use bw.Laplace.."
        ):
            bw.fit(model, data, bw.Gaussian(NOISE), method, prior=full, progress=False)
    with pytest.raises(TypeError, match="prior is a float; give the posterior of an earlier fit"):
        fit(model, x, y, 1.0)
    with pytest.raises(ValueError, match=r"cannot go on from a posterior.*bw.Diagonal\(\) or bw.Full\(\)"):
        fit(model, x, y, full, structure=bw.LowRank(3))
    for other in (full, fit(model, x, y, structure=bw.Diagonal())):
        with pytest.raises(ValueError, match=r"Laplace posterior that is not Kronecker.*with bw.Laplace\(\)"):
            fit(model, x, y, other, structure=bw.Kronecker())
    with pytest.raises(ValueError, match=r"Laplace posterior that is not diagonal.*bw.Diagonal\(\)"):
        fit(model, x, y, full, structure=bw.Diagonal())
    with pytest.raises(ValueError, match="not diagonal"):
        fit(model, x, y, fit(model, x, y, structure=bw.Kronecker()), structure=bw.Diagonal())
    with pytest.raises(TypeError, match=r"first=Own\(\) cannot start from a posterior; use first=bw.MAP"):
        fit(model, x, y, full, first=Own())
    with pytest.raises(ValueError, match="leave standardise out"):
        bw.fit(model, data, bw.Gaussian(NOISE), bw.Laplace(structure=bw.Full()), prior=full, standardise=True)
    scaled = fit(model, x, y, first=bw.MAP(steps=5))
    with pytest.raises(ValueError, match=r"were standardised.*first=bw.MAP\(\), or fit the old rows with"):
        fit(model, x, y, scaled)
    with pytest.raises(ValueError, match="leave checkpoint out"):
        bw.fit(model, data, bw.Gaussian(NOISE), bw.Laplace(structure=bw.Full()), prior=full, checkpoint="x")
    wide = nn.Sequential(nn.Linear(I, 6), nn.Tanh(), nn.Linear(6, O)).double()
    with pytest.raises(ValueError, match=r"posterior of layers \{'': \(6, 3\)\}; here are \{'0': \(6, 6\)"):
        fit(wide, x, y, full, first=bw.MAP(steps=5))
