"""What the scripts share: where the data are, and how a result is kept."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import bayeswise as bw
from bayeswise.bench import results
from bayeswise.bench.models import LeakyTanh
from bayeswise.plain import finite

__all__ = ["LeakyTanh", "arguments", "keep", "kept", "mlp", "put_table", "read"]


def mlp(sizes: tuple[int, ...], activation: type[nn.Module]) -> nn.Sequential:
    """A fully connected network."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every script has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("BAYESWISE_DATA")
    parser.add_argument("--data-dir", type=Path, default=default, help="folder of the .npz files")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to append the results to")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def read(options: argparse.Namespace, name: str) -> dict[str, np.ndarray]:
    """One data set."""
    if options.data_dir is None:
        raise SystemExit("say where the data are: --data-dir FOLDER, or BAYESWISE_DATA in the environment")
    file = Path(options.data_dir) / f"{name}.npz"
    if not file.exists():
        raise SystemExit(f"{file} does not exist")
    with np.load(file, allow_pickle=False) as data:
        return dict(data)


def keep(options: argparse.Namespace, line: dict) -> None:
    """Print a result, with what is needed to judge it, and append it to the file."""
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "torch": torch.__version__,
        "bayeswise": bw.__version__,
        "threads": torch.get_num_threads(),
    }
    whole = finite(line | about)
    print(json.dumps(whole), flush=True)
    if options.out:
        results.append(options.out, [whole])


def kept(options: argparse.Namespace) -> list[dict]:
    """The lines that the file has by now."""
    return results.read(options.out) if options.out else []


def put_table(page: Path, rows: Sequence[Sequence[str]], mark: str = "table") -> None:
    """Write a table, its first row the head, between the marks of a page; nothing where it has none."""
    text, begin, end = page.read_text(), f"<!-- begin {mark} -->\n", f"<!-- end {mark} -->"
    if begin not in text:
        return
    head, *body = rows
    table = "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))
    start, stop = text.index(begin) + len(begin), text.index(end)
    page.write_text(f"{text[:start]}\n{table}\n\n{text[stop:]}")


def _commit() -> str:
    run = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return run.stdout.strip() or "unknown"
