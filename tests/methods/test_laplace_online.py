"""Laplace: prior and noise by the evidence while the network trains, and what summary() says of it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.fitting import _network
from bayeswise.methods.online import Hyper, LayerPrior

I, O, N = 5, 3, 40  # noqa: E741


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, I, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], -1)


def line(x: Tensor, outputs: int, size: float, noise: float, seed: int = 1) -> Tensor:
    """Targets (N, O) of a linear model with weights of this size."""
    rng = torch.Generator().manual_seed(seed)
    w = size * torch.randn(I + 1, outputs, generator=rng, dtype=torch.float64)
    e = torch.randn(len(x), outputs, generator=rng, dtype=torch.float64)
    return with_ones(x) @ w + noise**0.5 * e


def waves(x: Tensor, seed: int = 3) -> Tensor:
    """Targets (N, 1) that are not linear."""
    e = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * x[:, :1]).sin() + 0.5 * x[:, 1:2] + 0.2 * e


def classes(x: Tensor) -> Tensor:
    return (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()


def network(outputs: int, hidden: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(I, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def linear(outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(I, outputs).double()


def log_z(x: Tensor, y: Tensor, delta: Tensor, noise: Tensor) -> Tensor:
    """log N(y; 0, X Xᵀ / δ + σ²), dense, all outputs."""
    gram, eye = with_ones(x) @ with_ones(x).T, torch.eye(len(x), dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), gram / delta + noise * eye)
    return normal.log_prob(y.T).sum()


def best(x: Tensor, y: Tensor, noise: float | None = None) -> tuple[float, float, float]:
    """Precision and noise at the maximum of log Z, and its value: Newton's steps in their logarithms."""
    at = torch.zeros(2 if noise is None else 1, dtype=torch.float64)

    def negative(logs: Tensor) -> Tensor:
        sigma = logs[1].exp() if noise is None else torch.tensor(noise).double()
        return -log_z(x, y, logs[0].exp(), sigma)

    for _ in range(100):
        slope = torch.autograd.functional.jacobian(negative, at)
        curve: Any = torch.autograd.functional.hessian(negative, at)
        values, vectors = torch.linalg.eigh(curve)
        step = vectors @ ((vectors.T @ slope) / values.abs())
        at = at - step.clamp(-1, 1)
        if float(step.norm()) < 1e-10:
            break
    else:
        raise AssertionError("no maximum found")
    found = at.exp().tolist()
    return found[0], found[1] if noise is None else noise, -float(negative(at))


def trained(
    model: nn.Module, data: Any, likelihood: Any, precision: Any, steps: int = 500, **own: Any
) -> Any:
    """MAP and Laplace in one run, in the targets' own units."""
    first = bw.MAP(steps=steps, learning_rate=bw.Cosine(0.05))
    method = bw.Laplace(own.pop("structure", bw.Kronecker()), precision=precision, first=first, **own)
    return bw.fit(model, data, likelihood, method, standardise=False, progress=False)


# ----------------------------------------------------------------------------------------- the exact maximum


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Full()], ids=str)
@pytest.mark.parametrize("size", [0.5, 5.0])
def test_a_linear_model_ends_at_the_maximum_of_the_evidence(structure, size):
    """Precision and noise, from weights far smaller and far larger than the prior of the warm-up expects."""
    x = rows(N)
    y = line(x, 1, size, 0.5)
    delta, noise, value = best(x, y)
    found = trained(linear(1), (x, y), bw.Gaussian(), bw.Online(every=20), structure=structure)
    after = trained(linear(1), (x, y), bw.Gaussian(), bw.Evidence(), structure=structure)
    assert float(precisions(found)[0]) == pytest.approx(delta, rel=1e-3)
    assert float(found.weights.covariance) == pytest.approx(noise, rel=1e-3)
    assert float(found.log_evidence) == pytest.approx(value, abs=1e-5)
    assert abs(float(precisions(after)[0]) / delta - 1) > 3e-3  # one look after the training is not enough
    assert "prior and noise chosen by the evidence 20 times while training" in found.summary()


