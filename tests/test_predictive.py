"""Predictions against the mixture written out by hand, brute-force quantiles, and closed forms."""

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch import distributions as td

from bayeswise import predictive as predictive_module
from bayeswise import quantiles
from bayeswise.likelihoods import Bernoulli, Categorical, Gaussian
from bayeswise.linearised import LinearisedPredictive, Noise, Probit, packed
from bayeswise.predictive import KeptDraws, Predictive
from bayeswise.quantiles import mixture_quantile

S, K, B, O = 11, 2, 7, 3  # noqa: E741
F64 = torch.float64
close = torch.testing.assert_close


def covariance(rng, *leading, outputs=O):
    a = torch.randn(*leading, outputs, outputs, generator=rng, dtype=F64)
    return a @ a.mT + 0.3 * torch.eye(outputs, dtype=F64)


def outputs_of(rng, *shape):
    return 1.5 * torch.randn(*shape, generator=rng, dtype=F64)


@dataclass(frozen=True, eq=False)
class CountedDraws:
    """Draws that are computed again at every pass, in blocks of some rows."""

    f: Tensor
    rows: tuple[int, ...] = (3, 1, 3)
    passes: list[int] = field(default_factory=list)
    kept = False

    @property
    def count(self) -> int:
        return self.f.shape[-2]

    def blocks(self) -> Iterator[Tensor]:
        self.passes.append(1)
        yield from self.f.split(list(self.rows), -2)


NOISES = {"variance": 0.7, "shared": (), "members": (K,), "draws": (S, K)}
noises = pytest.mark.parametrize("leading", NOISES.values(), ids=NOISES.keys())


def noise_of(rng, leading):
    return leading if isinstance(leading, float) else covariance(rng, *leading)


def whole_noise(noise):
    noise = noise * torch.eye(O, dtype=F64) if isinstance(noise, float) else noise
    return noise.expand(S, K, O, O)


@noises
def test_regression_moments_by_hand(rng, leading):
    f, noise = outputs_of(rng, S, K, B, O), noise_of(rng, leading)
    prediction = Gaussian(noise).predictive(f)
    variances = whole_noise(noise).diagonal(dim1=-2, dim2=-1)[:, :, None]  # (S, K, 1, O)
    second = (f.square() + variances).mean(0)
    close(prediction.mean, f.mean(0), rtol=1e-12, atol=1e-12)
    close(prediction.variance, second - f.mean(0).square(), rtol=1e-10, atol=1e-12)
    close(
        prediction.epistemic.square() + prediction.aleatoric.square(),
        prediction.std.square(),
        rtol=1e-12,
        atol=0,
    )
    close(prediction.aleatoric.square(), variances.mean(0).expand(K, B, O), rtol=1e-12, atol=0)


@noises
def test_regression_density_by_hand(rng, leading):
    f, noise = outputs_of(rng, S, K, B, O), noise_of(rng, leading)
    y = outputs_of(rng, B, O)
    prediction = Gaussian(noise).predictive(f)
    components = td.MultivariateNormal(f, whole_noise(noise)[:, :, None])
    close(prediction.log_prob(y), components.log_prob(y).exp().mean(0).log(), rtol=1e-10, atol=1e-10)
    close(prediction.distribution().log_prob(y), prediction.log_prob(y), rtol=1e-10, atol=1e-10)
    close(prediction.distribution().mean, prediction.mean, rtol=1e-10, atol=1e-10)


@noises
def test_regression_information_by_hand(rng, leading):
    f, noise = outputs_of(rng, S, K, B, O), noise_of(rng, leading)
    y = outputs_of(rng, B, O)
    prediction = Gaussian(noise).predictive(f)
    d = f - f.mean(0)
    total = torch.einsum("skbi,skbj->kbij", d, d) / S + whole_noise(noise).mean(0)[:, None]
    matched = td.MultivariateNormal(f.mean(0), total)
    close(prediction.log_prob_gaussian(y), matched.log_prob(y), rtol=1e-10, atol=1e-10)
    close(prediction.entropy(), matched.entropy(), rtol=1e-10, atol=1e-10)
    single = td.MultivariateNormal(torch.zeros(O, dtype=F64), whole_noise(noise)).entropy().mean(0)  # (K,)
    close(prediction.mutual_information(), matched.entropy() - single[:, None], rtol=1e-10, atol=1e-10)
    assert (prediction.mutual_information() > 0).all()


