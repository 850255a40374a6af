"""The command line: right answers, or one line that names the culprit."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("click")
from click.testing import CliRunner, Result

from bayeswise.cli import main
from bayeswise.tables import NumberTarget, held_out

SRC = Path(__file__).parents[1] / "src"
STEPS = "30"


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def answer(*args: object) -> dict[str, Any]:
    """The JSON object on stdout of a command that succeeds."""
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*args: object) -> str:
    """The one line on stderr of a command that fails with status 1, beside what it said on the way."""
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit) and result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert lines == result.stderr.splitlines()[-1:] and "Traceback" not in result.stderr
    return lines[0]


def houses(rows: int = 60) -> str:
    rng = np.random.default_rng(0)
    size, city = rng.uniform(1, 9, rows), rng.choice(["Rome", "Oslo", "Lima"], rows)
    price = 3 * size + 5 * (city == "Oslo") + rng.normal(0, 0.3, rows)
    lines = [f"{s:.4f},{c},{p:.4f}" for s, c, p in zip(size, city, price, strict=True)]
    return "\n".join(["size,city,price", *lines, ""])


def animals(rows: int = 60) -> str:
    rng = np.random.default_rng(1)
    kind = rng.choice(["cat", "dog", "<b>owl"], rows)
    weight = np.select([kind == "cat", kind == "dog"], [4.0, 20.0], 1.0) * rng.uniform(0.8, 1.2, rows)
    lines = [f"{w:.4f},{rng.normal():.4f},{k}" for w, k in zip(weight, kind, strict=True)]
    return "\n".join(["weight,noise,kind", *lines, ""])


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(scope="module")
def price_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("price")
    data = written(folder, houses(), "houses.csv")
    fitted = answer("fit", data, "--target", "price", "--out", folder / "model", "--steps", 200)
    return folder / "model", fitted


@pytest.fixture(scope="module")
def kind_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("kind")
    data = written(folder, animals(), "animals.csv")
    fitted = answer("fit", data, "--target", "kind", "--out", folder / "model", "--steps", STEPS)
    return folder / "model", fitted


# ------------------------------------------------------------------------------------------------------ start


@pytest.mark.parametrize("args", [["--help"], ["fit", "--help"], ["predict", "-h"], ["--version"]])
def test_help_loads_nothing_heavy(args: list[str]):
    heavy = ("torch", "numpy", "pandas", "sklearn", "matplotlib", "rich", "jinja2")
    code = (
        f"import sys; sys.path.insert(0, {str(SRC)!r})\nfrom bayeswise.cli import main\n"
        f"try:\n    main({args!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]" and len(done.stdout.splitlines()) > 1


def test_help_comes_at_once():
    code = f"import sys; sys.path.insert(0, {str(SRC)!r})\n"
    code += "from bayeswise.cli import main; main(['--help'])"

    def seconds(program: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
        return time.perf_counter() - start

    assert any(seconds(code) - seconds("pass") <= 0.4 for _ in range(5))  # a busy neighbour may spoil some


def test_methods_are_listed():
    found = {method["name"]: method for method in answer("methods")["methods"]}
    assert found["bali"]["class"] == "BALI" and found["bali"]["settings"]["steps"] == "None"
    assert "0.3" in found["bali"]["settings"]["update_rate"]
    assert found["map"]["summary"] == "The most probable weights, found by Adam."
    shown = run("methods").stdout
    assert "step_size" in shown and "found by Adam" in shown


def test_the_demo_says_where_its_report_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import types

    stand_in = types.ModuleType("bayeswise.report.demo")
    stand_in.run_demo = lambda out, seed, progress: out / f"report-{seed}.html"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bayeswise.report.demo", stand_in)
    assert answer("demo", "--out", tmp_path, "--seed", 3) == {"report": str(tmp_path / "report-3.html")}
    assert str(tmp_path / "report-0.html") in run("demo", "--out", tmp_path).stdout


# ------------------------------------------------------------------------------------------------ regression


def test_fit_predicts_numbers_it_has_not_seen(price_model: tuple[Path, dict[str, Any]]):
    model, fitted = price_model
    assert fitted["task"] == "regression" and fitted["reason"] == "the target has 60 different numbers"
    assert fitted["rows"] == {"training": 48, "held_out": 12} and fitted["inputs"] == 4
    assert fitted["notes"] == [] and str(model.parent) not in (model / "config.json").read_text()
    assert fitted["metrics"]["rmse"] < 0.25 * fitted["baseline"]["rmse"]
    assert fitted["metrics"]["nll"] < fitted["baseline"]["nll"] - 1
    assert 0 <= fitted["metrics"]["coverage_90"] <= 1
    page = (model / "report.html").read_text()
    assert "Predicting price" in page and "root mean squared error" in page and page.count("<svg") == 3


def test_predictions_are_those_of_the_estimator(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    from bayeswise.estimators import BayesianRegressor

    data = written(tmp_path, "city,size,extra\nOslo,2,1\nRome,7.5,2\n")
    result = run("predict", price_model[0], data, "--interval", 0.8)
    assert result.exit_code == 0 and '"extra"' in result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    estimator = BayesianRegressor.load(price_model[0])
    x = np.array([[2.0, 0, 1, 0], [7.5, 0, 0, 1]])  # size, Lima, Oslo, Rome
    dist = estimator.posterior_.predict(estimator.scaling_(x), estimator.draws)
    expected = [dist.mean, dist.std, *dist.interval(0.8)]
    for column, values in zip(("mean", "std", "low", "high"), expected, strict=True):
        np.testing.assert_allclose([float(row[column]) for row in rows], values[:, 0], rtol=1e-7)
    assert abs(float(rows[0]["mean"]) - 11) < 3 and abs(float(rows[1]["mean"]) - 22.5) < 3


def test_large_means_are_told_from_their_bounds(tmp_path: Path):
    """At 1.7e9 eight digits would round mean and bounds to the same number."""
    rows = (line.rpartition(",") for line in houses().splitlines()[1:])
    lines = ["size,city,price", *(f"{cells},{1.7e9 + float(price):.4f}" for cells, _, price in rows)]
    data, new = written(tmp_path, "\n".join(lines)), written(tmp_path, "size,city\n2,Oslo\n", "new.csv")
    answer("fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", 200)
    [same] = answer("predict", tmp_path / "m", new)["predictions"]
    [row] = csv.DictReader(io.StringIO(run("predict", tmp_path / "m", new).stdout))
    mean, low, high = (float(row[name]) - 1.7e9 for name in ("mean", "low", "high"))
    assert abs(mean - 11) < 3 and low + 0.2 < mean < high - 0.2
    assert mean == pytest.approx(same["mean"] - 1.7e9, abs=1e-5)


def test_predictions_go_to_a_file_or_into_json(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data, out = written(tmp_path, "size,city\n2,Oslo\n"), tmp_path / "out.csv"
    told = answer("predict", price_model[0], data, "--out", out)
    assert told["rows"] == 1 and told["out"] == str(out) and told["columns"] == ["mean", "std", "low", "high"]
    [row] = csv.DictReader(io.StringIO(out.read_text()))
    [same] = answer("predict", price_model[0], data)["predictions"]
    assert {k: float(v) for k, v in row.items()} == pytest.approx(same, rel=1e-7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "out.csv"]


def test_the_same_seed_gives_the_same_model(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, houses())
    common = ("--target", "price", "--steps", 200)
    again = answer("fit", data, "--out", tmp_path / "again", *common)
    other = answer("fit", data, "--out", tmp_path / "other", *common, "--seed", 1)
    assert again["metrics"] == price_model[1]["metrics"] != other["metrics"]
    tensors = [(path / "tensors.safetensors").read_bytes() for path in (price_model[0], tmp_path / "again")]
    assert tensors[0] == tensors[1]


def test_the_tables_for_people(tmp_path: Path):
    data = written(tmp_path, houses())
    result = run(
        "fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", STEPS, "--method", "map"
    )
    assert result.exit_code == 0, result.output
    assert "12 held-out rows of price" in result.stdout and "root mean squared error" in result.stdout
    assert f"The model is in {tmp_path / 'm'}" in result.stdout
    assert "Regression, because the target has 60 different numbers" in result.stderr


def test_nothing_held_out(tmp_path: Path):
    data = written(tmp_path, houses())
    common = ("--target", "price", "--steps", STEPS, "--test-share", 0, "--hidden", "8,4")
    told = answer("fit", data, "--out", tmp_path / "m", *common)
    assert told["metrics"] == {} and told["rows"] == {"training": 60, "held_out": 0}
    config = json.loads((tmp_path / "m" / "config.json").read_text())["config"]
    assert config["extra"]["estimator"]["settings"]["hidden"] == [8, 4]


# -------------------------------------------------------------------------------------------- classification


def test_fit_predicts_classes(kind_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    model, fitted = kind_model
    assert fitted["task"] == "classification" and fitted["classes"] == ["<b>owl", "cat", "dog"]
    assert fitted["metrics"]["accuracy"] >= 0.9 > fitted["baseline"]["accuracy"]
    assert fitted["notes"] == [] and set(fitted["metrics"]) == {"nll", "accuracy", "ece"}
    data = written(tmp_path, "weight,noise\n4,0\n21,0.5\n1,-1\n")
    rows = list(csv.DictReader(io.StringIO(run("predict", model, data).stdout)))
    assert [row["class"] for row in rows] == ["cat", "dog", "<b>owl"]
    for row in rows:
        p = [float(row[f"p_{label}"]) for label in fitted["classes"]]
        assert math.isclose(sum(p), 1, rel_tol=1e-6)
        entropy = -sum(q * math.log(q) for q in p if q > 0)
        assert math.isclose(float(row["entropy"]), entropy, rel_tol=1e-4, abs_tol=1e-7)
    assert (model / "report.html").read_text().count("<svg") == 2


def test_an_interval_of_classes_is_refused_in_a_note(kind_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, "weight,noise\n4,0\n")
    notes = answer("predict", kind_model[0], data, "--interval", 0.9)["notes"]
    assert notes == ['--interval is for numbers; "kind" is a class and gets probabilities']
    assert answer("predict", kind_model[0], data)["notes"] == []


def test_the_task_can_be_told(tmp_path: Path):
    data = written(tmp_path, "x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(60)))
    common = ("fit", data, "--target", "y", "--steps", STEPS)
    assert answer(*common, "--out", tmp_path / "a")["classes"] == ["0", "1", "2"]
    assert answer(*common, "--out", tmp_path / "b", "--task", "regression")["task"] == "regression"


# ------------------------------------------------------------------------------------------- imperfect tables


def test_missing_values(tmp_path: Path):
    lines = houses().splitlines()
    lines[3], lines[7] = "," + lines[3].split(",", 1)[1], lines[7].replace("Oslo", "").replace("Rome", "")
    lines[9] = lines[9].rpartition(",")[0] + ","
    data = written(tmp_path, "\n".join(lines))
    common = ("fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", STEPS)
    assert '1 of 60 rows have no value of the target "price"' in refused(*common)
    fixed = written(tmp_path, "\n".join(lines[:9] + lines[10:]), "fixed.csv")
    assert 'missing or infinite values in "size" (1)' in refused("fit", fixed, *common[2:])
    told = answer(*common, "--missing", "impute")
    assert told["rows"] == {"training": 47, "held_out": 12} and told["columns"] == 2
    assert any('"size" (1)' in note for note in told["notes"])
    holes = written(tmp_path, "size,city\n,Oslo\n3,\n", "holes.csv")
    predicted = answer("predict", tmp_path / "m", holes)["predictions"]
    assert all(math.isfinite(value) for row in predicted for value in row.values())


@pytest.mark.parametrize("row", [1, 3, 5])
def test_an_infinite_target_is_a_missing_one(tmp_path: Path, row: int):
    """Whether the row would be held out or not."""
    lines = houses().splitlines()
    lines[row] = lines[row].rpartition(",")[0] + ",-inf"
    data = written(tmp_path, "\n".join(lines))
    common = ("fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", STEPS)
    said = '1 of 60 rows have no finite value of the target "price"'
    assert refused(*common) == (f"Error: {said}; fill them in, or leave those rows out with --missing impute")
    told = answer(*common, "--missing", "impute")
    assert told["notes"] == [f"{said}: left out"] and sum(told["rows"].values()) == 59
    assert all(math.isfinite(value) for value in told["metrics"].values())


def test_a_column_called_like_a_made_input(tmp_path: Path):
    header, *rows = houses().splitlines()
    lines = [f"city = Oslo,{header}", *(f"{7 * i % 11},{line}" for i, line in enumerate(rows))]
    common = ("--target", "price", "--out", tmp_path / "m", "--steps", STEPS)
    assert answer("fit", written(tmp_path, "\n".join(lines)), *common)["inputs"] == 5
    new = written(tmp_path, "size,city,city = Oslo\n5,Oslo,3\n5,Rome,3\n", "new.csv")
    [oslo, rome] = answer("predict", tmp_path / "m", new)["predictions"]
    assert oslo["mean"] - rome["mean"] > 1  # 5 in the data


def test_predicting_with_missing_values_is_refused(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, "size,city\n,Oslo\n3,Rome\n")
    assert 'missing values in "size" (1) of 2 rows' in refused("predict", price_model[0], data)


def test_unseen_categories_are_said_and_counted(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, "size,city\n2,Paris\n3,Bonn\n3,Rome\n")
    told = answer("predict", price_model[0], data)
    assert told["notes"] == ['column "city": 2 rows with "Paris", "Bonn", unseen in training']
    assert len(told["predictions"]) == 3


def test_what_was_left_out_is_said(tmp_path: Path):
    lines = houses().splitlines()
    rows = [f"{i},{line},7,{line.split(',')[0]}" for i, line in enumerate(lines[1:])]
    data = written(tmp_path, "\n".join([f",{lines[0]},same,copy", *rows, rows[0]]))
    told = answer("fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", STEPS)
    said = " ".join(told["notes"])
    assert (
        'constant: "same"' in said and 'copy of another column: "copy"' in said and "without a name" in said
    )
    assert "1 row repeats an earlier one" in said and told["columns"] == 2


def test_a_target_that_varies_only_in_the_held_out_rows_is_refused_before_training(tmp_path: Path):
    rows = [f"{i},{i * i % 7}" for i in range(30)]
    _, held = held_out(NumberTarget("y"), np.zeros(30), 0.2, 0)
    data = written(tmp_path, "\n".join(["a,b,y", *(f"{row},{int(i in held)}" for i, row in enumerate(rows))]))
    common = ("fit", data, "--target", "y", "--task", "regression", "--out", tmp_path / "m")
    assert "y is 0 in all 24 rows to learn from" in refused(*common, "--steps", STEPS).replace('"', "")
    assert not (tmp_path / "m").exists()


def test_a_hostile_header_stays_text(tmp_path: Path):
    header = '"<script>alert(1)</script>","a\nb\x1b[31m",y'
    rows = "".join(f"{i},{i * i % 7},{2 * i}\n" for i in range(30))
    data = written(tmp_path, header + "\n" + rows)
    common = ("fit", data, "--steps", STEPS)
    told = answer(*common, "--out", tmp_path / "m", "--target", "y")
    assert told["columns"] == 2 and told["rows"] == {"training": 24, "held_out": 6}
    assert "<script>" not in (tmp_path / "m" / "report.html").read_text()
    assert "\x1b" not in refused(*common, "--out", tmp_path / "n", "--target", "z")


# -------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        (b"", "is empty"),
        (b"size,price\n", "no rows"),
        (b"size,price\n1,2\n", "has 1 row to learn from; at least 10"),
        (bytes(range(256)) * 4, "binary file"),
        (b"size,size,price\n1,2,3\n", '"size" stands 2 times'),
        (b"size,prise\n" + b"1,2\n" * 20, 'has no column "price"; did you mean "prise"'),
        (b"1,2\n" * 20, 'no column "price"'),
        (b"price\n" + b"1\n2\n" * 20, "no column is left"),
        (b"size,price\n" + b"1,5\n2,5\n" * 20, 'target "price" is "5" in every row'),
        (b"size,price\n" + b"1,2\n3,4,5\n" * 20, "line 3 has 3 cells"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, content: bytes, culprit: str):
    data = written(tmp_path, content)
    line = refused("fit", data, "--target", "price", "--out", tmp_path / "model")
    assert culprit in line and not (tmp_path / "model").exists()


def test_a_missing_file(tmp_path: Path, price_model: tuple[Path, dict[str, Any]]):
    common = ("--target", "a", "--out", tmp_path / "m")
    assert "there is no file" in refused("fit", tmp_path / "no.csv", *common)
    assert "there is no file" in refused("predict", price_model[0], tmp_path / "no.csv")
    assert "config.json" in refused("predict", tmp_path, tmp_path / "no.csv")


def test_a_column_of_ten_thousand_texts(tmp_path: Path):
    rows = "".join(f"person {i},{i % 17},{i % 29}.5\n" for i in range(10_000))
    data = written(tmp_path, "name,x,y\n" + rows)
    common = ("fit", data, "--target", "y", "--out", tmp_path / "m", "--steps", "3")
    line = refused(*common)
    assert 'column "name" holds 10,000 different texts' in line and "--drop name" in line
    assert answer(*common, "--drop", "name")["columns"] == 1


def test_semicolons_and_windows_letters(tmp_path: Path):
    rows = "".join(f"{i},5;{'é' if i % 2 else 'a'};{3 * i},25\n" for i in range(30))
    data = written(tmp_path, ("größe;café;y\n" + rows).encode("cp1252"))
    told = answer("fit", data, "--target", "y", "--out", tmp_path / "m", "--steps", STEPS)
    assert told["columns"] == 2 and told["inputs"] == 2  # two texts are one input
    assert any("Windows-1252" in note for note in told["notes"])
    assert any("';'" in note for note in told["notes"])


def test_one_flipped_bit_anywhere_is_refused(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, "size,city\n2,Oslo\n")
    for number, name in enumerate(("tensors.safetensors", "config.json")):
        model = Path(shutil.copytree(price_model[0], tmp_path / f"model{number}"))
        file = next(path for path in model.iterdir() if path.name.startswith(name.split(".")[0]))
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert file.name in refused("predict", model, data)


def test_the_new_file_must_fit_the_model(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    lacking = written(tmp_path, "size\n2\n")
    assert 'lacks the column "city"' in refused("predict", price_model[0], lacking)
    text = written(tmp_path, "size,city\nbig,Oslo\n")
    assert 'column "size" held numbers in training, but row 1 holds "big"' in refused(
        "predict", price_model[0], text
    )
    far = written(tmp_path, "size,city\n1e300,Oslo\n")
    assert "size" in refused("predict", price_model[0], far)


def test_places_that_cannot_be_written_to(price_model: tuple[Path, dict[str, Any]], tmp_path: Path):
    data = written(tmp_path, houses())
    assert "is a file" in refused("fit", data, "--target", "price", "--out", data)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("keep me")
    missing = tmp_path / "no.csv"  # the place is looked at before the file
    assert "holds other files" in refused("fit", missing, "--target", "price", "--out", other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    new = written(tmp_path, "size,city\n2,Oslo\n", "new.csv")
    assert "is a directory" in refused("predict", price_model[0], new, "--out", other)
    assert "there is no folder" in refused("predict", price_model[0], new, "--out", tmp_path / "no" / "x.csv")


def test_an_earlier_model_is_replaced_and_said(tmp_path: Path):
    data = written(tmp_path, houses())
    common = ("fit", data, "--target", "price", "--out", tmp_path / "m", "--steps", 3)
    answer(*common)
    assert any("will be replaced" in note for note in answer(*common, "--method", "map")["notes"])
    for wrong in (("--method", "none"), ("--drop", "nothing")):  # nothing is replaced, nothing is said
        result = run(*common, *wrong)
        assert result.exit_code and "replaced" not in result.stderr


def test_a_model_of_another_origin(tmp_path: Path):
    import torch

    from bayeswise.saving import write_directory

    write_directory(tmp_path / "m", {"extra": {}}, {"a": torch.zeros(3)})
    data = written(tmp_path, "size\n2\n")
    assert "was not written by `bayeswise fit`" in refused("predict", tmp_path / "m", data)


def test_a_device_that_is_not_there(tmp_path: Path):
    data = written(tmp_path, houses())
    common = ("fit", data, "--target", "price", "--out", tmp_path / "m", "--device")
    for device in ("meta:x", "quantum"):
        assert f"device '{device}' cannot be used" in refused(*common, device)


@pytest.mark.parametrize(
    "args",
    [
        ["fit"],
        ["fit", "x.csv", "--target", "y"],
        ["fit", "x.csv", "--target", "y", "--out", "m", "--task", "guess"],
        ["fit", "x.csv", "--target", "y", "--out", "m", "--hidden", "50,x"],
        ["fit", "x.csv", "--target", "y", "--out", "m", "--hidden", "0"],
        ["fit", "x.csv", "--target", "y", "--out", "m", "--steps", "0"],
        ["fit", "x.csv", "--target", "y", "--out", "m", "--method", "magic"],
        ["predict", "m", "x.csv", "--interval", "1"],
        ["dance"],
    ],
)
def test_wrong_usage_has_status_two(args: list[str]):
    result = run(*args)
    assert result.exit_code == 2 and result.stdout == "" and "Usage:" in result.stderr


def test_debug_shows_the_trace(tmp_path: Path):
    args = ["fit", str(tmp_path / "no.csv"), "--target", "y", "--out", str(tmp_path / "m"), "--debug"]
    result = run(*args)
    assert result.exit_code == 1 and "there is no file" in str(result.exception)
    assert type(result.exception).__name__ == "TableError"


def test_a_fault_of_ours_takes_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from bayeswise.cli import learning

    def broken(*args: object) -> None:
        raise KeyError("lost\nthing")

    monkeypatch.setattr(learning, "read_table", broken)
    line = refused("fit", tmp_path / "x.csv", "--target", "y", "--out", tmp_path / "m")
    assert line.startswith("Error: unexpected KeyError") and "--debug" in line


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name in [name for name in sys.modules if name.startswith(("bayeswise.cli.", "bayeswise.tables"))]:
        if name != "bayeswise.cli.voice":
            monkeypatch.delitem(sys.modules, name)
    line = refused("fit", tmp_path / "x.csv", "--target", "y", "--out", tmp_path / "m")
    assert "needs pandas; pip install 'bayeswise[all]'" in line
