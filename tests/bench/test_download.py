"""A data set is rebuilt from its originals as it was, or nothing is left behind and one line says why."""

import ast
import errno
import gzip
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayeswise.bench import download, originals, sources
from bayeswise.bench.datasets import load
from bayeswise.bench.download import fetch
from bayeswise.bench.npz import DataError
from bayeswise.bench.originals import digest
from bayeswise.bench.sources import NOT_REBUILT, SOURCES, Original, Source

PACKAGE = Path(__file__).parents[2] / "src" / "bayeswise"
REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the benchmark's own data are not here")

Answer = bytes | int | Callable[[BaseHTTPRequestHandler], None]
CLOSING = threading.Event()  # lets go of those who wait for an answer that never comes
RNG = np.random.default_rng(11)


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """The client may leave in the middle."""


class Server:
    """Answers on this machine: a body, a status, or whatever a function does."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer.answers.get(self.path, 404)
                if isinstance(answer, int):
                    self.send_error(answer)
                elif isinstance(answer, bytes):
                    respond(self, answer, len(answer))
                else:
                    answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


def respond(handler: BaseHTTPRequestHandler, body: bytes, length: int) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    running = Server()
    CLOSING.clear()
    yield running
    CLOSING.set()
    running.http.shutdown()
    running.http.server_close()


def at_home(source: Source, server: Server, contents: dict[str, bytes]) -> Source:
    """The same source at our own address, which answers with these contents."""
    moved = {}
    for part, original in source.originals.items():
        path = f"/{part}/{original.urls[0].rsplit('/', 1)[1]}"
        server.answers[path] = contents[part]
        moved[part] = replace(original, urls=(server.address.rstrip("/") + path,))
    return replace(source, originals=moved)


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def fails(folder: Path, source: Source, *words: str, timeout: float = 5.0) -> None:
    before = left(folder)
    with pytest.raises(DataError) as error:
        fetch(["foo"], folder, {"foo": source}, timeout=timeout)
    message = str(error.value)
    assert "\n" not in message and ";" in message and left(folder) == before
    for word in words:
        assert word in message, message


# ------------------------------------------------------------------------------------------------ originals


def lines(data: np.ndarray, form: str = "%r", delimiter: str = " ", end: str = "\n") -> bytes:
    return (end.join(delimiter.join(form % v for v in row.tolist()) for row in data) + end).encode()


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


Case = tuple[Source, dict[str, np.ndarray], dict[str, bytes]]


def standard_case(n: int = 7, splits: int = 3) -> Case:
    """Columns stand in another order, and row numbers in exponent form, as in the real files."""
    data = RNG.normal(size=(n, 5))
    order = np.stack([RNG.permutation(n) for _ in range(splits)]).astype(np.int32)
    arrays = {"X": data[:, [1, 2, 4]], "y": data[:, 0], "train_idx": order[:, :5], "test_idx": order[:, 5:]}
    exponent = "%.18e"
    contents = {
        "data": lines(data),
        "target": b"0\n",
        "features": lines(np.array([[1.0], [2], [4]]), exponent),
    }
    for k in range(splits):
        contents[f"train_{k}"] = lines(arrays["train_idx"][k][:, None].astype(float), exponent)
        contents[f"test_{k}"] = lines(arrays["test_idx"][k][:, None])
    source = sources.with_standard_splits("uci_foo.npz", "foo", splits, n, digest(arrays))
    return source, arrays, contents


def spambase_case() -> Case:
    x, y = np.round(RNG.normal(size=(7, 5)), 3), np.array([1, 0, 0, 1, 1, 0, 1], dtype=np.uint8)
    arrays = {"X": x, "y": y}
    content = lines(np.column_stack([x, y]), "%g", ",", "\r\n")
    packed = zipped(**{"spambase.data": content, "spambase.names": b"words"})
    source = Source("cls_foo.npz", SOURCES["spambase"].originals, originals.spambase, 7, digest(arrays))
    known = replace(source.originals["data"], sha256=hashlib.sha256(content).hexdigest())
    return replace(source, originals={"data": known}), arrays, {"data": packed}


def magic_case() -> Case:
    x, y = np.round(RNG.normal(size=(7, 3)), 4), np.array([1, 0, 0, 1, 1, 0, 1], dtype=np.uint8)
    rows = [",".join([*(f"{v:g}" for v in row), "gh"[1 - label]]) for row, label in zip(x, y, strict=True)]
    packed = zipped(**{"magic04.data": "\n".join(rows).encode()})
    source = Source("cls_foo.npz", SOURCES["magic"].originals, originals.magic, 7, digest({"X": x, "y": y}))
    unknown = replace(source.originals["data"], sha256="")
    return replace(source, originals={"data": unknown}), {"X": x, "y": y}, {"data": packed}


def diabetes_case() -> Case:
    x, y = RNG.integers(0, 99, (7, 3), dtype=np.uint8), np.array([1, 0, 0, 1, 1, 0, 1], dtype=np.uint8)
    data = np.column_stack([np.arange(1000, 1007), x[:, :2], y, x[:, 2]]).astype(float)
    content = b'"ID",BMI,Age,Diabetes_binary,Sex\r\n' + lines(data, "%.1f", ",", "\r\n")
    source = replace(SOURCES["diabetes"], file="cls_foo.npz", rows=7, digest=digest({"X": x, "y": y}))
    return source, {"X": x, "y": y}, {"data": content}


def folded_case() -> Case:
    x, y, fold = RNG.normal(size=(7, 3)), RNG.normal(size=7), np.array([2, 0, 1, 1, 0, 2, 0], dtype=np.int8)
    arrays = {"X": x, "y": y, "fold": fold}
    mask = (fold[:, None] == np.arange(3)).astype(int)
    contents = {"data": lines(np.column_stack([x, y]), "%.18e", ","), "mask": lines(mask, "%d", ",")}
    packed = {part: gzip.compress(content) for part, content in contents.items()}
    return sources.with_folds("gp_foo.npz", "foo", 7, digest(arrays)), arrays, packed


def images_case() -> Case:
    arrays = {
        "x_train": RNG.integers(0, 256, (7, 5, 3), dtype=np.uint8), "y_train": np.arange(7, dtype=np.uint8),
        "x_test": RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8), "y_test": np.arange(4, dtype=np.uint8),
    }  # fmt: skip
    known = {part: hashlib.sha256(idx(array)).hexdigest() for part, array in arrays.items()}
    source = sources.with_images("foo.npz", ("http://nowhere/",), known, digest(arrays))
    packed = {part: gzip.compress(idx(array)) for part, array in arrays.items()}
    return replace(source, rows=7), arrays, packed


CASES = [standard_case, spambase_case, magic_case, diabetes_case, folded_case, images_case]


@pytest.mark.parametrize("case", CASES)
def test_originals_become_the_arrays_they_are(case: Callable[[], Case], server: Server, tmp_path: Path):
    source, arrays, contents = case()
    said: list[str] = []
    paths = fetch([], tmp_path, {"foo": at_home(source, server, contents)}, said.append)
    assert paths == [tmp_path / source.file] and left(tmp_path) == [source.file]
    assert said[-1] == f'foo: "{paths[0]}" written'
    with np.load(paths[0], allow_pickle=False) as stored:
        assert sorted(stored.files) == sorted(arrays)
        for key, array in arrays.items():
            assert stored[key].dtype == array.dtype and np.array_equal(stored[key], array), key
    assert len(load("foo", tmp_path).y) >= 7


# ---------------------------------------------------------------------------------------------- what is there


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path):
    source, arrays, contents = standard_case()
    source = at_home(source, server, contents)
    (path,) = fetch(["Foo"], tmp_path, {"foo": source})
    first, asked = path.stat().st_mtime_ns, len(server.asked)
    said: list[str] = []
    assert fetch(["foo", "foo"], tmp_path, {"foo": source}, said.append) == [path]
    assert said == [f'foo: "{path}" is there already'] and len(server.asked) == asked == 9
    assert path.stat().st_mtime_ns == first


def test_a_broken_file_is_replaced_and_another_one_is_kept(server: Server, tmp_path: Path):
    source, arrays, contents = standard_case()
    source = at_home(source, server, contents)
    path = tmp_path / source.file
    path.write_bytes(b"PK broken")
    fetch(["foo"], tmp_path, {"foo": source})
    assert np.array_equal(load("foo", tmp_path).y, arrays["y"])
    other: dict[str, Any] = arrays | {"y": arrays["y"] + 1}
    np.savez(path, **other)
    mine = path.read_bytes()
    fails(tmp_path, source, str(path), "other data", "move it away")
    assert path.read_bytes() == mine


def test_one_that_fails_does_not_stop_the_others(server: Server, tmp_path: Path):
    good, _, contents = folded_case()
    good = at_home(good, server, contents)
    bad = Source("uci_bad.npz", {"data": Original((server.address + "none",))}, originals.spambase, 7, "")
    with pytest.raises(DataError, match="none.* 404"):
        fetch([], tmp_path, {"bad": bad, "foo": good})
    assert left(tmp_path) == ["gp_foo.npz"]


def test_one_that_cannot_be_written_does_not_stop_the_others(server: Server, tmp_path: Path):
    good, _, contents = folded_case()
    good = at_home(good, server, contents)
    (tmp_path / "gp_bad.npz").mkdir()
    blocked = replace(good, file="gp_bad.npz")
    with pytest.raises(DataError, match="gp_bad"):
        fetch([], tmp_path, {"bad": blocked, "foo": good})
    assert "gp_foo.npz" in left(tmp_path)


def test_a_mirror_helps_and_so_does_a_second_try(server: Server, tmp_path: Path):
    source, _, contents = folded_case()
    source = at_home(source, server, contents)
    data = source.originals["data"]
    mirrored = replace(data, urls=(server.address + "gone", *data.urls))
    assert fetch(
        [], tmp_path / "a", {"foo": replace(source, originals=source.originals | {"data": mirrored})}
    )
    answers = iter([503, contents["data"]])
    path = "/data/data.csv.gz"

    def at_second(handler: BaseHTTPRequestHandler) -> None:
        answer = next(answers)
        handler.send_error(answer) if isinstance(answer, int) else respond(handler, answer, len(answer))

    server.answers[path] = at_second
    assert fetch([], tmp_path / "b", {"foo": source})


def test_progress_of_a_large_file_is_said(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "PROGRESS", 1 << 17)
    server.answers["/large.bin"] = bytes(300_000)
    said: list[str] = []
    assert download._body(server.address + "large.bin", said.append, 5.0) == bytes(300_000)
    assert said == ["large.bin: 0 of 0 MB"] * 2


# --------------------------------------------------------------------------------------------------- faults


def slow(handler: BaseHTTPRequestHandler) -> None:
    CLOSING.wait(10.0)


def stalled(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, b"12", 100)
    handler.wfile.flush()
    CLOSING.wait(10.0)


def cut(handler: BaseHTTPRequestHandler) -> None:
    respond(handler, b"12", 100)


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(bytes(1 << 18))


@pytest.mark.parametrize(
    "answer, words",
    [
        (404, ["answers 404"]),
        (500, ["answers 500"]),
        (slow, ["does not answer in time"]),
        (stalled, ["does not answer in time"]),
        (cut, ["broke off after 2 of 100 bytes"]),
        (b"<html>log in first</html>", ["no whole gzip file"]),
        (b"", ["not as expected", "empty"]),
        (gzip.compress(b"1,2\n", mtime=0)[:-3], ["no whole gzip file"]),
        (gzip.compress(b"1,2\n3,x\n", mtime=0), ["not as expected", "changed it"]),
        (gzip.compress(b" \n", mtime=0), ["not as expected", "empty"]),
        (gzip.compress(lines(np.ones((6, 4)), "%r", ","), mtime=0), ["one test fold"]),
        (gzip.compress(lines(np.ones((7, 4)), "%r", ","), mtime=0), ["other values"]),
        (gzip.compress(lines(np.full((7, 4), np.nan), "%r", ","), mtime=0), ["NaN"]),
        (gzip.compress(bytes(70_000), mtime=0), ["unpacks to more than"]),
        (endless, ["larger than"]),
    ],
)  # fmt: skip
def test_a_bad_answer_leaves_nothing_behind(
    answer: Answer, words: list[str], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(download, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(originals, "MOST_BYTES", 1 << 16)
    source, _, contents = folded_case()
    source = at_home(source, server, contents)
    server.answers["/data/data.csv.gz"] = answer
    fails(tmp_path, source, "data.csv.gz", *words, timeout=0.2 if answer in (slow, stalled) else 5.0)
    assert left(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path):
    source, _, _ = spambase_case()
    _, _, other = spambase_case()
    fails(tmp_path, at_home(source, server, other), "SHA-256", "instead of", "spambase.zip")
    empty = {"data": zipped(**{"else": b"1,2"})}
    fails(tmp_path, at_home(source, server, empty), "spambase.data", "spambase.zip")


def test_another_number_of_rows_is_refused(server: Server, tmp_path: Path):
    source, _, contents = folded_case()
    fails(tmp_path, replace(at_home(source, server, contents), rows=8), "7 rows instead of 8")


@pytest.mark.parametrize(
    "part, content", [("train_1", b"0\n9\n1\n2\n3\n"), ("test_0", b"0\n1.5\n"), ("train_0", b"1\n")]
)
def test_row_numbers_that_do_not_fit_are_refused(part: str, content: bytes, server: Server, tmp_path: Path):
    source, _, contents = standard_case()
    fails(tmp_path, at_home(source, server, contents | {part: content}), "data.txt", "not as expected")


def test_images_must_be_whole(server: Server, tmp_path: Path):
    for content in (
        b"",
        b"\0\0\x08",
        b"\0\0\x08\x03\0\0",
        idx(np.zeros((2, 3), np.uint8))[:-1],
        b"\0\0\x0d\x01",
    ):
        with pytest.raises(DataError, match="IDX"):
            originals.idx(content)


def test_nobody_answers(server: Server, tmp_path: Path):
    source = Source("uci_foo.npz", {"data": Original(("http://127.0.0.1:1/x",))}, originals.spambase, 7, "")
    fails(tmp_path, source, "127.0.0.1:1/x", "cannot be reached")
    local = Source(
        "uci_foo.npz", {"data": Original((f"file://{PACKAGE}/py.typed",))}, originals.spambase, 7, ""
    )
    fails(tmp_path, local, "no http or https address")


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing_behind(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source, _, contents = folded_case()
    source = at_home(source, server, contents)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        fails(tmp_path, source, "gp_foo.npz", "No space left on device", "--data-dir")
    assert left(tmp_path) == []
    fetch(["foo"], tmp_path, {"foo": source})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be used .*; give another --data-dir"):
        fetch(["foo"], tmp_path / "file", {"foo": source})


# -------------------------------------------------------------------------------------------------- the table


def test_names_are_understood_or_refused():
    wanted = download._wanted(["Telescope", "diabetes_brfss2015", "wine-red", "magic"], SOURCES)
    assert wanted == ["magic", "diabetes", "wine_red"]
    assert download._wanted([], SOURCES) == list(SOURCES)
    with pytest.raises(DataError, match='"yaht"; did you mean "yacht"'):
        download._wanted(["yaht"], SOURCES)
    for name in NOT_REBUILT:
        with pytest.raises(DataError, match="cannot be rebuilt: .*; copy"):
            download._wanted([name], SOURCES)


def test_every_source_is_complete():
    for name, source in SOURCES.items():
        assert source.file.endswith(".npz") and len(source.digest) == 64, name
        for original in source.originals.values():
            assert all(url.startswith(("https://", sources.FASHION[0])) for url in original.urls)
            assert original.sha256 or not original.urls[0].startswith("http://")
    assert sum(len(SOURCES[name].originals) for name in ("yacht", "protein")) == 43 + 13


def test_the_network_is_used_nowhere_else():
    network = {"urllib.request", "http.client", "socket", "ssl", "ftplib", "requests", "httpx", "aiohttp"}
    users = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            if network & set(names):
                users.add(path.relative_to(PACKAGE).as_posix())
    assert users == {"bench/download.py"}


@needs_real
@pytest.mark.parametrize("name", [name for name in SOURCES if "mnist" not in name])
def test_the_table_describes_the_real_arrays(name: str):
    with np.load(REAL / SOURCES[name].file, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    assert len(arrays["X"]) == SOURCES[name].rows
    assert digest(arrays) == SOURCES[name].digest
    arrays["y"] = arrays["y"].copy()
    arrays["y"][0] += 1
    assert digest(arrays) != SOURCES[name].digest


@needs_real
def test_yacht_is_rebuilt_with_its_standard_splits(server: Server, tmp_path: Path):
    with np.load(REAL / "uci_yacht.npz", allow_pickle=False) as stored:
        real = {key: stored[key] for key in stored.files}
    contents = {"data": lines(np.column_stack([real["X"], real["y"]])), "target": b"6\n"}
    contents["features"] = lines(np.arange(6)[:, None])
    for side in ("train", "test"):
        contents |= {f"{side}_{k}": lines(row[:, None]) for k, row in enumerate(real[f"{side}_idx"])}
    fetch(["yacht"], tmp_path, {"yacht": at_home(SOURCES["yacht"], server, contents)})
    rebuilt, stored = load("yacht", tmp_path), load("yacht", REAL)
    assert np.array_equal(rebuilt.x, stored.x) and np.array_equal(rebuilt.y, stored.y)
    assert all(np.array_equal(a, b) for a, b in zip(rebuilt.train, stored.train, strict=True))