@noises
def test_the_crps_is_that_of_each_outputs_mixture(rng, leading):
    """E|Y - y| - E|Y - Y'| / 2, here by the integral of (F(t) - 1[t >= y])²."""
    f, noise = outputs_of(rng, S, K, B, O), noise_of(rng, leading)
    y = outputs_of(rng, B, O)  # the same rows for all members
    stds = whole_noise(noise).diagonal(dim1=-2, dim2=-1).sqrt()[:, :, None]
    t = torch.linspace(-40, 40, 80_001, dtype=F64)
    found = Gaussian(noise).predictive(f).crps(y)
    assert found.shape == (K, B, O)
    for k, b, o in ((0, 0, 0), (K - 1, B - 1, O - 1)):
        normals = td.Normal(f[:, k, b, o, None], stds.expand(S, K, 1, O)[:, k, 0, o, None])
        gap = (normals.cdf(t).mean(0) - (t >= y[b, o]).double()).square()
        close(found[k, b, o], torch.trapezoid(gap, t), rtol=0, atol=2e-3)


def test_the_crps_takes_targets_of_one_output_without_an_axis(rng):
    f, y = outputs_of(rng, S, B, 1), outputs_of(rng, B)
    prediction = Gaussian(0.3).predictive(f.float())
    assert prediction.crps(y).shape == (B, 1) and prediction.crps(y).dtype == torch.float32
    close(Gaussian(0.3).predictive(f).crps(y), Gaussian(0.3).predictive(f).crps(y[:, None]), rtol=0, atol=0)


@noises
def test_quantiles_invert_the_mixture(rng, leading):
    f, noise = outputs_of(rng, S, K, B, O), noise_of(rng, leading)
    prediction = Gaussian(noise).predictive(f)
    stds = whole_noise(noise).diagonal(dim1=-2, dim2=-1).sqrt()[:, :, None]
    for q in (1e-20, 1e-9, 0.05, 0.5, 0.8, 0.999):
        level = cdf((prediction.quantile(q) - f) / stds).mean(0)
        close(level, torch.full_like(level, q), rtol=1e-8, atol=0)
    low, high = prediction.interval(0.8)
    close(low, prediction.quantile(0.1), rtol=1e-10, atol=1e-10)
    close(high, prediction.quantile(0.9), rtol=1e-10, atol=1e-10)


def test_far_tails_keep_their_digits():
    means, stds = torch.tensor([[0.0], [0.0]], dtype=F64), torch.tensor([[1.0], [1e-3]], dtype=F64)
    x = mixture_quantile(means, stds, 0.5 * 7.61985302416047e-24)  # the wide half alone reaches Φ(-10)
    assert x.item() == pytest.approx(-10, abs=1e-9)


def cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-u / math.sqrt(2))


def bisected(means: Tensor, stds: Tensor, level: float) -> Tensor:
    """A slow and simple quantile: 200 halvings."""
    low, high = (means - 40 * stds).amin(0), (means + 40 * stds).amax(0)
    for _ in range(200):
        middle = 0.5 * (low + high)
        below = cdf((middle - means) / stds).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


@pytest.mark.parametrize("noise", [1e-4, 0.05, 1.0, 30.0])
@pytest.mark.parametrize("level", [0.001, 0.05, 0.37, 0.5, 0.95])
def test_quantile_agrees_with_bisection(rng, noise, level):
    means = torch.randn(S, 300, generator=rng, dtype=F64)
    means[:, 100:200] = means[:, 100:200].sign() * 5 + 0.1 * means[:, 100:200]  # two modes
    means[0, 200:] *= 1000  # one far outlier
    stds = torch.full_like(means, noise)
    scale = (means.var(0, correction=0) + noise**2).sqrt()
    error = (mixture_quantile(means, stds, level) - bisected(means, stds, level)).abs() / scale
    assert error.max().item() < 1e-10


