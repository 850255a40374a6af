"""Tables of scores: means and errors, the best and the near, what is reproduced, and the sentences."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("jinja2")

from bayeswise.bench import findings, page, paper, tables
from bayeswise.bench.labels import METRICS, metric
from bayeswise.bench.sections import with_ratios
from bayeswise.bench.summary import counting, summaries
from bayeswise.bench.tables import Score, runs, verdicts
from bayeswise.identity import configuration
from bayeswise.methods import fresh
from bayeswise.saving.files import canonical
from tests.bench.lines import line, splits

SRC = Path(__file__).parents[2] / "src"
REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"


def cells(table, row: str) -> dict[str, str]:
    """A row of a table as column ↦ text, the best in stars."""
    texts = {str.__str__(r[0]): r for r in table.rows}[row]
    return {c: page.cell_text(t).replace("\u00a0", " ") for c, t in zip(table.columns, texts, strict=True)}


# -------------------------------------------------------------------------------------------------- summaries


def test_a_summary_has_mean_and_standard_error_of_every_metric():
    (found,) = summaries(splits([1.0, 2.0, 6.0], [-1.0, -1.0, -4.0]))
    assert list(found)[:5] == ["task", "dataset", "method", "settings", "n_splits"]
    assert (found["dataset"], found["n_splits"], found["rmse"], found["ll"]) == ("yacht", 3, 3.0, -2.0)
    assert found["rmse_se"] == pytest.approx(math.sqrt(7.0 / 3), rel=1e-14)  # the variance is 7
    assert found["ll_se"] == pytest.approx(math.sqrt(3.0 / 3), rel=1e-14)


def test_one_line_has_no_standard_error_and_no_line_no_summary():
    (found,) = summaries([line(metrics={"rmse": 0.5})])
    assert found["rmse"] == 0.5 and found["rmse_se"] is None
    assert summaries([]) == []


def test_of_equal_runs_the_one_that_was_repeated_last_counts():
    first, second = splits([1.0], [0.0], run="a"), splits([2.0], [0.0], run="b", draws=7)
    assert summaries([*first, *second])[0]["rmse"] == 2.0
    assert summaries([*first, *second, *first])[0]["rmse"] == 1.0


def test_the_last_line_of_a_split_wins():
    old, new = splits([1.0, 2.0, 6.0], [0.0] * 3), splits([4.0], [0.0], n_splits=3, run="b", seconds=10.0)
    (found,) = summaries(old + new)
    assert found["n_splits"] == 3 and found["rmse"] == 4.0  # of 4, 2 and 6
    assert [each["run"] for each in counting(old + new)] == ["b", "a", "a"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_short_trial_does_not_enter_the_mean_of_the_whole_run(order: int):
    whole, trial = splits([1.0, 2.0, 6.0], [0.0] * 3), splits([99.0], [0.0], steps=2)
    (found,) = summaries([*whole, *trial][::order])
    assert found["n_splits"] == 3 and found["rmse"] == 3.0
    (again,) = summaries([*trial, *splits([5.0], [0.0])])
    assert again["rmse"] == 5.0  # of equals the longer
    same = {"configuration": {"kind": "BALI", "step_size": 0.5}}
    (newer, older) = (splits([7.0], [0.0]), splits([5.0], [0.0], **same))[::order]
    (last,) = summaries([*older, *newer])
    assert last["rmse"] == newer[0]["metrics"]["rmse"]  # of equal lengths the last
    chose = {"configuration": {"kind": "BALI", "steps": None}}
    (chosen,) = summaries([*splits([3.0], [0.0], steps=500, **chose), *splits([4.0], [0.0])][::order])
    assert chosen["rmse"] == 3.0  # a length that was chosen is no trial's


@pytest.mark.parametrize("order", [1, -1])
def test_a_trial_of_few_splits_does_not_enter_the_run_of_all_of_them(order: int):
    whole, trial = splits([1.0, 2.0, 6.0], [0.0] * 3), splits([99.0, 99.0], [0.0] * 2, run="b")
    (found,) = summaries([*whole, *trial][::order])
    assert found["n_splits"] == 3 and found["rmse"] == 3.0


def test_seeds_of_few_splits_are_not_all_splits():
    seeds = [each for seed in range(10) for each in splits([1.0, 2.0], [0.0] * 2, seed=seed)]
    (run,) = runs(seeds)
    assert run.count == "2 of 20, 20 with all seeds"
    (whole,) = runs([each for seed in (0, 1) for each in splits([1.0] * 20, [0.0] * 20, seed=seed)])
    assert whole.count == "20, 40 with all seeds" and whole.done == whole.planned


def test_runs_that_chose_their_lengths_are_averaged_whatever_they_chose():
    one, other = splits([1.0], [0.0], steps=312)[0], splits([0.0, 3.0], [0.0] * 2, steps=625)[1]
    chosen = [line | {"configuration": {"kind": "BALI", "steps": None}} for line in (one, other)]
    (found,) = summaries(chosen)
    assert found["n_splits"] == 2 and found["rmse"] == 2.0


def test_seeds_of_a_split_share_its_test_rows():
    twice = splits([1.0, 2.0, 6.0], [0.0] * 3) + splits([3.0, 2.0], [0.0] * 2, seed=1)
    (found,) = summaries(twice)
    assert found["n_splits"] == 3 and found["rmse"] == pytest.approx((2 + 2 + 6) / 3, rel=1e-14)
    assert found["rmse_se"] == pytest.approx(math.sqrt(16 / 3 / 3), rel=1e-14)  # the variance is 16 / 3


def test_seeds_are_averaged_like_splits():
    (found,) = summaries([line(seed=s, metrics={"acc": a}) for s, a in enumerate((0.90, 0.92, 0.97))])
    assert found["n_splits"] == 3 and found["acc"] == pytest.approx(0.93, rel=1e-14)


def test_seconds_of_splits_trained_together_count_once():
    together = splits([1.0, 2.0], [0.0, 0.0])
    alone = [line(split=k, run=f"r{k}", seconds=5.0) for k in (2, 3)]
    assert summaries(together + alone)[0]["seconds"] == pytest.approx(200.2)


def test_a_metric_that_some_lines_lack_is_averaged_over_the_others():
    rows = [
        line(metrics={"rmse": 1.0, "curve": {}}),
        line(split=1, metrics={"rmse": 3.0, "auc": 0.5}),
    ]
    (found,) = summaries(rows)
    assert (found["rmse"], found["auc"], found["auc_se"]) == (2.0, 0.5, None) and "curve" not in found


def test_a_metric_that_failed_in_some_line_has_no_mean():
    rows = [line(metrics={"rmse": 1.0, "ll": None}), line(split=1, metrics={"rmse": 3.0, "ll": 0.5})]
    (found,) = summaries(rows)
    assert (found["rmse"], found["ll"], found["ll_se"]) == (2.0, None, None)
    (never,) = summaries([line(metrics={"rmse": 1.0, "ll": None, "crps": 0.4})])
    assert [key for key in never if key.endswith("_se")] == ["rmse_se", "ll_se", "crps_se"]
    assert never["ll"] is never["ll_se"] is None


def test_what_to_know_before_rows_are_compared():
    now = json.loads(json.dumps(configuration(fresh("bali"))))
    chosen = line(settings="default", configuration=now)
    both = [chosen, line(split=1, settings="default", configuration=now)]
    (said,) = findings.reservations(runs(both))
    assert said.startswith("Steps of BALI, default are those of the last run")
    old = [each | {"configuration": now | {"step_size": 0.123}} for each in both]
    assert next(findings.reservations(runs(old))) == (
        "Made with earlier defaults, which the end of the page shows: BALI, default: Yacht."
    )
    given = [each | {"configuration": now | {"steps": 5, "step_size": 0.123}} for each in both]
    assert list(findings.reservations(runs(given))) == []
    laplace = json.loads(canonical(configuration(fresh("laplace"))))
    laplace["first"]["steps"] = 5
    short = line(settings="default", method="laplace", configuration=laplace)
    assert list(findings.reservations(runs([short]))) == []
    assert list(findings.reservations(runs([*given, line(method="map")]))) == [
        "Not all rows of Yacht are means over the same splits or seeds: they compare loosely."
    ]


def test_one_start_is_outdated_like_several():
    now = json.loads(canonical(configuration(replace(fresh("bali"), members=1))))
    single = line(settings="single", configuration=now)
    outdated = "Made with earlier defaults, which the end of the page shows: BALI, single: Yacht."
    assert outdated not in list(findings.reservations(runs([single])))
    old = single | {"configuration": now | {"tuning": now["tuning"] | {"few_steps": 7}}}
    assert outdated in list(findings.reservations(runs([old])))


def test_newer_lines_that_do_not_count_are_said():
    trial = splits([99.0, 98.0], [0.0] * 2, steps=10_000)
    sentence = "Newer lines that do not count, being fewer or of shorter runs: BALI, paper on Yacht (2)."
    whole = splits([1.0, 2.0, 6.0], [0.0] * 3)
    assert list(findings.reservations(runs([*whole, *trial]))) == [sentence]
    assert list(findings.reservations(runs([*trial, *whole]))) == []


@pytest.mark.parametrize("other", [{"batch": 64}, {"train_rows": 7}, {"network": [1, 2]}, {"data": "b"}])
def test_what_was_trained_otherwise_does_not_enter_the_mean(other):
    whole, trial = splits([1.0, 2.0, 6.0], [0.0] * 3), splits([99.0], [0.0], **other)
    (found,) = summaries([*whole, *trial])
    assert found["rmse"] == 3.0 and found["n_splits"] == 3


@pytest.mark.parametrize(
    ("task", "name", "count"),
    [("ood", "mnist", "1 of 3"), ("classification", "magic", "1 of 5"), ("convergence", "mnist", "1")],
)
def test_seeds_that_are_missing_are_counted(task, name, count):
    (run,) = runs([line(name, 0, {"acc": 0.9}, task=task, n_splits=1)])
    assert run.count == count


def test_the_summary_loads_neither_torch_nor_matplotlib():
    code = "import sys, bayeswise.bench.summary; print({'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(SRC)}
    )
    assert done.stdout.strip() == "set()", done.stderr


# -------------------------------------------------------------------------------------------- the paper's own


def test_the_papers_figures_are_in_the_package():
    scores = paper.uci_scores()
    assert scores["yacht", "rmse", "BALI"] == paper.Published(0.642, 0.042, 3)
    assert scores["kin8nm", "ll", "VADAM"] == paper.Published(0.76, 0.0, 2)
    assert ("protein", "rmse", "VADAM") not in scores and len(scores) == 2 * (7 * 6 - 1)
    assert paper.bali_hyperparameters()["protein"]["iterations"] == "30000"
    assert paper.dropout_hyperparameters()["mnist"]["learning_rate"] == "0.002"


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference folder is not here")
@pytest.mark.parametrize("name", ["uci_regression", "bali_hyperparameters", "dropout_hyperparameters"])
def test_the_packaged_figures_are_those_of_the_reference(name):
    packaged = SRC / "bayeswise" / "bench" / "published" / f"{name}.csv"
    assert packaged.read_bytes() == (REFERENCE / f"{name}.csv").read_bytes()


# -------------------------------------------------------------------------------------------------- the marks


def test_the_best_is_bold_and_the_near_are_marked_by_the_bests_own_error():
    scores = [
        Score(0.50, 0.02, 2),
        Score(0.52, 0.5, 2),
        Score(0.53, 0.5, 2),
        None,
        Score(float("nan"), 0.1, 2),
    ]
    assert verdicts(scores, METRICS["rmse"]) == [(True, False), (False, True), *[(False, False)] * 3]
    assert verdicts(scores[:3], METRICS["ll"])[2] == (True, False)  # higher is better


def test_a_row_is_compared_as_printed():
    assert verdicts([Score(0.0751, 0.0, 3), Score(0.0749, 0.0, 3)], METRICS["rmse"]) == [(False, False)] * 2
    judged = verdicts([Score(0.0751, 0.0, 3), Score(0.0749, 0.0, 3), Score(0.08, 0.0, 3)], METRICS["rmse"])
    assert judged == [(True, False), (True, False), (False, False)]


def test_coverage_is_best_near_its_promise_and_an_unknown_metric_has_no_best():
    scores = [Score(0.99, 0.001, 3), Score(0.88, 0.001, 3)]
    assert verdicts(scores, METRICS["coverage_90"]) == [(False, False), (True, False)]
    assert verdicts(scores, metric("never_seen")) == [(False, False)] * 2


def test_our_column_stands_beside_the_papers_with_its_marks():
    ours = runs(splits([0.6, 0.7, 0.5], [-0.9, -0.8, -0.7]) + splits([0.7, 0.8], [-1.0, -1.2], method="map"))
    row = cells(tables.wide(ours, "rmse"), "Yacht")
    assert row["paper: BALI"] == "0.642 ± 0.042 ≈"  # within 0.058 of the best
    assert row["paper: VADAM"] == "1.32 ± 0.10" and row["paper: DO"] == "0.666 ± 0.049"
    # of 0.6, 0.7, 0.5: 0.1 / √3; three of the standard twenty splits
    assert row["ours: BALI, paper"] == "**0.600 ± 0.058 ✓ (3 of 20)**"
    assert row["ours: MAP, paper"] == "0.750 ± 0.050 (2 of 20)"


@pytest.mark.parametrize(
    ("rmse", "ll", "expected"),
    [(0.725, -0.810, (True, True)), (0.727, -0.812, (False, False)), (0.1, 1.0, (True, True))],
)
def test_reproduced_is_at_most_two_of_the_papers_errors_worse(rmse, ll, expected):
    """The paper has 0.642 ± 0.042 and -0.745 ± 0.033: the limits are 0.726 and -0.811."""
    (run,) = runs([line(metrics={"rmse": rmse, "ll": ll})])
    assert (tables.reproduced(run, "rmse"), tables.reproduced(run, "ll")) == expected
    (other,) = runs([line(method="map", metrics={"rmse": rmse})])
    assert tables.reproduced(other, "rmse") is None


def test_a_shorter_run_is_no_reproduction_and_says_its_steps():
    short = splits([0.6, 0.62], [-0.5, -0.5], steps=20)
    (run,) = runs(short)
    assert run.trial and tables.reproduced(run, "rmse") is None
    row = dict(zip(tables.wide([run], "rmse").columns, tables.wide([run], "rmse").rows[0], strict=True))
    assert "✓" not in str.__str__(row["ours: BALI, paper"])
    assert "(2 of 20, 20 steps)" in str.__str__(row["ours: BALI, paper"])
    chose = {"kind": "BALI", "steps": None}
    longer = [line(), line(steps=None), line(settings="single", steps=20, configuration=chose)]
    assert not any(run.trial for run in runs(longer))
    assert not any(run.trial for run in runs([line("mine", steps=20), line(steps=20, method="map")]))
    (given,) = runs([line(settings="default", steps=20, configuration={"kind": "BALI", "steps": 20})])
    assert given.trial and tables.reproduced(given, "rmse") is None


def test_splits_of_a_data_set_of_ones_own_that_are_missing_are_counted():
    (run,) = runs([line("mine", n_splits=1, splits_there=5)])
    assert run.count == "1 of 5"
    (curve,) = runs([line("mine", n_splits=1, splits_there=5, task="convergence")])
    assert curve.count == "1"


def test_several_best_share_the_larger_error():
    scores = [Score(1.0, 0.0, 3), Score(1.0, 0.1, 3), Score(1.05, 0.0, 3), Score(1.2, 0.0, 3)]
    assert verdicts(scores, metric("rmse")) == [(True, False), (True, False), (False, True), (False, False)]


def test_steps_and_seconds_are_printed_as_a_span_and_with_a_digit_below_ten():
    lines = [
        line(split=k, steps=n, seconds=3.14, run=str(k), configuration={"kind": "BALI", "steps": None})
        for k, n in enumerate((625, 312, 400))
    ]
    (run,) = runs(lines)
    assert [str.__str__(cell) for cell in tables.cost(run)] == ["3 of 20", "312 to 625", "9.4"]
    assert tables.in_seconds(10.4) == "10"
    (untimed,) = runs([line(seconds=None)])
    assert tables.cost(untimed)[2] is None


def test_the_papers_cells_are_those_of_its_own_task():
    (other,) = runs([line(task="later", metrics={"rmse": 0.6})])
    assert tables.reproduced(other, "rmse") is None


def test_the_best_of_a_data_set_is_not_that_of_another():
    lines = [line("energy", 0, {"rmse": 0.1}), line("energy", 0, {"rmse": 0.2}, method="map")]
    lines += [line("yacht", 0, {"rmse": 0.7}), line("yacht", 0, {"rmse": 0.6}, method="map")]
    rows = tables.long(runs(lines)).rows
    assert [row[2].strong for row in rows] == [False, True, True, False]


def test_reproduced_cells_are_counted_by_settings():
    lines = splits([0.6] * 20, [-2.0] * 20) + splits([0.45] * 20, [-0.6] * 20, dataset="energy")
    lines += splits([0.9] * 20, [-2.0] * 20, settings="default")
    assert tables.reproduction_counts(runs(lines)) == {"paper": (3, 4), "default": (0, 2)}
    lines += splits([3.0] * 19, [-2.0] * 19, dataset="concrete")  # of twenty splits
    assert tables.reproduction_counts(runs(lines))["paper"] == (3, 4)
    text = " ".join(findings.uci(runs(lines)))
    assert "BALI, paper: 3 of 14 cells reproduced (10 not run on all splits yet)." in text


def test_defaults_are_counted_against_all_columns_at_the_papers_digits():
    """Yacht: 0.642 ± 0.042 is the best RMSE; concrete: -2.976 ± 0.079, but dropout has -2.937."""
    lines = [line(settings="default", metrics={"rmse": 0.6424, "ll": -0.779})]  # a tie; 0.001 too far
    lines += [line("concrete", settings="default", metrics={"rmse": 4.5781, "ll": -2.9384})]
    text = " ".join(findings.uci(runs(lines)))
    assert "of 4 cells 3 at most one of its standard errors worse than its BALI, 1 better, 1 the best" in text
    assert "BALI, single" not in text


def test_baselines_are_judged_against_the_papers_columns():
    """DO has 0.666 on Yacht and 4.826 on Concrete."""
    lines = [
        line(method="mc_dropout", metrics={"rmse": 0.73}),
        line("concrete", 0, {"rmse": 5.4}, method="mc_dropout"),
    ]
    text = " ".join(findings.uci(runs(lines)))
    assert "MC dropout, paper: RMSE at most 10 % above the paper's DO column on 1 of 2 data sets." in text


def test_a_data_set_that_the_paper_has_not_gets_a_row():
    row = cells(tables.wide(runs([line("foo", metrics={"rmse": 2.0})]), "rmse"), "foo")
    assert row["paper: BALI"] == "–" and row["ours: BALI, paper"] == "2.000 (1 of 3)"


def test_the_long_table_is_bold_within_a_data_set():
    lines = [line("mnist", 0, {"acc": 0.98, "ece": 0.010}, task="classification", n_splits=1, seed=0)]
    lines += [line("mnist", 0, {"acc": 0.97, "ece": 0.005}, task="classification", method="map", n_splits=1)]
    lines += [line("magic", 0, {"acc": 0.87}, task="classification", n_splits=1)]
    table = tables.long(runs(lines))
    texts = [[page.cell_text(cell).replace("\u00a0", " ") for cell in row] for row in table.rows]
    assert texts[0] == ["Telescope", "BALI, paper", "0.8700", "–", "1 of 5", "20,000", "190"]
    assert texts[1][2:4] == ["**0.9800**", "0.0100"] and texts[2][2:4] == ["0.9700", "**0.0050**"]


def test_the_ratios_of_the_synthetic_task():
    made = with_ratios(line(metrics={"rmse_train": 0.06, "noise": 0.02, "std_gap": 0.5, "std_data": 0.1}))
    assert made["metrics"]["rmse_over_noise"] == pytest.approx(3.0)
    assert made["metrics"]["gap_over_data"] == pytest.approx(5.0)


# ---------------------------------------------------------------------------------------------- the sentences


def test_bali_is_judged_against_mc_dropout():
    def both(name: str, bali: tuple[float, float], dropout: tuple[float, float]) -> list[dict]:
        pairs = (("bali", bali), ("mc_dropout", dropout))
        return [line(name, 0, {"acc": a, "ece": e}, task="classification", method=m) for m, (a, e) in pairs]

    lines = both("mnist", (0.981, 0.01), (0.984, 0.02)) + both("magic", (0.85, 0.03), (0.86, 0.01))
    text = " ".join(findings.classification(runs(lines)))
    assert text == (
        "BALI, paper: accuracy within 0.5 points of MC dropout's on 1 of 2 data sets. "
        "BALI, paper: lower ECE than MC dropout's on 1 of 2 data sets."
    )
    other = {"task": "classification", "settings": "reproduction", "steps": 300}
    lines.append(line("magic", 0, {"acc": 0.857, "ece": 0.008}, **other))  # MNIST with the paper's settings
    texts = list(findings.classification(runs(lines)))
    name = "BALI, reproduction (where it was run, else BALI, paper)"
    assert texts[2:] == [
        f"{name}: accuracy within 0.5 points of MC dropout's on 2 of 2 data sets.",
        f"{name}: lower ECE than MC dropout's on 2 of 2 data sets.",
        "On Telescope the two trained for different numbers of steps.",
    ]
    lines.append(line("mnist", 0, {"acc": 0.982, "ece": 0.03}, **other))
    assert list(findings.classification(runs(lines)))[2:4] == [
        "BALI, reproduction: accuracy within 0.5 points of MC dropout's on 2 of 2 data sets.",
        "BALI, reproduction: lower ECE than MC dropout's on 1 of 2 data sets.",
    ]
    edge = both("mnist", (0.885, 0.01), (0.88, 0.02)) + both("magic", (0.8851, 0.01), (0.88, 0.02))
    assert "on 1 of 2 data sets and higher by more on 1." in next(findings.classification(runs(edge)))


def test_the_better_score_of_foreign_rows_is_named():
    scores = {"auroc_entropy": 0.981, "auroc_mutual_information": 0.992}
    found = runs([line("mnist", 0, scores, task="ood", other="fashion_mnist")])
    expected = "MNIST → FashionMNIST, the better AUROC: BALI, paper 0.9920 by mutual information."
    assert list(findings.ood(found)) == [expected]


def test_the_gap_of_bayes_by_backprop_as_a_share_of_balis():
    lines = [line("sines_trend", 0, {"std_gap": 0.4}, task="synthetic")]
    lines += [line("sines_trend", 0, {"std_gap": 0.1}, task="synthetic", method="bbb", settings="kl=0.001")]
    assert "kl=0.001: 0.25" in " ".join(findings.synthetic(runs(lines)))


def test_what_is_missing_is_said():
    assert findings.missing("uci", []) == "Not run yet: bayeswise bench run uci."
    lines = [line(name, task="classification") for name in ("spambase", "telescope", "diabetes", "mnist")]
    lines += [line(n, task="classification", method="map") for n in findings.EXPECTED["classification"][0]]
    text = findings.missing("classification", runs(lines))
    assert text == "Not run yet: BALI, paper: FashionMNIST; MC dropout, paper: all data sets."
