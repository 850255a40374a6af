"""A saved file gives back the same bits or an error that names it."""

import json
import math
import os
import pickle
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayeswise.saving import (
    CheckpointWarning,
    SavedModelError,
    directories,
    files,
    newest_checkpoint,
    read_directory,
    write_checkpoint,
    write_directory,
)

CONFIG = {
    "name": "yacht \u00e4",
    "rate": 0.1,
    "tiny": 5e-324,
    "steps": [1, None, True],
    "nested": {"a.b": -0.0},
}


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def content(saved: tuple[dict, dict[str, Tensor]]) -> tuple[str, dict[str, tuple]]:
    """What was loaded, in a form that compares every bit (also of -0.0 and NaN)."""
    meta, tensors = saved
    assert all(tensor.device.type == "cpu" for tensor in tensors.values())
    return repr(meta), {name: (t.dtype, tuple(t.shape), bits(t)) for name, t in sorted(tensors.items())}


def tensor_table() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    base = torch.randn(7, 5, generator=rng)
    payloads = torch.tensor([0x7FC12345, 0x7F812345, -1, -(2**31)], dtype=torch.int32)
    return {
        "f64": torch.randn(11, 3, generator=rng, dtype=torch.float64),
        "f16": base.half(),
        "bf16": base.bfloat16(),
        "nan payloads": payloads.view(torch.float32),
        "i64": torch.tensor([-(2**63), 2**63 - 1]),
        "i8": torch.arange(-3, 4, dtype=torch.int8),
        "generator": rng.get_state(),
        "bool": base > 0,
        "negative view": torch.complex(base, base.flip(0)).conj().imag,
        "shared": base,
        "shared too": base,
        "part": base[2:5],
        "transposed": base.T,
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(7, 5),
        "scalar": torch.tensor(-0.0, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base.clone()),
        "layers.enc%2Eproj": torch.tensor([1.0]),
        "": torch.tensor(1),
    }


SMALL = {"w": torch.linspace(-1, 1, 35).reshape(7, 5), "on": torch.tensor([True, False, True])}


def save_model(path: Path) -> Callable[[], Any]:
    write_directory(path, CONFIG, SMALL)
    return lambda: read_directory(path)


def save_checkpoint(path: Path) -> Callable[[], Any]:
    write_checkpoint(path, 1200, CONFIG, SMALL)
    return lambda: newest_checkpoint(path)


# ---------------------------------------------------------------------------------------------- round trips


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing may be unpickled")


def test_tensors_come_back_bit_for_bit_without_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")]:
        monkeypatch.setattr(owner, name, refuse)
    table = tensor_table()
    write_directory(tmp_path / "deep" / "model", CONFIG, table)
    write_checkpoint(tmp_path / "run", 7, CONFIG, table)
    assert content(read_directory(tmp_path / "deep" / "model")) == content((CONFIG, table))
    meta, tensors = newest_checkpoint(tmp_path / "run") or ({}, {})
    assert meta == CONFIG and content((CONFIG, tensors)) == content((CONFIG, table))


def test_loaded_tensors_can_be_written_to(tmp_path: Path) -> None:
    write_directory(tmp_path / "m", {}, SMALL)
    loaded = read_directory(tmp_path / "m")[1]["w"]
    loaded.add_(1.0)
    torch.testing.assert_close(loaded, SMALL["w"] + 1.0, rtol=0, atol=0)


