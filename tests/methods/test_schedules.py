"""Rates over a run, at steps where they can be worked out by hand."""

import math

import pytest

from bayeswise.methods.schedules import Constant, Cosine, StepDecay


def test_constant():
    assert [Constant(0.2)(step, 10) for step in (0, 5, 9)] == [0.2, 0.2, 0.2]


def test_cosine_falls_from_the_rate_to_almost_zero():
    rates = [Cosine(0.3)(step, 100) for step in range(100)]
    assert rates[0] == 0.3
    assert rates[50] == pytest.approx(0.15, abs=1e-15)
    assert rates[25] == pytest.approx(0.15 * (1 + math.sqrt(0.5)), abs=1e-15)
    assert 0 < rates[99] < 1e-4
    assert all(later < earlier for earlier, later in zip(rates, rates[1:], strict=False))


def test_step_decay_divides_by_five_after_60_and_again_after_80_percent():
    rate = StepDecay(0.5)
    assert [rate(step, 100) for step in (0, 59, 60, 79)] == [0.5, 0.5, 0.1, 0.1]
    assert rate(80, 100) == rate(99, 100) == pytest.approx(0.02, abs=1e-17)


def test_step_decay_with_a_factor_and_shares_of_its_own():
    rate = StepDecay(1.0, factor=2.0, at=(0.25, 0.5, 0.75))
    assert [rate(step, 8) for step in range(8)] == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
