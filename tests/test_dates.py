"""Estimators refuse dates, which would be numbers in whatever unit they have."""

import numpy as np
import pandas as pd
import pytest

import bayeswise as bw
from bayeswise.estimators import BayesianClassifier, BayesianRegressor

DAYS = np.datetime64("2020-01-01") + np.arange(40)
DATES = (
    "holds dates ({}); give numbers, such as days from a fixed start: "
    '(dates - start) / np.timedelta64(1, "D")'
)
LONG = 'holds durations ({}); give numbers, such as days: durations / np.timedelta64(1, "D")'


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_dates_are_no_numbers(kind, unit):
    """The same day is 1.6e9 s or 1.6e18 ns, so nobody knows what it would be."""
    x = np.random.default_rng(0).normal(size=(40, 5))
    y, days = x[:, 0] > 0, DAYS.astype(f"datetime64[{unit}]")
    model, dtype, span = kind(method=bw.BALI(steps=5)), f"datetime64[{unit}]", f"timedelta64[{unit}]"
    zone = pd.Series(days).dt.tz_localize("UTC")
    cases = {
        f"X: column 't' {DATES.format(dtype)}": (pd.DataFrame({"a": x[:, 0], "t": days}), y),
        f"X: column 't' {DATES.format(f'datetime64[{unit}, UTC]')}": (pd.DataFrame({"t": zone}), y),
        f"X: column 7 {LONG.format(span)}": (pd.DataFrame({7: days - days[0]}), y),
        f"X {DATES.format(dtype)}": ([[day] for day in days], y),
        f"y {DATES.format(dtype)}; as labels, give strings": (x, pd.Series(days)),
        f"y {LONG.format(span)}; as labels, give strings": (x, days - days[0]),
    }
    for message, (bad_x, bad_y) in cases.items():
        with pytest.raises(TypeError) as error:
            model.fit(bad_x, bad_y)
        assert str(error.value) == message
    numbers = (days - DAYS[0])[:, None] / np.timedelta64(1, "D")  # the remedy
    np.testing.assert_array_equal(numbers[:, 0], np.arange(40))
    with pytest.raises(TypeError, match="^X holds dates"):
        model.fit(numbers, y).predict(days[:, None])


def test_labels_that_no_file_holds_are_refused_before_it_is_written(tmp_path):
    x = np.arange(40.0)[:, None]
    model = BayesianClassifier(method=bw.BALI(steps=5)).fit(x, x[:, 0] > 17)
    model.classes_ = np.array(["2020", "2021"], "datetime64[ns]")  # their list is whole numbers
    with pytest.raises(TypeError, match="labels of type datetime64 cannot be saved; use strings or numbers"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_dates_among_other_cells_are_found(kind):
    model, y = kind(method=bw.BALI(steps=5)), np.arange(40) % 2
    days = DAYS.astype("datetime64[ns]")
    for cells in (days, days - days[0]):
        mixed = [[float(i), cell] for i, cell in enumerate(cells)]
        with pytest.raises(TypeError, match="^X holds (dates|durations)"):
            model.fit(mixed, y)