def test_a_model_is_two_files_and_is_replaced_in_place(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for value in range(4):
        write_directory(folder, {"value": value}, {"w": torch.full((3,), float(value))})
        assert {p.name for p in folder.iterdir()} - {"report.html"} == {
            "config.json",
            directories.TENSOR_FILES[value % 2],
        }
        (folder / "report.html").write_text("kept")
        config, tensors = read_directory(folder)
        assert config == {"value": value} and tensors["w"].tolist() == [value] * 3
    assert (folder / "report.html").read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("config", "tensors", "culprit"),
    [
        ({"a": {"b": [0, math.nan]}}, {}, r"config\['a'\]\['b'\]\[1\] is nan"),
        ({"a": (1, 2)}, {}, r"config\['a'\] is a tuple"),
        ({1: 2}, {}, "key 1"),
        ({"a": torch.ones(1)}, {}, r"config\['a'\] is a Tensor"),
        ({}, {"w": 3}, '"w" is a int'),
        ({}, {"w": torch.ones(2, dtype=torch.complex128)}, '"w" is complex128'),
        ({}, {"w": torch.ones(2, device="meta")}, '"w" is no dense tensor'),
        ({}, {"__metadata__": torch.ones(2)}, "__metadata__"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(
    tmp_path: Path, config: Any, tensors: Any, culprit: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=culprit):
        write_directory(tmp_path / "m", config, tensors)
    with pytest.raises((TypeError, ValueError), match=culprit.replace("config", "meta")):
        write_checkpoint(tmp_path / "run", 1, config, tensors)
    assert not (tmp_path / "m").exists() and newest_checkpoint(tmp_path / "run") is None


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_a_directory_of_other_files_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"format": "other"}')
    with pytest.raises(SavedModelError, match="holds other files; save to a new directory"):
        write_directory(tmp_path, CONFIG, SMALL)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    with pytest.raises(SavedModelError, match="is a file; save to a directory"):
        write_directory(tmp_path / name, CONFIG, SMALL)


def test_a_reader_follows_a_model_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pending = tmp_path / "m", [2, 3]
    write_directory(folder, {"value": 1}, {"w": torch.ones(3)})

    def replace_before_reading(where: Path, name: str) -> bytes:
        if name != "config.json" and pending:
            value = pending.pop(0)
            write_directory(folder, {"value": value}, {"w": torch.full((3,), float(value))})
        return files.read_bytes(where, name)

    monkeypatch.setattr(directories, "read_bytes", replace_before_reading)
    config, tensors = read_directory(folder)
    assert config == {"value": 3} and tensors["w"].tolist() == [3.0] * 3


# -------------------------------------------------------------------------------------------- damaged files


@pytest.mark.filterwarnings("ignore::bayeswise.saving.CheckpointWarning")
@pytest.mark.parametrize("save", [save_model, save_checkpoint])
def test_no_flipped_bit_ever_loads_as_other_content(tmp_path: Path, save: Callable) -> None:
    read = save(tmp_path / "saved")
    expected = content(read())
    saved = sorted((tmp_path / "saved").iterdir())
    places = [(file, bit) for file in saved for bit in range(8 * file.stat().st_size)]
    refused = 0
    for file, bit in random.Random(0).sample(places, 2000):
        flip(file, bit)
        refused += _refused_or_same(read, expected)
        flip(file, bit)
    assert refused > 1800  # the rest changes white space or the like
    assert content(read()) == expected


def flip(file: Path, bit: int) -> None:
    with open(file, "r+b") as stream:  # in place: truncating is slow on some disks
        stream.seek(bit // 8)
        [byte] = stream.read(1)
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ 1 << bit % 8]))


def _refused_or_same(read: Callable[[], Any], expected: tuple) -> bool:
    try:
        loaded = read()
    except SavedModelError:
        return True
    if loaded is None:
        return True
    assert content(loaded) == expected
    return False


@pytest.mark.parametrize("name", ["config.json", "tensors.safetensors"])
def test_a_truncated_or_missing_file_is_named(tmp_path: Path, name: str) -> None:
    read = save_model(tmp_path / "m")
    file = tmp_path / "m" / name
    original = file.read_bytes()
    for size in [*range(0, len(original) - 1, 7), len(original) - 2]:
        file.write_bytes(original[:size])
        with pytest.raises(SavedModelError, match=name):
            read()
    file.unlink()
    with pytest.raises(SavedModelError, match=name):
        read()


