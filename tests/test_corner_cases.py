"""Models and data that are allowed and rare: the same answers as of their ordinary twins."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import bayeswise as bw
from bayeswise.notices import FixedParametersWarning
from tests.test_fitting import QUIET, B, I, N, O, fit, model, random


class Squeezed(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.inner = model(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).squeeze()


METHODS = [
    bw.BALI(steps=3),
    bw.MAP(steps=3),
    bw.Laplace(first=bw.MAP(steps=3)),
    bw.MCDropout(steps=3),
    bw.SWAG(steps=6, every=2),
]


@pytest.mark.parametrize("outputs", [1, O])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_a_model_that_squeezes_a_single_row_away(method, outputs: int):
    """The last of 31 rows is a batch of its own where all are looked at in tens."""
    squeezed, x, y = Squeezed(outputs), random(31, I), random(31, outputs, seed=1)
    found, wanted = (
        bw.fit(network, (x, y), bw.Gaussian(), method, batch_size=10, **QUIET).predict(x)
        for network in (squeezed, squeezed.inner)
    )
    for name in ("mean", "epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-12, atol=1e-14)


def test_frozen_layers_stay_as_they_are():
    network = model()
    network[0].requires_grad_(False)
    for method in (bw.BALI(steps=3), bw.Laplace(first=bw.MAP(steps=3))):
        with pytest.warns(FixedParametersWarning, match="0.weight"):
            posterior = bw.fit(network, (random(N, I), random(N, O, seed=1)), bw.Gaussian(), method, **QUIET)
        assert [layer.name for layer in posterior.problem.network.layers] == ["2"]
    chosen = fit(data=(random(N, I), random(N, O)), select=["0", "2"])
    assert len(chosen.problem.network.layers) == 2
    frozen = model().requires_grad_(False)  # a model that was put aside after training
    posterior = bw.fit(frozen, (random(N, I), random(N, O)), bw.Gaussian(), bw.BALI(steps=2), **QUIET)
    assert len(posterior.problem.network.layers) == 2


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.bool])
def test_small_whole_numbers_do_not_overflow(kind: torch.dtype):
    class Floats(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double())

    x = (random(300, 210) > 0).to(kind)
    network = Floats(nn.Linear(210, 2).double())
    y = x[:, :2].double().sum(1)
    found, wanted = (
        bw.fit(network, (given, y[:, None].expand(-1, 2)), bw.Gaussian(), bw.BALI(steps=3), **QUIET).predict(
            given
        )
        for given in (x, x.double())
    )
    torch.testing.assert_close(found.std.double(), wanted.std.double(), rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("noise", "members", "said"),
    [
        (torch.eye(2), None, r"noise has shape \(2, 2\); for this model it needs \(3, 3\)"),
        (torch.eye(O).expand(4, O, O), None, r"needs \(3, 3\)"),
        (torch.eye(O).expand(4, O, O), 2, r"needs \(3, 3\) or \(2, 3, 3\)"),
        (-torch.eye(O), None, "symmetric and positive definite"),
        (torch.eye(O) + torch.tensor([[0, 0.5, 0], [0, 0, 0], [0, 0, 0]]), None, "symmetric and positive"),
    ],
)
def test_a_known_noise_that_is_no_covariance_of_the_outputs(noise: Tensor, members: int | None, said: str):
    lead = () if members is None else (members,)
    with pytest.raises(ValueError, match=said):
        fit(random(*lead, N, I), random(*lead, N, O, seed=1), bw.Gaussian(noise), members=members)


def test_noise_of_each_split_with_several_starts():
    x, y = random(3, N, I), random(3, N, O, seed=1)
    noise = torch.eye(O).double() * torch.tensor([0.1, 0.4, 1.6]).double()[:, None, None]
    method = bw.BALI(steps=3, members=2)
    found = bw.fit(model(), (x, y), bw.Gaussian(noise), method, members=3, **QUIET).predict(x)
    wanted = torch.tensor([0.1, 0.4, 1.6]).double().sqrt()[:, None, None].expand(3, N, O)
    torch.testing.assert_close(found.aleatoric, wanted, rtol=1e-6, atol=0)


def test_labels_of_any_whole_type():
    labels = np.arange(N) % O
    wanted = fit(random(N, I), labels, bw.Categorical()).predict(random(B, I)).mean
    for kind in (np.uint8, np.uint16, np.uint32, np.int8):
        found = fit(random(N, I), labels.astype(kind), bw.Categorical()).predict(random(B, I)).mean
        assert torch.equal(found, wanted)


def test_a_stream_that_knows_its_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(random(N, I), random(N, O, seed=1), strict=True))

        def __len__(self) -> int:
            return N

    assert fit(data=Stream()).problem.n == N
