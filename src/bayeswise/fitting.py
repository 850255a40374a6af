"""The three-line door: a model, data and a likelihood in, a posterior out."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bayeswise.data import BATCH, Batch, LoaderRows, Rows, TensorRows, as_loader
from bayeswise.likelihoods import Gaussian, Likelihood
from bayeswise.linalg import NumericalWarning
from bayeswise.methods import BALI, Method
from bayeswise.networks import Network, Select, discover, evaluating
from bayeswise.posterior import Posterior, prepared_inputs
from bayeswise.problem import Problem, Units
from bayeswise.saving import to_config
from bayeswise.training import Callback, Checkpoints, train

CONSTANT = 1e-9  # a target whose spread is smaller than this share of its size is constant


class FixedParametersWarning(UserWarning):
    """Part of the model is not inferred."""


class PrecisionWarning(UserWarning):
    """The computation runs in another precision than the model's or the data's."""


def fit(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    method: Method[Any] | None = None,
    *,
    select: Select = None,
    batch_size: int | None = None,
    members: int | None = None,
    standardise: bool | None = None,
    seed: int = 0,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | Checkpoints | None = None,
) -> Posterior:
    """Infer the posterior of a model; the model itself is not changed.

    Args:
        model: any module that maps a batch (B, …) to (B, O) or (B,).
        data: a pair (x, y) of tensors or arrays, a Dataset or a DataLoader of such pairs.
        likelihood: `Gaussian()`, `Categorical()` or `Bernoulli()`.
        method: how; by default `BALI()`.
        select: the layers to infer, by name or by a function of name and module; by default all that can be.
        batch_size: rows of a step for pairs and Datasets; by default all rows up to 1,024.
        members: x and y carry a leading dimension of this many data splits, which train in one batched run.
        standardise: whether regression targets are standardised for training; by default the method decides.
        seed: of everything random; the global generator is not touched.
        progress: whether to show a progress bar.
        callbacks: called after every step with a `Progress`; returning True ends the run.
        checkpoint: a folder to save the run to and to resume it from.

    Returns:
        The posterior; its predictions are in the units of y.
    """
    method = BALI() if method is None else method
    _check_model(model)
    source = _source(data, batch_size, members)
    network = _network(model, source, select, members)
    rows, problem = _prepared(source, network, likelihood, method, batch_size, members, standardise)
    _warn_half(model, source)
    _warn_fixed(network, method)
    checkpoints = Checkpoints(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    identity = {"method": to_config(method), "seed": seed, "rows": problem.n, "members": members}
    if checkpoints is not None:
        identity["data"] = _fingerprint(rows)
    state = train(method, problem, rows, seed, progress, callbacks, checkpoints, identity)
    posterior = method.posterior(problem, state, rows)
    _warn_rescues(posterior)
    return replace(posterior, seed=seed, notes=posterior.notes + _fixed_note(posterior))


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")


def _source(data: Any, batch_size: int | None, members: int | None) -> tuple[Tensor, Tensor] | DataLoader:
    """A pair of tensors, or a loader."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    if members is not None and isinstance(data, DataLoader | Dataset):
        raise TypeError(f"members={members} needs a pair (x, y) of arrays, not a {type(data).__name__}")
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, Dataset):
        return as_loader(data, batch_size)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _pair(data[0], data[1], 0 if members is None else 1, members)
    raise TypeError(
        f"data is a {type(data).__name__}; give a pair (x, y) of tensors or arrays, a Dataset or a DataLoader"
    )


def _pair(x: Any, y: Any, lead: int, members: int | None) -> tuple[Tensor, Tensor]:
    tensors = []
    for name, value in (("x", x), ("y", y)):
        try:
            tensors.append(torch.as_tensor(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name} is a {type(value).__name__} that is no array of numbers: {error}"
            ) from None
    x, y = tensors
    if x.dim() <= lead or y.dim() <= lead or x.shape[: lead + 1] != y.shape[: lead + 1]:
        raise ValueError(f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}: their rows do not agree")
    if members is not None and x.shape[0] != members:
        raise ValueError(
            f"members={members}, but x has shape {tuple(x.shape)}: its first dimension must be members"
        )
    if x.shape[lead] == 0:
        raise ValueError("there are no rows; at least one is needed")
    return x, y


def _network(model: nn.Module, source: Any, select: Select, members: int | None) -> Network:
    x = _example_inputs(source, members)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = prepared_inputs(
        x, x.dtype if x.dtype not in (torch.float16, torch.bfloat16) else torch.float32, device
    )
    with torch.inference_mode(False), evaluating(model):
        try:
            return discover(model, x, select)
        except RuntimeError as error:
            shape, kind = tuple(x.shape), str(x.dtype).removeprefix("torch.")
            raise ValueError(f"the model cannot run x of shape {shape} and type {kind}: {error}") from error