def edit(folder: Path, change: Callable[[dict], Any]) -> None:
    """Change config.json and sign it again, as an attacker or another program could."""
    file = folder / "config.json"
    body = json.loads(file.read_text())
    body = change(body) or body
    if isinstance(body, dict) and "sha256" in body:
        body["sha256"] = files.json_digest({k: v for k, v in body.items() if k != "sha256"})
    file.write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.pop("version") and None, "format version None"),
        (lambda body: body.update(version=2), "format version 2.*load it with the version that saved it"),
        (lambda body: body.update(version=True), "format version True"),
        (lambda body: body.update(format="other"), "has the format 'other'"),
        (lambda body: body.update(more=1), "does not match its checksum"),
        (lambda body: body.pop("sha256") and None, "does not match its checksum"),
        (lambda body: body.update(config=[]), "one configuration and one tensor file"),
        (lambda body: body.update(files={}), "one configuration and one tensor file"),
        (lambda body: body["files"].update(tensors={}), "one configuration and one tensor file"),
        (
            lambda body: body.update(files={"tensors.safetensors": 3}),
            "tensors.safetensors.* where None were saved",
        ),
        (lambda body: [body], "no JSON object"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(tmp_path: Path, change: Callable, message: str) -> None:
    read = save_model(tmp_path / "m")
    edit(tmp_path / "m", change)
    with pytest.raises(SavedModelError, match=message):
        read()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/hostname", "a/../../x", "..", "", "other.safetensors"]
)
def test_a_path_in_the_config_cannot_leave_the_directory(tmp_path: Path, name: str) -> None:
    read = save_model(tmp_path / "m")
    shutil.copy(tmp_path / "m" / "tensors.safetensors", tmp_path / "outside.safetensors")
    edit(tmp_path / "m", lambda body: body.update(files={name: body["files"]["tensors.safetensors"]}))
    with pytest.raises(SavedModelError, match=re.escape(f"names the file {name!r}")):
        read()


@pytest.mark.parametrize("name", ["config.json", "tensors.safetensors"])
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    read = save_model(tmp_path / "m")
    (tmp_path / "m" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "m" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SavedModelError, match=f"{name}.*leads out of its directory"):
        read()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "bayeswise-model", "version": 1, "version": 1}', "the key 'version' appears twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1', "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("7", "no JSON object"),
    ],
)
def test_only_strict_json_is_read(tmp_path: Path, text: str, message: str) -> None:
    read = save_model(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SavedModelError, match=f"config.json.*{message}"):
        read()


# ---------------------------------------------------------------------------------------------- checkpoints


def test_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "absent") is None
    for step in (100, 200, 1200, 10**10):
        write_checkpoint(tmp_path, step, {"step": step}, {"t": torch.tensor(step)})
        meta, tensors = newest_checkpoint(tmp_path) or ({}, {})
        assert meta == {"step": step} and tensors["t"].item() == step
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-000001200.safetensors",
        "step-10000000000.safetensors",
    ]
    write_checkpoint(tmp_path, 1300, {"step": 1300}, {})  # the run was taken up again before the last one
    assert sorted(p.name[-16:-12] for p in tmp_path.iterdir()) == ["1200", "1300"]


def test_an_unreadable_checkpoint_is_skipped_with_a_warning(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, {"step": step}, SMALL)
    newest = tmp_path / "step-000000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning, match="step-000000002.safetensors"):
        found = newest_checkpoint(tmp_path)
    assert found is not None and content(found) == content(({"step": 1}, SMALL))
    shutil.copy(tmp_path / "step-000000001.safetensors", newest)  # complete, but of another step
    with pytest.warns(CheckpointWarning, match="does not say step 2"):
        assert newest_checkpoint(tmp_path) is not None


@pytest.mark.parametrize("step", [-1, True, 1.0])
def test_a_step_is_a_number_from_zero(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ValueError, match=f"step is {step!r}"):
        write_checkpoint(tmp_path, step, {}, {})


def test_only_our_old_temporaries_of_dead_writers_are_removed(tmp_path: Path) -> None:
    dead, alive, name = 2**22 + 1, os.getppid(), ".step-000000001.safetensors"
    old = time.time() - 10_000_000
    kept = [f"{name}.{dead}-0123456x.tmp", f".other.{dead}-01234567.tmp", f"{name}.{alive}-01234567.tmp"]
    young = f"{name}.{dead}-89abcdef.tmp"
    for stray in [*kept, young, f"{name}.{dead}-01234567.tmp", f"{name}.{os.getpid()}-01234567.tmp"]:
        (tmp_path / stray).touch()
        if stray != young:
            os.utime(tmp_path / stray, (old, old))
    write_checkpoint(tmp_path, 1, {}, SMALL)
    assert {p.name for p in tmp_path.iterdir()} == {*kept, young, "step-000000001.safetensors"}
