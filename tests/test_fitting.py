"""The door: what `fit` accepts, how it chooses, and what it refuses with a reason."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayeswise as bw
from bayeswise.data import TensorRows
from bayeswise.fitting import FixedParametersWarning, standard_units
from bayeswise.networks import discover

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

    posterior = bw.fit(model(), (random(N, I), random(N, O)), bw.Gaussian(), callbacks=[stop], **QUIET)
    assert posterior.method == "BALI" and seen == [2000]


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


def test_a_nan_at_a_later_batch_of_a_loader_is_named():
    with pytest.raises(ValueError, match="batch 9: .*NaN"):
        fit(data=DataLoader(Broken(), 4))


def test_a_loader_whose_rows_do_not_agree_is_refused():
    batches = DataLoader(
        [(random(I), random(O))] * 8, 4, collate_fn=lambda rows: (random(4, I), random(3, O))
    )
    with pytest.raises(ValueError, match="batch 0: x has 4 rows and y 3"):
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
