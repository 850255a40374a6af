"""What users give as numbers, against the tensors it stands for."""

import numpy as np
import pytest
import torch

from bayeswise.arrays import as_tensor

pd = pytest.importorskip("pandas")
FLOATS, WHOLE, BITS = [0.5, -2.0], [3, 4], [True, False]
NULLABLE = {"a": pd.array([3, None], dtype="Int64"), "b": pd.array(BITS, dtype="boolean")}
TABLES = {
    "floats and bools": (pd.DataFrame({"a": FLOATS, "b": BITS}), [[0.5, 1], [-2, 0]], torch.float64),
    "single floats and bools": (
        pd.DataFrame({"a": np.float32(FLOATS), "b": BITS}),
        [[0.5, 1], [-2, 0]],
        torch.float32,
    ),
    "whole numbers and bools": (pd.DataFrame({"a": WHOLE, "b": BITS}), [[3, 1], [4, 0]], torch.int64),
    "nullable floats": (pd.DataFrame({"a": FLOATS}).astype("Float32"), [[0.5], [-2]], torch.float32),
    "nullable whole numbers": (pd.Series(WHOLE, dtype="Int64"), [3, 4], torch.int64),
    "nullable bools": (pd.Series(BITS, dtype="boolean"), [True, False], torch.bool),
    "a missing number": (pd.DataFrame(NULLABLE), [[3, 1], [torch.nan, 0]], torch.float64),
    "two columns of one name": (
        pd.DataFrame([[0.5, 1.0]], columns=["a", "a"]).astype("Float64"),
        [[0.5, 1]],
        torch.float64,
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_several_types_are_numbers(kind: str):
    table, numbers, dtype = TABLES[kind]
    expected = torch.tensor(numbers, dtype=dtype)
    torch.testing.assert_close(as_tensor(table, "x"), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pd.DataFrame({"a": FLOATS, "c": ["1", "2"]}), 'x is a DataFrame .*: column "c" holds (str|object);'),
        (
            pd.DataFrame({"a": FLOATS}, dtype=object),
            r'column "a" holds object; .*which astype\(float\) makes',
        ),
        (pd.DataFrame({"a": FLOATS, "d": pd.to_datetime(["2020", "2021"])}), 'column "d" holds datetime64'),
        (pd.Series(["1", "2"], dtype="category"), 'x is a Series .*: column "x" holds category'),
    ],
)
def test_a_column_that_holds_no_numbers_is_named(table, message: str):
    with pytest.raises(TypeError, match=message):
        as_tensor(table, "x")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3)[::-1],
        np.arange(6.0).reshape(2, 3)[:, ::-1],
        np.arange(6).astype(">i4"),
        np.arange(6.0).astype(">f8").reshape(3, 2),
        np.broadcast_to(np.arange(3.0), (2, 3)),
    ],
)
def test_arrays_that_torch_does_not_take_are_copied(array: np.ndarray):
    np.testing.assert_array_equal(as_tensor(array, "x").numpy(), array)


@pytest.mark.parametrize("labels", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], dtype=object)])
def test_texts_are_to_be_numbered(labels):
    with pytest.raises(TypeError, match=r"number its texts: np\.unique\(texts, return_inverse=True\)\[1\]"):
        as_tensor(labels, "y")


@pytest.mark.parametrize("values", [["1e-3", "10"], np.array(["1", "-2.5"]), ["nan", "2"], [" 1.5"]])
def test_numbers_that_are_texts_are_to_be_read(values):
    with pytest.raises(TypeError, match=r"y is a .*astype\(float\) makes"):
        as_tensor(values, "y")


@pytest.mark.parametrize("columns", [["city", "b"], ["b", "city"]])
def test_tables_with_texts_are_to_be_encoded(columns):
    table = pd.DataFrame({"city": ["u", "v"], "b": [1.0, 2.0]})[columns]
    with pytest.raises(TypeError, match="pandas.get_dummies of other texts"):
        as_tensor(table, "x")


@pytest.mark.parametrize(
    "values", [[np.zeros((2, 3)), np.zeros((2, 4))], [[1.0], [1.0, 2.0]], [None], object()]
)
def test_what_is_no_array_is_named(values):
    with pytest.raises(TypeError, match="x is a .* that is no array of numbers"):
        as_tensor(values, "x")
