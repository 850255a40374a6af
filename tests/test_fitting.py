"""The door: what `fit` accepts, how it chooses, and what it refuses with a reason."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.fitting import standard_units
from bayeswise.linalg import NumericalWarning
from bayeswise.networks import discover
from bayeswise.notices import FixedParametersWarning, PrecisionWarning
from bayeswise.saving import SavedModelError

B, I, O, N = 7, 5, 3, 40  # noqa: E741
QUIET = dict(progress=False)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(outputs: int = O) -> nn.Module:
    return nn.Sequential(nn.Linear(I, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def fit(x=None, y=None, likelihood=None, steps: int = 2, outputs: int = O, **options):
    pair = options.pop("data", (random(N, I) if x is None else x, random(N, O, seed=1) if y is None else y))
    return bw.fit(model(outputs), pair, likelihood or bw.Gaussian(), bw.BALI(steps=steps), **QUIET, **options)


# ------------------------------------------------------------------------------------------------- choices


def test_the_default_method_is_bali():
    seen = []

    def stop(progress) -> bool:
        seen.append(progress.total)
        return True

    posterior = bw.fit(
        model(), (random(8, I), random(8, O)), bw.Gaussian(), callbacks=[stop], **QUIET
    )  # too few rows to choose anything by
    assert posterior.method == "BALI" and seen == [3000]
    assert "rules of thumb" in posterior.summary()


def test_targets_are_standardised_and_predictions_are_not():
    x, y = random(N, I), 50 + 4 * random(N, O, seed=1)
    units = fit(x, y).problem.units
    torch.testing.assert_close(units.shift, y.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(units.scale, y.std(0, correction=0), rtol=0, atol=1e-12)
    assert (fit(x, y).predict(x).mean - 50).abs().max() < 20
    plain = fit(x, y, standardise=False).problem.units
    assert torch.equal(plain.scale, torch.ones(O, dtype=y.dtype)) and not plain.shift.any()


def test_a_network_that_starts_from_its_own_weights_keeps_its_units():
    method = bw.BALI(steps=1, start="model")
    posterior = bw.fit(model(), (random(N, I), 9 + random(N, O)), bw.Gaussian(), method, **QUIET)
    assert not posterior.problem.units.shift.any()


def test_a_constant_target_keeps_its_scale():
    y = random(N, O, seed=1)
    y[:, 1] = 0.1 * 3  # the mean of such a column is not exactly it
    y[:, 2] = 0.0
    posterior = fit(y=y)
    assert posterior.problem.units.scale[1:].tolist() == [1.0, 1.0]
    predictive = posterior.predict(random(B, I, seed=2))
    assert predictive.mean.isfinite().all() and (predictive.std > 0).all()


def test_units_are_computed_in_double_precision():
    y = (1e6 + random(N, O, seed=1)).float()
    network = discover(nn.Linear(I, O), random(B, I).float())
    units = standard_units(TensorRows(random(N, I).float(), y, B), network)
    torch.testing.assert_close(units.scale.double(), y.double().std(0, correction=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_one_output_takes_targets_of_both_shapes(shape: tuple[int, ...]):
    y = random(N, seed=1)
    expected = fit(y=y[:, None], outputs=1).predict(random(B, I)).mean
    assert torch.equal(fit(y=y.reshape(shape), outputs=1).predict(random(B, I)).mean, expected)


def test_a_model_with_flat_outputs_is_accepted():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(I, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x).squeeze(-1)

    posterior = bw.fit(Flat().double(), (random(N, I), random(N)), bw.Gaussian(), bw.BALI(steps=2), **QUIET)
    assert posterior.problem.network.output_layer == "fc"
    assert posterior.predict(random(B, I)).mean.shape == (B, 1)


def test_arrays_and_tensors_are_the_same():
    x, y = random(N, I), random(N, O, seed=1)
    assert torch.equal(fit(x.numpy(), y.numpy()).predict(x).mean, fit(x, y).predict(x.numpy()).mean)


def test_whole_numbers_as_regression_targets():
    y = torch.arange(N * O).reshape(N, O)
    assert torch.equal(fit(y=y).predict(random(B, I)).mean, fit(y=y.double()).predict(random(B, I)).mean)


def test_selected_layers_only():
    with pytest.warns(FixedParametersWarning, match=r"61\.5% .*: 0\.weight, 0\.bias"):
        posterior = fit(select=["2"])
    assert set(posterior.weights.layers) == {"2"}
    assert f"{24 / 39:.1%}" == "61.5%"


def test_batch_size_decides_the_rows_of_a_step():
    seen: list[int] = []

    class Watch(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape[0])
            return super().forward(x)

    network = nn.Sequential(Watch(I, 4), nn.Linear(4, O)).double()
    with pytest.warns(FixedParametersWarning):
        bw.fit(network, (random(N, I), random(N, O)), bw.Gaussian(), bw.BALI(steps=5), batch_size=B, **QUIET)
    assert seen[-5:] == [B] * 5


def test_a_callback_ends_the_run():
    steps: list[int] = []

    def stop(progress) -> bool:
        steps.append(progress.step)
        return progress.step == 4

    assert fit(steps=50, callbacks=[stop]).summary().count("4 steps") == 1
    assert steps == [1, 2, 3, 4]


def test_members_are_the_leading_dimension():
    x, y = random(3, N, I), random(3, N, O, seed=1)
    posterior = fit(x, y, members=3)
    assert posterior.problem.n == N and posterior.predict(x[:, :B]).mean.shape == (3, B, O)


# -------------------------------------------------------------------------------------------- what is refused


class Broken(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return random(I), random(O) * (float("nan") if index == 36 else 1.0)


BAD_PAIRS = {
    "NaN in x": (lambda x, y: (x.index_fill(0, torch.tensor(3), torch.nan), y), "5 of 200 inputs are NaN"),
    "inf in x": (
        lambda x, y: (x.index_fill(1, torch.tensor(0), torch.inf), y),
        "40 of 200 inputs are NaN or inf",
    ),
    "NaN in y": (lambda x, y: (x, y.index_fill(0, torch.tensor(3), torch.nan)), "NaN"),
    "other rows": (lambda x, y: (x, y[:-1]), r"\(40, 5\) and y \(39, 3\)"),
    "no rows": (lambda x, y: (x[:0], y[:0]), "at least one is needed"),
    "other outputs": (lambda x, y: (x, y[:, :2]), r"\(40, 2\)"),
    "numbers": (lambda x, y: (1.0, 2.0), "rows do not agree"),
}


@pytest.mark.parametrize("name", BAD_PAIRS)
def test_bad_pairs_stop_at_the_door(name: str):
    change, message = BAD_PAIRS[name]
    with pytest.raises(ValueError, match=message):
        fit(data=change(random(N, I), random(N, O, seed=1)))


@pytest.mark.parametrize("x", [["a", "b"], np.array(["a", "b"]), object()])
def test_what_is_no_array_of_numbers_is_refused(x):
    with pytest.raises(TypeError, match="x is a"):
        fit(data=(x, random(2, O)))


@pytest.mark.parametrize("data", [random(N, I), (random(N, I),), 5, "table.csv", {"x": 1}])
def test_data_of_another_form_are_refused(data):
    with pytest.raises((TypeError, ValueError), match="pair|x has shape"):
        fit(data=data)


def test_labels_out_of_range_are_named():
    y = torch.arange(N) % O
    y[4] = 7
    with pytest.raises(ValueError, match="7"):
        fit(y=y, likelihood=bw.Categorical())
    with pytest.raises(ValueError, match="2"):
        fit(y=2 * torch.ones(N, O), likelihood=bw.Bernoulli())


def test_options_without_meaning_are_refused():
    with pytest.raises(TypeError, match="nn.Module, not function"):
        bw.fit(lambda x: x, (random(N, I), random(N, O)), bw.Gaussian())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        fit(batch_size=0)
    with pytest.raises(ValueError, match="members=4, but x has shape"):
        fit(random(3, N, I), random(3, N, O), members=4)
    with pytest.raises(TypeError, match=r"members=2 needs a pair.*not a TensorDataset"):
        fit(data=TensorDataset(random(N, I), random(N, O)), members=2)


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path):
    x, y = random(2, N, I), random(2, N, O, seed=1)
    expected = fit(x, y, batch_size=8, members=2, seed=3)
    posterior = fit(x, y, batch_size=np.int64(8), members=np.int64(2), seed=np.int64(3))
    assert torch.equal(posterior.predict(x).mean, expected.predict(x).mean)
    assert type(posterior.seed) is int and type(posterior.problem.members) is int
    posterior.save(tmp_path / "posterior")
    pairs = TensorDataset(x[0], y[0])
    assert torch.equal(
        fit(data=pairs, batch_size=np.int64(8)).predict(x[0]).mean,
        fit(data=pairs, batch_size=8).predict(x[0]).mean,
    )


@pytest.mark.parametrize("name", ["batch_size", "members", "seed"])
@pytest.mark.parametrize("value", [2.0, "2"])
def test_counts_are_whole_numbers(name: str, value):
    with pytest.raises(TypeError, match=f"^{name} must be a whole number, not {value!r}$"):
        fit(**{name: value})


def test_a_nan_at_a_later_batch_of_a_loader_is_named():
    with pytest.raises(ValueError, match="batch 9: .*NaN"):
        fit(data=DataLoader(Broken(), 4))


def test_a_loader_whose_rows_do_not_agree_is_refused():
    batches = DataLoader(
        [(random(I), random(O))] * 8, 4, collate_fn=lambda rows: (random(4, I), random(3, O))
    )
    with pytest.raises(ValueError, match=r"batch 0: y has shape \(3, 3\); for x of shape \(4, 5\)"):
        fit(data=batches)


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        fit(data=DataLoader(TensorDataset(random(3, I), random(3, O)), 4, drop_last=True))


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_give_an_answer(rows: int):
    predictive = fit(random(rows, I), random(rows, O)).predict(random(B, I))
    assert predictive.mean.isfinite().all() and (predictive.std > 0).all()


def test_inference_mode_outside_does_not_matter():
    x, y = random(N, I), random(N, O, seed=1)
    with torch.inference_mode():
        inside = fit(x, y).predict(x).mean
    assert torch.equal(inside.clone(), fit(x, y).predict(x).mean)


def test_a_method_that_needs_gradients_to_answer_works_in_inference_mode():
    network, method = model(), bw.Laplace(first=bw.MAP(steps=3))

    def answers() -> list[Tensor]:
        x, y = random(N, I), random(N, O, seed=1)  # born in the mode, too
        posterior = bw.fit(network, (x, y), bw.Gaussian(), method, **QUIET)
        assert torch.is_inference_mode_enabled() == inside
        found = posterior.predict(x)
        few = posterior.predict(x, memory=10_000)  # computed when it is asked for
        return [found.mean, found.std, few.std, posterior.function_covariance(x[:2])]

    inside = False
    expected = answers()
    inside = True
    with torch.inference_mode():
        found = answers()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.clone(), b)


@pytest.mark.parametrize("method", [bw.BALI(steps=2), bw.Laplace(first=bw.MAP(steps=2))])
def test_answers_carry_no_graph_of_the_rows(method):
    x, y = random(N, I).requires_grad_(), random(N, O, seed=1).requires_grad_()
    found = bw.fit(model(), (x, y), bw.Gaussian(), method, **QUIET).predict(x)
    assert not found.mean.requires_grad and not found.std.requires_grad


def test_numbers_that_no_run_can_have():
    with pytest.raises(ValueError, match="members must be at least 1, not 0"):
        fit(members=0)
    with pytest.raises(ValueError, match="seed must fit into 64 bits"):
        fit(seed=2**64 + 3)
    with pytest.raises(TypeError, match="MAP: learning_rate is a schedule, not <class"):
        bw.MAP(learning_rate=bw.Cosine)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ shapes of targets


def answers(y: Tensor, likelihood, outputs: int = O, members: int | None = None) -> Tensor:
    x = random(N, I) if members is None else random(members, N, I)
    x = x[..., : y.shape[0 if members is None else 1], :]
    return fit(x, y, likelihood, outputs=outputs, members=members).predict(x[..., :B, :]).mean


def test_labels_in_a_column_are_those_in_a_row():
    y = torch.arange(N) % O
    assert torch.equal(answers(y[:, None], bw.Categorical()), answers(y, bw.Categorical()))
    both = torch.stack([y, y.flip(0)])
    expected = answers(both, bw.Categorical(), members=2)
    assert torch.equal(answers(both[..., None], bw.Categorical(), members=2), expected)


@pytest.mark.parametrize("likelihood", [bw.Gaussian(), bw.Bernoulli(), bw.Categorical()])
@pytest.mark.parametrize("rows", [1, N])
def test_members_take_targets_without_a_column(likelihood, rows: int):
    y, outputs = torch.arange(2 * rows).reshape(2, rows) % 2, 1 if likelihood.event_dim else O
    expected = answers(y[..., None], likelihood, outputs, members=2)
    assert torch.equal(answers(y, likelihood, outputs, members=2), expected)


LABELS = torch.arange(N) % O
BAD_SHAPES = {
    "one-hot": (nn.functional.one_hot(LABELS), bw.Categorical(), r"\(40, 3\); .*\(40, 5\).*argmax"),
    "tables of labels": (LABELS[:, None].expand(N, 2), bw.Categorical(), r"\(40, 2\).*needs \(40,\)"),
    "too many axes of labels": (LABELS[:, None, None], bw.Categorical(), r"\(40, 1, 1\).*needs \(40,\)"),
    "too many axes": (random(N, 1, O), bw.Gaussian(), r"\(40, 1, 3\); for x of shape \(40, 5\)"),
    "too many axes of bits": (torch.ones(N, 1, O), bw.Bernoulli(), r"\(40, 1, 3\).*needs \(40, 3\)"),
}


@pytest.mark.parametrize("name", BAD_SHAPES)
@pytest.mark.parametrize("loader", [False, True])
def test_targets_of_another_shape_are_refused_with_both_shapes(name: str, loader: bool):
    y, likelihood, message = BAD_SHAPES[name]
    data = (random(N, I), y)
    with pytest.raises(ValueError, match=message):
        fit(data=DataLoader(TensorDataset(*data), N) if loader else data, likelihood=likelihood)


def test_one_output_refuses_more_axes():
    with pytest.raises(ValueError, match=r"\(40, 1, 1\).*needs \(40, 1\)"):
        fit(y=random(N, 1, 1), outputs=1)


# -------------------------------------------------------------------------------------------------- precision


def test_targets_behind_a_bound_head_are_scaled_but_not_shifted():
    x = random(N, I)
    y = (0.2 + x[:, :1].abs()).double()
    torch.manual_seed(0)  # of some starts 300 steps are not enough
    network = nn.Sequential(nn.Linear(I, 20), nn.Tanh(), nn.Linear(20, 1), nn.Softplus()).double()
    posterior = bw.fit(network, (x, y), bw.Gaussian(), bw.MAP(steps=300), **QUIET)
    units = posterior.problem.units
    assert units.shift.tolist() == [0.0]
    torch.testing.assert_close(units.scale, y.square().mean(0).sqrt(), rtol=1e-14, atol=0)
    mean = posterior.predict(x).mean
    assert (mean < y.mean() - 0.3).any() and (mean - y).square().mean().sqrt() < 0.3
    zero = bw.fit(network, (x, 0 * y), bw.Gaussian(), bw.BALI(steps=2), **QUIET)
    assert zero.problem.units.scale.tolist() == [1.0]


def test_whole_numbers_keep_every_digit():
    y = 10**12 + torch.arange(N * O).reshape(N, O)
    torch.testing.assert_close(fit(y=y).problem.units.shift, y.double().mean(0), rtol=1e-15, atol=0)


def test_a_small_spread_far_from_zero_in_single_precision():
    x = random(N, I)
    near = 9 * (x[:, :1] + 0.5 * random(N, 1, seed=1))

    def learn(y: Tensor) -> tuple[list[float], bw.Posterior]:
        curve: list[float] = []
        see = [lambda progress: curve.append(float(progress.info.log_lik))]
        method, data = bw.BALI(steps=50), (x.float(), y)
        return curve, bw.fit(model(1).float(), data, bw.Gaussian(), method, callbacks=see, **QUIET)

    expected, exact = learn(near)
    with pytest.warns(PrecisionWarning, match="float32 cannot resolve the spread of y"):
        found, posterior = learn(1e9 + near)
    assert expected[-1] > expected[0] + 0.3 and found == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(posterior.problem.units.scale, near.std(0, correction=0), rtol=1e-6, atol=0)
    torch.testing.assert_close(posterior.problem.units.shift, 1e9 + near.mean(0), rtol=1e-15, atol=0)
    found, wanted = posterior.predict(x).aleatoric, exact.predict(x).aleatoric.double()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)


def test_ordinary_targets_are_answered_in_the_precision_of_the_network():
    posterior = bw.fit(model().float(), (random(N, I).float(), 7 + random(N, O)), bw.Gaussian(),
                       bw.BALI(steps=2), **QUIET)  # fmt: skip
    assert posterior.problem.units.scale.dtype == posterior.predict(random(B, I)).mean.dtype == torch.float32


@pytest.mark.parametrize("size", [2.0**80, 2.0**-80])
@pytest.mark.parametrize("method", [bw.MAP(steps=5), bw.BALI(steps=5), bw.Laplace(first=bw.MAP(steps=5))])
def test_variances_may_leave_single_precision(method, size: float):
    """Masses of molecules and of stars: the same answers in other units."""
    x, y, network = random(N, I).float(), random(N, O, seed=1).float(), model().float()
    plain, scaled = (
        bw.fit(network, (x, y * s), bw.Gaussian(), method, **QUIET).predict(x) for s in (1.0, size)
    )
    for name in ("mean", "std", "epistemic", "aleatoric"):
        a, b = getattr(plain, name).double(), getattr(scaled, name).double() / size
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    told = scaled.log_prob(size * y).double() + O * math.log(size)
    torch.testing.assert_close(told, plain.log_prob(y).double(), rtol=1e-4, atol=1e-3)


def test_targets_that_are_too_large():
    x, y = random(N, I).float(), 1e45 * random(N, O, seed=1)
    with pytest.raises(ValueError, match="spread of .*too large or too small for float32; rescale y"):
        fit(x, y)
    with pytest.raises(ValueError, match="values up to .*too large for float32; rescale y"):
        fit(x, y, standardise=False)
    with pytest.raises(ValueError, match="divide y by a number of its size"):
        fit(x, 1e200 * y)


# ---------------------------------------------------------------------------------- parts that are not values


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (bw.Gaussian, r"likelihood is the class Gaussian; .*Gaussian\(\)"),
        ("gaussian", r"likelihood is a str; give Gaussian\(\), Categorical\(\)"),
        (None, "likelihood is a NoneType"),
    ],
)
def test_a_likelihood_is_a_value(likelihood, message: str):
    with pytest.raises(TypeError, match=message):
        bw.fit(model(), (random(N, I), random(N, O)), likelihood, **QUIET)


@pytest.mark.parametrize(
    ("method", "message"),
    [(bw.BALI, r"the class BALI; .*BALI\(\)"), ("bali", r"method is a str; .*BALI\(\)")],
)
def test_a_method_is_a_value(method, message: str):
    with pytest.raises(TypeError, match=message):
        bw.fit(model(), (random(N, I), random(N, O)), bw.Gaussian(), method, **QUIET)


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_a_model_returns_one_tensor(kind: str):
    class Several(nn.Linear):
        def forward(self, x: Tensor):
            z = super().forward(x)
            return (z, z) if kind == "tuple" else {"z": z}

    with pytest.raises(TypeError, match=f"the model returned a {kind}"):
        bw.fit(Several(I, O).double(), (random(N, I), random(N, O)), bw.Gaussian(), **QUIET)


# ----------------------------------------------------------------------------------------- names and warnings


def test_the_warning_is_short_and_the_summary_is_whole():
    norms = [layer for _ in range(5) for layer in (nn.Linear(I, I), nn.LayerNorm(I))]
    network = nn.Sequential(*norms, nn.Linear(I, O)).double()
    with pytest.warns(bw.FixedParametersWarning, match="3.weight.* and 4 more$"):
        posterior = bw.fit(network, (random(N, I), random(N, O)), bw.Gaussian(), bw.BALI(steps=1), **QUIET)
    names = [
        name
        for name, value in network.named_parameters()
        if isinstance(network[int(name.split(".")[0])], nn.LayerNorm)
    ]
    assert len(names) == 10 and ", ".join(names) in posterior.summary()


@pytest.mark.parametrize(
    ("layer", "shape"), [(lambda: nn.Linear(I, O), (N, I)), (lambda: nn.Conv1d(I, O, 1), (N, I, 1))]
)
def test_whole_numbers_for_a_model_of_floats_are_refused_with_the_remedy(layer, shape):
    x, network = torch.ones(shape, dtype=torch.int64), nn.Sequential(layer(), nn.Flatten())
    with pytest.raises(ValueError, match=r"^x has type int64, the model computes with floats; give x.float"):
        bw.fit(network, (x, random(N, O)), bw.Gaussian(), bw.MAP(steps=1), **QUIET)
    posterior = bw.fit(network, (x.float(), random(N, O)), bw.Gaussian(), bw.MAP(steps=1), **QUIET)
    with pytest.raises(ValueError, match=r"like those it was fitted on, as floats: x.float\(\)$"):
        posterior.predict(x)


def test_whole_numbers_of_an_embedding_get_the_models_own_reason():
    network = nn.Sequential(nn.Embedding(4, I), nn.Flatten(), nn.Linear(I + 1, O))
    with pytest.raises(ValueError, match="the model cannot run on x of shape .*int64: mat1 and mat2 shapes"):
        bw.fit(network, (torch.ones(N, 1).long(), random(N, O)), bw.Gaussian(), bw.MAP(steps=1), **QUIET)


def test_the_first_input_that_is_no_number_is_named():
    x = random(N, I)
    x[3, 2] = x[4, 0] = torch.nan
    with pytest.raises(ValueError, match=r"2 of \d+ inputs are NaN .* the first is x\[3, 2\]; clean"):
        bw.fit(model(), (x, random(N, O)), bw.Gaussian(), bw.MAP(steps=1), **QUIET)


def test_warnings_can_be_named():
    assert bw.NumericalWarning is NumericalWarning and bw.FixedParametersWarning is FixedParametersWarning


def test_completion_knows_every_public_name():
    public = {*bw._WHERE, *bw._ALSO}
    assert {"Kronecker", "Full", "Evidence", "Validation", "Tuning", "Pairwise", "fit", "metrics"} <= public
    assert public < set(bw.__all__) and set(dir(bw)) == set(bw.__all__)
    assert len(bw.__all__) == len(set(bw.__all__)) and all(hasattr(bw, name) for name in bw.__all__)


# -------------------------------------------------------------------------------------- the identity of a run


def constant(step: int, steps: int) -> float:
    return 0.2


def test_only_a_run_with_checkpoints_needs_a_method_that_can_be_written_down(tmp_path):
    data, method = (random(N, I), random(N, O)), bw.BALI(steps=2, update_rate=constant)
    bw.fit(model(), data, bw.Gaussian(), method, **QUIET)
    with pytest.raises(TypeError, match="BALI.update_rate is a function"):
        bw.fit(model(), data, bw.Gaussian(), method, checkpoint=tmp_path, **QUIET)


def resumable(folder, network: nn.Module | None = None, likelihood=None, method=None, **options):
    network = norm_model() if network is None else network
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FixedParametersWarning)
        return bw.fit(
            network,
            (random(N, I), random(N, O, seed=1)),
            likelihood or bw.Gaussian(0.5),
            method or bw.BALI(steps=3),
            checkpoint=folder,
            **QUIET,
            **options,
        )


def norm_model(scale: float = 1.0, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    network = nn.Sequential(nn.Linear(I, 4), nn.LayerNorm(4), activation(), nn.Linear(4, O)).double()
    nn.init.constant_(network[1].weight, scale)
    return network


def test_a_run_is_resumed_by_a_model_with_other_first_weights_if_they_do_not_matter(tmp_path):
    method = bw.BALI(steps=np.int64(3), step_size=np.float32(0.5))
    first = resumable(tmp_path, method=method).predict(random(B, I)).mean
    assert torch.equal(resumable(tmp_path, method=method).predict(random(B, I)).mean, first)


OTHERS = {
    "fixed parameters": lambda: dict(network=norm_model(2.0)),
    "model": lambda: dict(network=norm_model(activation=nn.ReLU)),
    "noise": lambda: dict(likelihood=bw.Gaussian(0.25)),
    "likelihood": lambda: dict(likelihood=Laplace(0.5)),
    "seed": lambda: dict(seed=1),
}


class Laplace(bw.Gaussian):
    """Another one by name."""


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_not_resumed(what: str, tmp_path):
    resumable(tmp_path)
    with pytest.raises(SavedModelError, match=f"belongs to a run with another {what}:"):
        resumable(tmp_path, **OTHERS[what]())


def test_how_a_method_would_choose_does_not_matter_where_it_has_chosen(tmp_path):
    resumable(tmp_path, method=bw.BALI(steps=3))
    resumable(tmp_path, method=bw.BALI(steps=3, tuning=bw.Tuning(race=7)))


def test_a_run_that_chose_in_another_way_is_another_run(tmp_path):
    short = bw.Tuning(lengths=(20, 30), long_rows=1, race=5, shares=(1.0,), straight_shares=(), steep=1e3)
    other = replace(short, lengths=(10, 30), more=0.2)  # as many steps in the end, from another rehearsal
    given = bw.BALI(temperature=1.0, tuning=short)
    resumable(tmp_path, method=given)
    resumable(tmp_path, method=given)
    with pytest.raises(SavedModelError, match="another method as given: .*'lengths': .20, 30.*there"):
        resumable(tmp_path, method=replace(given, tuning=other))


def test_other_noise_covariances_are_other_runs(tmp_path):
    noise = torch.eye(O, dtype=torch.float64)
    resumable(tmp_path, likelihood=bw.Gaussian(noise))
    resumable(tmp_path, likelihood=bw.Gaussian(noise.clone()))
    with pytest.raises(SavedModelError, match="another noise"):
        resumable(tmp_path, likelihood=bw.Gaussian(2 * noise))


@pytest.mark.parametrize("method", [bw.BALI(steps=3, start="model"), bw.MAP(steps=3)])
def test_other_starting_weights_are_another_run_where_they_matter(method, tmp_path):
    network = norm_model()
    resumable(tmp_path, network, method=method)
    resumable(tmp_path, network, method=method)
    with pytest.raises(SavedModelError, match="another starting weights"):
        resumable(tmp_path, method=method)


def test_tables_of_numbers_and_read_only_arrays_are_taken():
    pd = pytest.importorskip("pandas")
    x, y = random(N, I), random(N, 1, seed=1)
    locked = y.numpy().copy()
    locked.flags.writeable = False
    method = bw.BALI(steps=3)
    expected = bw.fit(model(1), (x, y), bw.Gaussian(), method, **QUIET).predict(x).mean
    frame = pd.DataFrame(x.numpy(), columns=[str(i) for i in range(I)])
    posterior = bw.fit(model(1), (frame, locked), bw.Gaussian(), method, **QUIET)
    assert torch.equal(posterior.predict(frame).mean, expected)
    assert repr(posterior) == f"BALI posterior of Sequential (2 layers inferred, Gaussian, {N} rows)"
