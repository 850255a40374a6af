"""Invented result lines for the tests of summaries, tables and report."""

import json
from pathlib import Path

import numpy as np


def line(dataset: str = "yacht", split: int = 0, metrics: dict | None = None, **changes) -> dict:
    given = {"task": "uci", "dataset": dataset, "method": "bali", "settings": "paper", "split": split}
    given |= {"n_splits": 3, "seed": 0, "steps": 20000, "draws": 256, "run": "a", "seconds": 190.2}
    given |= {
        "metrics": metrics or {"rmse": 0.7, "ll": -0.8},
        "configuration": {"kind": "BALI", "step_size": 0.3},
    }
    given |= {"versions": {"bayeswise": "0.1.0", "torch": "2.13.0"}, "threads": 1, "commit": "abc1234"}
    return given | changes


def splits(rmse: list[float], ll: list[float], **changes) -> list[dict]:
    pairs, rest = enumerate(zip(rmse, ll, strict=True)), {"n_splits": len(rmse)} | changes
    return [line(split=k, metrics={"rmse": r, "ll": v}) | rest for k, (r, v) in pairs]


def store(folder: Path, lines: list[dict], name: str = "uci") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


def curve(rate: float, last: float = 0.3) -> dict:
    steps = np.array([1, 10, 100, 1000])
    nll = last + 2 * np.exp(-steps * rate)
    shown = {"step": steps, "seconds": steps * 0.01, "train_nll": nll - 0.1, "test_nll": nll}
    return {name: values.tolist() for name, values in shown.items()}
