"""The pure functions of benchmarks/growth.py: the complexity formula and its fit."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("growth", "step_cost", "common"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("growth")


def test_formula_is_the_sum_over_the_layers(growth: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """2-3-3-5 by hand: layers (3, 3), (4, 3) and (4, 5), the column of ones counted."""
    monkeypatch.setattr(growth, "INPUTS", 2)
    monkeypatch.setattr(growth, "OUTPUTS", 5)
    assert growth.layers(3) == [(3, 3), (4, 3), (4, 5)]
    rows = 27 + (16 + 12 + 9) + (16 + 20 + 25)
    rest = 4 * 27 + (64 + 27 + 48 + 36) + (64 + 125 + 80 + 100)
    assert growth.formula(3, 7) == (7.0 * rows, rest)


def test_fit_finds_the_constants_that_made_the_times(growth: ModuleType) -> None:
    """Times that follow the formula exactly give its constants back."""
    parts = [growth.formula(width, batch) for width, batch in growth.points()]
    seconds = [2e-11 * rows + 7e-12 * rest for rows, rest in parts]
    assert growth.fit(parts, seconds) == pytest.approx((2e-11, 7e-12), rel=1e-9)


def test_fit_is_never_negative(growth: ModuleType) -> None:
    """Least squares alone would say (1, -1) where 0.6 of the first part is the best without the second."""
    assert growth.fit([(1.0, 0.0), (2.0, 1.0)], [1.0, 1.0]) == pytest.approx((0.6, 0.0))
    assert growth.fit([(0.0, 1.0), (1.0, 2.0)], [1.0, 1.0]) == pytest.approx((0.0, 0.6))


def test_fit_weighs_relative_errors(growth: ModuleType) -> None:
    """One constant for times 1 and 300 of sizes 1 and 100: between 1 and 3, by the squares of 1 and 1/3."""
    assert growth.fit([(1.0, 0.0), (100.0, 0.0)], [1.0, 300.0])[0] == pytest.approx((1 + 1 / 3) / (1 + 1 / 9))
