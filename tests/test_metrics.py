"""Metrics against closed forms, numerical integration, brute force and scikit-learn."""

import math

import numpy as np
import pytest
import torch

from bayeswise import metrics

S, B, C = 11, 7, 3


def probabilities(rng, rows=200, classes=C):
    logits = 2 * torch.randn(rows, classes, generator=rng, dtype=torch.float64)
    labels = torch.randint(classes, (rows,), generator=rng)
    return logits.softmax(-1), labels


def integrated_crps(cdf, y, low=-30.0, high=30.0, steps=400_000):
    """∫ (F(x) - [x >= y])² dx by the midpoint rule, on each side of y."""
    total = 0.0
    for a, b, side in ((low, y, 0.0), (y, high, 1.0)):
        h = (b - a) / steps
        x = a + h * (torch.arange(steps, dtype=torch.float64) + 0.5)
        total += float((cdf(x) - side).square().sum() * h)
    return total


def test_rmse_and_nll_by_hand():
    assert metrics.rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -2.0])).item() == pytest.approx(
        math.sqrt(12.5)
    )
    assert metrics.nll(torch.tensor([-1.0, -4.0])).item() == pytest.approx(2.5)
    assert metrics.rmse(np.ones((B, 1)), np.zeros(B)).item() == pytest.approx(1.0)


def test_rmse_does_not_broadcast():
    with pytest.raises(ValueError, match=r"\(7, 3\), targets \(7,\)"):
        metrics.rmse(torch.zeros(7, 3), torch.zeros(7))
    with pytest.raises(ValueError, match=r"\(7, 1\), targets \(1, 7\)"):
        metrics.rmse(torch.zeros(7, 1), torch.zeros(1, 7))


def test_classification_scores_agree_with_sklearn(rng):
    sk = pytest.importorskip("sklearn.metrics")
    probs, labels = probabilities(rng)
    assert metrics.accuracy(probs, labels).item() == pytest.approx(
        sk.accuracy_score(labels, probs.argmax(-1))
    )
    binary = probs[:, 0]
    hits = (labels == 0).long()
    assert metrics.brier(binary, hits).item() == pytest.approx(
        2 * sk.brier_score_loss(hits, binary), rel=1e-12
    )
    one_hot = np.eye(C)[labels.numpy()]
    assert metrics.brier(probs, labels).item() == pytest.approx(
        ((probs.numpy() - one_hot) ** 2).sum(1).mean(), rel=1e-12
    )


def test_ece_by_brute_force(rng):
    probs, labels = probabilities(rng)
    confidence, predicted = probs.max(-1)
    expected = 0.0
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        if inside.any():
            gap = (predicted == labels)[inside].double().mean() - confidence[inside].mean()
            expected += float(inside.double().mean() * gap.abs())
    assert metrics.ece(probs, labels).item() == pytest.approx(expected, rel=1e-12)


def test_calibration_curve_puts_edges_into_the_lower_bin():
    curve = metrics.calibration_curve(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1]), bins=4)
    assert curve.count.tolist() == [1, 1]
    assert curve.confidence.tolist() == [0.5, 0.75]
    assert curve.accuracy.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("levels", [3, 10_000])
def test_auroc_with_ties(rng, levels):
    sk = pytest.importorskip("sklearn.metrics")
    labels = torch.randint(2, (301,), generator=rng)
    scores = torch.randint(levels, (301,), generator=rng) + 0.3 * levels * labels
    scores = scores.floor()
    assert metrics.auroc(scores, labels).item() == pytest.approx(sk.roc_auc_score(labels, scores), rel=1e-12)
    fpr, tpr, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    assert metrics.fpr95(scores, labels).item() == pytest.approx(fpr[np.argmax(tpr >= 0.95)], rel=1e-12)


def test_auroc_is_exact_for_many_rows():
    n = 6_000_000  # ranks beyond what float32 can count
    scores = torch.arange(n, dtype=torch.float64)
    labels = torch.zeros(n)
    labels[-3], labels[-1] = 1, 1
    assert metrics.auroc(scores, labels).item() == pytest.approx(1 - 1 / (2 * (n - 2)), abs=1e-12)


def test_ranking_needs_both_classes():
    with pytest.raises(ValueError, match="one class only"):
        metrics.auroc(torch.arange(4.0), torch.ones(4))
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        metrics.auroc(torch.tensor([1.0, float("nan")]), torch.tensor([0, 1]))


def test_coverage_counts_and_agrees_with_the_curve(rng):
    y = torch.randn(500, generator=rng, dtype=torch.float64)
    high = torch.full((500,), 1.2815515655446004)
    inside = metrics.coverage(-high, high, y)
    assert inside.item() == (y.abs() <= 1.2815515655446004).double().mean().item()
    pit = metrics.pit_mixture(torch.zeros(1, 500), torch.ones(1, 500), y)
    assert metrics.coverage_curve(pit, [0.8, 0.999999]).tolist() == [inside.item(), 1.0]


@pytest.mark.parametrize("y", [-2.5, 0.3, 4.0])
def test_crps_gaussian_by_integration(y):
    expected = integrated_crps(lambda x: torch.special.ndtr((x - 0.7) / 1.3), y)
    assert metrics.crps_gaussian(0.7, 1.3, y).item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("shared", [True, False])