@pytest.mark.parametrize(("noise", "limit"), [(1e-9, 60), (0.01, 30), (0.3, 12)])
def test_quantile_takes_few_evaluations(rng, monkeypatch, noise, limit):
    calls = []
    monkeypatch.setattr(quantiles, "normal_cdf", lambda u: calls.append(1) or cdf(u))
    means = torch.randn(S, 500, generator=rng, dtype=F64) ** 3  # heavy tails: spikes and gaps
    for level in (1e-8, 0.01, 0.5, 0.95):
        calls.clear()
        mixture_quantile(means, torch.full_like(means, noise), level)
        assert 0 < len(calls) <= limit


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_quantile_follows_the_scale(rng, scale):
    means, stds = (
        torch.randn(S, B, generator=rng, dtype=F64),
        torch.rand(S, B, generator=rng, dtype=F64) + 0.1,
    )
    usual = mixture_quantile(means, stds, 0.9)
    close(mixture_quantile(means * scale, stds * scale, 0.9) / scale, usual, rtol=1e-10, atol=1e-10)


def test_quantile_of_one_normal_and_of_equal_draws():
    z = 1.6448536269514722
    one = mixture_quantile(torch.full((1, 2), 3.0, dtype=F64), torch.full((1, 2), 0.5, dtype=F64), 0.95)
    many = mixture_quantile(torch.full((S, 2), 3.0, dtype=F64), torch.full((S, 2), 0.5, dtype=F64), 0.95)
    close(one, torch.full((2,), 3 + 0.5 * z, dtype=F64), rtol=1e-13, atol=0)
    close(many, torch.full((2,), 3 + 0.5 * z, dtype=F64), rtol=1e-13, atol=0)


def test_quantile_with_hardly_any_noise_is_that_of_the_draws():
    means = torch.arange(5, dtype=F64).unsqueeze(-1)
    for level, expected in ((0.1, 0.0), (0.3, 1.0), (0.5, 2.0), (0.9, 4.0)):
        assert mixture_quantile(means, torch.full_like(means, 1e-14), level).item() == pytest.approx(
            expected, abs=1e-9
        )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_float32_predictions_at_extreme_scales(rng, scale):
    f = torch.randn(S, B, O, generator=rng)
    y = torch.randn(B, O, generator=rng)
    noise = covariance(rng)
    usual = Gaussian(noise).predictive(f)
    scaled = Gaussian(noise * scale**2).predictive(f * scale)
    assert scaled.std.dtype == torch.float32
    for got, expected in zip(scaled.interval(), usual.interval(), strict=True):
        close(got / scale, expected, rtol=1e-5, atol=1e-5)
    close(scaled.std / scale, usual.std, rtol=1e-5, atol=0)
    close(scaled.log_prob(y * scale), usual.log_prob(y) - O * math.log(scale), rtol=1e-5, atol=1e-4)
    close(scaled.entropy(), usual.entropy() + O * math.log(scale), rtol=1e-5, atol=1e-4)
    close(scaled.mutual_information(), usual.mutual_information(), rtol=1e-5, atol=1e-6)
    close(scaled.sample(5) / scale, usual.sample(5), rtol=1e-5, atol=1e-5)


def test_equal_draws_have_no_epistemic_part(rng):
    f = outputs_of(rng, 1, B, O).expand(S, B, O)
    prediction = Gaussian(covariance(rng)).predictive(f)
    assert prediction.epistemic.max().item() < 1e-12
    assert 0 <= prediction.mutual_information().max().item() < 1e-12
    labels = Categorical().predictive(f)
    assert 0 <= labels.epistemic.max().item() < 1e-12


def test_categorical_by_hand(rng):
    f = 2 * outputs_of(rng, S, K, B, O)
    y = torch.randint(O, (B,), generator=rng)
    prediction = Categorical().predictive(f)
    p = f.exp() / f.exp().sum(-1, keepdim=True)
    mean = p.mean(0)
    close(prediction.mean, mean, rtol=1e-12, atol=1e-12)
    close(prediction.std, (mean - mean**2).sqrt(), rtol=1e-10, atol=1e-12)
    entropy, single = -(mean * mean.log()).sum(-1), -(p * p.log()).sum(-1).mean(0)
    close(prediction.entropy(), entropy, rtol=1e-10, atol=1e-12)
    close(prediction.aleatoric, single, rtol=1e-10, atol=1e-12)
    close(prediction.epistemic, entropy - single, rtol=1e-10, atol=1e-12)
    close(prediction.mutual_information(), prediction.epistemic)
    close(prediction.log_prob(y), mean[:, torch.arange(B), y].log(), rtol=1e-10, atol=1e-12)
    close(prediction.distribution().log_prob(y), prediction.log_prob(y), rtol=1e-10, atol=1e-12)


