"""Trees and configurations come back as they were, or the first difference is named."""

import json
import math
import re
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayeswise.saving import SavedModelError, flatten, from_config, to_config, unflatten

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=100)


# ----------------------------------------------------------------------------------------- trees of tensors


@dataclass(frozen=True)
class Stats:
    joint: Tensor
    inputs: int


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


@dataclass(frozen=True)
class State:
    layers: dict[str, Stats]
    moments: tuple[Tensor, Any]
    noise: Tensor | None


def state(scale: float, inputs: int = 5) -> State:
    stats = Stats(scale * torch.eye(8, dtype=torch.float64), inputs)
    return State({"fc": stats, "enc.proj": stats}, (torch.tensor(scale), Pair(torch.ones(3), None)), None)


def test_a_tree_is_named_by_its_paths_and_comes_back() -> None:
    names = ["layers.fc.joint", "layers.fc.inputs", "layers.enc%2Eproj.joint", "layers.enc%2Eproj.inputs"]
    flat = flatten(state(2.0))
    assert list(flat) == [*names, "moments.0", "moments.1.0"]
    back = unflatten(state(0.0), flat)
    assert isinstance(back, State) and isinstance(back.moments[1], Pair) and back.noise is None
    assert back.layers["enc.proj"].joint[3, 3] == 2.0 and back.layers["fc"].inputs == 5
    assert all(torch.equal(tensor, flat[name]) for name, tensor in flatten(back).items())
    assert list(flatten({"": {"a": torch.ones(1)}, "a": torch.ones(1)})) == ["%.a", "a"]
    assert unflatten(torch.zeros(3), flatten(torch.ones(3))).tolist() == [1.0] * 3


@repeatable
@given(
    st.dictionaries(st.text(".%2E5ab", max_size=4), st.dictionaries(st.text(".%2E", max_size=3), st.just(0)))
)
def test_no_two_paths_share_a_name(keys: dict[str, dict[str, int]]) -> None:
    number = count()
    tree = {k: {inner: torch.tensor(next(number)) for inner in inners} for k, inners in keys.items()}
    flat = flatten(tree)
    assert len(flat) == sum(map(len, keys.values()))
    assert unflatten(tree, flat) == tree


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "layers.fc.joint",
            None,
            'tensor "layers.fc.joint": saved is nothing, expected is torch.float64 (8, 8)',
        ),
        ("noise", torch.ones(3), 'tensor "noise": saved is torch.float32 (3,), expected is nothing'),
        ("moments.0", torch.ones(1), "saved is torch.float32 (1,), expected is torch.float32 ()"),
        ("moments.0", torch.tensor(1), "saved is torch.int64 (), expected is torch.float32 ()"),
        ("layers.fc.inputs", torch.tensor(3), 'number "layers.fc.inputs": saved is 3, expected is 5'),
    ],
)
def test_the_first_difference_is_named(name: str, value: Tensor | None, message: str) -> None:
    flat = flatten(state(2.0)) | {name: value}
    with pytest.raises(SavedModelError, match=re.escape(message)):
        unflatten(state(0.0), {key: tensor for key, tensor in flat.items() if tensor is not None})


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": "text"}}, '"a.b" is a str'),
        ({"a": {1: torch.ones(1)}}, '"a" has the dict key 1'),
        ([], "is a list"),
    ],
)
def test_what_is_no_tree_is_named(tree: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flatten(tree)


# ------------------------------------------------------------------------------------------- configurations


@dataclass(frozen=True)
class Cosine:
    start: float


@dataclass(frozen=True)
class Method:
    rate: Cosine | float
    scales: tuple[Any, ...]
    name: str = "x"
    steps: int | None = None
    drawn: bool = False

    def __post_init__(self) -> None:
        if self.steps == 0:
            raise ValueError("steps is 0")


KNOWN = {"Method": Method, "Cosine": Cosine}


@repeatable
@given(st.floats(), st.integers(), st.text(), st.booleans())
def test_a_configuration_comes_back_exactly(number: float, steps: int, name: str, drawn: bool) -> None:
    method = Method(Cosine(number), (number, (), (1, None, Cosine(0.1))), name, steps or 1, drawn)
    text = json.dumps(to_config(method), allow_nan=False)
    back = from_config(json.loads(text), KNOWN)
    assert repr(back) == repr(method)
    assert type(back.drawn) is bool and type(back.rate.start) is float


def test_dicts_by_string_come_back_and_lists_as_tuples() -> None:
    method = Method({"0": math.inf, "kind": {"2": Cosine(0.1)}}, [1, [np.True_, None]], "x")  # type: ignore[arg-type]
    back = from_config(json.loads(json.dumps(to_config(method), allow_nan=False)), KNOWN)
    assert back.rate == {"0": math.inf, "kind": {"2": Cosine(0.1)}}
    assert back.scales == (1, (True, None)) and type(back.scales[1][0]) is bool
    with pytest.raises(TypeError, match=re.escape("Method.rate has the key 0; a configuration has strings")):
        to_config(Method({0: 1.0}, ()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"kind": "Other"},
            "Other: unknown kind 'Other'; import the module that defines",
        ),
        ({"rate": 1}, "unknown kind None"),
        ({"kind": "dict", "items": 1}, "unknown kind 'dict'"),
        ({"kind": "Cosine", "start": 1.0, "end": 2.0}, 'Cosine has no field "end"'),
        ({"kind": "Cosine"}, 'the field "start" of Cosine is missing'),
        (
            to_config(Method(Cosine(1.0), ())) | {"rate": {"kind": "os.system"}},
            "Method.rate: unknown kind 'os.system'",
        ),
        (to_config(Method(1.0, ())) | {"steps": 0}, "refuses its fields (steps is 0)"),
        ([], "is a list, not an object"),
    ],
)
def test_an_unknown_configuration_is_named(config: Any, message: str) -> None:
    with pytest.raises(SavedModelError, match=re.escape(message)):
        from_config(config, KNOWN)


@pytest.mark.parametrize("value", [torch.ones(1), {1}, torch.float32, Cosine])
def test_a_field_that_is_no_plain_value_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=re.escape("Method.scales[1] is a")):
        to_config(Method(1.0, (1, value)))
