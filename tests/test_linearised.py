"""Predictions from Gaussian outputs, against integrals."""

import math
import pickle

import pytest
import torch
import torch.distributions as td
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.linearised import (
    LinearisedPredictive,
    Noise,
    link_config,
    link_of,
    packed,
    unpacked,
)
from bayeswise.predictive import KeptDraws

B, O = 7, 3  # noqa: E741
LINKS = {
    "probit": bw.Probit(),
    "pairwise": bw.Pairwise(),
    "bridge": bw.Bridge(),
    "draws": bw.MonteCarlo(),
}


NOISE = Noise(4000)


def predictive(likelihood, mean: Tensor, covariance: Tensor, link=None) -> LinearisedPredictive:
    draws = KeptDraws(packed(mean, covariance))
    return LinearisedPredictive(
        likelihood, draws, link or bw.MonteCarlo(), Noise(), lambda noise: noise.drawn(mean, covariance)
    )


def gaussian(outputs: int = O, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(outputs)
    mean = torch.randn(B, outputs, generator=rng, dtype=torch.float64)
    a = spread * torch.randn(B, outputs, outputs, generator=rng, dtype=torch.float64) / math.sqrt(outputs)
    return mean, a @ a.mT + 0.01 * torch.eye(outputs)


def integral(mean: Tensor, variance: Tensor) -> Tensor:
    """E sigmoid(f), f ~ N(m, v), by 10,001 points."""
    z = torch.linspace(-12, 12, 10_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    return ((mean[..., None] + variance.sqrt()[..., None] * z).sigmoid() * weight).sum(-1)


def test_packing_is_undone():
    mean, covariance = gaussian()
    for given in (covariance, covariance.diagonal(dim1=-2, dim2=-1)):
        found = unpacked(packed(mean, given))
        assert torch.equal(found[0], mean) and torch.equal(found[1], given)


def test_numbers_are_a_gaussian_with_both_covariances():
    mean, covariance = gaussian()
    noise = torch.diag(torch.tensor([0.1, 0.2, 0.3])).double()
    prediction = predictive(bw.Gaussian(noise), mean, covariance)
    truth = torch.distributions.MultivariateNormal(mean, covariance + noise)
    y = mean + 0.3
    torch.testing.assert_close(prediction.log_prob(y), truth.log_prob(y), rtol=1e-12, atol=0)
    torch.testing.assert_close(prediction.log_prob_gaussian(y), truth.log_prob(y), rtol=1e-12, atol=0)
    std = truth.covariance_matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    z = (y - mean) / std
    normal = td.Normal(torch.zeros((), dtype=y.dtype), 1.0)  # Gneiting and Raftery's closed form
    closed = std * (z * (2 * normal.cdf(z) - 1) + 2 * normal.log_prob(z).exp() - 1 / math.sqrt(math.pi))
    torch.testing.assert_close(prediction.crps(y), closed, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(prediction.entropy(), truth.entropy(), rtol=1e-12, atol=0)
    torch.testing.assert_close(prediction.std, truth.stddev, rtol=1e-12, atol=0)
    single = torch.distributions.MultivariateNormal(mean, noise.expand(B, O, O)).entropy()
    torch.testing.assert_close(prediction.mutual_information(), truth.entropy() - single, rtol=1e-10, atol=0)
    low, high = prediction.interval(0.9)
    torch.testing.assert_close(high - mean, 1.6448536269514722 * truth.stddev, rtol=1e-10, atol=0)
    torch.testing.assert_close(mean - low, high - mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        prediction.epistemic.square() + prediction.aleatoric.square(), prediction.variance, rtol=1e-12, atol=0
    )
    draws = prediction.sample(20_000, torch.Generator().manual_seed(0))
    found = torch.stack([torch.cov(draws[:, b].T) for b in range(B)])
    assert float(((found - truth.covariance_matrix).abs() / truth.variance.amax()).max()) < 0.06
    torch.testing.assert_close(prediction.covariance, covariance)


@pytest.mark.parametrize("link", ["probit", "pairwise"])
def test_yes_or_no_by_probit_is_close_to_the_integral(link):
    mean, covariance = gaussian(spread=2.0)
    prediction = predictive(bw.Bernoulli(), mean, covariance, LINKS[link])
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    assert float((prediction.mean - integral(mean, variance)).abs().max()) < 0.02
    one = predictive(bw.Bernoulli(), mean[:, :1], covariance[:, :1, :1], LINKS[link])
    y = (mean[:, :1] > 0).double()
    p = one.mean
    wanted = (y * p + (1 - y) * (1 - p)).log().sum(-1)
    torch.testing.assert_close(one.log_prob(y), wanted, rtol=1e-12, atol=0)


def test_two_classes_pairwise_are_close_to_the_integral():
    mean, covariance = gaussian(2, spread=2.0)
    p = bw.Pairwise()(bw.Categorical(), mean, covariance, NOISE)[..., 0, :]
    gap = mean[:, 0] - mean[:, 1]
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    assert float((p[:, 0] - integral(gap, variance)).abs().max()) < 0.02


@pytest.mark.parametrize("link", LINKS)
def test_every_link_gives_probabilities_that_are_exact_without_spread(link):
    mean, _ = gaussian()
    tiny = 1e-10 * torch.eye(O).double().expand(B, O, O)
    p = LINKS[link](bw.Categorical(), mean, tiny, NOISE)[..., 0, :]
    torch.testing.assert_close(p.sum(-1), torch.ones(B).double(), rtol=1e-12, atol=0)
    if link != "bridge":  # it is a map between families, exact at no finite spread
        torch.testing.assert_close(p, mean.softmax(-1), rtol=1e-4, atol=1e-6)


def test_links_on_classes_against_many_draws():
    mean, covariance = gaussian(spread=0.7)
    truth = Noise(100_000).drawn(mean, covariance).softmax(-1).mean(0)
    bounds = {"probit": 0.08, "pairwise": 0.04, "draws": 0.02}
    for name, bound in bounds.items():
        found = LINKS[name](bw.Categorical(), mean, covariance, NOISE)[..., 0, :]
        assert float((found - truth).abs().max()) < bound, name


def test_the_bridge_returns_the_dirichlet_whose_gaussian_it_is_given():
    """The Laplace approximation of a Dirichlet in the softmax basis, there and back."""
    alpha = torch.tensor([[2.0, 5.0, 11.0], [0.7, 0.9, 30.0]]).double()
    mean = alpha.log() - alpha.log().mean(-1, keepdim=True)
    inverse = 1 / alpha
    pairs = inverse[:, :, None] + inverse[:, None, :] - inverse.mean(-1)[:, None, None]
    covariance = torch.diag_embed(inverse) - pairs / O
    found = bw.Bridge()(bw.Categorical(), mean, covariance, NOISE)[..., 0, :]
    torch.testing.assert_close(found, alpha / alpha.sum(-1, keepdim=True), rtol=1e-10, atol=0)


def test_the_bridge_is_its_formula():
    """Alpha_k = (1 - 2/K + e^{m_k} Σ_l e^{-m_l} / K²) / C_kk, given that the entries add to zero."""
    mean, covariance = gaussian()
    found = bw.Bridge()(bw.Categorical(), mean, covariance, NOISE)[..., 0, :]
    for b in range(B):
        c, m, ones = covariance[b], mean[b], torch.ones(O).double()
        total = ones @ c @ ones
        m = m - c @ ones * (ones @ m) / total
        c = c - torch.outer(c @ ones, c @ ones) / total
        alpha = torch.stack(
            [(1 - 2 / O + math.exp(m[k]) * sum(math.exp(-v) for v in m) / O**2) / c[k, k] for k in range(O)]
        )
        torch.testing.assert_close(found[b], alpha / alpha.sum(), rtol=1e-10, atol=0)


def test_labels_split_their_entropy():
    mean, covariance = gaussian()
    for link in LINKS.values():
        prediction = predictive(bw.Categorical(), mean, covariance, link)
        p = prediction.mean
        torch.testing.assert_close(prediction.entropy(), -(p * p.log()).sum(-1), rtol=1e-10, atol=0)
        torch.testing.assert_close(
            prediction.epistemic + prediction.aleatoric, prediction.entropy(), rtol=1e-12, atol=0
        )
        draws = Noise().drawn(mean, covariance)
        wanted = bw.Categorical().information(draws)[1]
        torch.testing.assert_close(prediction.mutual_information(), wanted, rtol=1e-10, atol=0)
        labels = prediction.sample(4000, torch.Generator().manual_seed(0))
        shares = torch.nn.functional.one_hot(labels, O).double().mean(0)
        assert float((shares - draws.softmax(-1).mean(0)).abs().max()) < 0.06
        distribution = prediction.distribution()
        torch.testing.assert_close(distribution.probs, p, rtol=1e-12, atol=0)  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="no quantiles"):
            prediction.interval(0.9)


def test_variances_alone_are_enough_for_probit():
    mean, covariance = gaussian()
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    whole = bw.Probit()(bw.Categorical(), mean, covariance, NOISE)
    assert torch.equal(whole, bw.Probit()(bw.Categorical(), mean, variance, NOISE))
    for link in (bw.Pairwise(), bw.Bridge(), bw.MonteCarlo()):
        found = link(bw.Categorical(), mean, variance, NOISE)
        wanted = link(bw.Categorical(), mean, torch.diag_embed(variance), NOISE)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_the_same_labels_for_every_member():
    x = torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(0)).double()
    labels = (x[..., :1] > 0).double()
    model = torch.nn.Linear(2, 1).double()
    method = bw.Laplace(first=bw.MAP(steps=200))
    posterior = bw.fit(model, (x, labels), bw.Bernoulli(), method, members=3, progress=False)
    same = labels[0]
    found, wanted = (posterior.predict(x).log_prob(y) for y in (same, same.expand(3, 20, 1)))
    assert found.shape == (3, 20) and torch.equal(found, wanted)


@pytest.mark.parametrize("size", [1.0, 300.0])
def test_the_bridge_bears_large_outputs(size: float):
    """In float64 e^±300 is still a number: the formula as it is printed."""
    mean, covariance = gaussian()
    mean = size * mean / mean.abs().max()
    row, total = covariance.sum(-1), covariance.sum((-2, -1))[..., None]
    m = mean - row * mean.sum(-1, keepdim=True) / total
    v = (covariance - row[..., :, None] * row[..., None, :] / total[..., None]).diagonal(dim1=-2, dim2=-1)
    shape = (1 - 2 / O + m.exp() / O**2 * (-m).exp().sum(-1, keepdim=True)) / v
    found = bw.Bridge()(bw.Categorical(), mean, covariance, NOISE)[..., 0, :]
    torch.testing.assert_close(found, shape / shape.sum(-1, keepdim=True), rtol=1e-10, atol=1e-300)
    far = bw.Bridge()(bw.Categorical(), 1e9 * mean, covariance, NOISE)
    assert bool(far.isfinite().all()) and float((far.sum(-1) - 1).abs().max()) < 1e-12


def test_links_are_saved_with_their_settings():
    for link in (None, bw.Probit(), bw.Pairwise(), bw.Bridge(), bw.MonteCarlo()):
        assert link_of(link_config(link)) == link


@pytest.mark.parametrize("link", LINKS)
def test_yes_or_no_labels_together_are_as_likely_as_under_draws(link: str):
    """The mean of products, not the product of means: outputs that depend on one another."""
    mean, covariance = gaussian(spread=3.0)
    y = (mean > 0).double()
    found = predictive(bw.Bernoulli(), mean, covariance, LINKS[link]).log_prob(y)
    p = Noise().drawn(mean, covariance).sigmoid()  # (n, B, O)
    wanted = torch.where(y > 0, p, 1 - p).prod(-1).mean(0).log()
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=0)
    apart = torch.where(y > 0, p.mean(0), 1 - p.mean(0)).prod(-1).log()
    assert float((found - apart).abs().max()) > 0.05


def test_predictions_can_be_pickled():
    """Processes hand them to one another."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(20, 3)
    method = bw.Laplace(precision=1.0, first=bw.MAP(steps=5))
    posterior = bw.fit(model, (x, (x[:, 0] > 0).long()), bw.Categorical(), method, progress=False)
    found = posterior.predict(x)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.mean, found.mean)
    assert torch.equal(again.sample(3), found.sample(3))


def test_several_yes_no_labels_have_one_joint_distribution():
    """Labels of a row depend on one another by the network: `distribution` says so as `log_prob` does."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(20, 3)
    y = (x[:, :1] > 0).float().expand(20, 2).contiguous()
    method = bw.Laplace(precision=1.0, first=bw.MAP(steps=5))
    found = bw.fit(model, (x, y), bw.Bernoulli(), method, progress=False).predict(x)
    torch.testing.assert_close(found.distribution().log_prob(y), found.log_prob(y), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(td.Bernoulli(found.mean).log_prob(y).sum(-1), found.log_prob(y), atol=1e-3)
