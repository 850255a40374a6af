"""CSV files become numbers as described, or an error names the culprit."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayeswise.saving import from_config, to_config
from bayeswise.tables import (
    CategoryColumn,
    ClassTarget,
    Encoder,
    NumberColumn,
    NumberTarget,
    PairColumn,
    Table,
    TableError,
    choose_target,
    held_out,
    read_table,
    training_columns,
)
from bayeswise.tables.targets import unknown


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cells(*values: object) -> pd.Series:
    return pd.Series(values, dtype=object)


def frame(**columns: list) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


# -------------------------------------------------------------------------------------------------- reading


def test_cells_stay_text_and_missing_ones_are_nan(tmp_path: Path):
    table = read_table(written(tmp_path, 'a, b ,c\n1,"x, y",07\n NA ,none ,?\n3,,2\n'))
    assert list(table.frame.columns) == ["a", "b", "c"]
    assert table.frame["a"].tolist()[::2] == ["1", "3"] and table.frame["c"].tolist()[::2] == ["07", "2"]
    assert table.frame["b"][0] == "x, y"
    assert table.frame.isna().to_numpy().tolist() == [[False] * 3, [True] * 3, [False, True, False]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str):
    text = "\n".join(delimiter.join(row) for row in [("a", "b", "c"), ("1", "x y", "2"), ("3", "z", "4")])
    table = read_table(written(tmp_path, text))
    assert table.frame.to_numpy().tolist() == [["1", "x y", "2"], ["3", "z", "4"]]
    assert (delimiter == ",") == (table.notes == ())


def test_a_text_with_commas_does_not_mislead(tmp_path: Path):
    table = read_table(written(tmp_path, "a;b\none, two, three;1\nfour, five, six;2\n"))
    assert table.frame["b"].tolist() == ["1", "2"]


def test_a_space_before_a_quote_is_no_part_of_a_name(tmp_path: Path):
    table = read_table(written(tmp_path, 'a, "b, c", "t"\n1, "x, y", 2\n3, z, 4\n'))
    assert table.frame.columns.tolist() == ["a", "b, c", "t"]
    assert table.frame.to_numpy().tolist() == [["1", "x, y", "2"], ["3", "z", "4"]]


def test_decimal_commas(tmp_path: Path):
    table = read_table(written(tmp_path, "a;b\n1,5;x,y\n-2,25;z\n3;w\n"))
    assert table.frame["a"].tolist() == ["1.5", "-2.25", "3"] and table.frame["b"][0] == "x,y"
    assert any("decimal commas" in note for note in table.notes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str):
    table = read_table(written(tmp_path, "straße,y\ncafé,1\n".encode(encoding)))
    assert list(table.frame.columns) == ["straße", "y"] and table.frame.iloc[0, 0] == "café"
    said = {"utf-16": "UTF-16", "cp1252": "Windows-1252"}.get(encoding)
    assert len(table.notes) == (said is not None) and (said is None or said in table.notes[0])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_line_breaks_inside_quotes(tmp_path: Path, end: str):
    table = read_table(written(tmp_path, end.join(["", '"a', 'b",c', '1,"x', 'y"', "2,z", ""])))
    assert table.frame.columns.tolist() == ["a\nb", "c"]
    assert table.frame.to_numpy().tolist() == [["1", "x\ny"], ["2", "z"]]


def test_a_blank_line_of_a_single_column_is_an_empty_cell(tmp_path: Path):
    table = read_table(written(tmp_path, 'a\n1\n\n3\n  \n""\n5\n\n \n'))
    assert table.frame["a"].fillna("none").tolist() == ["1", "none", "3", "none", "none", "5"]
    assert read_table(written(tmp_path, 'a\n1\n""\n')).frame["a"].isna().tolist() == [False, True]
    two = read_table(written(tmp_path, "a,b\n1,2\n\n,\n3,4\n\n"))
    assert two.frame.fillna("none").to_numpy().tolist() == [["1", "2"], ["none", "none"], ["3", "4"]]


def test_a_nameless_index_column_is_left_out_and_said(tmp_path: Path):
    table = read_table(written(tmp_path, ",a,b\n0,5,6\n1,7,8\n"))
    assert list(table.frame.columns) == ["a", "b"] and table.frame["a"].tolist() == ["5", "7"]
    assert table.notes == ("left out 1 column without a name",)


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"a,b\n", "no rows"),
        (b"a,b", "no rows"),
        (bytes(range(256)) * 8, "binary file"),
        (b"PK\x03\x04rest", "Excel or zip"),
        (b"\x1f\x8b\x08", "compressed"),
        (b"a,b,a\n1,2,3\n", '"a" stands 2 times'),
        (b"a,b\n1,2\n1,2,3\n4,5\n", "line 3 has 3 cells"),
        (b"a,b\n1,2,3\n4,5,6\n", "header's 2 names"),
        (b'a,b\n1,"2\n3,4\n', "check its quotes"),
        (b'"' + b"a" * 200_000 + b'",b\n1,2\n', "check its quotes"),
        (b"a,b\n\x81\x8d,2\n", "neither UTF-8 nor Windows-1252"),
        (b"\xff\xfea", "UTF-16"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, content: bytes, culprit: str):
    path = written(tmp_path, content)
    with pytest.raises(TableError, match="(?s)data.csv.*") as error:
        read_table(path)
    assert culprit in str(error.value) and "\n" not in str(error.value)


def test_missing_files_have_neighbours(tmp_path: Path):
    written(tmp_path, "a\n1\n", "houses.csv")
    with pytest.raises(TableError, match='did you mean "houses.csv"'):
        read_table(tmp_path / "house.csv")
    with pytest.raises(TableError, match='no file "[^"]*"$'):
        read_table(tmp_path / "other.csv")
    with pytest.raises(TableError, match="is a directory"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="no file"):
        read_table(tmp_path / "nowhere" / "x.csv")


# -------------------------------------------------------------------------------------------------- columns


def test_encoding_is_one_hot_with_fills_and_flags():
    data = frame(n=["1", "2", np.nan, "6", "2"], c=["b", "a", "b", np.nan, "c"])
    encoder = Encoder.learn(data, np.arange(5), imputes=True)
    x, notes = encoder.encode(Table(data, "data.csv"))
    assert encoder.features == ("n", "n is missing", "c = a", "c = b", "c = c", "c is missing")
    expected = [[1, 0, 0, 1, 0, 0], [2, 0, 1, 0, 0, 0], [2, 1, 0, 1, 0, 0], [6, 0, 0, 1, 0, 1]]
    expected += [[2, 0, 0, 0, 1, 0]]
    np.testing.assert_array_equal(x, expected)
    assert len(notes) == 1 and '"n" (1)' in notes[0] and '"c" (1)' in notes[0]


def test_two_texts_are_one_input_with_new_ones_between():
    data = frame(flag=["True", "False", np.nan, "True"])
    encoder = Encoder.learn(data, np.arange(4), imputes=True)
    assert encoder.columns == (PairColumn("flag", ("False", "True"), "True", True),)
    assert encoder.features == ("flag = True", "flag is missing")
    x, notes = encoder.encode(Table(frame(flag=["False", "True", "maybe", np.nan]), "new.csv"))
    np.testing.assert_array_equal(x, [[0, 0], [1, 0], [0.5, 0], [1, 1]])
    assert notes[0] == 'column "flag": 1 row with "maybe", unseen in training'


def test_a_column_of_two_texts_that_was_saved_as_two_inputs_stays_so():
    saved = {
        "kind": "CategoryColumn",
        "name": "flag",
        "values": ["no", "yes"],
        "fill": "no",
        "flagged": False,
    }
    column = from_config(saved, {"CategoryColumn": CategoryColumn, "PairColumn": PairColumn})
    assert column.features == ("flag = no", "flag = yes")
    np.testing.assert_array_equal(column.encode(pd.Series(["yes", "no", "new"])), [[0, 1], [1, 0], [0, 0]])


def test_inputs_have_different_names():
    """A column may be called like an input that is made of another one."""
    columns = {
        "a": ["1", np.nan, "3"],
        "a is missing": ["4", "5", "6"],
        "c": ["x", "y", "z"],
        "c = x": ["7", "8", "9"],
    }
    columns |= {"d": ["e = 1", "f", "g"], "d = e": ["1", "2 (2)", "3"]}
    encoder = Encoder.learn(frame(**columns), np.arange(3), imputes=True)
    assert encoder.features == (
        "a", "a is missing (2)", "a is missing", "c = x (2)", "c = y", "c = z", "c = x",
        "d = e = 1", "d = f", "d = g", "d = e = 1 (2)", "d = e = 2 (2)", "d = e = 3",
    )  # fmt: skip
    x, _ = encoder.encode(Table(frame(**columns), "data.csv"))
    np.testing.assert_array_equal(x[:, :4], [[1, 0, 4, 1], [2, 1, 5, 0], [3, 0, 6, 0]])


def test_fills_and_texts_come_from_the_training_rows_kinds_from_all():
    data = frame(n=["1", "3", "3", "100"], c=["1", "2", "3", "x"])
    encoder = Encoder.learn(data, np.array([0, 1, 2]), imputes=True)
    assert encoder.columns == (NumberColumn("n", 3.0), CategoryColumn("c", ("1", "2", "3"), "1"))
    x, notes = encoder.encode(Table(data, "data.csv"))
    np.testing.assert_array_equal(x, [[1, 1, 0, 0], [3, 0, 1, 0], [3, 0, 0, 1], [100, 0, 0, 0]])
    assert notes == ['column "c": 1 row with "x", unseen in training']


def test_the_encoder_survives_json():
    data = frame(n=["1", "2", np.nan], c=["b", "a", "b"], d=["b", "a", "c"])
    encoder = Encoder.learn(data, np.arange(3), imputes=True)
    known = {kind.__name__: kind for kind in (Encoder, NumberColumn, CategoryColumn, PairColumn)}
    assert from_config(to_config(encoder), known) == encoder


def test_later_files_are_checked():
    encoder = Encoder.learn(frame(age=["1", "2"], city=["a", "b"]), np.arange(2), imputes=False)
    with pytest.raises(TableError, match='new.csv lacks the column "city"; did you mean "City"'):
        encoder.encode(Table(frame(age=["1"], City=["a"]), "new.csv"))
    with pytest.raises(TableError, match='column "age" held numbers in training, but row 2 holds "old"'):
        encoder.encode(Table(frame(age=["1", "old"], city=["a", "a"]), "new.csv"))
    with pytest.raises(TableError, match=r'missing values in "city" \(2\), "age" \(1\) of 3 rows'):
        encoder.encode(Table(frame(age=["1", "inf", "2"], city=["a", np.nan, np.nan]), "new.csv"))


def test_what_training_leaves_out_is_said():
    data = frame(a=["1", "2", "3"], empty=[np.nan] * 3, same=["x"] * 3, b=["1", "2", "3"], c=["3", "2", "1"])
    kept, notes = training_columns(data, np.arange(3), imputes=False)
    assert list(kept.columns) == ["a", "c"]
    assert notes == [
        'left out because empty: "empty"',
        'left out because constant: "same"',
        'left out because a copy of another column: "b"',
    ]


def test_columns_that_cannot_be_used_are_all_named_with_the_remedy():
    n = 10_000
    data = frame(
        ok=[str(i % 7) for i in range(n)],
        name=[f"person {i}" for i in range(n)],
        when=["2024-01-31 12:30", "2024-02-01"] * (n // 2),
        dirty=["oops", *(str(i) for i in range(n - 1))],
    )
    with pytest.raises(TableError) as error:
        training_columns(data, np.arange(n), imputes=False)
    message = str(error.value)
    assert 'column "name" holds 10,000 different texts, more than the 50' in message
    assert 'column "when" holds dates ("2024-01-31 12:30")' in message
    assert 'column "dirty" holds 1 text among numbers ("oops" in row 1)' in message
    assert message.endswith("leave out with --drop name --drop when --drop dirty")


def test_missing_values_are_counted_by_column():
    data = frame(a=["1", np.nan, np.nan], b=["x", "y", np.nan], c=["1", "-inf", "3"])
    with pytest.raises(TableError, match=r'"a" \(2\), "b" \(1\), "c" \(1\) of 3 rows; .*--missing impute'):
        training_columns(data, np.arange(3), imputes=False)
    kept, _ = training_columns(data, np.arange(3), imputes=True)
    assert list(kept.columns) == ["a", "b", "c"]


def test_a_column_without_a_finite_number_is_empty():
    found, notes = training_columns(
        frame(a=["1", "2", "3"], b=["inf", None, "7"]), np.arange(2), imputes=True
    )
    assert list(found) == ["a"] and 'empty: "b"' in " ".join(notes)


def test_nothing_left_to_learn_from():
    with pytest.raises(TableError, match="no column is left"):
        training_columns(frame(a=["1", "1"]), np.arange(2), imputes=False)


# --------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("values", "task", "reason"),
    [
        (["a", "b"] * 20, "classification", "the target is text"),
        (["0", "1.0"] * 20, "classification", "the target has only 2 different whole numbers"),
        (["3", "4", "5"] * 10, "classification", "the target has only 3 different whole numbers"),
        (["3", "4", "5"] * 9, "regression", "the target has 3 different numbers"),
        (["0.5", "1", "2"] * 20, "regression", "the target has 3 different numbers"),
        ([str(i) for i in range(40)], "regression", "the target has 40 different numbers"),
    ],
)
def test_the_task_is_decided_and_why(values: list[str], task: str, reason: str):
    target, why = choose_target("y", cells(*values), "auto")
    assert (target.task, why) == (task, reason)


@pytest.mark.parametrize(
    ("values", "task", "expected"),
    [
        (["1", np.nan, "inf", "-1e999", "2"], "auto", [False, True, True, True, False]),
        (["1", np.nan, "inf", "-1e999", "2"], "regression", [False, True, True, True, False]),
        (["1", np.nan, "inf", "1", "inf"], "classification", [False, True, False, False, False]),
        (["sup", np.nan, "inf", "sup", "inf"], "auto", [False, True, False, False, False]),
        ([np.nan, np.nan], "auto", [True, True]),
    ],
)
def test_an_infinite_number_is_no_target(values: list, task: str, expected: list[bool]):
    found = unknown(pd.Series(values, range(5, 5 + len(values)), dtype=object), task)
    assert found.tolist() == expected and found.index[0] == 5


def test_classes_are_in_order_and_one_spelling():
    column = cells(*["10", "2.0", "2", "1e1", "3"] * 3)
    target, _ = choose_target("y", column, "classification")
    assert target == ClassTarget("y", ("2", "3", "10"))
    np.testing.assert_array_equal(target.parse(column)[:5], [2, 0, 0, 2, 1])
    number, _ = choose_target("y", column, "regression")
    assert number == NumberTarget("y")
    np.testing.assert_array_equal(number.parse(column)[:5], [10, 2, 2, 10, 3])


def test_classes_keep_all_their_digits():
    column = cells(*["12345678901234567", "12345678901234568", "0.30000000000000004", "0.3"] * 3)
    target, _ = choose_target("y", column, "classification")
    wanted = {"12345678901234567", "12345678901234568", "0.30000000000000004", "0.3"}
    assert isinstance(target, ClassTarget) and set(target.classes) == wanted


@pytest.mark.parametrize(
    ("values", "task", "culprit"),
    [
        (["5", "5.0"] * 10, "auto", 'target "y" is "5" in every row'),
        (["1", "x"] * 10, "regression", 'holds "x", no number; use --task classification'),
        ([f"t{i}" for i in range(300)], "auto", "300 different values in 300 rows"),
        ([str(i) for i in range(300)], "classification", "--task regression"),
    ],
)
def test_targets_that_cannot_be_used(values: list[str], task: str, culprit: str):
    with pytest.raises(TableError) as error:
        choose_target("y", cells(*values), task)
    assert culprit in str(error.value)


def test_held_out_rows_have_the_same_share_of_every_class():
    y = np.repeat([0, 1, 2], [700, 250, 1])
    train, test = held_out(ClassTarget("y", ("a", "b", "c")), y, 0.2, seed=3)
    assert sorted([*train, *test]) == list(range(951))
    assert np.bincount(y[test], minlength=3).tolist() == [140, 50, 0]
    lonely = np.arange(40)
    assert (
        len(held_out(ClassTarget("y", ("a",) * 40), lonely, 0.9, seed=0)[1]) == 0
    )  # none is lost to training
    again = held_out(ClassTarget("y", ("a", "b", "c")), y, 0.2, seed=3)[1]
    other = held_out(ClassTarget("y", ("a", "b", "c")), y, 0.2, seed=4)[1]
    assert again.tolist() == test.tolist() != other.tolist()


def test_held_out_rows_of_numbers():
    train, test = held_out(NumberTarget("y"), np.arange(50.0), 0.2, seed=0)
    assert (len(train), len(test)) == (40, 10) and len(np.intersect1d(train, test)) == 0
    train, test = held_out(NumberTarget("y"), np.arange(50.0), 0.0, seed=0)
    assert (len(train), len(test)) == (50, 0)


def test_reading_warns_of_nothing(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(written(tmp_path, "a,b\n1,x\n2\n"))
