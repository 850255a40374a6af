"""Laplace: the precision by rows that were not trained on, layers by a mask, what each layer gets."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayeswise as bw
from bayeswise.fitting import _network, _prepared
from bayeswise.trials import HeldOut

B, I, O, N = 7, 5, 3, 40  # noqa: E741
STRUCTURES = {"kronecker": bw.Kronecker(), "diagonal": bw.Diagonal(), "full": bw.Full()}
CANDIDATES = tuple(10.0 ** (k / 3) for k in range(-12, 13))


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, I, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], -1)


def targets(x: Tensor, seed: int, noise: float) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    e = torch.randn(len(x), O, generator=rng, dtype=torch.float64)
    return with_ones(x) @ torch.linspace(-1, 1, (I + 1) * O).double().reshape(I + 1, O) + noise**0.5 * e


def linear(w: Tensor) -> nn.Linear:
    """The model y = x W."""
    model = nn.Linear(I, O).double()
    with torch.no_grad():
        model.weight.copy_(w[:-1].T)
        model.bias.copy_(w[-1])
    return model


def classes(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def network(hidden: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(I, hidden), nn.Tanh(), nn.Linear(hidden, O)).double()


def log_lik(x: Tensor, w: Tensor, new: Tensor, y: Tensor, delta: float, noise: float) -> float:
    """Of new rows under N(x W, x (XᵀX / σ² + δ)⁻¹ xᵀ + σ²), the mean."""
    precision = with_ones(x).T @ with_ones(x) / noise + delta * torch.eye(I + 1).double()
    variance = (with_ones(new) @ torch.linalg.inv(precision) * with_ones(new)).sum(-1) + noise
    normal = torch.distributions.Normal(with_ones(new) @ w, variance.sqrt()[:, None])
    return float(normal.log_prob(y).sum(-1).mean())


# ------------------------------------------------------------------------- rows that were not trained on


@pytest.mark.parametrize("structure", ["kronecker", "full"])
def test_given_rows_choose_as_a_sweep_does(structure):
    """Few rows, and weights that overfit them: the choice is inside the grid."""
    noise, x, new = 0.5, rows(12), rows(N, 1)
    y, y_new = targets(x, 2, noise), targets(new, 3, noise)
    w = torch.linalg.lstsq(with_ones(x), y).solution
    sweep = [log_lik(x, w, new, y_new, delta, noise) for delta in CANDIDATES]
    best = CANDIDATES[max(range(len(sweep)), key=sweep.__getitem__)]
    assert CANDIDATES[0] < best < CANDIDATES[-1]
    method = bw.Laplace(structure=STRUCTURES[structure], precision=bw.Validation(new, y_new))
    found: Any = bw.fit(linear(w), (x, y), bw.Gaussian(noise), method, progress=False)
    fixed = bw.Laplace(structure=STRUCTURES[structure], precision=best)
    wanted: Any = bw.fit(linear(w), (x, y), bw.Gaussian(noise), fixed, progress=False)
    assert float(found.log_evidence) == float(wanted.log_evidence)
    assert torch.equal(found.predict(new).std, wanted.predict(new).std)
    assert f"prior precision {best:.4g} chosen of 25 by the log-likelihood of 40 rows" in found.summary()
    assert f"({max(sweep):.3f}; {sweep[0]:.3f} at 0.0001, {sweep[-1]:.3f} at 1e+04)" in found.summary()
    far = bw.Laplace(precision=bw.Validation(new, y_new, candidates=(1e5, 1e6)))
    shown = bw.fit(linear(w), (x, y), bw.Gaussian(noise), far, progress=False).summary()
    assert "it is the last on its side: give others" in shown


def test_held_out_rows_choose_as_a_sweep_does_and_the_network_trains_once():
    """The trial's parts and MAP's weights there are known, the rest is by hand: no candidate trains."""
    noise, x = 0.5, rows(N)
    y = targets(x, 2, noise)
    first: Any = Counted(bw.MAP(steps=300, learning_rate=bw.Cosine(0.05)))
    method: Any = bw.Laplace(precision=bw.Validation(), first=first)
    model = linear(torch.zeros(I + 1, O).double())
    with torch.no_grad():
        model.weight.normal_(generator=torch.Generator().manual_seed(0))
    posterior = bw.fit(model, (x, y), bw.Gaussian(noise), method, standardise=False, seed=5, progress=False)
    assert first.inits == [4, None]  # four parts in one run, then the run itself
    problem_net = _network(model, (x, y), None, None)
    prepared, problem = _prepared((x, y), problem_net, bw.Gaussian(noise), method, None, None, False)
    trials = HeldOut.of(problem, prepared, 5, False, None)
    assert trials is not None and trials.folds == 4 and trials.n == 16
    trained: Any = trials.trial(first, "again").posterior.weights
    sweep = torch.zeros(len(CANDIDATES)).double()
    for k in range(4):
        w = torch.cat([trained.params["weight"][k].T, trained.params["bias"][k][None]])
        new, y_new = trials.held[0][k], trials.held[1][k]
        sweep += torch.tensor([log_lik(trials.rows.x[k], w, new, y_new, d, noise) / 4 for d in CANDIDATES])
    best = CANDIDATES[int(sweep.argmax())]
    assert f"prior precision {best:.4g} chosen of 25 by the log-likelihood of 16 rows" in posterior.summary()
    assert f"({float(sweep.max()):.3f};" in posterior.summary()
    fixed = bw.Laplace(precision=best, first=first)
    wanted = bw.fit(model, (x, y), bw.Gaussian(noise), fixed, standardise=False, seed=5, progress=False)
    assert torch.equal(posterior.predict(x).std, wanted.predict(x).std)


class Counted:
    """MAP that remembers the members of its runs."""

    def __init__(self, method: bw.MAP) -> None:
        self.method, self.inits = method, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def init(self, problem, data, rng):
        self.inits.append(problem.members)
        return self.method.init(problem, data, rng)


def test_every_data_split_has_its_own_choice():
    x = torch.stack([rows(N, 1), rows(N, 2)])
    y = torch.stack([classes(x[0]), torch.randint(O, (N,), generator=torch.Generator().manual_seed(0))])
    method = bw.Laplace(precision=bw.Validation(candidates=(0.01, 1.0, 100.0)), first=bw.MAP(steps=60))
    both: Any = bw.fit(network(), (x, y), bw.Categorical(), method, members=2, progress=False)
    deltas = [layer.precision.flatten() for layer in both.weights.layers.values()]
    assert torch.equal(deltas[0], deltas[1]) and set(deltas[0].tolist()) <= {0.01, 1.0, 100.0}
    given = bw.Laplace(precision=tuple(deltas[0].tolist()), first=bw.MAP(steps=60))
    again: Any = bw.fit(network(), (x, y), bw.Categorical(), given, members=2, progress=False)
    assert torch.equal(both.log_evidence, again.log_evidence)
    new = torch.stack([rows(B, 3), rows(B, 4)])
    shown = bw.Laplace(
        precision=bw.Validation(new, classes(new.flatten(0, 1)).reshape(2, B)), first=bw.MAP(steps=60)
    )
    posterior = bw.fit(network(), (x, y), bw.Categorical(), shown, members=2, progress=False)
    assert "of 14 rows that were not trained on" in posterior.summary()


def test_noise_that_is_inferred_follows_the_candidate():
    """Every candidate has its own noise: those of a fit under that precision."""
    x, new = rows(12), rows(N, 1)
    y, y_new = targets(x, 2, 0.5), targets(new, 3, 0.5)
    model = linear(torch.linalg.lstsq(with_ones(x), y).solution)

    def at(precision: Any) -> Any:
        return bw.fit(model, (x, y), bw.Gaussian(), bw.Laplace(precision=precision), progress=False)

    sweep = [float(at(delta).predict(new).log_prob(y_new).mean()) for delta in CANDIDATES[::4]]
    found = at(bw.Validation(new, y_new, CANDIDATES[::4]))
    best = CANDIDATES[::4][max(range(len(sweep)), key=sweep.__getitem__)]
    assert torch.equal(found.weights.covariance, at(best).weights.covariance)
    assert float(found.predict(new).log_prob(y_new).mean()) == max(sweep)


def test_many_rows_are_held_out_once_and_a_subset_knows_how_many_train():
    """One part judges; the layers of the subset see 1,890 rows in the trial and 2,100 in the run."""
    x = rows(2100)
    first = bw.MAP(steps=40, learning_rate=bw.Cosine(0.05))
    method = bw.Laplace(subset="last", precision=bw.Validation(candidates=(0.1, 1.0, 10.0)), first=first)
    data = (x, classes(x))
    posterior: Any = bw.fit(network(), data, bw.Categorical(), method, progress=False)
    assert "of 3 by the log-likelihood of 210 rows" in posterior.summary()
    assert posterior.problem.n == 2100
    chosen = float(posterior.weights.layers["2"].precision)
    fixed = bw.Laplace(subset=("2",), precision=chosen, first=first)
    wanted = bw.fit(network(), data, bw.Categorical(), fixed, progress=False)
    assert wanted.log_evidence is not None and torch.equal(posterior.log_evidence, wanted.log_evidence)


def test_validation_is_refused_where_the_rows_were_fitted():
    with pytest.raises(ValueError, match=r"fitted its rows already.*first=bw.MAP\(\).*bw.Validation\(x, y\)"):
        bw.Laplace(precision=bw.Validation())
    with pytest.raises(ValueError, match="x and y belong together"):
        bw.Validation(x=rows(3))
    with pytest.raises(ValueError, match="candidates are positive"):
        bw.Validation(candidates=(1.0, 0.0))
    few = bw.Laplace(precision=bw.Validation(), first=bw.MAP(steps=20))
    posterior = bw.fit(network(), (rows(8), classes(rows(8))), bw.Categorical(), few, progress=False)
    assert "no rows could be held out: the prior precision is the evidence's" in posterior.summary()


# ------------------------------------------------------------------------------------------ layers by a mask


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("first", [None, bw.MAP(steps=60)])
def test_a_mask_is_the_names_it_stands_for(structure, first, tmp_path):
    x = rows(N)
    y, model = classes(x), network()
    if first is None:
        optimiser = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()

    def fit(subset: Any) -> Any:
        method = bw.Laplace(structure=STRUCTURES[structure], subset=subset, first=first)
        return bw.fit(
            model,
            (x, y),
            bw.Categorical(),
            method,
            progress=False,
            checkpoint=tmp_path / str(len(str(subset))),
        )

    named = fit(("2",))
    for mask in (lambda name, module: np.bool_(module.out_features == O), {"0": False, "2": True}):
        masked = fit(mask)
        assert list(masked.weights.means) == ["2"]
        assert torch.equal(masked.log_evidence, named.log_evidence)
        assert torch.equal(masked.predict(x).covariance, named.predict(x).covariance)


FORMS = {
    "names in a list": dict(subset=["2"]),
    "True or False by name": dict(subset={"0": np.True_, "2": False}),
    "precisions by name": dict(precision={"0": 0.5, "2": 4.0}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_estimator_has_its_layers_and_precisions(form, tmp_path):
    estimators = pytest.importorskip("bayeswise.estimators")
    x = rows(N).numpy()
    method = bw.Laplace(first=bw.MAP(steps=5), **FORMS[form])
    fitted = estimators.BayesianRegressor(hidden=(4,), method=method).fit(x, x[:, 0])
    fitted.save(tmp_path / "model")
    loaded = estimators.load_estimator(tmp_path / "model")
    assert loaded.method == method
    for new, old in zip(loaded.predict(x, return_std=True), fitted.predict(x, return_std=True), strict=True):
        assert np.array_equal(new, old)


def test_masks_without_meaning_are_refused():
    x = rows(N)

    def fit(subset: Any) -> None:
        method = bw.Laplace(subset=subset, first=bw.MAP(steps=5))
        bw.fit(network(), (x, classes(x)), bw.Categorical(), method, progress=False)

    with pytest.raises(ValueError, match='says nothing of layer "2"; give True or False'):
        fit({"0": True})
    with pytest.raises(ValueError, match=r"subset names nothing; there are \['0', '2'\]"):
        fit(lambda name, module: False)
    with pytest.raises(ValueError, match=r"subset names \['9'\]; there are \['0', '2'\]"):
        fit({"0": True, "2": True, "9": True})
    with pytest.raises(TypeError, match='says Tensor of layer "0".*single weights cannot be chosen'):
        fit({"0": torch.ones(6, I) > 0, "2": True})


# --------------------------------------------------------------------------------------- what each layer gets


class Mixed(nn.Module):
    """One of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.norm = nn.Embedding(9, 4), nn.Conv1d(4, 6, 2), nn.BatchNorm1d(6)
        self.place, self.padded = nn.Embedding(6, 4), nn.Embedding(9, 4, padding_idx=0)
        self.batch, self.instance = (
            nn.BatchNorm1d(6, track_running_stats=False),
            nn.InstanceNorm1d(6, affine=True),
        )
        self.hidden, self.unused, self.gru = nn.Linear(6, 5), nn.Linear(3, 3), nn.GRU(5, 5, batch_first=True)
        self.scale, self.out = nn.Parameter(torch.ones(5)), nn.Linear(5, O)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.padded(x) + self.place(torch.arange(6))
        h = self.instance(self.batch(self.norm(self.conv(h.mT)))).mean(-1)
        h = torch.tanh(self.hidden(h)) * self.scale
        return self.out(self.gru(h[:, None])[0][:, 0])