def test_bernoulli_by_hand(rng):
    f = outputs_of(rng, S, K, B, O)
    y = torch.randint(2, (B, O), generator=rng)
    prediction = Bernoulli().predictive(f)
    p = 1 / (1 + (-f).exp())
    close(prediction.mean, p.mean(0), rtol=1e-12, atol=1e-12)
    joint = torch.where(y == 1, p, 1 - p).prod(-1).mean(0).log()  # outputs depend through the draw
    close(prediction.log_prob(y), joint, rtol=1e-10, atol=1e-12)
    close(prediction.distribution().log_prob(y.to(F64)), joint, rtol=1e-10, atol=1e-12)
    close(prediction.entropy(), td.Bernoulli(p.mean(0)).entropy().sum(-1), rtol=1e-10, atol=1e-12)
    close(prediction.aleatoric, td.Bernoulli(p).entropy().sum(-1).mean(0), rtol=1e-10, atol=1e-12)
    close(prediction.epistemic + prediction.aleatoric, prediction.entropy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_certain_labels_have_no_entropy(likelihood, dtype):
    f = torch.tensor([[[1e4, -1e4]]], dtype=dtype).expand(S, 1, 2)
    prediction = likelihood.predictive(f)
    assert prediction.mean.tolist() == [[1.0, 0.0]]
    assert prediction.entropy().item() == 0.0
    assert prediction.std.tolist() == [[0.0, 0.0]]


def test_the_widest_interval_is_finite(rng):
    f = outputs_of(rng, S, B, O)
    low, high = Gaussian(0.5).predictive(f).interval(1 - 2**-53)
    assert bool(low.isfinite().all() and high.isfinite().all()) and float((high - low).min()) > 10


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_labels_have_no_intervals(likelihood, rng):
    prediction = likelihood.predictive(outputs_of(rng, S, B, O))
    with pytest.raises(TypeError, match="no quantiles or intervals; use mean"):
        prediction.interval()
    with pytest.raises(TypeError, match="no CRPS; use log_prob"):
        prediction.crps(torch.zeros(B, O) if likelihood.event_dim else torch.zeros(B))
    with pytest.raises(TypeError, match="use log_prob"):
        prediction.log_prob_gaussian(torch.zeros(B, O) if likelihood.event_dim else torch.zeros(B))


@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Categorical(), Bernoulli()])
def test_blocks_do_not_change_the_answer(likelihood, rng):
    f = outputs_of(rng, S, K, B, O)
    y = torch.randint(2, (B, O) if likelihood.event_dim else (B,), generator=rng)
    whole, blocks = likelihood.predictive(f), Predictive(likelihood, CountedDraws(f))
    for name in ("mean", "std", "epistemic", "aleatoric", "draws"):
        close(getattr(blocks, name), getattr(whole, name), rtol=1e-12, atol=1e-14)
    close(blocks.entropy(), whole.entropy(), rtol=1e-12, atol=1e-14)
    close(blocks.log_prob(y), whole.log_prob(y), rtol=1e-12, atol=1e-14)
    assert torch.equal(blocks.sample(5), whole.sample(5))
    if isinstance(likelihood, Gaussian):
        close(blocks.interval()[1], whole.interval()[1], rtol=1e-12, atol=1e-14)
        close(blocks.log_prob_gaussian(y), whole.log_prob_gaussian(y), rtol=1e-12, atol=1e-14)
        close(blocks.crps(y), whole.crps(y), rtol=1e-12, atol=1e-14)


