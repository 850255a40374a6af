"""Laplace: what a fit will take, against what its tensors do take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.memory import amount, free_bytes
from bayeswise.networks import discover
from bayeswise.problem import Problem, Units

STRUCTURES = [bw.Kronecker(), bw.Diagonal(), bw.Full(), bw.LowRank(5)]
OUTPUTS = 10


def mlp() -> tuple[nn.Module, Tensor]:
    layers = (nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, OUTPUTS))
    return nn.Sequential(*layers), torch.randn(256, 20, generator=torch.Generator().manual_seed(0))


def cnn() -> tuple[nn.Module, Tensor]:
    features = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, groups=2), nn.ReLU())
    rng = torch.Generator().manual_seed(0)
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(32, OUTPUTS)), torch.randn(
        64, 1, 12, 12, generator=rng
    )


class Sentences(nn.Module):
    """A table of words, of which a row has few, and norms of positions and of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.hidden = nn.Embedding(60, 8), nn.LayerNorm(8), nn.Linear(8, 12)
        self.batch, self.last = nn.BatchNorm1d(12), nn.Linear(12, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(self.layer(self.words(x))).tanh().mean(1)
        return self.last(self.batch(h).tanh())


def sentences() -> tuple[nn.Module, Tensor]:
    return Sentences(), torch.randint(60, (256, 6), generator=torch.Generator().manual_seed(0))


def peak(run: Callable[[], Any]) -> int:
    """The most bytes held at one time beyond those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as done:
        run()
    seen: Any = done
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def size(tensors: dict[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())


@pytest.mark.parametrize("make", [mlp, cnn, sentences])
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: s.word)
@pytest.mark.parametrize("subset", [None, "last"])
def test_the_estimate_is_what_the_tensors_take(make, structure, subset, monkeypatch):
    """State and posterior to a few numbers, a step and the most at one time within a factor of two."""
    monkeypatch.setattr("bayeswise.methods.laplace.require_trained", lambda *_: None)
    monkeypatch.setattr("bayeswise.methods.evidence.ROUNDS", 3)  # more take time, not memory
    monkeypatch.setattr("bayeswise.methods.laplace.doubted", lambda found, *_: found)  # 64 rows, 4 MB
    model, x = make()
    y = torch.randint(OUTPUTS, (len(x),), generator=torch.Generator().manual_seed(1))
    method = bw.Laplace(structure=structure, subset=subset, precision=bw.Evidence(shared=True))
    found = method.estimate_memory(model, x)
    units = Units.identity(OUTPUTS, torch.float32, torch.device("cpu"))
    problem = Problem(discover(model, x), bw.Categorical(), len(x), units)
    data, rng = TensorRows(x, y, len(x)), torch.Generator().manual_seed(0)
    state = method.init(problem, data, rng)
    assert found.state == pytest.approx(size(state.sums), abs=100)  # counts of rows
    step = peak(lambda: method.step(problem, state, (x, y), rng))
    assert step / 2 < found.step < 2 * step
    for _ in range(structure.passes - 1):
        state, _ = method.step(problem, state, (x, y), rng)
    made: list[Any] = []
    finish = peak(lambda: made.append(method.posterior(problem, state, data)))
    assert found.posterior == pytest.approx(size(made[0].weights.tensors()), rel=0.03)
    whole = found.state + max(step, finish)
    assert whole / 2 < found.peak < 2 * whole
    assert found.weights == sum(view.size for view in made[0].problem.network.layers)


@pytest.mark.parametrize("structure", [bw.Kronecker(), bw.Diagonal()], ids=lambda s: s.word)
def test_a_large_table_of_words_is_never_held_for_every_row(structure, monkeypatch):
    """A step and a prediction take a few times the table, not rows x classes x words."""
    monkeypatch.setattr("bayeswise.methods.laplace.require_trained", lambda *_: None)
    words = 20_000
    model = nn.Sequential(nn.Embedding(words, 8), nn.LayerNorm(8), nn.Flatten(), nn.Linear(48, OUTPUTS))
    x = torch.randint(words, (64, 6), generator=torch.Generator().manual_seed(0))
    data, table = (x, torch.arange(64) % OUTPUTS), 8 * 8 * words  # bytes in float64
    method, made = bw.Laplace(structure=structure, precision=1.0), []
    assert method.estimate_memory(model, x).peak < 12 * table
    fitted = peak(lambda: made.append(bw.fit(model, data, bw.Categorical(), method, progress=False)))
    assert fitted < 12 * table  # 64 x 10 x the table were 640 times as much
    assert peak(lambda: made[0].predict(x).mean) < 15 * table


def test_a_smaller_batch_and_fewer_columns_take_less():
    model, x = cnn()
    large, small = (bw.Laplace().estimate_memory(model, x, batch_size=b) for b in (64, 16))
    assert 3.5 * small.step < large.step <= 4 * small.step  # few rows of a layer are held for several columns
    assert large.state == small.state
    drawn = bw.Laplace(curvature=bw.MonteCarloFisher()).estimate_memory(model, x)
    assert drawn.step < large.step
    trained = bw.Laplace(first=bw.MAP(), structure=bw.Diagonal()).estimate_memory(model, x)
    assert trained.state == 4 * 4 * sum(p.numel() for p in model.parameters())
    assert bw.Laplace().estimate_memory(model, x, select=["0"]).weights == 26 * 6


def test_advice_names_what_has_room():
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    x = torch.zeros(8, 784)
    weights = 785 * 256 + 257 * 256 + 257 * 10
    full = bw.Laplace(structure=bw.Full()).estimate_memory(model, x, free=2 * 10**9)
    assert full.state == 8 * weights**2 and full.posterior > 1e12
    assert "full needs 4.06 TB, 2 GB are free and has more than limit=20000 weights" in full.advice
    assert "use Kronecker() (" in full.advice and "Diagonal() (" in full.advice
    assert 'subset="last" (' in full.advice  # 2,570 weights
    assert str(full).startswith("Full(limit=20000) of 269322 weights: ")
    kronecker = bw.Laplace().estimate_memory(model, x, free=2 * 10**9)
    assert kronecker.advice == "" and "2 GB free" in str(kronecker)
    tight = bw.Laplace().estimate_memory(model, x, free=10**7)
    assert "Kronecker needs" in tight.advice and 'subset="last" (' in tight.advice
    assert "Kronecker() (" not in tight.advice
    none = bw.Laplace(subset="last").estimate_memory(model, x, free=10)
    assert none.advice.endswith("use smaller layers or fewer rows a batch")


def test_amounts_and_free_memory():
    assert [amount(n) for n in (12, 3_400, 5_600_000, 288 * 10**9)] == [
        "12 bytes",
        "3.4 kB",
        "5.6 MB",
        "288 GB",
    ]
    free = free_bytes(torch.device("cpu"))
    assert free is None or free > 10**6
    assert free_bytes(torch.device("meta")) is None
