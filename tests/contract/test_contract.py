"""What every registered method promises. A method without a row in the table fails."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayeswise as bw
from bayeswise.methods import METHODS
from bayeswise.methods.schedules import Cyclic
from bayeswise.notices import FixedParametersWarning, PrecisionWarning
from bayeswise.priors import ScaleMixture
from bayeswise.saving import SavedModelError, flatten, unflatten
from bayeswise.training import Progress

B, I, O, N, S = 7, 5, 3, 40, 11  # noqa: E741


@dataclass(frozen=True)
class Row:
    """How the tests make one method, cheap enough to be run often."""

    build: Callable[[int], Any]  # from the number of steps
    fixes: bool  # parameters of layers that it does not know


TABLE = {
    "bali": Row(lambda steps: bw.BALI(steps=steps), fixes=True),
    "map": Row(lambda steps: bw.MAP(steps=steps), fixes=False),
    "mc_dropout": Row(lambda steps: bw.MCDropout(steps=steps), fixes=False),
    "bbb": Row(lambda steps: bw.BayesByBackprop(steps=steps), fixes=False),
    "laplace": Row(lambda steps: bw.Laplace(first=bw.MAP(steps=steps)), fixes=False),
    "ensemble": Row(lambda steps: bw.Ensemble(members=3, steps=steps), fixes=False),
    "swag": Row(lambda steps: bw.SWAG(every=2, steps=steps, warmup_rate=bw.Cosine(0.02)), fixes=False),
}
VARIANTS = {  # settings under which the promises could break
    "bbb, weight noise": Row(
        lambda s: bw.BayesByBackprop(steps=s, kl_weight=0.1, prior=ScaleMixture(), forward=bw.WeightNoise()),
        fixes=False,
    ),
    "swag, diagonal": Row(
        lambda s: bw.SWAG(rank=0, every=2, warmup=0.0, learning_rate=Cyclic(0.1, 0.02, 2), steps=s),
        fixes=False,
    ),
    "swag, members": Row(
        lambda s: bw.SWAG(rank=3, every=1, members=2, draws=3, warmup_rate=bw.Cosine(0.02), steps=s),
        fixes=False,
    ),
    "laplace, full": Row(lambda s: bw.Laplace(structure=bw.Full(), first=bw.MAP(steps=s)), fixes=False),
    "laplace, networks": Row(
        lambda s: bw.Laplace(precision=100.0, link=None, first=bw.MAP(steps=s)), fixes=False
    ),
    "laplace, online": Row(
        lambda s: bw.Laplace(precision=bw.Online(every=2), first=bw.MAP(steps=s)), fixes=False
    ),
    "laplace, diagonal": Row(lambda s: bw.Laplace(structure=bw.Diagonal(), first=bw.MAP(steps=s)), False),
    "bali, members": Row(lambda steps: bw.BALI(steps=steps, members=2), True),
    "bali, weight noise": Row(lambda steps: bw.BALI(steps=steps, forward=bw.WeightNoise()), True),
    "bali, local noise": Row(lambda s: bw.BALI(steps=s, forward=bw.LocalReparametrisation()), True),
    "bali, drawn noise": Row(lambda s: bw.BALI(steps=s, noise="drawn", update_rate=bw.StepDecay(0.3)), True),
}
ROWS = TABLE | VARIANTS
LIKELIHOODS = {"gaussian": bw.Gaussian(), "known": bw.Gaussian(0.04)}
LIKELIHOODS |= {"categorical": bw.Categorical(), "bernoulli": bw.Bernoulli()}

methods = pytest.mark.parametrize("name", ROWS)
likelihoods = pytest.mark.parametrize("kind", LIKELIHOODS)


def test_every_method_has_a_row():
    assert set(TABLE) == set(METHODS), "give the new method a row in TABLE"
    for name, row in TABLE.items():
        assert type(row.build(1)) is METHODS[name]


class Net(nn.Module):
    """Dropout, a buffer and a residual connection: much of what a user's module may have."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(I, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, O)
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.register_buffer("gain", torch.tensor(0.9))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.a(x)).tanh()
        return self.head(self.dropout(h + self.gain * self.b(h)))


def net(norm: bool = False, dtype: torch.dtype = torch.float64) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net(norm).to(dtype)