FIXED = {
    "": "parameters of Mixed itself: scale",
    "place": "it has no rows of its own for every example",
    "padded": "Embedding has a padding vector, which must stay",
    "batch": "BatchNorm1d takes its statistics from the batch",
    "instance": "InstanceNorm1d is none of the layers that can be inferred",
    "unused": "Linear is never called",
    "gru": "GRU is none of the layers that can be inferred",
}


@pytest.mark.filterwarnings("ignore::bayeswise.notices.FixedParametersWarning")
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("members", [None, 2])
def test_summary_has_a_line_for_every_layer(structure, members):
    x = torch.randint(9, (N, 6), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model, y = Mixed(), x[:, 0] % O
    data = (x, y) if members is None else (torch.stack([x, x]), torch.stack([y, y]))

    def lines(**settings) -> dict[str, str]:
        select = settings.pop("select", None)
        method = bw.Laplace(structure=STRUCTURES[structure], first=bw.MAP(steps=5), **settings)
        shown = bw.fit(
            model, data, bw.Categorical(), method, members=members, select=select, progress=False
        ).summary()
        found = [line.removeprefix('layer "').split('": ') for line in shown.split("\n") if 'layer "' in line]
        return {name: text.split(", prior precision")[0] for name, text in found}

    word = {"kronecker": "Kronecker", "diagonal": "diagonal", "full": "full"}[structure]
    fixed = {name: f"fixed, {reason}" for name, reason in FIXED.items()}
    inferred = {"conv": f"{word} 9 x 6", "hidden": f"{word} 7 x 5", "out": f"{word} 6 x 3"}
    own = "diagonal" if structure == "kronecker" else word  # norms and embeddings
    inferred |= {"embed": f"{own} 9 x 4", "norm": f"{own} 6 x 2 x 1"}
    assert lines() == inferred | fixed
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert lines(subset="last") == inferred | fixed | {
        "conv": "fixed, not in the subset",
        "hidden": "fixed, not in the subset",
        "embed": "fixed, not in the subset",
        "norm": "fixed, not in the subset",
    }
    left = dict.fromkeys(("hidden", "embed", "norm", "place"), "fixed, not selected")
    assert lines(select=["conv", "out"]) == inferred | fixed | left