def test_known_noise_stays_and_the_precision_is_that_of_the_maximum():
    x = rows(N)
    y = line(x, O, 0.15, 0.5)
    delta, _, value = best(x, y, 0.5)
    found = trained(linear(O), (x, y), bw.Gaussian(0.5), bw.Online(every=20))
    assert float(precisions(found)[0]) == pytest.approx(delta, rel=1e-3)
    assert float(found.log_evidence) == pytest.approx(value, abs=1e-5)


def test_a_model_that_is_one_layer_comes_to_rest_after_the_training_too():
    """Its layer has no name; δ |w|² = γ there, with known noise."""
    x = rows(N)
    found = trained(linear(O), (x, line(x, O, 0.15, 0.5)), bw.Gaussian(0.5), bw.Evidence())
    (name,) = found.weights.layers
    square = float(found.weights.means[name].square().sum())
    assert name == ""
    assert float(precisions(found)[0]) * square == pytest.approx(
        float(found.weights.layers[name].determined())
    )


def precisions(posterior: Any) -> Tensor:
    """δ (layers, …)."""
    weights = posterior.weights
    if hasattr(weights, "joint"):
        return weights.joint.precision[..., :1]
    return torch.stack([layer.precision.squeeze() for layer in weights.layers.values()])


# ------------------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Diagonal()], ids=str)
def test_the_evidence_of_a_network_is_not_lower_than_after_the_training(structure):
    x = rows(80)
    for y, likelihood, outputs in ((waves(x), bw.Gaussian(), 1), (classes(x), bw.Categorical(), O)):
        model, data = network(outputs), (x, y)
        online = trained(model, data, likelihood, bw.Online(every=20), 300, structure=structure)
        for after in (1.0, bw.Evidence(shared=True)):
            plain = trained(model, data, likelihood, after, 300, structure=structure)
            assert float(online.log_evidence) > float(plain.log_evidence)
        assert len(set(precisions(online).tolist())) == 1


def test_where_the_evidence_falls_the_way_is_taken_back(monkeypatch):
    """A precision for each layer: their sizes drift apart, and without a look back log Z is lost."""
    x = rows(80)
    model, data, online = network(O), (x, classes(x)), bw.Online(shared=False, every=20)
    plain = float(trained(model, data, bw.Categorical(), bw.Evidence(), 600).log_evidence)
    found = trained(model, data, bw.Categorical(), online, 600)
    assert float(found.log_evidence) > plain - 0.5
    assert float(precisions(found)[0]) != float(precisions(found)[1])
    monkeypatch.setattr("bayeswise.methods.online.SLACK", float("inf"))
    assert float(trained(model, data, bw.Categorical(), online, 600).log_evidence) < plain - 5


def test_a_look_goes_part_of_the_way():
    """By the logarithm of δ, linearly for the noise; only in the splits that are chosen."""
    two = torch.tensor([1.0, 4.0]).double()
    here = Hyper({"a": two, "b": two}, torch.eye(1).double().expand(2, 1, 1))
    there = Hyper({"a": 4 * two}, 3 * here.noise)
    mixed = here.towards(there, torch.tensor([0.5, 1.0]).double())
    torch.testing.assert_close(mixed.precision["a"], torch.tensor([2.0, 16.0]).double())
    torch.testing.assert_close(mixed.precision["b"], two)
    assert mixed.noise.flatten().tolist() == [2.0, 3.0]
    some = mixed.where(torch.tensor([True, False]), here)
    assert some.noise.flatten().tolist() == [2.0, 1.0] and float(some.precision["a"][1]) == 4.0


