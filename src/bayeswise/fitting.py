"""The three-line door: a model, data and a likelihood in, a posterior out."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bayeswise.arrays import as_tensor
from bayeswise.cautions import cautions
from bayeswise.data import BATCH, Batch, LoaderRows, Rows, TensorRows, as_loader
from bayeswise.identity import identity as run_identity
from bayeswise.likelihoods import Gaussian, Likelihood
from bayeswise.methods import BALI, Method
from bayeswise.methods.protocol import Batches, Refines
from bayeswise.networks import Network, Select, discover, evaluating
from bayeswise.notices import fixed_note, type_name, warn_coarse, warn_fixed, warn_half, warn_rescues
from bayeswise.posterior import Posterior, prepared_inputs
from bayeswise.problem import Problem, Units
from bayeswise.training import Callback, Checkpoints, train
from bayeswise.trials import settled

CONSTANT = 1e-9  # a target whose spread is smaller than this share of its size is constant
EXAMPLE = 128  # rows on which a model is looked at before anything is trained


@runtime_checkable
class Continues(Protocol):
    """A method that can take a posterior as its prior."""

    def after(self, old: Posterior) -> Method[Any]:
        """The method for new rows, after the old ones."""
        ...


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
    prior: Posterior | None = None,
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
        batch_size: rows of a step for pairs and Datasets; by default all up to 1,024, or as the method says.
        members: x and y carry a leading dimension of this many data splits, which train in one batched run.
        standardise: whether regression targets are standardised for training; by default the method decides.
            A model with something behind its last layer (softplus) gets scaled targets without a shift.
        prior: the posterior of earlier rows in the place of the method's own prior, for methods that can go
            on from one; targets are then standardised as they were there.
        seed: of everything random; the global generator is not touched.
        progress: whether to show a progress bar.
        callbacks: called after every step with a `Progress`; returning True ends the run.
        checkpoint: a folder to save the run to and to resume it from.

    Returns:
        The posterior; its predictions are in the units of y.
    """
    method = BALI() if method is None else method
    _check_parts(model, likelihood, method)
    select = select if select is None or callable(select) or isinstance(select, str) else tuple(select)
    batch_size, members, seed = _whole(batch_size, members, seed)
    if prior is not None:
        method = _continued(method, prior, likelihood, standardise, checkpoint)
    source = _source(data, batch_size, members)
    network = _network(model, source, select, members)
    _check_noise(likelihood, network.outputs, members)
    prepared = partial(
        _prepared,
        likelihood=likelihood,
        method=method,
        batch_size=batch_size,
        members=members,
        standardise=standardise,
        prior=prior,
    )
    rows, problem = prepared(source, network)
    warn_half(model, source)
    warn_coarse(problem)
    warn_fixed(network, method)
    checkpoints = Checkpoints(checkpoint) if isinstance(checkpoint, str | Path) else checkpoint
    finer = _finer(method, problem, model, source, select)
    fine_rows, fine = (rows, problem) if finer is None else prepared(*finer)
    chosen = settled(method, fine, fine_rows, seed, progress, checkpoints)
    given = None if chosen.state is None else method  # where the run begins hangs on how it was chosen
    identity = None if checkpoints is None else run_identity(chosen.method, fine, fine_rows, seed, given)
    state = train(
        chosen.method,
        fine,
        fine_rows,
        seed,
        progress,
        callbacks,
        checkpoints,
        identity,
        answers=(problem, rows),
        start=chosen.state,
    )
    with torch.inference_mode(False):
        posterior = chosen.method.posterior(problem, state, rows)
    warn_rescues(posterior)
    notes = cautions(rows, problem.is_regression) + chosen.notes + posterior.notes + fixed_note(posterior)
    return replace(posterior, seed=seed, notes=notes)


