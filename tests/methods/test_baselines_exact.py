"""Exact numbers inside one step of the methods that follow gradients: divergence, noise, shapes of masks."""

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.methods.gradient import Descent
from bayeswise.methods.mc_dropout import Place
from bayeswise.networks import discover, evaluating
from bayeswise.priors import ScaleMixture
from bayeswise.problem import Problem, Units

B, I, O, T = 7, 5, 3, 4  # noqa: E741
FLOOR = 1e-6 * torch.eye(O, dtype=torch.float64)  # of the noise


@pytest.fixture(autouse=True)
def seeded():
    """The starting weights of modules that tests build are always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem_of(model: nn.Module, x: Tensor, likelihood: bw.Gaussian, members: int | None = None) -> Problem:
    with evaluating(model):
        network = discover(model, x if members is None else x[0])
    units = Units.identity(network.outputs, x.dtype, network.device)
    return Problem(network, likelihood, x.shape[-2], units, members)


# ------------------------------------------------------------------------------------------ Bayes by Backprop


def gradients(model: nn.Module, forward, prior: ScaleMixture, count: int) -> Tensor:
    """Of means and of ρ, one row for each of so many noises of one step: (count, 2P)."""
    x, y = random(B, I, seed=1), random(B, O, seed=2)
    xs, ys = x.expand(count, -1, -1), y.expand(count, -1, -1)
    problem, rng = problem_of(model, xs, bw.Gaussian(0.25), count), torch.Generator().manual_seed(4)
    method = bw.BayesByBackprop(prior=prior, forward=forward, initial_std=0.2)
    state = method.init(problem, TensorRows(xs, ys, B, 1), rng)
    state, _ = method.step(problem, state, (xs, ys), rng)
    return torch.cat([state.averages.first["mean"], state.averages.first["rho"]], -1)


def test_the_divergence_from_a_mixture_is_taken_at_a_draw_where_every_layer_draws_its_outputs():
    model = nn.Sequential(nn.Linear(I, 4), nn.Tanh(), nn.Linear(4, O)).double()
    forms, count = (bw.LocalReparametrisation(), bw.WeightNoise()), 2000
    local, weight = (gradients(model, form, ScaleMixture(), count) for form in forms)
    error = ((local.var(0) + weight.var(0)) / count).sqrt()
    assert float(((local.mean(0) - weight.mean(0)) / error).abs().max()) < 4.5


# -------------------------------------------------------------------------------------------------- the noise


def stepped(method, x: Tensor, targets: list[Tensor]) -> tuple[list[Tensor], Descent]:
    """Residuals before every step of a linear model on all rows, and the state after the last."""
    problem, rng = problem_of(nn.Linear(I, O).double(), x, bw.Gaussian()), torch.Generator().manual_seed(0)
    state, residuals = method.init(problem, TensorRows(x, targets[0], B), rng), []
    for y in targets:
        residuals.append(y - x @ state.params["weight"].detach().T - state.params["bias"].detach())
        state, _ = method.step(problem, state, (x, y), rng)
    return residuals, state


@pytest.mark.parametrize("method", [bw.MAP(steps=9), bw.MCDropout(0.0, steps=9)])
def test_the_noise_of_the_first_step_is_that_of_its_residuals(method):
    (r,), state = stepped(method, random(B, I, seed=1), [random(B, O, seed=2)])
    torch.testing.assert_close(state.noise, r.T @ r / B + FLOOR, rtol=1e-10, atol=1e-12)


def test_the_first_steps_count_alike_for_the_noise():
    targets = [random(B, O, seed=seed) for seed in (2, 3, 4)]
    residuals, state = stepped(bw.MAP(steps=9), random(B, I, seed=1), targets)
    expected = sum((r.T @ r / B for r in residuals), torch.zeros(O, O)) / 3 + FLOOR
    torch.testing.assert_close(state.noise, expected, rtol=1e-10, atol=1e-12)


def test_the_noise_of_later_steps_moves_by_a_fiftieth():
    targets = [random(B, O, seed=seed) for seed in range(80)]
    residuals, state = stepped(bw.MAP(steps=80), random(B, I, seed=1), targets)
    expected = torch.eye(O, dtype=torch.float64)
    for t, r in enumerate(residuals):
        expected = expected + max(1 / 50, 1 / (t + 1)) * (r.T @ r / B + FLOOR - expected)
    torch.testing.assert_close(state.noise, expected, rtol=1e-10, atol=1e-12)


# -------------------------------------------------------------------------------------------- shapes of masks


@pytest.mark.parametrize(
    "one, more, shared",
    [
        ((4, 2), (4, 0), (1, 2)),  # rows joined with times
        ((1, 2), (1, 0), (1, 2)),
        ((4, 1, 2), (0, 1, 0), (4, 1, 2)),  # rows behind times
        ((3, 2), (0, 0), (3, 2)),  # no rows at all
    ],
)
def test_a_mask_that_rows_share_has_one_place_where_rows_are(one, more, shared):
    assert Place("0:mask", 0.1, one, more).shared == shared


def test_a_mask_for_every_row_has_all_its_places():
    assert Place("0:mask", 0.1, (4, 2), (4, 0)).shape(B) == (4 * B, 2)


class Joined(nn.Module):
    """Times (B, T, 2) become rows of their own where the mask acts."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.4), nn.Linear(2, O)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(x.reshape(-1, 2))).reshape(len(x), T, O).sum(1)


def test_times_that_are_joined_with_rows_share_a_mask_too():
    x, model = random(B, T, 2), Joined().double()
    problem = problem_of(model, x, bw.Gaussian(0.25))
    with evaluating(model):
        (place,) = bw.MCDropout().places(problem, x)
    assert (place.one, place.more) == ((T, 2), (T, 0))
    fitted = bw.fit(model, (x, random(B, O)), bw.Gaussian(0.25), bw.MCDropout(steps=2), progress=False)
    assert fitted.sample(11)["drop:mask"].shape == (11, 1, 2)
