"""A file in the directory is a data set; what is wrong with it is said in one line."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayeswise.bench.datasets import (
    CONSTANT,
    DataError,
    available,
    data_directory,
    equal_groups,
    kinds,
    load,
    rows,
)

REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the benchmark's own data are not here")


def table(n: int = 7, columns: int = 5, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {"X": rng.normal(2.0, 3.0, (n, columns)), "y": rng.normal(size=n), **more}


def standard(n: int = 7) -> dict[str, Any]:
    order = np.stack([np.arange(n), np.arange(n)[::-1]]).astype(np.int32)
    return table(n, train_idx=order[:, :5], test_idx=order[:, 5:])


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / f"{name}.npz"
    np.savez_compressed(path, **content)
    return path


def refused(name: str, folder: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        load(name, folder)
    message = str(error.value)
    assert "\n" not in message and ";" in message
    for word in words:
        assert word in message, message


# ------------------------------------------------------------------------------------------------- the names


def test_a_dropped_file_is_a_data_set(tmp_path: Path):
    content = standard()
    path = write(tmp_path, "uci_foo", content)
    data = load("foo", tmp_path)
    assert (data.name, data.kind, data.protocol, data.classes) == (
        "foo",
        "regression",
        "2 standard splits",
        0,
    )
    assert np.array_equal(data.x, content["X"]) and np.array_equal(data.y, content["y"])
    assert [list(part) for part in data.train] == [[0, 1, 2, 3, 4], [6, 5, 4, 3, 2]]
    assert [list(part) for part in data.test] == [[5, 6], [1, 0]]
    assert data.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_prefix_or_the_targets_tell_the_kind(tmp_path: Path):
    whole = np.array([3, 3, 7, 5, 7, 3, 5], dtype=np.uint8)
    for name in ("uci_a", "cls_b", "gp_c", "d"):
        write(tmp_path, name, table() | {"y": whole})
    write(tmp_path, "e", table())
    (tmp_path / ".hidden.npz").write_bytes(b"")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    shown = kinds(tmp_path)
    assert "broken.npz" in shown.pop("broken")
    expected = ["regression", "classification", "regression", "classification", "regression"]
    assert shown == dict(zip("abcde", expected, strict=True))
    assert available(tmp_path) == list("abcde")
    assert load("b", tmp_path).y.tolist() == load("d", tmp_path).y.tolist() == [0, 0, 2, 1, 2, 0, 1]
    assert load("b", tmp_path).y.dtype == np.int64 and load("b", tmp_path).classes == 3
    assert load("a", tmp_path).y.tolist() == whole.tolist() and load("a", tmp_path).y.dtype == np.float64


def test_second_names_and_spellings(tmp_path: Path):
    labels = np.array([0, 1, 0, 1, 1, 0, 1])
    for stem in ("cls_magic", "cls_diabetes_brfss2015", "uci_wine_red", "gp_Mixed"):
        write(tmp_path, stem, table() | {"y": labels})
    meant = {name: load(name, tmp_path).name for name in ("telescope", "MAGIC", "cls_magic", "wine-red")}
    assert meant == {"telescope": "magic", "MAGIC": "magic", "cls_magic": "magic", "wine-red": "wine_red"}
    assert load("diabetes", tmp_path).name == load("diabetes_brfss2015", tmp_path).name == "diabetes"
    assert load("mixed", tmp_path).name == "Mixed"


def test_two_files_of_one_name_are_both_found(tmp_path: Path):
    write(tmp_path, "gp_foo", table())
    write(tmp_path, "uci_foo", standard())
    write(tmp_path, "foo", table(9))
    assert available(tmp_path) == ["foo", "foo.npz", "gp_foo"]
    assert len(load("foo.npz", tmp_path).y) == 9
    assert load("foo", tmp_path).protocol == "2 standard splits"
    assert load("gp_foo", tmp_path).protocol.startswith("5 splits")


def test_an_unknown_name_gets_a_hint_and_the_list(tmp_path: Path):
    write(tmp_path, "uci_yacht", standard())
    refused("yaht", tmp_path, '"yaht"', 'did you mean "yacht"?', "bayeswise bench download")
    refused("../uci_yacht", tmp_path, 'there are "yacht"')
    (tmp_path / "empty").mkdir()
    refused("yacht", tmp_path / "empty", "no npz file", "--data-dir")
    refused("yacht", tmp_path / "nowhere", "nowhere", "BAYESWISE_DATA")
    with pytest.raises(DataError, match="nowhere"):
        available(tmp_path / "nowhere")


def test_the_directory_is_given_or_named_or_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BAYESWISE_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_directory(None) == tmp_path / ".cache" / "bayeswise"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_directory(None) == tmp_path / ".cache" / "bayeswise"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory(None) == tmp_path / "cache" / "bayeswise"
    monkeypatch.setenv("BAYESWISE_DATA", "~/data")
    assert data_directory(None) == tmp_path / "data"
    assert data_directory(Path("here")) == Path("here")


# ------------------------------------------------------------------------------------------------ the splits


def test_folds_test_on_their_own_rows(tmp_path: Path):
    write(tmp_path, "gp_foo", table(fold=np.array([2, 0, 1, 1, 0, 2, 0], dtype=np.int8)))
    data = load("foo", tmp_path)
    assert data.protocol == "3 folds"
    assert [list(part) for part in data.test] == [[1, 4, 6], [2, 3], [0, 5]]
    assert [list(part) for part in data.train] == [[0, 2, 3, 5], [0, 1, 4, 5, 6], [1, 2, 3, 4, 6]]
    assert equal_groups(data, range(3)) == [[0], [1, 2]]
    with pytest.raises(DataError, match="equal_groups"):
        rows(data, [0, 1])


def test_without_splits_five_are_drawn_with_one_seed(tmp_path: Path):
    write(tmp_path, "uci_foo", table(13))
    data, again = load("foo", tmp_path), load("foo", tmp_path)
    rng = np.random.default_rng(0)
    for train, test, same in zip(data.train, data.test, again.train, strict=True):
        order = rng.permutation(13)
        assert train.tolist() == order[:10].tolist() == same.tolist() and test.tolist() == order[10:].tolist()
    assert data.protocol == "5 splits 80/20 drawn with seed 0" and len(data.train) == 5


def test_bike_loses_the_columns_that_give_the_target_away(tmp_path: Path):
    content = table(7, 17)
    write(tmp_path, "gp_bike", content)
    write(tmp_path, "gp_other", content)
    data = load("bike", tmp_path)
    assert np.array_equal(data.x, content["X"][:, :15]) and "columns 15 and 16" in data.protocol
    assert load("other", tmp_path).x.shape == (7, 17)


def test_images_have_one_split(tmp_path: Path):
    rng = np.random.default_rng(5)
    x, x_test = (
        rng.integers(0, 256, (7, 4, 3), dtype=np.uint8),
        rng.integers(0, 256, (5, 4, 3), dtype=np.uint8),
    )
    y, y_test = np.arange(7, dtype=np.uint8) % 3, np.arange(5, dtype=np.uint8) % 3
    write(tmp_path, "pictures", {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test})
    data = load("pictures", tmp_path)
    assert (data.kind, data.x.dtype, data.protocol) == (
        "classification", np.uint8, "the published train/test split",
    )  # fmt: skip
    ready = rows(data, [0], torch.float64)
    mean, std = x.mean(), x.std()
    expected = (x.reshape(7, 12) - mean) / std
    assert np.array_equal(ready.x[0].numpy(), expected) and np.array_equal(ready.y[0].numpy(), y)
    assert np.allclose(ready.x_test[0].numpy(), (x_test.reshape(5, 12) - mean) / std, atol=1e-12)
    assert ready.y_test.tolist() == [y_test.tolist()] and ready.y.dtype == torch.int64
    assert rows(data, [0]).x.dtype == torch.float32


# --------------------------------------------------------------------------------------------- for a network


def test_each_split_is_scaled_by_its_own_training_rows(tmp_path: Path):
    content = standard()
    write(tmp_path, "uci_foo", content)
    ready = rows(load("foo", tmp_path), [1, 0], torch.float64)
    for place, k in enumerate([1, 0]):
        train, test = content["train_idx"][k], content["test_idx"][k]
        x = content["X"][train]
        mean, std = x.mean(0), np.sqrt(((x - x.mean(0)) ** 2).mean(0))
        np.testing.assert_allclose(ready.x[place].numpy(), (x - mean) / std, atol=1e-12)
        np.testing.assert_allclose(ready.x_test[place].numpy(), (content["X"][test] - mean) / std, atol=1e-12)
        assert ready.y[place].tolist() == content["y"][train][:, None].tolist()
        assert ready.y_test[place].tolist() == content["y"][test][:, None].tolist()


@pytest.mark.parametrize("value", [0.0, 0.1, -2.048e-5, 1e12])
def test_a_constant_column_only_loses_its_mean(tmp_path: Path, value: float):
    content = standard()
    content["X"][:, 2] = value
    content["X"][1, 2] = np.nextafter(value, 2.0 * value)  # rounding: the spread is not 0
    content["X"][5, 2] = value + 1.0  # a test row of split 0
    write(tmp_path, "uci_foo", content)
    ready = rows(load("foo", tmp_path), [0], torch.float64)
    assert ready.x[0, :, 2].abs().max() <= 1e-3 * CONSTANT * max(1.0, abs(value))
    np.testing.assert_allclose(ready.x_test[0, :, 2].numpy(), [1.0, 0.0], atol=1e-12 * max(1.0, abs(value)))


def test_a_column_of_tiny_numbers_is_not_constant(tmp_path: Path):
    content = standard()
    wide = content["X"].copy()
    content["X"] = wide * 1e-14
    write(tmp_path, "uci_tiny", content)
    write(tmp_path, "uci_wide", content | {"X": wide})
    tiny, same = (rows(load(name, tmp_path), [0, 1], torch.float64) for name in ("tiny", "wide"))
    np.testing.assert_allclose(tiny.x_test.numpy(), same.x_test.numpy(), rtol=1e-9)


def test_rows_refuse_what_is_not_there(tmp_path: Path):
    content = standard()
    write(tmp_path, "uci_foo", content)
    data = load("foo", tmp_path)
    for splits, words in (([2], "split 2 .* 0 to 1"), ([-1], "split -1"), ([], "no split")):
        with pytest.raises(DataError, match=words):
            rows(data, splits)
    content["X"][5, 0] = 1e300
    write(tmp_path, "uci_foo", content)
    with pytest.raises(DataError, match="too large for torch.float32"):
        rows(load("foo", tmp_path), [0])


# ---------------------------------------------------------------------------------------------- broken files


def changed(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in (standard() | values).items() if value is not None}


def with_value(key: str, value: float) -> dict[str, Any]:
    content = standard()
    content[key].flat[3] = value
    return content


FAULTS = {
    "no X": (changed(X=None), ["X"]),
    "no y": (changed(y=None), ['no "y"', "x_train"]),
    "no test_idx": (changed(test_idx=None), ['"test_idx"']),
    "rows disagree": (changed(y=np.ones(6)), ["(7, 5)", "(6,)"]),
    "y has two columns": (changed(y=np.ones((7, 2))), ["(7, 2)"]),
    "X has one dimension": (changed(X=np.ones(7)), ["X is (7,)"]),
    "X has three": (changed(X=np.ones((7, 5, 3))), ["(7, 5, 3)"]),
    "no rows": (changed(X=np.ones((0, 5)), y=np.ones(0)), ["(0, 5)"]),
    "text": (changed(X=np.full((7, 5), "a")), ["X holds <U1"]),
    "complex": (changed(y=np.full(7, 1j)), ["y holds complex128"]),
    "NaN": (with_value("X", np.nan), ["1 of 35 values of X"]),
    "infinite": (with_value("y", np.inf), ["1 of 7 values of y"]),
    "index too large": (with_value("train_idx", 7), ["split 0", "row 7", "0 to 6"]),
    "index negative": (with_value("test_idx", -1), ["split 1", "row -1"]),
    "overlap": (with_value("train_idx", 5), ["split 0", "row 5"]),
    "float indices": (changed(train_idx=np.ones((2, 5))), ["train_idx", "float64"]),
    "splits differ": (changed(train_idx=np.ones((3, 5), int)), ["(3, 5)", "(2, 2)"]),
    "no splits": (changed(train_idx=np.ones((0, 5), int), test_idx=np.ones((0, 5), int)), ["(0, 5)"]),
    "nothing to test": (changed(test_idx=np.ones((2, 0), int)), ["split 0", "0 test rows"]),
    "two rows": ({"X": np.ones((2, 1)), "y": np.ones(2)}, ["split 0", "0 test rows"]),
    "folds with a gap": (table(fold=np.array([0, 0, 2, 2, 3, 3, 3])), ["from 0 to 3"]),
    "one fold": (table(fold=np.zeros(7, int)), ["from 0 to 0"]),
    "fold too short": (table(fold=np.zeros(6, int)), ["(6,)", "7 rows"]),
    "x_test missing": ({"x_train": np.ones((7, 5)), "y_train": np.ones(7)}, ['"x_test", "y_test"']),
    "shapes of images": (
        {"x_train": np.ones((7, 5)), "y_train": np.ones(7), "x_test": np.ones((3, 4)), "y_test": np.ones(3)},
        ["(7, 5) and (3, 4)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_in_one_line(fault: str, tmp_path: Path):
    content, words = FAULTS[fault]
    write(tmp_path, "uci_foo", content)
    refused("foo", tmp_path, "uci_foo.npz", *words)


def test_labels_are_whole_and_differ(tmp_path: Path):
    write(tmp_path, "cls_foo", table())
    refused("foo", tmp_path, "cls_foo.npz", "whole numbers")
    write(tmp_path, "cls_foo", table() | {"y": np.full(7, 4)})
    refused("foo", tmp_path, "cls_foo.npz", "all labels are 4")


def zipped(folder: Path, **members: bytes) -> bytes:
    path = folder / "archive"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path.read_bytes()


def test_a_broken_file_is_named_in_one_line(tmp_path: Path):
    path = write(tmp_path, "uci_foo", standard())
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    np.save(tmp_path / "single.npy", np.ones(3))
    single = (tmp_path / "single.npy").read_bytes()
    short = single[:80]
    broken = [
        b"",
        b"PK",
        b"no zip file at all",
        whole[:-30],
        whole[: len(whole) // 2],
        bytes(flipped),
        single,
    ]
    broken += [zipped(tmp_path, X=b"abc", y=b"abc"), zipped(tmp_path, **{"X.npy": short, "y.npy": short})]
    for content in broken:
        path.write_bytes(content)
        refused("foo", tmp_path, "uci_foo.npz", "no whole npz file", "download")
        assert available(tmp_path) == [] or content == bytes(flipped)
    path.unlink()
    path.mkdir()
    refused("foo", tmp_path, "uci_foo.npz", "cannot be read")


def test_pickled_objects_are_never_loaded(tmp_path: Path):
    write(tmp_path, "uci_foo", table() | {"y": np.array([{}] * 7, dtype=object)})
    refused("foo", tmp_path, "uci_foo.npz", "array of objects: store real numbers")


# ------------------------------------------------------------------------------------------------ real files


@needs_real
@pytest.mark.parametrize(
    "name, n, columns, splits, train",
    [("yacht", 308, 6, 20, 277), ("spambase", 4601, 57, 5, 3681), ("telescope", 19020, 10, 5, 15216)],
)
def test_real_files_load(name: str, n: int, columns: int, splits: int, train: int):
    data = load(name, REAL)
    assert data.x.shape == (n, columns) and len(data.train) == splits
    assert rows(data, range(splits)).x.shape == (splits, train, columns)


@needs_real
def test_the_nearly_constant_column_of_keggdirected_does_not_explode():
    data = load("keggdirected", REAL)
    ready = rows(data, [2])
    assert ready.x_test[0, :, 7].abs().max() < 100
    assert ready.x_test.abs().max() < 200