def test_every_data_split_has_its_own_prior_and_noise():
    x = torch.stack([rows(N, 1), rows(N, 2)])
    y = torch.stack([line(x[0], 1, 0.2, 0.5), line(x[1], 1, 3.0, 0.1)])
    method = bw.Laplace(precision=bw.Online(every=20), first=bw.MAP(steps=300, learning_rate=bw.Cosine(0.05)))
    own: dict[str, Any] = {"standardise": False, "progress": False}
    both: Any = bw.fit(linear(1), (x, y), bw.Gaussian(), method, members=2, **own)
    for k in range(2):
        alone: Any = bw.fit(linear(1), (x[k], y[k]), bw.Gaussian(), method, **own)
        torch.testing.assert_close(precisions(both)[:, k], precisions(alone), rtol=1e-6, atol=0)
        torch.testing.assert_close(both.weights.covariance[k], alone.weights.covariance, rtol=1e-6, atol=0)


def test_layers_outside_the_subset_keep_the_prior_of_the_training():
    model, x = network(O), rows(N)
    method: Any = bw.Laplace(
        subset="last", precision=bw.Online(every=10), first=bw.MAP(precision=3.0, steps=20)
    )
    seen: list[Any] = []

    class Watched:
        """The method, whose looks can be seen."""

        def __getattr__(self, name: str) -> Any:
            return getattr(method, name)

        def renewed(self, problem, state, data):
            seen.append((state, method.renewed(problem, state, data)))
            return seen[-1][1]

    watched: Any = Watched()
    bw.fit(model, (x, classes(x)), bw.Categorical(), watched, progress=False)
    assert len(seen) == 1  # after step 10: the warm-up is over after 4, and no look follows the last step
    before, after = seen[0]
    assert [float(d) for d in before.present.precision.values()] == pytest.approx([3.0, 3.0])
    assert float(after.present.precision["0"]) == pytest.approx(3.0)
    assert abs(float(after.present.precision["2"]) - 3.0) > 0.1


def test_the_penalty_is_that_of_each_layer():
    model, delta = network(O), {"0": torch.tensor(2.0).double(), "2": torch.tensor(3.0).double()}
    layers = _network(model, (rows(N), classes(rows(N))), None, None).layers
    params = {name: p.detach() for name, p in model.named_parameters()}
    extra = params | {"norm": torch.full((4,), 2.0).double()}
    by_hand = sum((2.0 if name[0] == "0" else 3.0) * float(p.square().sum()) for name, p in params.items())
    found = LayerPrior(layers, delta, 7.0).penalty(extra)
    assert float(found) == pytest.approx(0.5 * (by_hand + 7.0 * 16.0), rel=1e-12)


def test_what_cannot_be_tuned_while_it_trains_is_refused():
    with pytest.raises(ValueError, match="Online.. chooses while the network trains: give first=bw.MAP"):
        bw.Laplace(precision=bw.Online())
    with pytest.raises(TypeError, match="first=SWAG.. has no prior that Online.. could change"):
        bw.Laplace(precision=bw.Online(), first=bw.SWAG())
    with pytest.raises(ValueError, match="every must be at least 1"):
        bw.Online(every=0)


# --------------------------------------------------------------------------------- what summary() warns of


def caution(posterior: bw.Posterior) -> list[str]:
    return [note for note in posterior.notes if note.startswith("caution: the data determine")]


def test_summary_warns_where_the_evidence_and_held_out_rows_may_disagree():
    """Many directions for the numbers there are; nearly all directions determined; neither."""
    few, many = rows(60), rows(3000)
    crowded = trained(network(1, 12), (few, waves(few)), bw.Gaussian(), bw.Evidence(), 300)
    gamma = sum(float(layer.determined()) for layer in crowded.weights.layers.values())
    assert gamma > 30
    assert f"determine {gamma:.0f} directions with 60 numbers" in caution(crowded)[0]
    assert "compare with bw.Validation()" in caution(crowded)[0]
    known = trained(linear(1), (many, line(many, 1, 1.0, 0.1)), bw.Gaussian(), bw.Evidence(), 300)
    assert "the data determine 6 of 6 directions, so they hardly tell one prior" in caution(known)[0]
    weak = trained(network(O, 30), (few, classes(few)), bw.Categorical(), bw.Evidence(), 300)
    assert caution(weak) == []
    fixed = trained(network(1, 12), (few, waves(few)), bw.Gaussian(), 1.0, 300)
    assert caution(fixed) == []