def _check_parts(model: Any, likelihood: Any, method: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    _check_part(likelihood, "likelihood", "Gaussian(), Categorical() or Bernoulli()", "targets log_prob")
    _check_part(method, "method", "a method such as BALI()", "plan init step posterior")


def _check_noise(likelihood: Any, outputs: int, members: int | None) -> None:
    """Refuse a known covariance that is none of the model's outputs."""
    noise = getattr(likelihood, "noise", None)
    if not isinstance(noise, Tensor):
        return
    wanted = [(outputs, outputs)] + ([] if members is None else [(members, outputs, outputs)])
    if tuple(noise.shape) not in wanted:
        shapes = " or ".join(map(str, wanted))
        raise ValueError(f"the noise has shape {tuple(noise.shape)}; for this model it needs {shapes}")
    lopsided = bool((noise - noise.mT).abs().max() > 1e-4 * noise.abs().max())
    if lopsided or bool(torch.linalg.cholesky_ex(noise.double()).info.any()):
        raise ValueError("the noise is no covariance: it must be symmetric and positive definite")


def _check_part(value: Any, name: str, wanted: str, verbs: str) -> None:
    if isinstance(value, type):
        raise TypeError(f"{name} is the class {value.__name__}; give a value of it: {value.__name__}()")
    if not all(hasattr(value, verb) for verb in verbs.split()):
        raise TypeError(f"{name} is a {type(value).__name__}; give {wanted}")


def _whole(batch_size: int | None, members: int | None, seed: int) -> tuple[int | None, int | None, int]:
    """The three as Python's whole numbers; numpy's are taken."""
    batch_size = None if batch_size is None else _index(batch_size, "batch_size")
    members = None if members is None else _index(members, "members")
    seed = _index(seed, "seed")
    if members is not None and members < 1:
        raise ValueError(f"members must be at least 1, not {members}; leave it out for one set of rows")
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must fit into 64 bits, from -2**63 to 2**63 - 1, not {seed}")
    return batch_size, members, seed


def _index(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None


def _continued(
    method: Method[Any], prior: Any, likelihood: Any, standardise: bool | None, checkpoint: Any
) -> Method[Any]:
    """The method that goes on from an old posterior."""
    if not isinstance(prior, Posterior):
        raise TypeError(f"prior is a {type(prior).__name__}; give the posterior of an earlier fit")
    if not isinstance(method, Continues):
        raise TypeError(f"{type(method).__name__} cannot take a posterior as its prior; use bw.Laplace()")
    continued, old = method.after(prior), prior.problem.likelihood
    if type(likelihood) is not type(old):
        was, now = type(old).__name__, type(likelihood).__name__
        raise ValueError(f"prior is a posterior with likelihood {was}(), here it is {now}(); use the same")
    if standardise is not None:
        raise ValueError("with prior=… targets are standardised as they were there: leave standardise out")
    units = prior.problem.units
    if not method.standardises and not bool(((units.scale == 1) & (units.shift == 0)).all()):
        raise ValueError(
            "the targets of prior=… were standardised, a trained model has units of its own: train it by "
            "first=bw.MAP(), or fit the old rows with standardise=False"
        )
    if checkpoint is not None:
        raise ValueError("a run with prior=… cannot be resumed: leave checkpoint out")
    return continued


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
    x, y = as_tensor(x, "x").detach(), as_tensor(y, "y").detach()
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
            return discover(model, x, select, members is not None)
        except RuntimeError as error:
            shape, kind = tuple(x.shape), type_name(x.dtype)
            raise ValueError(
                f"the model cannot run on x of shape {shape} and type {kind}: {error}"
            ) from error


def _example_inputs(source: Any, members: int | None) -> Tensor:
    if isinstance(source, DataLoader):
        return LoaderRows(source, lambda x, y: (torch.as_tensor(x), y)).example[0]
    x = source[0] if members is None else source[0][0]
    return x[:EXAMPLE]


def _finer(
    method: Method[Any], problem: Problem, model: nn.Module, source: Any, select: Select
) -> tuple[tuple[Tensor, Tensor], Network] | None:
    """The rows and the network in float64, where the method wants them so and the model can run so."""
    pair = isinstance(source, tuple) and source[0].dtype == torch.float32
    if not (pair and isinstance(method, Refines) and method.refines(problem)):
        return None
    try:
        fine = source[0].double(), source[1]
        network = _network(model, fine, select, problem.members)
    except Exception:  # whatever the model raises, it knows float32 alone: in that it has just run
        return None
    alike = _structure(network) == _structure(problem.network)  # not where its forward pass casts
    return (fine, network) if alike else None


def _structure(network: Network) -> tuple[Any, ...]:
    return [layer.name for layer in network.layers], network.outputs, network.output_layer


def _prepared(
    source: Any,
    network: Network,
    likelihood: Likelihood,
    method: Method[Any],
    batch_size: int | None,
    members: int | None,
    standardise: bool | None,
    prior: Posterior | None = None,
) -> tuple[Rows, Problem]:
    door = Door(network, likelihood, 0 if members is None else 1)
    if isinstance(source, DataLoader):
        rows: Rows = LoaderRows(source, door)
    else:
        x, y = door(*source)
        n = x.shape[door.lead]
        usual = method.batch(network, n) if isinstance(method, Batches) else BATCH
        rows = TensorRows(x, y, min(batch_size or usual, n), door.lead)
    wanted = method.standardises if standardise is None else standardise
    units = Units.identity(network.outputs, torch.float64, network.device)
    if prior is not None:
        units = Units(prior.problem.units.shift.double(), prior.problem.units.scale.double())
    elif wanted and isinstance(likelihood, Gaussian):
        units = standard_units(rows, network)
    problem = Problem(network, likelihood, rows.n, answer_units(units, network.dtype), members)
    if isinstance(rows, LoaderRows):
        return LoaderRows(rows.loader, lambda x, y: door.seen(door(x, y), units)), problem
    x, y = door.seen((rows.x, rows.y), units)
    return replace(rows, x=x, y=y), problem


@dataclass(frozen=True, eq=False)
class Door:
    """What brings a raw pair to rows: inputs in the network's precision, targets checked but in their own."""

    network: Network
    likelihood: Likelihood
    lead: int

    def __call__(self, x: Any, y: Any) -> Batch:
        """Inputs (…, B, …) and targets (…, B, O), or labels (…, B)."""
        x = prepared_inputs(x, self.network.dtype, self.network.device)
        y, rows, outputs = torch.as_tensor(y), tuple(x.shape[: self.lead + 1]), self.network.outputs
        columns = (outputs,) if self.likelihood.event_dim else ()
        single = columns in ((), (1,)) and y.shape == rows
        targets = self.likelihood.targets(y[..., None] if single else y, outputs)
        if targets.shape != (*rows, *columns):
            hot = "; one-hot rows become labels by y.argmax(-1)" if y.shape == (*rows, outputs) else ""
            raise ValueError(
                f"y has shape {tuple(y.shape)}; for x of shape {tuple(x.shape)} and {outputs} outputs "
                f"{type(self.likelihood).__name__} needs {(*rows, *columns)}{hot}"
            )
        return x, targets.to(self.network.device)

    def seen(self, batch: Batch, units: Units) -> Batch:
        """Targets as the network sees them: scaled in float64, then in the precision of the network."""
        x, y = batch
        if not y.is_floating_point():
            return x, y
        seen = units.to_network(y.double()).to(self.network.dtype)
        if not bool(seen.isfinite().all()):
            raise ValueError(
                f"y has values up to {float(y.abs().max()):.3g}, too large for {type_name(seen.dtype)}; "
                "rescale y, or give x as float64"
            )
        return x, seen


def standard_units(rows: Rows, network: Network) -> Units:
    """Mean and standard deviation of the targets (…, O), in float64; a constant target keeps its scale.

    Where no layer's output is the model's, the output may be bound to one sign (softplus, exp): targets are
    then divided by their root mean square, and not shifted.
    """
    count, total = 0, torch.zeros((), dtype=torch.float64, device=network.device)
    for _, y in rows.ordered():
        count, total = count + y.shape[-2], total + y.double().sum(-2)
    mean = total / count
    shift = torch.zeros_like(mean) if network.output_layer is None else mean
    squares = torch.zeros_like(mean)
    for _, y in rows.ordered():
        squares = squares + (y.double() - shift[..., None, :]).square().sum(-2)
    spread = (squares / count).sqrt()
    if not bool(spread.isfinite().all()):
        raise ValueError("the squares of the targets overflow; divide y by a number of its size")
    constant = (spread <= CONSTANT * mean.abs()) | (spread == 0)
    return Units(shift, torch.where(constant, 1.0, spread))


def answer_units(units: Units, dtype: torch.dtype) -> Units:
    """The units in the network's precision; in float64 where that is too coarse, or variances leave it."""
    rounded = Units(units.shift.to(dtype), units.scale.to(dtype))
    if not bool(((rounded.scale > 0) & (rounded.scale + rounded.shift).isfinite()).all()):
        raise ValueError(
            f"y has a spread of {float(units.scale.max()):.3g}, too large or too small for "
            f"{type_name(dtype)}; rescale y, or give x as float64"
        )
    return rounded if units.resolved_in(dtype) and units.squared_in(dtype) else units