def data(kind: str = "gaussian", dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(N, I, generator=rng, dtype=torch.float64)
    y = x[:, :O].sin() + 0.1 * torch.randn(N, O, generator=rng, dtype=torch.float64)
    if kind == "categorical":
        return x.to(dtype), y.argmax(1)
    return x.to(dtype), ((y > 0) if kind == "bernoulli" else y).to(dtype)


def fit(name: str, kind: str = "gaussian", steps: int = 12, model: nn.Module | None = None, **options: Any):
    options = {"batch_size": 16, "progress": False} | options
    given = options.pop("data", None)
    method = ROWS[name].build(steps)
    return bw.fit(model or net(), given or data(kind), LIKELIHOODS[kind], method, **options)


def bits(posterior: bw.Posterior, x: Tensor) -> Tensor:
    """All that a prediction says, in one tensor."""
    p = posterior.predict(x, S)
    return torch.cat([p.mean.flatten(), p.std.flatten(), p.epistemic.flatten(), p.draws.flatten()])


# -------------------------------------------------------------------------------------- the way in and out


@methods
@likelihoods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fit_predict_save_load(name: str, kind: str, dtype: torch.dtype, tmp_path):
    x, y = data(kind, dtype)
    posterior = fit(name, kind, model=net(dtype=dtype), data=(x, y))
    predictive = posterior.predict(x[:B], S)
    assert predictive.mean.shape == (B, O) and predictive.draws.shape == (S, B, O)
    assert predictive.log_prob(y[:B]).isfinite().all() and (predictive.std >= 0).all()
    posterior.save(tmp_path / "saved")
    restored = bw.load(tmp_path / "saved", net(dtype=dtype))
    assert torch.equal(bits(restored, x), bits(posterior, x))
    assert restored.summary() == posterior.summary() and posterior.summary()
    again = copy.deepcopy(x)
    assert torch.equal(restored.draw(S)(again), posterior.draw(S)(x))


@methods
def test_a_prediction_is_the_same_at_every_call_and_new_with_a_generator(name: str):
    x, _ = data()
    posterior = fit(name)
    assert torch.equal(bits(posterior, x), bits(posterior, x))
    rng = torch.Generator().manual_seed(8)
    first, second = (posterior.predict(x, S, rng=rng).draws for _ in range(2))
    repeat = posterior.predict(x, S, rng=torch.Generator().manual_seed(8)).draws
    assert torch.equal(first, repeat)
    assert torch.equal(first, second) == (name in ("map", "ensemble"))  # their networks are always the same


@methods
def test_learns(name: str):
    x, y = data()
    predictive = fit(name, steps=300, batch_size=None).predict(x, 128)
    rmse = float((predictive.mean - y).square().mean().sqrt())
    assert rmse < 0.3 < float(y.std()), rmse


class Recurrent(nn.Module):
    """What vmap cannot run when the recurrent weights have members."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


@methods
@pytest.mark.filterwarnings("ignore::bayeswise.notices.FixedParametersWarning")
def test_a_recurrent_module_trains_and_predicts(name: str, tmp_path):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 3, 2, generator=rng), torch.randn(9, 1, generator=rng)
    posterior = fit(name, model=Recurrent(), data=(x, y), steps=3)
    assert posterior.predict(x, S).draws.shape == (S, 9, 1)
    posterior.save(tmp_path / "saved")
    assert torch.equal(bits(bw.load(tmp_path / "saved", Recurrent()), x), bits(posterior, x))
    members = fit(
        name, model=Recurrent(), data=(x.expand(2, *x.shape), y.expand(2, *y.shape)), steps=3, members=2
    )
    assert members.predict(x.expand(2, *x.shape), S).mean.shape == (2, 9, 1)


# ---------------------------------------------------------------------------------------------- determinism


@methods
@likelihoods
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name: str, kind: str):
    x, _ = data(kind)
    first, second, other = (bits(fit(name, kind, seed=seed), x) for seed in (4, 4, 5))
    assert torch.equal(first, second) and not torch.equal(first, other)


@methods
def test_the_global_generator_has_no_influence(name: str):
    x, y = data()
    with torch.random.fork_rng():
        answers = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
            answers.append(bits(fit(name, data=loader), x))
    assert torch.equal(*answers)


# -------------------------------------------------------------------------------------------------- hygiene


def world(model: nn.Module) -> list[Any]:
    """Everything that a public call must leave as it was."""
    state: list[Any] = [torch.get_rng_state().tolist(), torch.get_default_dtype(), torch.get_num_threads()]
    state += [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    for where, m in model.named_modules():
        hooks = {k: len(v) for k, v in vars(m).items() if "hooks" in k and v is not None}
        state.append((where, m.training, sorted(vars(m)), hooks))
    for where, p in (*model.named_parameters(), *model.named_buffers()):
        state.append((where, id(p), p.requires_grad, p.grad is None, p.tolist()))
    return state


class Stop(Exception):
    """Raised in the middle of training."""


@methods
@pytest.mark.parametrize("loader", [False, True])
def test_nothing_of_the_users_is_changed(name: str, loader: bool, tmp_path):
    x, y = data()
    kept = x.clone(), y.clone()
    own = torch.Generator().manual_seed(3)
    given: Any = DataLoader(TensorDataset(x, y), 16, shuffle=True, generator=own) if loader else (x, y)
    model = net(norm=True).train()
    model.dropout.eval()
    model.head.weight.requires_grad_(False)
    before, drawn = world(model), own.get_state()
    with torch.no_grad():
        posterior = _quiet(name, model=model, data=given)
    assert world(model) == before
    posterior.predict(x, S).log_prob(y)
    posterior.save(tmp_path / "saved")
    bw.load(tmp_path / "saved", model).predict(x, S)
    posterior.draw(3)(x), posterior.sample(2), posterior.summary()
    assert world(model) == before
    assert torch.equal(own.get_state(), drawn)
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


@methods
@pytest.mark.parametrize("loader", [False, True])
def test_nothing_is_changed_by_an_exception_in_training(name: str, loader: bool):
    x, y = data()
    model = net(norm=True).train()
    given: Any = DataLoader(TensorDataset(x, y), 16, shuffle=True) if loader else (x, y)
    before = world(model)

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise Stop

    with pytest.raises(Stop):
        _quiet(name, model=model, data=given, callbacks=[stop])
    assert world(model) == before


@methods
def test_nothing_is_changed_by_an_exception_in_the_model(name: str):
    class Breaks(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Breaks.calls += 1
            if Breaks.calls > 6:
                raise Stop
            return super().forward(x)

    model = Breaks().double().train()
    before = world(model)
    with pytest.raises(Stop):
        fit(name, model=model)
    assert world(model) == before


class ChangesInput(nn.Sequential):
    """Works on its input in place, before anything has been added to it."""

    def __init__(self) -> None:
        super().__init__(nn.ReLU(inplace=True), nn.Linear(I, 6), nn.Tanh(), nn.Linear(6, O))


@methods
@pytest.mark.parametrize("members", [None, 2])
def test_a_model_that_changes_its_input_does_not_change_the_users(name: str, members: int | None):
    x, y = data()
    if members is not None:
        x, y = torch.stack([x, x.flip(1)]), torch.stack([y, -y])
    kept = x.clone()
    posterior = fit(name, model=ChangesInput().double(), data=(x, y), members=members, batch_size=None)
    assert torch.equal(x, kept)
    whole = posterior.predict(x, S).mean
    assert torch.equal(x, kept)
    torch.testing.assert_close(posterior.predict(x.relu(), S).mean, whole, rtol=0, atol=1e-12)


def _quiet(name: str, **options: Any) -> bw.Posterior:
    """A fit of a model with parameters that some methods keep fixed."""
    if not ROWS[name].fixes:
        return fit(name, **options)
    with pytest.warns(FixedParametersWarning):
        return fit(name, **options)


@methods
def test_a_step_does_not_alias_what_is_the_users(name: str):
    x, y = data()
    model = net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    seen: list[Tensor] = []

    def look(progress: Progress) -> None:
        seen.extend(t for t in progress.posterior().weights.tensors().values())

    posterior = fit(name, model=model, batch_size=None, callbacks=[look], data=(x, y))
    mine = {v.untyped_storage().data_ptr() for v in model.state_dict().values()}
    mine |= {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()}
    assert not mine & {t.untyped_storage().data_ptr() for t in seen}
    mean = posterior.predict(x, S).mean
    with torch.no_grad():
        for p in model.parameters():
            p.add_(100)
    assert torch.equal(posterior.predict(x, S).mean, mean)
    assert not all(torch.equal(before[k], v) for k, v in model.state_dict().items())


# ------------------------------------------------------------------------------------------ forms of the data


@methods
@likelihoods
def test_a_loader_a_dataset_and_a_pair_agree_in_kind(name: str, kind: str):
    x, y = data(kind)
    forms = {
        "pair": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), 16, shuffle=True),
    }
    answers = {form: fit(name, kind, data=given) for form, given in forms.items()}
    assert torch.equal(bits(answers["pair"], x), bits(answers["arrays"], x))
    reference = answers["pair"].problem
    for form, posterior in answers.items():
        predictive = posterior.predict(x, S)
        assert predictive.mean.dtype == torch.float64 and predictive.mean.shape == (N, O), form
        assert posterior.problem.n == N, form
        torch.testing.assert_close(posterior.problem.units.shift, reference.units.shift, rtol=0, atol=1e-12)
        torch.testing.assert_close(posterior.problem.units.scale, reference.units.scale, rtol=0, atol=1e-12)


@methods
def test_one_batch_of_all_rows_is_the_same_from_a_loader_and_a_pair(name: str):
    x, y = data()
    pair = bits(fit(name, data=(x, y), batch_size=None), x)
    loader = bits(fit(name, data=DataLoader(TensorDataset(x, y), N)), x)
    torch.testing.assert_close(loader, pair, rtol=1e-9, atol=1e-9)


@methods
@likelihoods
@pytest.mark.parametrize("members", [1, 2])
def test_members_run(name: str, kind: str, members: int, tmp_path):
    pairs = [data(kind, seed=k) for k in range(members)]
    x, y = (torch.stack(part) for part in zip(*pairs, strict=True))
    posterior = fit(name, kind, data=(x, y), members=members)
    predictive = posterior.predict(x, S)
    assert predictive.mean.shape == (members, N, O) and predictive.log_prob(y).shape == (members, N)
    assert predictive.log_prob(y).isfinite().all()
    posterior.save(tmp_path / "saved")
    assert torch.equal(bits(bw.load(tmp_path / "saved", net()), x), bits(posterior, x))


# --------------------------------------------------------------------------------------- checkpoints, states


@methods
@pytest.mark.parametrize("form", ["pair", "loader", "members"])
def test_a_resumed_run_ends_with_the_same_bits(name: str, form: str, tmp_path):
    x, y = data()
    members = None
    given: Any = (x, y)
    if form == "members":
        members, given = 2, (torch.stack([x, x + 1]), torch.stack([y, 2 * y]))
    if form == "loader":
        given = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    at = int(torch.randint(2, 11, (), generator=torch.Generator().manual_seed(len(name) + len(form))))

    def stop(progress: Progress) -> None:
        if progress.step == at:
            raise Stop

    options = dict(data=given, members=members, steps=12)
    whole = bits(fit(name, **options), given[0] if members else x)
    for every in (1, 3):
        folder = bw.Checkpoints(tmp_path / str(every), every=every)
        with pytest.raises(Stop):
            fit(name, **options, checkpoint=folder, callbacks=[stop])
        steps: list[int] = []
        resumed = fit(name, **options, checkpoint=folder, callbacks=[lambda p, s=steps: s.append(p.step)])
        assert torch.equal(bits(resumed, given[0] if members else x), whole)
        assert steps[0] == (at - 1) // every * every + 1 and steps[-1] == 12


@methods
def test_a_checkpoint_of_another_run_is_refused(name: str, tmp_path):
    fit(name, checkpoint=tmp_path / "run")
    with pytest.raises(SavedModelError, match="another seed: 0 there, 1 here"):
        fit(name, checkpoint=tmp_path / "run", seed=1)
    with pytest.raises(SavedModelError, match="another method"):
        fit(name, steps=13, checkpoint=tmp_path / "run")


@methods
def test_a_state_holds_tensors_only(name: str):
    from bayeswise.data import TensorRows
    from bayeswise.networks import discover, evaluating
    from bayeswise.problem import Problem, Units

    x, y = data()
    model, method = net(norm=True), ROWS[name].build(5)
    with evaluating(model):
        network = discover(model, x)
        problem = Problem(network, bw.Gaussian(), N, Units.identity(O, torch.float64, network.device))
        rng = torch.Generator().manual_seed(0)
        rows = TensorRows(x, y, N)
        state = method.init(problem, rows, rng)
        for _ in range(3):
            saved = {k: v.clone() for k, v in flatten(state).items()}
            position = rng.get_state()
            state, info = method.step(problem, state, (x, y), rng)
            assert info.log_lik.isfinite() and isinstance(info.details(), dict)
        tensors = flatten(state)
        assert all(isinstance(value, Tensor) and not value.requires_grad for value in tensors.values())
        rng.set_state(position)  # a state that was saved takes the same step again
        again, _ = method.step(problem, unflatten(state, saved), (x, y), rng)
        repeated = flatten(again)
        assert all(torch.equal(repeated[k], v) for k, v in flatten(state).items() if k in repeated)


# -------------------------------------------------------------------------------------------------- precision


@methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_of_the_data_is_kept(name: str, dtype: torch.dtype):
    x, y = data(dtype=dtype)
    predictive = fit(name, model=net(dtype=dtype), data=(x, y)).predict(x, S)
    for value in (predictive.mean, predictive.std, *predictive.interval(0.9), predictive.draws):
        assert value.dtype == dtype
    assert predictive.log_prob(y).dtype in (dtype, torch.float64)


@methods
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_said(name: str, dtype: torch.dtype):
    x, y = data(dtype=dtype)
    model = net(dtype=dtype)
    before = world(model)
    with pytest.warns(PrecisionWarning, match="float16 is computed in float32"):
        posterior = fit(name, model=model, data=(x, y))
    predictive = posterior.predict(x, S)
    assert predictive.mean.dtype == torch.float32 and predictive.mean.isfinite().all()
    assert world(model) == before
    with pytest.warns(PrecisionWarning):
        mixed = fit(name, model=model, data=(x.float(), y.float()))
    assert mixed.predict(x.float(), S).mean.dtype == torch.float32


@methods
def test_another_default_dtype_makes_no_difference(name: str):
    x, y = data(dtype=torch.float32)
    model = net(dtype=torch.float32)
    expected = bits(fit(name, model=model, data=(x, y)), x)
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.equal(bits(fit(name, model=model, data=(x, y)), x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------ fixed, and other models


@methods
def test_fixed_parameters_are_warned_of_and_listed(name: str):
    model = net(norm=True)
    x, _ = data()
    posterior = _quiet(name, model=model)
    if not ROWS[name].fixes:
        assert set(posterior.sample(1)) >= {"norm.weight", "norm.bias"}
        return
    count = sum(p.numel() for p in model.parameters())
    assert f"{12 / count:.1%} of the parameters" in posterior.summary()
    assert "norm.weight, norm.bias" in posterior.summary()
    assert torch.equal(posterior.problem.network.constants["norm.weight"], model.norm.weight)
    assert posterior.predict(x, S).mean.isfinite().all()


@methods
def test_fixed_parameters_and_buffers_are_saved(name: str, tmp_path):
    x, _ = data()
    model = net(norm=True)
    with torch.no_grad():
        model.norm.running_mean.fill_(0.3), model.norm.weight.fill_(1.4)
    posterior = _quiet(name, model=model)
    posterior.save(tmp_path / "saved")
    fresh = net(norm=True)  # its norm has other values: they must not matter
    assert torch.equal(bits(bw.load(tmp_path / "saved", fresh), x), bits(posterior, x))


@methods
def test_load_refuses_another_model(name: str, tmp_path):
    fit(name).save(tmp_path / "saved")
    wide = net()
    wide.b = nn.Linear(6, 7, bias=False)
    renamed = net()
    renamed.body = renamed.a
    del renamed.a
    extra = net()
    extra.more = nn.Linear(1, 1)
    no_buffer = net()
    del no_buffer.gain
    for model, culprit in ((wide, "b.weight"), (renamed, "a"), (extra, "more.weight"), (no_buffer, "gain")):
        with pytest.raises(SavedModelError, match=f'"{culprit}.*build the same model'):
            bw.load(tmp_path / "saved", model)
