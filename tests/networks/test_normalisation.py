"""Running statistics that are taken anew: equal to a direct computation, and nothing else moves."""

import pytest
import torch
from torch import Tensor, nn

from bayeswise.networks import norms_with_statistics, renew_statistics

B, I, O, N = 7, 5, 3, 31  # noqa: E741


def rows(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1


def norm(**options) -> nn.BatchNorm1d:
    """A norm with statistics of something else."""
    found = nn.BatchNorm1d(I, **options).double()
    if found.running_mean is not None and found.running_var is not None:
        found.running_mean.fill_(9.0)
        found.running_var.fill_(0.1)
    return found


@pytest.mark.parametrize("momentum", [0.1, None])
def test_equal_batches_give_the_cumulative_average(momentum: float | None):
    x, ours, theirs = rows(28, I), norm(momentum=momentum), norm(momentum=None)
    theirs.reset_running_stats()
    for batch in x.split(B):
        theirs(batch)
    ours.eval()
    renew_statistics(ours, x.split(B), ours)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
    assert ours.momentum == momentum and not ours.training


def test_batches_count_by_their_rows():
    x, found = rows(N, I), norm()
    parts = x.split(B)  # 7, 7, 7, 7, 3
    renew_statistics(found, parts, found)
    variance = sum(part.var(0) * len(part) for part in parts) / N
    torch.testing.assert_close(found.running_mean, x.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.running_var, variance, rtol=1e-12, atol=0)


def test_a_last_row_by_itself_is_left_out():
    x, found = rows(B + 1, I), norm()
    renew_statistics(found, x.split(B), found)
    torch.testing.assert_close(found.running_mean, x[:B].mean(0), rtol=0, atol=1e-12)


def test_rows_may_stand_in_another_dimension():
    x, found = rows(2, N, I), norm()
    renew_statistics(found, x.split(B, 1), lambda part: found(part[1]), dim=1)
    torch.testing.assert_close(found.running_mean, x[1].mean(0), rtol=0, atol=1e-12)


def test_instance_norms_take_statistics_too():
    x, found = rows(N, I, 6), nn.InstanceNorm1d(I, track_running_stats=True).double()
    renew_statistics(found, x.split(B), found)
    torch.testing.assert_close(found.running_mean, x.mean((0, 2)), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.running_var, x.var(2).mean(0), rtol=1e-12, atol=0)


def test_only_norms_that_keep_statistics_are_found_and_others_need_no_pass():
    model = nn.Sequential(norm(), nn.LayerNorm(I), norm(track_running_stats=False), nn.GroupNorm(1, I))
    assert norms_with_statistics(model) == [model[0]]
    renew_statistics(model[1:], rows(N, I).split(B), lambda x: pytest.fail("there is nothing to renew"))


def test_modes_momenta_and_dropout_are_left_alone():
    model = nn.Sequential(nn.Linear(I, I).double(), nn.Dropout(0.5), norm(momentum=0.3)).train()
    model[1].eval()
    seen = []

    def run(x: Tensor) -> None:
        seen.append([m.training for m in model.modules()])
        model(x)
        if len(seen) == 2:
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        renew_statistics(model, rows(N, I).split(B), run)
    assert seen[0] == [False, False, False, True]
    assert [m.training for m in model.modules()] == [True, True, False, True]
    assert model[2].momentum == 0.3
