"""What BALI chooses from the training rows alone, and how its choices reach the posterior."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.linalg import NumericalError
from bayeswise.methods import rehearsals
from bayeswise.methods.accounts import words
from bayeswise.methods.bali_state import of_best
from bayeswise.methods.choosing import clearly_best, largest, worth_it
from bayeswise.methods.mean_update import MeanUpdate
from bayeswise.methods.members import each
from bayeswise.methods.rehearsals import Draft, _tempered, raced_shares
from bayeswise.methods.tuning import Tuning
from bayeswise.methods.updates import NaturalUpdate
from bayeswise.training import train
from bayeswise.trials import HeldOut
from bayeswise.weights import Layerwise, Mixture
from tests.methods.judged import Judged

I, N = 4, 60  # noqa: E741
SHORT = Tuning(lengths=(40,), small_members=2, race=40, step_sizes=(0.5, 1.0, 0.25), straight_shares=())


def data(noise: float = 0.1, n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, I, generator=rng, dtype=torch.float64)
    return x, x[:, :1].sin() + noise * torch.randn(n, 1, generator=rng, dtype=torch.float64)


def net(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(I, hidden), nn.Tanh(), nn.Linear(hidden, 1)).double()


def fit(x: Tensor, y: Tensor, method: Any, likelihood: Any = None, **options: Any) -> bw.Posterior:
    return bw.fit(net(), (x, y), likelihood or bw.Gaussian(), method, progress=False, **options)


# ---------------------------------------------------------------------------- settings of each member


@pytest.mark.parametrize("update", [NaturalUpdate(), MeanUpdate()], ids=repr)
def test_members_with_settings_of_their_own_are_runs_with_those_settings(update):
    x, y = data()
    shares, sizes = (1.0, 0.2), (0.5, 1.5)
    both = fit(
        x.expand(2, -1, -1),
        y.expand(2, -1, -1),
        bw.BALI(steps=20, effective=shares, step_size=sizes, update=update),
        members=2,
    )
    for k in range(2):
        alone = bw.BALI(steps=20, effective=shares[k], step_size=sizes[k], update=update)
        same = fit(x.expand(2, -1, -1), y.expand(2, -1, -1), alone, members=2)
        for name, q in both.weights.layers.items():
            wanted = same.weights.layers[name]
            torch.testing.assert_close(q.factor[k], wanted.factor[k], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(q.dof[k], wanted.dof[k])


def test_settings_repeat_for_every_start():
    problem = HeldOut.of(*prepared(*data()), 0, False, None).problem
    assert each((1.0, 3.0), replace(problem, members=4)).tolist() == [1.0, 3.0, 1.0, 3.0]
    assert each((1.0, 3.0), replace(problem, members=4), groups=2).shape == (4, 1, 1)
    assert each(0.5, problem) == 0.5
    with pytest.raises(ValueError, match="3 settings for 4 members"):
        each((1.0, 2.0, 3.0), replace(problem, members=4))


@pytest.mark.parametrize("settings", [{"effective": ()}, {"step_size": (0.5, -1.0)}, {"temperature": 0.0}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        bw.BALI(**settings)


# ---------------------------------------------------------------------------- temperature


@pytest.mark.parametrize("starts", [1, 3])
def test_the_temperature_scales_the_noise_and_leaves_the_means(starts):
    x, y = data()
    plain = fit(x, y, bw.BALI(steps=20, members=starts))
    warm = fit(x, y, bw.BALI(steps=20, members=starts, temperature=0.25))
    parts = (lambda p: p.weights.parts) if starts > 1 else (lambda p: (p.weights,))
    for before, after in zip(parts(plain), parts(warm), strict=True):
        torch.testing.assert_close(after.noise(), 0.25 * before.noise(), rtol=1e-12, atol=0)
        for name in before.layers:
            torch.testing.assert_close(after.layers[name].mean, before.layers[name].mean)
        torch.testing.assert_close(after.layers["0"].factor, before.layers["0"].factor)


def test_without_noise_the_temperature_scales_every_layer():
    x, y = data()
    labels = (y[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(I, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    made = [
        bw.fit(model, (x, labels), bw.Categorical(), bw.BALI(steps=20, temperature=t), progress=False)
        for t in (1.0, 4.0)
    ]
    for name in ("0", "2"):
        before, after = (p.weights.layers[name] for p in made)
        torch.testing.assert_close(after.noise, 4.0 * before.noise, rtol=1e-12, atol=0)


def test_splits_have_temperatures_of_their_own():
    x, y = data()
    wide = (x.expand(2, -1, -1), y.expand(2, -1, -1))
    plain = fit(*wide, bw.BALI(steps=10), members=2)
    warm = fit(*wide, bw.BALI(steps=10, temperature=(2.0, 0.5)), members=2)
    ratio = (warm.weights.noise() / plain.weights.noise()).flatten()
    torch.testing.assert_close(ratio, torch.tensor([2.0, 0.5], dtype=torch.float64))


# ---------------------------------------------------------------------------- held out


def prepared(x: Tensor, y: Tensor, **options: Any) -> tuple[Any, TensorRows]:
    posterior = fit(x, y, bw.BALI(steps=1), **options)
    y = posterior.problem.units.to_network(y)
    return posterior.problem, TensorRows(x, y, 16, len(posterior.problem.lead))


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("folds", [1, 2])
def test_rows_are_parted_without_overlap(splits, folds):
    lead = () if splits is None else (splits,)
    x = torch.arange(20.0).expand(*lead, 20)[..., None]
    rows = TensorRows(x, 10 * x, 8, len(lead))
    part, (held, targets) = rows.parted(folds, 5, seed=3)
    members = (splits or 1) * folds
    x, held = part.x.reshape(members, -1), held.reshape(members, -1)
    assert x.shape == (members, 15) and held.shape == (members, 5)
    assert part.lead == (1 if lead or folds > 1 else 0) and torch.equal(part.y, 10 * part.x)
    assert torch.equal(targets.reshape(members, -1), 10 * held)
    for own, other in zip(x, held, strict=True):
        assert sorted(own.tolist() + other.tolist()) == list(range(20))
    if folds == 2:
        first, second = held[0].tolist(), held[-1].tolist()
        assert not set(first) & set(second)


@pytest.mark.parametrize("splits", [None, 2])
def test_the_held_out_likelihood_is_that_of_the_rows_that_were_left_out(splits):
    x, y = data()
    if splits:
        x, y = torch.stack([x, x + 0.1]), torch.stack([y, -y])
    problem, rows = prepared(x, y, **({} if splits is None else {"members": splits}))
    trials = HeldOut.of(problem, rows, 0, False, None)
    posterior = trials.trial(bw.BALI(steps=20), "trying").posterior
    held_x, held_y = trials.held
    wanted = posterior.predict(held_x, 64).log_prob(trials.problem.units.to_user(held_y))  # (F · S, 6)
    wanted = torch.stack([wanted[s :: splits or 1].flatten() for s in range(splits or 1)])  # (S, 24)
    torch.testing.assert_close(trials.log_lik(posterior), wanted if splits else wanted[0])
    assert trials.n == 24 and trials.members == 4 * (splits or 1) and posterior.problem.n == 54


def test_few_rows_and_streams_are_not_parted():
    x, y = data(n=8)
    problem, rows = prepared(x, y)
    assert HeldOut.of(problem, rows, 0, False, None) is None
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=16)
    posterior = bw.fit(net(), loader, bw.Gaussian(), bw.BALI(tuning=SHORT), progress=False)
    assert "no rows could be held out" in posterior.summary()


# ---------------------------------------------------------------------------- choices


def test_everything_open_is_chosen_and_said():
    x, y = data()
    posterior = fit(x, y, bw.BALI(tuning=SHORT))
    assert isinstance(posterior.weights, Mixture) and len(posterior.weights.parts) == 2
    summary = posterior.summary()
    for name in ("share of rows that count", "step size", "40 steps and temperature"):
        chosen = rf"^{name} [\d.]+( and [\d.]+ in turn)? chosen by the log-likelihood of 24 held-out rows"
        assert re.search(chosen, summary, re.M)
    assert "40 steps of 2 starts" in summary


def test_the_two_best_shares_take_turns_in_every_split():
    """Split 0 ranks 16, 4, 1; split 1 has no clear winner, so the first, and after it 4."""
    found = torch.tensor(
        [[[-3.0, -3.0], [-1.0, -1.2]], [[-2.0, -2.0], [-0.9, -1.2]], [[-1.0, -1.0], [-5.0, -5.0]]]
    )
    method = bw.BALI(members=3, tuning=Tuning(shares=(1.0, 4.0, 16.0)))
    trials: Any = Judged(found, members=6)  # three parts of two splits
    draft, note = raced_shares(Draft(method), (1.0, 4.0, 16.0), trials)
    assert draft.shares == ((16.0, 1.0), (4.0, 4.0))
    assert note.startswith(
        "share of rows that count 1 to 16 and 4 in turn chosen by the log-likelihood of 4 held-out"
    )
    assert draft.run(3, 2).effective == (16.0, 1.0, 4.0, 4.0, 16.0, 1.0)
    assert draft.run(2, 6).effective == (16.0, 1.0, 16.0, 1.0, 16.0, 1.0, *[4.0] * 6)
    assert draft.run(1, 2).effective == (16.0, 1.0)
    assert Draft(method, (4.0, 4.0)).run(4, 1).effective == 4.0
    assert Draft(method, (4.0, 1.0)).run(3, 1).effective == (4.0, 1.0, 4.0)


def test_half_of_the_starts_have_a_wider_prior():
    draft = Draft(bw.BALI(members=4), (1.0, 4.0), (1.0, 10.0))
    assert draft.run(4, 1).prior_scale == (1.0, 1.0, 10.0, 10.0)
    assert draft.run(4, 1).effective == (1.0, 4.0, 1.0, 4.0)
    assert draft.run(2, 3).prior_scale == (1.0,) * 3 + (10.0,) * 3
    assert draft.run(1, 3).prior_scale == 1.0
    assert Draft(bw.BALI(prior_scale=3.0)).run(2, 1).prior_scale == 3.0


@pytest.mark.parametrize("update", [NaturalUpdate(), MeanUpdate()], ids=repr)
def test_a_prior_scale_is_a_wider_prior(update):
    """Of two members the second has the prior that is three times as wide: as if it had been given."""
    x, y = data()
    wide = (x.expand(2, -1, -1), y.expand(2, -1, -1))
    both = fit(*wide, bw.BALI(steps=20, prior_scale=(1.0, 3.0), update=update), members=2).weights
    for k, variance in enumerate((2.0, 6.0)):
        own = bw.BALI(steps=20, prior=bw.FanIn(variance), update=update)
        scaled = bw.BALI(steps=20, prior=bw.FanIn(2.0), prior_scale=(1.0, 3.0), update=update)
        found, wanted = (fit(*wide, method, members=2).weights for method in (scaled, own))
        for name, q in found.layers.items():
            torch.testing.assert_close(q.mean[k], wanted.layers[name].mean[k], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(q.noise[k], wanted.layers[name].noise[k], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(both.layers["0"].mean[0], both.layers["0"].mean[1])


def test_what_was_given_is_not_said_to_be_chosen():
    x, y = data()
    lengths = replace(SHORT, lengths=(20, 40), long_rows=1, steep=0.0, step_sizes=(0.5,))
    posterior = fit(x, y, bw.BALI(effective=0.5, members=1, temperature=1.0, tuning=lengths))
    assert re.search(r"^(20|40) steps chosen by the log-likelihood", posterior.summary(), re.M)


def test_a_choice_can_be_written_down_again():
    """`effective=(a, b)` with four members: the starts take turns, as they do when it is chosen."""
    x, y = data()
    again = bw.BALI(steps=30, step_size=0.5, effective=(1.0, 0.25), members=4, temperature=0.5)
    parts: Any = fit(x, y, again).weights
    assert [round(float(part.layers["0"].dof), 6) for part in parts.parts] == [60, 15, 60, 15]


def test_starts_have_the_share_of_their_turn():
    x, y = data()
    posterior = fit(
        x, y, bw.BALI(tuning=replace(SHORT, small_members=3, shares=(1.0, 0.25), step_sizes=(0.5,)))
    )
    parts: Any = posterior.weights
    rows = [round(float(part.layers["0"].dof), 6) for part in parts.parts]  # u0 + N_eff
    assert rows in ([60, 15, 60], [15, 60, 15])


def test_one_start_has_the_best_share_alone():
    x, y = data()
    posterior = fit(x, y, bw.BALI(members=1, tuning=replace(SHORT, shares=(1.0, 0.25), step_sizes=(0.5,))))
    assert re.search(r"^share of rows that count (1|0\.25) chosen by", posterior.summary(), re.M)


def test_choices_can_be_overridden():
    x, y = data()
    posterior = fit(x, y, bw.BALI(step_size=0.5, effective=0.5, members=1, temperature=1.0, tuning=SHORT))
    assert isinstance(posterior.weights, Layerwise)
    assert "chosen" not in posterior.summary() and "60 rows counted as 30" in posterior.summary()
    same = fit(x, y, bw.BALI(effective=0.5, steps=40))
    torch.testing.assert_close(posterior.weights.noise(), same.weights.noise())


def test_noise_is_not_learned():
    """Rows without a signal: the prediction is about as good as the mean."""
    x, _ = data(n=120)
    rng = torch.Generator().manual_seed(5)
    y = torch.randn(120, 1, generator=rng, dtype=torch.float64)
    posterior = fit(x, y, bw.BALI(tuning=replace(SHORT, lengths=(200,))))
    x_new, y_new = torch.randn(2000, I, generator=rng).double(), torch.randn(2000, 1, generator=rng).double()
    found = posterior.predict(x_new).log_prob(y_new).mean()
    best = torch.distributions.Normal(0, 1).log_prob(y_new).mean()
    assert float(best - found) < 0.15


def test_a_clean_function_is_learned_with_all_rows():
    x, y = data(noise=0.0, n=200)
    posterior = fit(x, y, bw.BALI(tuning=replace(SHORT, lengths=(300,))))
    assert re.search(r"200 rows counted as ([28]00|[28]00 to 800|[28]00 to 3200),", posterior.summary())
    x_new, y_new = data(noise=0.0, n=500, seed=9)
    assert float((posterior.predict(x_new).mean - y_new).square().mean().sqrt()) < 0.1


def test_each_split_chooses_for_itself():
    """A split of noise beside one of signal."""
    x, y = data(noise=0.0, n=120)
    noise = torch.randn(120, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    method = bw.BALI(tuning=replace(SHORT, lengths=(200,)))
    posterior = fit(x.expand(2, -1, -1), torch.stack([y, noise]), method, members=2)
    assert any(" to " in note for note in posterior.notes[:3])
    sigma = posterior.predict(x.expand(2, -1, -1)).std.mean((1, 2))
    assert float(sigma[0]) < 0.3 < 0.65 < float(sigma[1])


def test_a_tuned_run_repeats_itself_and_resumes(tmp_path):
    x, y = data()
    method = bw.BALI(tuning=SHORT)
    whole = fit(x, y, method).predict(x).mean

    class Broken(Exception):
        pass

    def kill(progress: Any) -> None:
        if progress.step == 20:
            raise Broken

    store = bw.Checkpoints(tmp_path, every=10)
    with pytest.raises(Broken):
        fit(x, y, method, checkpoint=store, callbacks=[kill])
    assert (tmp_path / "choosing_the_step_size_among_0.5,_1,_0.25").is_dir()
    assert torch.equal(fit(x, y, method, checkpoint=store).predict(x).mean, whole)


# ---------------------------------------------------------------------------- going on


GOING = replace(SHORT, small_members=4, shares=(1.0, 4.0), step_sizes=(0.5,), more=0.25)


@pytest.mark.parametrize("splits", [None, 2])
def test_the_starts_of_the_rehearsal_go_on_with_all_rows(splits):
    """By hand: a start on each of four parts, and a quarter as many steps more on all rows."""
    x, y = data()
    if splits:
        x, y = torch.stack([x, x + 0.1]), torch.stack([y, y + 0.2 * x[:, 1:2]])
    options = {} if splits is None else {"members": splits}
    posterior = fit(x, y, bw.BALI(effective=1.0, tuning=GOING), **options)
    assert re.search(r"^10 more steps on all rows, from where the rehearsal ended", posterior.summary(), re.M)

    problem, rows = prepared(x, y, **options)
    rows = replace(rows, batch_size=60)
    trials = HeldOut.of(problem, rows, 0, False, None)
    assert trials is not None and trials.folds == 4
    state = trials.trial(bw.BALI(steps=40, effective=1.0, update=MeanUpdate(10)), "trying").state
    more = bw.BALI(steps=10, effective=1.0, members=4)
    begun = replace(state, step=torch.zeros_like(state.step))
    state = train(more, problem, rows, 0, progress=False, start=begun)
    wanted: Any = more.posterior(problem, state, rows).weights
    found: Any = posterior.weights
    assert len(found.parts) == 4
    for one, other in zip(found.parts, wanted.parts, strict=True):
        for name, q in one.layers.items():
            torch.testing.assert_close(q.mean, other.layers[name].mean, rtol=1e-9, atol=1e-12)


def test_starts_that_cannot_be_spread_evenly_train_afresh():
    x, y = data()
    for members in (1, 3):
        assert "more steps" not in fit(x, y, bw.BALI(members=members, tuning=GOING)).summary()


def test_every_split_goes_on_from_the_state_that_it_chose():
    """Two splits of three starts: the first chose the first state, the second the second."""
    x, y = data()
    wide = (x.expand(2, -1, -1), y.expand(2, -1, -1))
    problem, rows = prepared(*wide, members=2)
    states = [train(bw.BALI(steps=n, members=3), problem, rows, n, progress=False) for n in (3, 5)]
    found = of_best(states, torch.tensor([0, 1]))
    for k in range(6):
        own, other = states[k % 2], states[1 - k % 2]
        assert torch.equal(found.layers["0"].data.xx[k], own.layers["0"].data.xx[k])
        assert torch.equal(found.layers["2"].gg[k], own.layers["2"].gg[k])
        assert float(found.bias[k]) == float(own.bias)
        assert not torch.equal(found.layers["0"].data.xx[k], other.layers["0"].data.xx[k])
    assert of_best(states, torch.tensor(1)) is states[1]


def test_classifiers_choose_too():
    x, y = data()
    labels = (y[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(I, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    posterior = bw.fit(model, (x, labels), bw.Categorical(), bw.BALI(tuning=SHORT), progress=False)
    assert "temperature" in posterior.summary()
    assert float((posterior.predict(x).mean.argmax(-1) == labels).double().mean()) > 0.85


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 0},
        {"shares": ()},
        {"shares": (0.0,)},
        {"lengths": (0,)},
        {"lengths": 625},
        {"worth": -1.0},
        {"label_worth": -1.0},
    ],
)
def test_tunings_without_a_meaning_are_refused(settings):
    with pytest.raises(ValueError, match="Tuning"):
        Tuning(**settings)


def test_candidates_that_break_down_do_not_stop_the_run(monkeypatch):
    own = HeldOut.trial

    def broken(self: Any, method: Any, what: str) -> Any:
        if what.startswith("choosing the step size"):
            raise NumericalError("layer 0 is not positive definite")
        return own(self, method, what)

    monkeypatch.setattr(HeldOut, "trial", broken)
    posterior = fit(*data(), bw.BALI(tuning=SHORT))
    assert "step size: a rule of thumb, because the candidates could not be compared" in posterior.summary()
    assert "step size 0.5, temperature" in posterior.summary()


def test_a_candidate_without_a_figure_is_not_chosen():
    found = torch.tensor([[1.0, float("nan")], [float("nan"), -float("inf")], [0.5, -3.0]])
    assert largest(found).tolist() == [0, 2]
    assert clearly_best(found[..., None].expand(3, 2, 5)).tolist() == [0, 2]


def test_the_first_candidate_stays_unless_another_is_better_by_a_standard_error():
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(100, generator=rng, dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std()  # the error of its mean is 0.1
    first = torch.zeros(100, dtype=torch.float64)
    assert int(clearly_best(torch.stack([first, first + 0.09 + noise]))) == 0
    assert int(clearly_best(torch.stack([first, first + 0.11 + noise]))) == 1
    assert int(clearly_best(torch.stack([first, first + 0.11 + noise, first + 0.10]))) == 1
    assert int(clearly_best(torch.stack([first, first + 0.09 + noise, first + 0.01]))) == 2
    shared = torch.stack([noise, noise + 0.01])  # what all candidates have in common does not count
    assert int(clearly_best(shared)) == 1


def test_the_temperature_is_chosen_with_few_of_the_starts(monkeypatch):
    seen, own = {}, HeldOut.trial

    def watched(self: Any, method: Any, what: str) -> Any:
        seen[what] = (method.members, method.length)
        return own(self, method, what)

    monkeypatch.setattr(HeldOut, "trial", watched)
    fit(*data(), bw.BALI(tuning=replace(SHORT, small_members=3)))
    assert seen == {
        "choosing the share of rows that count among 1, 4, 16, 0.25, 0.0625, 0.015625": (6, 40),
        "choosing the step size among 0.5, 1, 0.25": (3, 40),
        "rehearsing 40 steps": (2, 40),
    }


def test_many_networks_race_in_several_runs(monkeypatch):
    """Those of one candidate together, whatever they are."""
    seen, own = {}, HeldOut.trial

    def watched(self: Any, method: Any, what: str) -> Any:
        seen[what] = method.effective
        return own(self, method, what)

    monkeypatch.setattr(HeldOut, "trial", watched)
    monkeypatch.setattr(rehearsals, "AT_ONCE", 17)  # of 4 parts of the rows
    fit(*data(), bw.BALI(tuning=replace(SHORT, small_members=3), step_size=0.5))
    words = "choosing the share of rows that count among"
    assert seen[f"{words} 1, 4, 16, 0.25"] == tuple(share for share in (1, 4, 16, 0.25) for _ in range(4))
    assert seen[f"{words} 0.0625, 0.015625"] == (0.0625,) * 4 + (0.015625,) * 4


@pytest.mark.parametrize("members", [None, 3])
def test_members_with_lengths_of_their_own_are_runs_of_those_lengths(members):
    x, y = data()
    wide = (x.expand(2, -1, -1), y.expand(2, -1, -1))
    both = fit(*wide, bw.BALI(steps=(12, 30), members=members), members=2)
    for k, steps in enumerate((12, 30)):
        same = fit(*wide, bw.BALI(steps=steps, members=members), members=2)
        own, wanted = both.predict(wide[0]).mean[k], same.predict(wide[0]).mean[k]
        torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-12)
    assert "12 to 30 steps" in both.summary()


def test_a_longer_run_must_be_worth_it():
    rows = torch.zeros(50, dtype=torch.float64)
    short, little, much = rows, rows + 0.009, rows + 0.02
    assert int(worth_it(torch.stack([short]), 0.01)) == 0
    assert int(worth_it(torch.stack([short, little]), 0.01)) == 0
    assert int(worth_it(torch.stack([short, much]), 0.01)) == 1
    assert int(worth_it(torch.stack([short, much, much + 0.02]), 0.01)) == 2
    assert int(worth_it(torch.stack([short, little, much + 0.02]), 0.01)) == 0  # nobody looks further
    splits = torch.stack([torch.stack([short, short]), torch.stack([much, little])])  # (L, S, R)
    assert worth_it(splits, 0.01).tolist() == [1, 0]


def test_a_clean_table_trains_longer_than_a_noisy_one():
    x, y = data(noise=0.0, n=120)
    noise = torch.randn(120, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    method = bw.BALI(tuning=replace(SHORT, lengths=(40, 160, 640), long_rows=1, steep=0.0))
    posterior = fit(x.expand(2, -1, -1), torch.stack([y, noise]), method, members=2)
    assert re.search(r"^40 to (160|640) steps of 2 starts", posterior.summary(), re.M)
    alone = fit(x, noise, method)
    assert "40 steps and temperature" in alone.summary() and "640:" not in alone.summary()


def test_longer_runs_are_tried_where_the_first_gained_much_on_the_race():
    x, y = data(noise=0.0, n=120)
    tuning = replace(SHORT, lengths=(160, 640), long_rows=119, race=10, little=1.0)
    gained = bw.BALI(tuning=replace(tuning, steep=0.1))
    assert "640:" in fit(x, y, gained).summary()
    assert "640:" not in fit(x, y, bw.BALI(tuning=replace(tuning, steep=100.0))).summary()
    assert "640:" not in fit(x, y, replace(gained, effective=1.0)).summary()  # there was no race
    few = replace(tuning, steep=0.1, long_rows=120)
    assert "640:" not in fit(x, y, bw.BALI(tuning=few)).summary()
    noise = torch.randn(120, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    both = fit(x.expand(2, -1, -1), torch.stack([y, noise]), gained, members=2)
    assert re.search(r"^160 to 640 steps and temperature", both.summary(), re.M)


def test_larger_networks_see_so_many_rows():
    big = nn.Sequential(nn.Linear(I, 230), nn.Linear(230, 230), nn.Linear(230, 1)).double()
    narrow, wide = (bw.fit(model, data(), bw.Gaussian(), bw.BALI(steps=1)).problem for model in (net(), big))
    assert Tuning().steps(replace(narrow, n=2_000), 256) == (5000,)
    assert Tuning().steps(replace(narrow, n=2_001), 1024) == (5000, 20000)
    assert Tuning().steps(replace(wide, n=100), 1024) == (312, 625, 1250)
    assert Tuning().steps(replace(wide, n=100), 256) == (1250, 2500, 5000)


def test_few_rows_train_in_float64_and_so_for_fewer_steps():
    problem = replace(bw.fit(net(), data(), bw.Gaussian(), bw.BALI(steps=1)).problem, n=500)
    assert Tuning().steps(problem, 125) == (3000,)
    assert Tuning(long_rows=1).steps(problem, 125) == (3000, 20000)
    assert Tuning(lengths=(40,)).steps(problem, 125) == (40,)
    assert Tuning().steps(replace(problem, n=501), 125) == (5000,)


def test_steps_of_a_small_network_take_a_part_of_the_rows():
    big = nn.Sequential(nn.Linear(I, 230), nn.Linear(230, 230), nn.Linear(230, 1)).double()
    narrow, wide = (
        bw.fit(model, data(), bw.Gaussian(), bw.BALI(steps=1)).problem.network for model in (net(), big)
    )
    sizes = {100: 64, 400: 100, 4_000: 256, 8_000: 500, 50_000: 1024}
    assert {n: bw.BALI().batch(narrow, n) for n in sizes} == sizes
    assert bw.BALI().batch(wide, 8_000) == 1024 == bw.BALI(steps=10).batch(narrow, 8_000)


def test_rehearsals_without_a_figure_do_not_choose_a_temperature(monkeypatch):
    own = HeldOut.log_lik
    monkeypatch.setattr(HeldOut, "log_lik", lambda self, posterior: own(self, posterior) * float("nan"))
    summary = fit(*data(), bw.BALI(effective=1.0, step_size=0.5, tuning=SHORT)).summary()
    assert "steps: a rule of thumb, because the candidates could not be compared" in summary
    assert "no likelihood at any temperature" in summary and "40 steps of 2 starts" in summary


@dataclass(frozen=True)
class Warm(Layerwise):
    """Weights that know their temperature."""

    temperature: Any = None

    def tempered(self, temperature: float | Tensor) -> "Warm":
        return replace(self, temperature=temperature)


@dataclass
class Asked(Judged):
    """Trials that keep count of the temperatures they are asked for: the places of `found`."""

    def log_lik(self, posterior: Any) -> Tensor:
        self.asked = [*getattr(self, "asked", []), posterior.weights.temperature]
        return self.found[self.asked[-1]]


@pytest.mark.parametrize(("peaks", "most"), [((0, 22), 14), ((7, 7), 10), ((13, 14), 12), ((20, 20), 10)])
def test_the_best_temperature_is_found_by_a_few_trials(peaks: tuple[int, int], most: int):
    """Each split's own, wherever it lies, though not all are tried."""
    found = torch.tensor([[[-abs(k - peak) / 7.0] * 3 for peak in peaks] for k in range(23)])
    trials, problem = Asked(found, 2), None
    posterior = bw.Posterior(problem, Warm({}, None, None), "BALI", ())  # pyright: ignore[reportArgumentType]
    rows, best = _tempered(posterior, range(23), trials)
    assert best.tolist() == list(peaks)
    assert rows.tolist() == [[0.0] * 3] * 2
    assert len(set(trials.asked)) == len(trials.asked) <= most


