"""Every registered method against NUTS in function space: the error is recorded and may not grow."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.methods import METHODS
from tests.contract import nuts
from tests.contract.nuts import RECORD, TASKS, Chains, Reference, Task

B, I, S = 7, 5, 11  # noqa: E741
GROWTH, CONSTANT = 1.25, 0.02  # an error may be so many times the recorded one, and so much more
STORED = nuts.stored()

tasks = pytest.mark.parametrize("task", TASKS)


# ------------------------------------------------------------------------------------------------ the methods


@tasks
@pytest.mark.parametrize("name", nuts.names())
def test_the_error_does_not_grow(task: str, name: str):
    nuts.row(name)  # says what to add where there is none
    recorded = nuts.recorded()[task].get(name)
    assert recorded is not None, f'method "{name}" has no recorded error on {task}: {RECORD}'
    found = nuts.measured(TASKS[task], name, STORED[task])
    for region, kinds in recorded.items():
        for kind, error in kinds.items():
            if kind != "ratio":  # it has a sign; `std` is its size
                assert found[region][kind] <= GROWTH * error + CONSTANT, (region, kind, found)


def test_every_method_has_a_row_and_a_record():
    for name in METHODS:
        nuts.row(name)
    for task, found in nuts.recorded().items():
        assert set(found) == set(nuts.names()), f"{task}: {RECORD}"


def test_a_method_without_a_row_is_told_what_to_add(monkeypatch):
    monkeypatch.setitem(METHODS, "newcomer", bw.MAP)
    assert "newcomer" in nuts.names()
    with pytest.raises(LookupError, match='"newcomer" is registered.*row.*TABLE.*--record'):
        nuts.row("newcomer")


def test_what_is_recorded_is_sane():
    found = nuts.recorded()
    line = found["regression"]
    for name in ("bali", "map"):
        assert line[name]["data"]["mean"] < 0.5, name  # of the reference's standard deviation
    assert line["map"]["gap"]["ratio"] < -0.5  # one network does not know what it does not know
    assert abs(line["bali"]["gap"]["ratio"]) < 0.5 * abs(line["map"]["gap"]["ratio"])
    assert found["three classes"]["map"]["data"]["variation"] < 0.1


def test_networks_are_small_and_bali_gets_the_prior_of_the_reference():
    for task in TASKS.values():
        assert sum(p.numel() for p in task.network().parameters()) <= 100
    given = nuts.bali(replace(TASKS["regression"], variance=3.0))
    assert given.prior == bw.Isotropic(3.0 / 0.5**2)
    assert isinstance(given.last_prior, bw.Isotropic) and given.last_prior.variance * 0.04 == pytest.approx(3)


# ------------------------------------------------------------------------------------------------- the errors


def test_the_reference_has_no_error_and_a_known_change_has_a_known_one():
    task, reference = TASKS["regression"], STORED["regression"]
    m, s = reference.mean, reference.std
    for region, kinds in nuts.errors(task, m, s, reference).items():
        assert kinds == {"mean": 0.0, "std": 0.0, "ratio": 0.0}, region
    gap = task.regions["gap"][:, None]
    found = nuts.errors(task, m - 0.4 * s * gap, s * (-0.3 * gap.double()).exp(), reference)
    assert found["data"] == found["far"] == {"mean": 0.0, "std": 0.0, "ratio": 0.0}
    assert found["gap"] == pytest.approx({"mean": 0.4, "std": 0.3, "ratio": -0.3}, abs=1e-12)


def test_the_variation_of_labels_is_half_the_absolute_difference():
    task, reference = TASKS["three classes"], STORED["three classes"]
    certain = torch.zeros_like(reference.mean)
    certain[:, 1] = 1.0  # so Σ |p - p0| / 2 = 1 - p0 of this class
    found = nuts.errors(task, certain, reference.std, reference)
    for region, rows in task.regions.items():
        assert found[region]["variation"] == pytest.approx(
            float(1 - reference.mean[rows, 1].mean()), abs=1e-12
        )


# ---------------------------------------------------------------------------------------------- the reference


@tasks
def test_the_chains_of_the_reference_agree(task: str):
    reference = STORED[task]
    assert 0.99 < reference.rhat <= 1.05
    assert reference.ess >= 400  # so a mean on the grid is known to 1 / 20 of a standard deviation
    assert reference.mean.shape == (len(TASKS[task].grid), TASKS[task].network()[-1].out_features)


def test_chains_that_disagree_are_noticed(rng):
    task = TASKS["regression"]
    f = torch.randn(4, 200, len(task.grid), 1, generator=rng, dtype=torch.float64)
    assert nuts.summarised(task, f).rhat < 1.05
    f[0, :, 3] += 1.0  # one chain, at one place of the grid
    apart = nuts.summarised(task, f)
    assert apart.rhat > 1.1 and apart.ess < 100


def test_regions_are_where_they_say():
    line = TASKS["regression"]
    near = torch.cdist(line.grid, line.x).amin(1)
    assert (near[line.regions["data"]] < 0.1).all() and (near[line.regions["far"]] > 0.1).all()
    assert (near[line.regions["gap"]] > 0.1).all() and (line.grid[line.regions["gap"]].abs() < 0.8).all()
    for task in TASKS.values():
        assert torch.stack(list(task.regions.values())).sum(0).max() == 1  # no row in two regions


def linear(rng: torch.Generator) -> Task:
    """A linear regression: its posterior is known."""
    x = torch.randn(B, I, generator=rng, dtype=torch.float64)
    y = x[:, :1] + 0.5 * torch.randn(B, 1, generator=rng, dtype=torch.float64)
    grid = torch.randn(S, I, generator=rng, dtype=torch.float64)
    return Task(x, y, bw.Gaussian(0.25), (nn.Linear(I, 1, bias=False).double(),), 0.2, grid, {})


def test_nuts_finds_the_exact_posterior_of_a_linear_regression(rng):
    task = linear(rng)
    precision = task.x.mT @ task.x / 0.25 + torch.eye(I, dtype=torch.float64) / task.variance
    mean = task.grid @ torch.linalg.solve(precision, task.x.mT @ task.y / 0.25)  # (S, 1)
    variance = (task.grid @ precision.inverse() * task.grid).sum(1, keepdim=True)
    found = nuts.sampled(task, Chains(chains=2, warmup=80, draws=200))
    assert_close_to_exact(found, mean, variance, 0.25)


def assert_close_to_exact(found: Reference, mean: Tensor, variance: Tensor, noise: float) -> None:
    """Means within five standard errors, standard deviations within five of theirs."""
    assert found.rhat < 1.05 and found.ess > 100
    assert ((found.mean - mean).abs() < 5 * (variance / found.ess).sqrt()).all()
    drawn = (found.std.square() - noise) / variance  # of the functions alone
    assert ((drawn - 1).abs() < 5 * (2 / found.ess) ** 0.5).all()


def test_nuts_finds_the_exact_posterior_of_a_softmax(rng):
    x = torch.randn(B, 1, generator=rng, dtype=torch.float64)
    y = (x[:, 0] > 0.2).long()
    grid = torch.linspace(-2, 2, S, dtype=torch.float64)[:, None]
    task = Task(x, y, bw.Categorical(), (nn.Linear(1, 2, bias=False).double(),), 2.0, grid, {})
    side = torch.linspace(-9, 9, 181, dtype=torch.float64)
    w = torch.cartesian_prod(side, side)  # (V, 2), all weights on a lattice
    log_p = torch.log_softmax(x[:, :, None] * w.mT, 1)[torch.arange(B), y].sum(0) - w.square().sum(1) / 4.0
    p = torch.softmax(grid[:, :, None] * w.mT, 1) @ log_p.softmax(0)  # (S, 2)
    found = nuts.sampled(task, Chains(chains=2, warmup=80, draws=200))
    assert found.rhat < 1.05 and found.ess > 100
    assert ((found.mean - p).abs() < 5 * 0.5 / found.ess**0.5).all()  # a probability's std is at most 1/2
    assert (found.mean - p).abs().max() < 0.03


@pytest.mark.slow
@tasks
def test_other_chains_find_the_same_reference(task: str):
    again = nuts.sampled(TASKS[task], Chains(chains=3, draws=250, seed=1))
    assert again.rhat <= 1.05
    for kinds in nuts.errors(TASKS[task], again.mean, again.std, STORED[task]).values():
        assert all(abs(error) < 0.1 for error in kinds.values()), (again.rhat, again.ess, kinds)


# -------------------------------------------------------------------------------------------------- the page


def test_the_page_shows_what_is_recorded():
    page = nuts.PAGE.read_text()
    assert page == nuts.with_tables(page, nuts.tables(nuts.recorded())), f"docs/nuts.md: {RECORD}"


def test_a_table_is_written_between_the_marks():
    found = {"task": {"one": {"here": {"mean": 0.126, "ratio": 0.5}, "there": {"mean": 2.0, "ratio": -0.25}}}}
    table = (
        "**task**\n\n| method | mean, here | mean, there | ratio, here | ratio, there |\n"
        "|---|---|---|---|---|\n| one | 0.13 | 2.00 | +0.50 | -0.25 |"
    )
    page = "A\n<!-- errors -->\nold\n<!-- end -->\nB\n"
    assert nuts.tables(found) == table
    assert nuts.with_tables(page, table) == f"A\n<!-- errors -->\n\n{table}\n\n<!-- end -->\nB\n"
    with pytest.raises(ValueError, match="lost the marks"):
        nuts.with_tables("A\n<!-- end -->\n", table)


@tasks
def test_the_page_says_how_far_the_reference_converged(task: str):
    reference = STORED[task]
    assert f"| {task} | {reference.rhat:.3f} | {reference.ess:.0f} |" in nuts.PAGE.read_text()
