"""The loop by itself, with a method that only counts: plans, callbacks, checkpoints, positions."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayeswise as bw
from bayeswise.data import LoaderRows, TensorRows
from bayeswise.methods.protocol import Info, Passes, Plan, Steps
from bayeswise.networks import discover
from bayeswise.problem import Problem, Units
from bayeswise.saving import SavedModelError, newest_checkpoint
from bayeswise.training import Checkpoints, EarlyStopping, train

N, B, I, O = 23, 7, 5, 3  # noqa: E741
X = torch.arange(float(N)).repeat(I, 1).T.contiguous()
Y = torch.zeros(N, O)


@dataclass(frozen=True)
class CountState:
    """The rows that each step saw, and a number drawn at each."""

    step: Tensor
    seen: Tensor  # (steps, B)
    drawn: Tensor  # (steps,)


@dataclass(frozen=True)
class Count:
    """No inference: it writes down what the loop gives it."""

    n: int = 10
    passes: bool = False
    standardises = False

    def plan(self, problem: Problem) -> Plan:
        return Passes(self.n) if self.passes else Steps(self.n)

    def init(self, problem: Problem, data, rng: torch.Generator) -> CountState:
        return CountState(torch.tensor(0), torch.full((50, B), -1.0), torch.zeros(50))

    def step(
        self, problem: Problem, state: CountState, batch, rng: torch.Generator
    ) -> tuple[CountState, Info]:
        x, _ = batch
        t = int(state.step)
        state.seen[t, : len(x)] = x[:, 0]
        state.drawn[t] = torch.rand((), generator=rng)
        return CountState(state.step + 1, state.seen, state.drawn), Info(torch.tensor(float(t)))

    def posterior(self, problem, state, data):
        return int(state.step)


def problem() -> Problem:
    network = discover(nn.Linear(I, O), X)
    return Problem(network, bw.Gaussian(), N, Units.identity(O, torch.float32, network.device))


def run(method=None, rows=None, **options) -> CountState:
    rows = rows or TensorRows(X, Y, B)
    return train(method or Count(), problem(), rows, options.pop("seed", 0), progress=False, **options)


class Stop(Exception):
    pass


def test_steps_go_through_reshuffled_epochs():
    state = run()
    rows = state.seen[:10].int()
    assert int(state.step) == 10
    for epoch in (rows[:3], rows[3:6], rows[6:9]):  # three full batches of 23 rows
        assert len(set(epoch.flatten().tolist())) == 3 * B
    assert rows[:3].tolist() != rows[3:6].tolist()
    assert not torch.equal(run(seed=1).seen, state.seen) and torch.equal(run().seen, state.seen)
    assert not torch.equal(run(seed=1).drawn, state.drawn) and torch.equal(run().drawn, state.drawn)


def test_passes_have_every_row_once_and_in_order():
    state = run(Count(2, passes=True))
    assert int(state.step) == 8  # two passes of four batches, the last of them short
    for first in (0, 4):
        seen = state.seen[first : first + 4].flatten()
        assert seen[seen >= 0].tolist() == list(range(N))


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 4, 7])
def test_resume_from_every_position(passes: bool, loader: bool, stop: int, tmp_path):
    def rows():
        data = DataLoader(TensorDataset(X, Y), B, shuffle=not passes)
        return LoaderRows(data, lambda x, y: (x, y)) if loader else TensorRows(X, Y, B)

    method = Count(2 if passes else 8, passes)
    whole = run(method, rows())

    def halt(progress) -> None:
        if progress.step == stop + 1:
            raise Stop

    folder = Checkpoints(tmp_path, every=1)
    with pytest.raises(Stop):
        run(method, rows(), checkpoints=folder, callbacks=[halt])
    found = newest_checkpoint(tmp_path)
    assert found is not None and found[0]["step"] == stop
    resumed = run(method, rows(), checkpoints=folder)
    assert torch.equal(resumed.seen, whole.seen) and torch.equal(resumed.drawn, whole.drawn)


def test_a_finished_run_is_not_run_again(tmp_path):
    first, steps = run(checkpoints=Checkpoints(tmp_path)), []
    again = run(checkpoints=Checkpoints(tmp_path), callbacks=[lambda p: steps.append(p.step)])
    assert steps == [] and torch.equal(again.seen, first.seen)


def test_checkpoints_are_written_every_so_many_steps_and_at_the_end(tmp_path):
    written: list[list[str]] = []
    look = lambda p: written.append(sorted(f.name[5:14] for f in tmp_path.glob("step-*")))  # noqa: E731
    run(checkpoints=Checkpoints(tmp_path, every=4), callbacks=[look])
    assert written[3] == [] and written[4] == ["000000004"] and written[9] == ["000000004", "000000008"]
    assert sorted(f.name[5:14] for f in tmp_path.glob("step-*")) == ["000000008", "000000010"]


def test_checkpoints_are_written_after_so_many_seconds(tmp_path):
    written: list[int] = []
    look = lambda p: written.append(len(list(tmp_path.glob("step-*"))))  # noqa: E731
    run(checkpoints=Checkpoints(tmp_path, every=10**6, seconds=0.0), callbacks=[look])
    assert written[:3] == [0, 1, 2]


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path):
    run(checkpoints=Checkpoints(tmp_path), identity={"seed": 0, "rows": 23})
    with pytest.raises(SavedModelError, match="another rows: 23 there, 24 here; use another folder"):
        run(checkpoints=Checkpoints(tmp_path), identity={"seed": 0, "rows": 24})


def test_of_another_method_the_settings_that_differ_are_named(tmp_path):
    run(checkpoints=Checkpoints(tmp_path), identity={"method": {"kind": "A", "steps": 3, "rate": 0.5}})
    with pytest.raises(SavedModelError, match=r"another method: \{'steps': 3\} there, \{'steps': 4\} here"):
        run(checkpoints=Checkpoints(tmp_path), identity={"method": {"kind": "A", "steps": 4, "rate": 0.5}})


def test_callbacks_see_every_step_and_may_end_the_run():
    seen = []

    def watch(progress) -> bool:
        seen.append((progress.step, progress.total, float(progress.info.log_lik), progress.posterior()))
        return progress.step == 3

    state = run(callbacks=[watch])
    assert seen == [(1, 10, 0.0, 1), (2, 10, 1.0, 2), (3, 10, 2.0, 3)] and int(state.step) == 3


def test_every_callback_is_called_also_when_an_earlier_one_ends_the_run():
    called = []
    run(callbacks=[lambda p: True, lambda p: called.append(p.step)])
    assert called == [1]


@pytest.mark.parametrize("first", [[-3.0, -2.0], [float("nan"), -2.0], [-3.0, float("nan")]])
def test_early_stopping_ends_after_its_patience(first: list[float]):
    values = iter([*first, -2.5, -2.4, -1.0, -1.1, -1.2, float("nan")])

    class Said:
        def __init__(self, value: float) -> None:
            self.value = value

        def predict(self, x, n) -> "Said":
            assert n == 32
            return self

        def log_prob(self, y) -> Tensor:
            return torch.tensor([self.value, self.value])

    @dataclass(frozen=True)
    class Told(Count):
        def posterior(self, problem, state, data):
            return Said(next(values))

    stopping = EarlyStopping(X, Y, every=2, patience=3)
    state = run(Told(40), callbacks=[stopping])
    assert int(state.step) == 16  # best at the fifth look, three looks without improvement
    assert [step for step, _ in stopping.history] == list(range(2, 17, 2))
    np.testing.assert_equal([value for _, value in stopping.history[:2]], first)


def test_a_look_that_is_no_number_is_saved_as_none(tmp_path):
    class Looks:
        def __init__(self) -> None:
            self.history = [(1, float("nan"), {"a": [float("inf"), 2.0]})]

        def __call__(self, progress) -> None:
            pass

    where = Checkpoints(tmp_path / "run")
    run(Count(3), callbacks=[Looks()], checkpoints=where)
    again = Looks()
    run(Count(3), callbacks=[again], checkpoints=where)
    assert again.history == [(1, None, {"a": [None, 2.0]})]


def test_how_often_is_at_least_once():
    with pytest.raises(ValueError, match="every must be at least 1 and seconds not negative, not 0 and 60"):
        Checkpoints("folder", every=0)
    with pytest.raises(ValueError, match="every, patience and draws must be at least 1, not 0, 5 and 32"):
        EarlyStopping(X, Y, every=0)


def test_early_stopping_with_a_real_method():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, I, generator=rng, dtype=torch.float64)
    y = x[:, :1] + 0.1 * torch.randn(60, 1, generator=rng, dtype=torch.float64)
    stopping = EarlyStopping(x[40:], y[40:], every=5, patience=2)
    model = nn.Linear(I, 1).double()
    bw.fit(model, (x[:40], y[:40]), bw.Gaussian(), bw.BALI(steps=200), callbacks=[stopping], progress=False)
    assert 3 <= len(stopping.history) < 40 and stopping.history[0][1] > -1


def test_the_progress_bar_writes_to_standard_error_only(capsys):
    train(Count(3), problem(), TensorRows(X, Y, B), 0, progress=True)
    assert capsys.readouterr().out == ""


def test_train_and_eval_modes_come_back():
    task = problem()
    task.network.module.train()
    modes = []
    train(
        Count(2), task, TensorRows(X, Y, B), 0, False, [lambda p: modes.append(task.network.module.training)]
    )
    assert modes == [False, False] and task.network.module.training