def test_draws_that_are_not_kept_are_passed_over_once_for_all_moments(rng):
    source = CountedDraws(outputs_of(rng, S, B, O))
    prediction = Predictive(Gaussian(0.3), source)
    assert not prediction.kept and "computed again" in repr(prediction)
    _ = prediction.mean, prediction.std, prediction.epistemic, prediction.aleatoric, prediction.variance
    assert len(source.passes) == 1
    prediction.interval()
    assert len(source.passes) == 2


def test_kept_draws_come_in_small_blocks(rng, monkeypatch):
    monkeypatch.setattr(predictive_module, "BLOCK_NUMBERS", 2 * S * K * O)
    f = outputs_of(rng, S, K, B, O)
    blocks = list(KeptDraws(f).blocks())
    assert [b.shape[-2] for b in blocks] == [2, 2, 2, 1]
    assert torch.equal(torch.cat(blocks, -2), f)


def test_rows_of_targets_must_agree(rng):
    prediction = Predictive(Gaussian(0.3), CountedDraws(outputs_of(rng, S, B, O)))
    for rows in (B - 1, B + 1):
        with pytest.raises(ValueError, match=rf"rows, y has shape \({rows}, 3\)"):
            prediction.log_prob(torch.zeros(rows, O))
    labels = Categorical().predictive(outputs_of(rng, S, B, O))
    with pytest.raises(ValueError, match=r"at least 7 rows, y has shape \(7, 2\)"):
        labels.log_prob(torch.zeros(B, 2))


def test_targets_of_members_differ(rng):
    f, y = outputs_of(rng, S, K, B, O), outputs_of(rng, K, B, O)
    got = Gaussian(0.3).predictive(f).log_prob(y)
    for k in range(K):
        close(got[k], Gaussian(0.3).predictive(f[:, k]).log_prob(y[k]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian(0.3)], ids=repr)
def test_members_take_targets_without_a_column(rng, likelihood, rows):
    """One row of each member is no column, and K rows in a column are for every member."""
    outputs = 1 if likelihood.event_dim else O
    f, y = outputs_of(rng, S, 4, rows, outputs), torch.randint(2, (4, rows), generator=rng)
    predictive = Predictive(likelihood, CountedDraws(f, (1,) * rows))
    got = predictive.log_prob(y)
    for k in range(4):
        close(got[k], likelihood.predictive(f[:, k]).log_prob(y[k]), rtol=1e-12, atol=1e-12)
    assert torch.equal(predictive.log_prob(y[..., None]), got)
    for shared in (likelihood.predictive(f), predictive):  # whole, and in blocks of one row
        assert torch.equal(shared.log_prob(y[0][:, None]), shared.log_prob(y[0].expand(4, rows)))


def test_linearised_labels_of_members_are_those_of_each(rng):
    mean, spread = outputs_of(rng, K, 1, O), covariance(rng, K, 1)
    y = torch.tensor([[2], [0]])

    def predictive(mean, spread):
        block, draws = packed(mean, spread), lambda noise: noise.drawn(mean, spread)
        return LinearisedPredictive(Categorical(), KeptDraws(block), Probit(), Noise(), draws)

    p = (mean / (1 + math.pi / 8 * spread.diagonal(dim1=-2, dim2=-1)).sqrt()).log_softmax(-1)
    got = predictive(mean, spread).log_prob(y)
    close(got, torch.stack([p[0, :, 2], p[1, :, 0]]), rtol=1e-12, atol=1e-12)
    close(predictive(mean, spread).log_prob(y[0]), p[..., 2], rtol=1e-12, atol=1e-12)  # one for both


def test_one_hot_rows_are_named(rng):
    labels = Categorical().predictive(outputs_of(rng, O, O, O))
    message = r"^y has shape \(3, 3\); labels are one number per row; one-hot rows become labels by y.argmax"
    with pytest.raises(ValueError, match=message):
        labels.log_prob(torch.eye(O))


