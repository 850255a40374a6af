"""Rates over a run, at steps where they can be worked out by hand."""

import math
import re

import numpy as np
import pytest

import bayeswise as bw
from bayeswise.methods.schedules import Constant, Cosine, Cyclic, StepDecay


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


def test_cyclic_falls_and_begins_again():
    rates = [Cyclic(0.3, 0.1, 4)(step, 40) for step in range(40)]
    assert rates[:10] == rates[10:20] == rates[30:]
    assert rates[0] == 0.3 and rates[5] == pytest.approx(0.2, abs=1e-15)
    assert rates[9] == pytest.approx(0.1 + 0.1 * (1 + math.cos(0.9 * math.pi)), abs=1e-15)
    with pytest.raises(ValueError, match="Cyclic: cycles must be positive"):
        Cyclic(0.3, 0.1, 0)


KINDS = pytest.mark.parametrize("kind", [Constant, Cosine, StepDecay])


@KINDS
@pytest.mark.parametrize("rate", [0, -0.1, math.nan, math.inf])
def test_what_is_no_rate_is_refused(kind, rate: float):
    with pytest.raises(ValueError, match=f"{kind.__name__}: rate must be positive and finite, not {rate}"):
        kind(rate)


@KINDS
@pytest.mark.parametrize("rate", ["fast", None, Constant(0.1)])
def test_a_rate_is_a_number(kind, rate):
    with pytest.raises(TypeError, match="rate must be a number"):
        kind(rate)


def test_a_factor_that_is_none_is_refused():
    with pytest.raises(ValueError, match="factor must be positive and finite, not 0"):
        StepDecay(0.5, factor=0)


@KINDS
def test_an_update_rate_is_at_most_one(kind):
    assert bw.BALI(update_rate=kind(1.0)).update_rate(0, 10) == 1.0
    with pytest.raises(ValueError, match="update_rate must be at most 1"):
        bw.BALI(update_rate=kind(1.5))


@pytest.mark.parametrize("rate", [0.3, np.float32(0.5), 1])
def test_a_bare_number_is_no_schedule(rate):
    with pytest.raises(TypeError, match=re.escape(f"use bw.Constant({rate})")):
        bw.BALI(update_rate=rate)


@pytest.mark.parametrize("rate", [Cosine, "cosine", None])
def test_a_class_or_a_name_is_no_schedule(rate):
    with pytest.raises(TypeError, match="update_rate is a schedule"):
        bw.BALI(update_rate=rate)


@pytest.mark.parametrize("name", ["prior", "first_prior", "last_prior"])
def test_a_bare_number_is_no_prior(name: str):
    with pytest.raises(TypeError, match=re.escape(f"BALI: {name} is a prior, not 40.0; use bw.FanIn(40.0)")):
        bw.BALI(**{name: 40.0})
    with pytest.raises(TypeError, match=re.escape("use bw.FanIn(variance)")):
        bw.BALI(**{name: bw.FanIn})