def test_crps_mixture_by_integration(rng, shared):
    means = 2 * torch.randn(S, B, generator=rng, dtype=torch.float64)
    stds = torch.rand(1 if shared else S, B, generator=rng, dtype=torch.float64) + 0.2
    y = torch.randn(B, generator=rng, dtype=torch.float64)
    got = metrics.crps_mixture(means, stds, y)
    for b in (0, 6):

        def cdf(x, b=b):
            return torch.special.ndtr((x - means[:, b, None]) / stds[:, b, None]).mean(0)

        assert got[b].item() == pytest.approx(integrated_crps(cdf, y[b].item(), steps=100_000), abs=1e-7)


def test_targets_are_not_broadcast_against_predictions(rng):
    """A target (B,) is that of a prediction (B, 1); without care (B, B) scores come of it."""
    mean, std, y = torch.randn(3, 5, 1, generator=rng, dtype=torch.float64)
    draws, std = torch.randn(7, 5, 1, generator=rng, dtype=torch.float64), std.exp()
    scores = {
        "crps_gaussian": lambda y, std: metrics.crps_gaussian(mean, std, y),
        "crps_mixture": lambda y, std: metrics.crps_mixture(draws, std, y),
        "pit_mixture": lambda y, std: metrics.pit_mixture(draws, std, y),
        "crps_sample": lambda y, std: metrics.crps_sample(draws, y),
        "ranks": lambda y, std: metrics.ranks(draws, y),
    }
    for name, score in scores.items():
        assert torch.equal(score(y[:, 0], std), score(y, std)), name
        with pytest.raises(ValueError, match=r"shape \(5, 1\), targets \(1, 5\); they must agree"):
            score(y.T, std)
    assert torch.equal(scores["crps_gaussian"](y, std[:, 0]), scores["crps_gaussian"](y, std))
    for name in ("crps_gaussian", "crps_mixture", "pit_mixture"):
        with pytest.raises(ValueError, match=r"standard deviations \(1, 5\); they must agree"):
            scores[name](y, std.T)


def test_a_single_number_is_that_of_all_targets():
    y = torch.tensor([1.0, -2.0])
    assert torch.equal(
        metrics.crps_gaussian(0.5, 1.0, y), metrics.crps_gaussian(torch.full((2,), 0.5), 1.0, y)
    )
    assert torch.equal(
        metrics.crps_gaussian(y, 1.0, 0.5), metrics.crps_gaussian(y, 1.0, torch.full((2,), 0.5))
    )
    draws = torch.tensor([[0.0, 1.0], [2.0, -1.0], [3.0, 0.0]])
    assert metrics.ranks(draws, 0.5).tolist() == [1, 2]
    for none in (torch.tensor(1.0), torch.zeros(0, 7)):
        with pytest.raises(ValueError, match=r"draws have shape .*; give \(S, \.\.\.\), one draw at least"):
            metrics.ranks(none, 0.5)


def test_crps_limits_agree(rng):
    means = torch.randn(S, B, generator=rng, dtype=torch.float64)
    y = torch.randn(B, generator=rng, dtype=torch.float64)
    without_noise = metrics.crps_mixture(means, torch.zeros(()), y)
    torch.testing.assert_close(without_noise, metrics.crps_sample(means, y), rtol=1e-12, atol=1e-12)
    pairs = (means[:, None] - means[None]).abs().mean((0, 1))
    expected = (means - y).abs().mean(0) - 0.5 * pairs
    torch.testing.assert_close(metrics.crps_sample(means, y), expected, rtol=1e-12, atol=1e-12)
    one = metrics.crps_mixture(means[:1], 0.4, y)
    torch.testing.assert_close(one, metrics.crps_gaussian(means[0], 0.4, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(metrics.crps_gaussian(means[0], 0.0, y), (means[0] - y).abs())


def test_pit_and_ranks_are_uniform_when_calibrated(rng):
    means = torch.randn(4000, generator=rng, dtype=torch.float64)
    y = means + 0.5 * torch.randn(4000, generator=rng, dtype=torch.float64)
    pit = metrics.pit_mixture(means[None], torch.tensor(0.5), y)
    assert pit.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / 4000))
    draws = means + 0.5 * torch.randn(9, 4000, generator=rng, dtype=torch.float64)
    counts = torch.bincount(metrics.ranks(draws, y), minlength=10)
    assert (counts - 400).abs().max().item() < 5 * math.sqrt(400 * 0.9)
    far = metrics.pit_mixture(torch.zeros(1), 1.0, -10.0)
    assert far.item() == pytest.approx(7.61985302416047e-24, rel=1e-10)
    assert metrics.ranks(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.5)).item() == 2


def test_labels_are_checked():
    with pytest.raises(ValueError, match="do not fit 3 classes"):
        metrics.accuracy(torch.ones(2, 3) / 3, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"\(2, 3\) and labels \(3,\)"):
        metrics.accuracy(torch.ones(2, 3) / 3, torch.tensor([0, 1, 2]))


def test_columns_of_a_table_are_numbers(rng):
    pd = pytest.importorskip("pandas")
    p, labels = probabilities(rng)
    column, table = pd.Series(labels.numpy(), index=range(300, 500)), pd.DataFrame(p.numpy())
    for score in (metrics.accuracy, metrics.brier, metrics.ece):
        assert torch.equal(score(table, column), score(p, labels))
    assert torch.equal(metrics.auroc(table[0], column == 0), metrics.auroc(p[:, 0], labels == 0))
    assert torch.equal(metrics.rmse(table[0], column), metrics.rmse(p[:, 0], labels))
    assert float(metrics.rmse([0.1, 0.1], [0.3, 0.3])) == pytest.approx(0.2, rel=1e-15)  # lists in float64