def test_targets_may_be_a_column_of_a_table(rng):
    pd = pytest.importorskip("pandas")
    f, y = outputs_of(rng, S, B, 1), torch.arange(B) % 2
    numbers, bits = pd.Series(y.double().numpy(), index=range(100, 100 + B)), pd.Series(y, dtype="boolean")
    predictive = Gaussian(0.3).predictive(f)
    assert torch.equal(predictive.log_prob(numbers), predictive.log_prob(y.double()))
    assert torch.equal(predictive.log_prob_gaussian(numbers), predictive.log_prob_gaussian(y.double()))
    assert torch.equal(Bernoulli().predictive(f).log_prob(bits), Bernoulli().predictive(f).log_prob(y))
    with pytest.raises(
        TypeError, match='y is a Series that is no array of numbers: column "y" holds (str|object)'
    ):
        predictive.log_prob(numbers.astype(str))


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_levels_are_probabilities(level, rng):
    prediction = Gaussian(0.3).predictive(outputs_of(rng, S, B, O))
    with pytest.raises(ValueError, match="between 0 and 1"):
        prediction.interval(level)
    with pytest.raises(ValueError, match="between 0 and 1"):
        prediction.quantile(level)


def test_no_rows_and_no_noise_are_errors(rng):
    with pytest.raises(ValueError, match="holds no rows"):
        _ = Predictive(Gaussian(0.3), CountedDraws(torch.zeros(S, 0, O), rows=())).draws
    with pytest.raises(ValueError, match="leaves the noise to the method"):
        _ = Gaussian().predictive(outputs_of(rng, S, B, O)).std
    with pytest.raises(ValueError, match="raise the noise floor"):
        _ = Gaussian(torch.zeros(O, O)).predictive(outputs_of(rng, S, B, O)).std


def test_samples_hold_one_block_of_the_draws_at_a_time(rng):
    f, alive = outputs_of(rng, S, B, O), []

    class Watched:
        kept = False

        def blocks(self) -> Iterator[Tensor]:
            for part in f.split(2, -2):
                assert sum(ref() is not None for ref in alive) <= 1  # the consumer's own
                block = part.clone()
                alive.append(weakref.ref(block))
                yield block
                del block

    prediction = Predictive(Gaussian(0.3), Watched())
    assert torch.equal(prediction.sample(5), Gaussian(0.3).predictive(f).sample(5))
    assert len(alive) == 4


def test_samples_have_the_mixture_moments(rng):
    n, f, noise = 40_000, outputs_of(rng, S, 1, O), covariance(rng, S)
    prediction = Gaussian(noise).predictive(f)
    x = prediction.sample(n, rng)[:, 0]  # (n, O)
    d = f[:, 0] - f[:, 0].mean(0)
    total = d.mT @ d / S + noise.mean(0)
    products = (x - prediction.mean)[:, :, None] * (x - prediction.mean)[:, None, :]
    assert ((x.mean(0) - prediction.mean[0]).abs() < 5 * x.std(0) / math.sqrt(n)).all()
    assert ((products.mean(0) - total).abs() < 5 * products.std(0) / math.sqrt(n)).all()


def test_samples_take_the_noise_of_their_draw(rng):
    f = torch.arange(S, dtype=F64)[:, None, None].expand(S, B, 1) * 100
    noise = 10.0 ** -torch.arange(S, dtype=F64)[:, None, None]  # (S, 1, 1): variances 1, 0.1, ...
    x = Gaussian(noise).predictive(f).sample(3000, rng)  # (3000, B, 1)
    drawn = (x / 100).round()
    assert torch.equal(drawn, drawn[:, :1].expand_as(drawn))  # one network for all rows of a sample
    for s in (0, 4, 10):
        residual = (x - 100 * drawn)[drawn == s]
        variance = float(noise[s])
        assert residual.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / len(residual)))


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_sampled_labels_have_the_mean_probabilities(likelihood, rng):
    n, prediction = 40_000, likelihood.predictive(outputs_of(rng, S, B, O))
    x = prediction.sample(n, rng)
    shares = (torch.nn.functional.one_hot(x, O) if likelihood.event_dim == 0 else x).to(F64).mean(0)
    assert ((shares - prediction.mean).abs() < 5 * prediction.std / math.sqrt(n)).all()


def test_randomness_is_explicit(rng):
    before = torch.get_rng_state()
    prediction = Gaussian(0.3).predictive(outputs_of(rng, S, B, O))
    assert torch.equal(prediction.sample(4), prediction.sample(4))
    assert not torch.equal(prediction.sample(4, rng), prediction.sample(4, rng))
    assert torch.equal(torch.get_rng_state(), before)
