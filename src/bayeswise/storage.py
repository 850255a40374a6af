"""A posterior as a directory of safetensors and JSON, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayeswise.likelihoods import Bernoulli, Categorical, Gaussian
from bayeswise.networks import Network, elementwise_view, is_mark, unwrap, view_of
from bayeswise.posterior import Posterior
from bayeswise.problem import Problem, Units
from bayeswise.saving import SavedModelError, read_directory, write_directory
from bayeswise.weights import KINDS

LIKELIHOODS: dict[str, type[Gaussian] | type[Categorical] | type[Bernoulli]] = {
    "gaussian": Gaussian,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def save_posterior(posterior: Posterior, path: str | Path, extra: dict[str, Any] | None = None) -> None:
    """Write the posterior with everything of the network that is not in its weights' distribution."""
    problem, network = posterior.problem, posterior.problem.network
    config = {
        "method": posterior.method,
        "notes": list(posterior.notes),
        "seed": posterior.seed,
        "rescues": posterior.rescues,
        "rows": problem.n,
        "members": problem.members,
        "likelihood": _name(problem.likelihood, LIKELIHOODS),
        "weights": {"kind": _name(posterior.weights, KINDS), **posterior.weights.config()},
        "network": {
            "layers": [layer.name for layer in network.layers],
            "dtype": str(network.dtype).removeprefix("torch."),
            "outputs": network.outputs,
            "output_layer": network.output_layer,
            "vectorised": network.vectorised,
            "changes_input": network.changes_input,
            "width": network.width,
        },
        "extra": extra or {},
    }
    tensors = {f"weights/{name}": value for name, value in posterior.weights.tensors().items()}
    tensors |= {f"constants/{name}": value for name, value in network.constants.items()}
    tensors |= {"units/shift": problem.units.shift, "units/scale": problem.units.scale}
    if posterior.log_evidence is not None:
        tensors["log_evidence"] = posterior.log_evidence
    noise = getattr(problem.likelihood, "noise", None)
    if isinstance(noise, Tensor):
        tensors["likelihood/noise"] = noise
    elif noise is not None:
        config["variance"] = float(noise)
    write_directory(path, config, tensors)


def load(path: str | Path, model: nn.Module) -> Posterior:
    """Read a saved posterior; the model must have the names and shapes of the one that was fitted."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}; a saved posterior holds numbers, no code: "
            "give a torch.nn.Module like the one that was fitted"
        )
    config, tensors = read_directory(path)
    try:
        return _restored(config, tensors, unwrap(model))
    except KeyError as missing:
        raise SavedModelError(
            f"{path}: {missing} is missing; the directory was written by another version"
        ) from None


def read_extra(path: str | Path) -> dict[str, Any]:
    """What was saved beside the posterior."""
    return read_directory(path)[0].get("extra", {})


def _restored(config: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module) -> Posterior:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    tensors = {name: value.to(device, copy=True) for name, value in tensors.items()}  # aligned
    kind = KINDS[config["weights"]["kind"]]
    weights = kind.restore(config["weights"], _under("weights/", tensors))
    saved = config["network"]
    layers = tuple(_view(name, model) for name in saved["layers"])
    constants = _under("constants/", tensors)
    dtype = DTYPES[saved["dtype"]]
    network = Network(
        model,
        layers,
        constants,
        dtype,
        saved["outputs"],
        saved["output_layer"],
        saved["vectorised"],
        changes_input=saved["changes_input"],
        width=saved.get("width", 1),
    )
    expected = dict(constants)
    sample, _ = weights.sample(1, network, torch.Generator(device).manual_seed(0))
    members = () if config["members"] is None else (0,)
    expected |= {name: value[0][members] for name, value in sample.items() if not is_mark(name)}
    _check_model(expected, model)
    likelihood = LIKELIHOODS[config["likelihood"]]()
    if "likelihood/noise" in tensors:
        likelihood = likelihood.given(tensors["likelihood/noise"])
    elif "variance" in config:
        likelihood = Gaussian(config["variance"])
    units = Units(tensors["units/shift"], tensors["units/scale"])
    problem = Problem(network, likelihood, config["rows"], units, config["members"])
    notes, seed, rescues = tuple(config["notes"]), config["seed"], config["rescues"]
    evidence = tensors.get("log_evidence")
    return Posterior(problem, weights, config["method"], notes, seed, rescues, evidence)


def _check_model(expected: dict[str, Tensor], model: nn.Module) -> None:
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in expected.items():
        if name not in own:
            raise SavedModelError(
                f'the model has no parameter or buffer "{name}", the saved one has; build the same model'
            )
        if own[name].shape != value.shape:
            raise SavedModelError(
                f'"{name}" has shape {tuple(own[name].shape)} in the model and {tuple(value.shape)} '
                "in the saved one; build the same model"
            )
    extra = next((name for name in own if name not in expected), None)
    if extra is not None:
        raise SavedModelError(f'the model has "{extra}", which the saved one has not; build the same model')


def _view(name: str, model: nn.Module):
    modules = dict(model.named_modules())
    module = modules.get(name, nn.Identity())
    view = view_of(name, module) or elementwise_view(name, module)
    if view is None:
        raise SavedModelError(
            f'the model has no layer "{name}" of the kind that was saved; build the same model'
        )
    return view


def _name(value: Any, table: dict[str, Any]) -> str:
    for name, kind in table.items():
        if type(value) is kind:
            return name
    raise TypeError(
        f"a {type(value).__name__} cannot be saved, only {', '.join(k.__name__ for k in table.values())}; "
        "register it as CONTRIBUTING.md says, under the same name before saving and before loading"
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