def test_a_split_finds_the_temperature_that_it_finds_alone():
    """The narrow peak at 17 lies on the way of the second split only, though it would be the first's best."""
    first = [-abs(k - 8) / 7.0 + (9.0 if k == 17 else 0.0) for k in range(23)]
    second = [-abs(k - 17) / 7.0 for k in range(23)]
    posterior = bw.Posterior(None, Warm({}, None, None), "BALI", ())  # type: ignore[arg-type]
    both = torch.tensor([[[a] * 3, [b] * 3] for a, b in zip(first, second, strict=True)])
    alone = torch.tensor([[[a] * 3] for a in first])
    assert _tempered(posterior, range(23), Asked(both, 2))[1].tolist() == [8, 17]
    assert _tempered(posterior, range(23), Asked(alone, 1))[1].tolist() == [8]


def test_where_a_wide_prior_breaks_down_all_starts_have_the_narrow_one(monkeypatch):
    own = HeldOut.trial

    def broken(self: Any, method: Any, what: str) -> Any:
        if isinstance(method.prior_scale, tuple):
            raise NumericalError("layer 0 is not positive definite")
        return own(self, method, what)

    monkeypatch.setattr(HeldOut, "trial", broken)
    eight = replace(GOING, small_members=8)  # two starts on each part: one would have the wide prior
    summary = fit(*data(), bw.BALI(tuning=eight)).summary()
    assert "40 steps and temperature" in summary and "10 more steps" in summary
    assert 'layer "0": 5 x 8, prior variance 40, ' in summary


def test_without_a_rehearsal_no_prior_is_wide():
    posterior = fit(*data(), bw.BALI(temperature=1.0, tuning=replace(GOING, small_members=8)))
    assert "temperature 1" in posterior.summary() and "more steps" not in posterior.summary()
    assert 'layer "0": 5 x 8, prior variance 40, ' in posterior.summary()


def test_after_a_rehearsal_half_of_the_priors_are_wide():
    summary = fit(*data(), bw.BALI(tuning=replace(GOING, small_members=8))).summary()
    assert 'layer "0": 5 x 8, prior variance 40 to 400, ' in summary


def test_steps_are_written_in_full():
    assert words(20_000) == "20000" and words((5_000, 20_000)) == "5000 to 20000"
    assert words(0.70711) == "0.7071" and words((0.25, 4.0)) == "0.25 to 4"
    assert words(1e4) == "1e+04" and words(torch.tensor([0.1, 0.2], dtype=torch.float64)) == "0.1 to 0.2"