def _example_inputs(source: Any, members: int | None) -> Tensor:
    if isinstance(source, DataLoader):
        return LoaderRows(source, lambda x, y: (torch.as_tensor(x), y)).example[0]
    x = source[0] if members is None else source[0][0]
    return x[: min(len(x), BATCH)]


def _prepared(
    source: Any,
    network: Network,
    likelihood: Likelihood,
    method: Method[Any],
    batch_size: int | None,
    members: int | None,
    standardise: bool | None,
) -> tuple[Rows, Problem]:
    lead = () if members is None else (members,)

    def targets(y: Any) -> Tensor:
        y = likelihood.targets(torch.as_tensor(y), network.outputs)
        return y.to(network.device, network.dtype if y.is_floating_point() else y.dtype)

    def pair(x: Any, y: Any) -> Batch:
        x, y = prepared_inputs(x, network.dtype, network.device), targets(y)
        if x.shape[0] != y.shape[0]:
            raise ValueError(f"x has {x.shape[0]} rows and y {y.shape[0]}")
        return x, y

    if isinstance(source, DataLoader):
        rows: Rows = LoaderRows(source, pair)
    else:
        x, y = prepared_inputs(source[0], network.dtype, network.device), targets(source[1])
        rows = TensorRows(x, y, min(batch_size or BATCH, x.shape[len(lead)]), len(lead))
    wanted = method.standardises if standardise is None else standardise
    units = Units.identity(network.outputs, network.dtype, network.device)
    if wanted and isinstance(likelihood, Gaussian):
        units = standard_units(rows, network)
    problem = Problem(network, likelihood, rows.n, units, members)
    if not isinstance(likelihood, Gaussian):
        return rows, problem
    if isinstance(rows, LoaderRows):
        return LoaderRows(rows.loader, lambda x, y: _scaled(pair(x, y), units)), problem
    return replace(rows, y=units.to_network(rows.y)), problem


def _scaled(batch: Batch, units: Units) -> Batch:
    return batch[0], units.to_network(batch[1])


def standard_units(rows: Rows, network: Network) -> Units:
    """Mean and standard deviation of the targets (…, O), in float64; a constant target keeps its scale."""
    count, total = 0, torch.zeros((), dtype=torch.float64, device=network.device)
    for _, y in rows.ordered():
        count, total = count + y.shape[-2], total + y.double().sum(-2)
    mean, squares = total / count, torch.zeros_like(total)
    for _, y in rows.ordered():
        squares = squares + (y.double() - mean[..., None, :]).square().sum(-2)
    std = (squares / count).sqrt()
    constant = std <= CONSTANT * mean.abs()
    return Units(mean.to(network.dtype), torch.where(constant | (std == 0), 1.0, std).to(network.dtype))


def _warn_half(model: nn.Module, source: Any) -> None:
    pair = isinstance(source, tuple)
    tensors = [*model.parameters(), *(source[:1] if pair else ())]
    half = next((t.dtype for t in tensors if t.dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        name = str(half).removeprefix("torch.")
        warnings.warn(
            f"{name} is computed in float32, and so are predictions", PrecisionWarning, stacklevel=3
        )


def _warn_fixed(network: Network, method: Method[Any]) -> None:
    if network.fixed and not method.infers_all:
        warnings.warn(fixed_text(network), FixedParametersWarning, stacklevel=3)


def fixed_text(network: Network) -> str:
    """Which parameters are not inferred, and their share."""
    fixed = sum(network.fixed.values())
    share = fixed / (fixed + sum(layer.inputs * layer.outputs for layer in network.layers))
    names = list(network.fixed)
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{share:.1%} of the parameters belong to no inferred layer and stay as they are: {shown}"


def _fixed_note(posterior: Posterior) -> tuple[str, ...]:
    network = posterior.problem.network
    return (fixed_text(network),) if network.fixed and network.layers else ()


def _warn_rescues(posterior: Posterior) -> None:
    if posterior.rescues:
        warnings.warn(
            f"{posterior.rescues} factorisations needed jitter; the posterior is close, not exact: "
            "a tighter prior or a larger noise floor avoids it",
            NumericalWarning,
            stacklevel=3,
        )


def _fingerprint(rows: Rows) -> str:
    """A digest of one batch, by which a resumed run knows its data."""
    digest = hashlib.sha256()
    for tensor in rows.example:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
