"""Gaussians around one value of the weights, with the curvature there: layer by layer, or all together.

Under the network's linearisation at that value, f(x; w) = f(x; m) + J(x)(w - m), outputs are Gaussian too;
the covariance C = J Σ Jᵀ of a row comes from one backward pass for each output, without a Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Generator, Tensor

from bayeswise.distributions import (
    DenseGaussian,
    DiagonalGaussian,
    KroneckerGaussian,
    LayerGaussian,
    LowRankGaussian,
)
from bayeswise.linearised import Link, link_config, link_of
from bayeswise.networks import Network, Params
from bayeswise.networks.curvature import Backward, beside
from bayeswise.weights.protocol import OneNoise, named, noise_named, under

Stack = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Curved(OneNoise):
    """What both forms have in common."""

    means: dict[str, Tensor]  # M (…, I, O) by layer, in the network's order
    fixed: Params  # values of other parameters and buffers that were trained with them (…)
    covariance: Tensor | None  # of the noise (…, O, O)
    tangent: Link | None  # how linearised outputs become predictions; None where networks are drawn
    distinct = None

    def centre(self, network: Network) -> Params:
        """The parameters of the chosen layers at the mean."""
        params: Params = {}
        for view in network.layers:
            params |= view.split(self.means[view.name].to(network.dtype))
        return params

    def values(self, network: Network) -> Params:
        """All values of one pass at the mean."""
        return self.fixed | self.centre(network)

    def cast(self, dtype: torch.dtype) -> Curved:
        """The same in the precision of the network, for many rows."""
        return self

    def function_variance(self, done: Backward, output_layer: str | None) -> Tensor:
        """The diagonal of C (…, B, O)."""
        raise NotImplementedError

    def function_covariance(self, done: Backward, output_layer: str | None) -> Tensor:
        """C (…, B, O, O)."""
        raise NotImplementedError

    def joint_features(self, done: Backward) -> Tensor:
        """φ (…, B, O, P) of all weights, whose products are covariances between any two rows and outputs."""
        raise NotImplementedError

    def _shared_tensors(self) -> dict[str, Tensor]:
        return named("means/", self.means) | named("fixed/", self.fixed) | noise_named(self.covariance)


@dataclass(frozen=True)
class LayerGaussians(Curved):
    """Independent layers."""

    layers: Mapping[str, LayerGaussian]

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """M + root times noise, layer by layer."""
        params: Params = {name: value.expand((n, *value.shape)) for name, value in self.fixed.items()}
        for view in network.layers:
            mean = self.means[view.name].to(network.dtype)
            z = torch.randn((n, *mean.shape), generator=rng, dtype=mean.dtype, device=mean.device)
            params |= view.split(mean + self.layers[view.name].root(z))
        return params, None

    def log_det(self, lead: int) -> Tensor:
        """Of the precision of all weights, (…,) with `lead` dimensions."""
        return sum((summed(layer.log_det(), lead) for layer in self.layers.values()), torch.zeros(()))

    def determined(self, lead: int) -> dict[str, Tensor]:
        """γ of every layer, (…,) with `lead` dimensions."""
        return {name: summed(layer.determined(), lead) for name, layer in self.layers.items()}

    def under(self, precision: Mapping[str, Tensor], scale: Tensor) -> LayerGaussians:
        """The curvature times a number (…,), under priors of other precision (…,)."""
        layers = {
            name: layer.tempered(inner(scale, self.means[name])).with_precision(
                inner(precision[name], self.means[name])
            )
            for name, layer in self.layers.items()
        }
        return replace(self, layers=layers)

    def cast(self, dtype: torch.dtype) -> LayerGaussians:
        """The same in the precision of the network, for many rows."""
        return replace(self, layers={name: layer.cast(dtype) for name, layer in self.layers.items()})

    def function_variance(self, done: Backward, output_layer: str | None) -> Tensor:
        """The diagonal of C (…, B, O)."""
        total, done = self._at_output(done, output_layer, lambda v, q: v @ q.square().mT)
        for o, features in enumerate(self._columns(done)):
            for phi in features:
                total[..., o] += phi.square().sum(-1)
        return total

    def function_covariance(self, done: Backward, output_layer: str | None) -> Tensor:
        """C (…, B, O, O)."""
        total, done = self._at_output(done, output_layer, _rotated)
        columns = list(self._columns(done))  # O x layers of (…, B, F)
        for layer in zip(*columns, strict=True):
            phi = torch.stack(layer, -2)  # (…, B, O, F)
            total = total + phi @ phi.mT
        return total

    def _at_output(
        self, done: Backward, name: str | None, of: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Backward]:
        """The part of the layer whose output is the function's, and the pass without it."""
        f = done.output
        if name in done.rows and done.rows[name].shape[:-1] == f.shape[:-1]:
            return of(*self.layers[name].at_output(done.rows[name])), done.without(name)
        wanted = of(torch.zeros_like(f), torch.zeros(f.shape[-1], f.shape[-1]).to(f))
        return wanted, done

    def _columns(self, done: Backward) -> Iterator[list[Tensor]]:
        """φ of every layer, for one output after another."""
        if not done.rows:
            return
        find = {
            k: self.layers[k].features(x.unflatten(-2, (done.examples, -1))) for k, x in done.rows.items()
        }
        for s in unit_columns(done.output):
            grads, lead = done.back(s), s.dim() - 2
            parts = [find[k](grads[k].unflatten(-2, (done.examples, -1))) for k in done.rows]
            yield [beside(part, lead) for part in parts]

    def joint_features(self, done: Backward) -> Tensor:
        """φ (…, B, O, P) of all weights, whose products are covariances between any two rows and outputs."""
        find = {
            k: self.layers[k].joint_features(x.unflatten(-2, (done.examples, -1)))
            for k, x in done.rows.items()
        }
        columns = []
        for s in unit_columns(done.output):
            grads = done.back(s)
            parts = [find[k](grads[k].unflatten(-2, (done.examples, -1))) for k in done.rows]
            columns.append(torch.cat([beside(part, s.dim() - 2) for part in parts], -1))
        return torch.stack(columns, -2)

    def config(self) -> dict[str, Any]:
        """The form of each layer, and the link."""
        forms = {
            name: "kronecker" if isinstance(layer, KroneckerGaussian) else "diagonal"
            for name, layer in self.layers.items()
        }
        return {"forms": forms, "link": link_config(self.tangent)}

    def tensors(self) -> dict[str, Tensor]:
        """Means, eigenvectors, eigenvalues and prior precisions."""
        found = self._shared_tensors()
        for name, layer in self.layers.items():
            parts = KRONECKER if isinstance(layer, KroneckerGaussian) else DIAGONAL
            found |= {f"layers/{name}/{part}": getattr(layer, part) for part in parts}
        return found

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LayerGaussians:
        """The inverse of `config` and `tensors`."""
        layers: dict[str, LayerGaussian] = {}
        for name, form in config["forms"].items():
            kind, parts = (
                (KroneckerGaussian, KRONECKER) if form == "kronecker" else (DiagonalGaussian, DIAGONAL)
            )
            layers[name] = kind(**{part: tensors[f"layers/{name}/{part}"] for part in parts})
        means = {name: tensors[f"means/{name}"] for name in config["forms"]}
        return cls(means, under("fixed/", tensors), tensors.get("noise"), link_of(config["link"]), layers)


KRONECKER, DIAGONAL = ("left", "right", "eigenvalues", "precision"), ("eigenvalues", "precision")


@dataclass(frozen=True)
class JointGaussian(Curved):
    """All layers together, with every covariance between them."""

    joint: DenseGaussian | LowRankGaussian

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """M + L⁻ᵀ z, cut into layers."""
        shape = self.joint.precision.shape
        z = torch.randn((n, *shape), generator=rng, dtype=network.dtype, device=network.device)
        moves = self._by_layer(self.joint.root(z))
        params: Params = {name: value.expand((n, *value.shape)) for name, value in self.fixed.items()}
        for view in network.layers:
            mean = self.means[view.name].to(network.dtype)
            params |= view.split(mean + moves[view.name].reshape(n, *mean.shape))
        return params, None

    def log_det(self, lead: int) -> Tensor:
        """Of the precision of all weights, (…,)."""
        return self.joint.log_det()

    def determined(self, lead: int) -> dict[str, Tensor]:
        """γ of every layer, (…,)."""
        return {k: part.sum(-1) for k, part in self._by_layer(self.joint.determined()).items()}

    def under(self, precision: Mapping[str, Tensor], scale: Tensor) -> JointGaussian:
        """The curvature times a number (…,), under priors of other precision (…,)."""
        return replace(self, joint=self.joint.under(flat_precision(self.means, precision), scale))

    def function_variance(self, done: Backward, output_layer: str | None) -> Tensor:
        """The diagonal of C (…, B, O)."""
        return torch.stack([phi.square().sum(-1) for phi in self._columns(done)], -1)

    def function_covariance(self, done: Backward, output_layer: str | None) -> Tensor:
        """C (…, B, O, O)."""
        phi = self.joint_features(done)
        return phi @ phi.mT

    def joint_features(self, done: Backward) -> Tensor:
        """φ (…, B, O, P), whose products are covariances between any two rows and outputs."""
        return torch.stack(list(self._columns(done)), -2)

    def _columns(self, done: Backward) -> Iterator[Tensor]:
        for s in unit_columns(done.output):
            yield self.joint.features(done.flat(done.back(s)))

    def _by_layer(self, values: Tensor) -> dict[str, Tensor]:
        lead = self.joint.precision.dim() - 1
        sizes = [mean.shape[lead:].numel() for mean in self.means.values()]
        return dict(zip(self.means, values.split(sizes, -1), strict=True))

    def config(self) -> dict[str, Any]:
        """The order of the layers, and the link."""
        form = "dense" if isinstance(self.joint, DenseGaussian) else "low_rank"
        return {"layers": list(self.means), "link": link_config(self.tangent), "form": form}

    def tensors(self) -> dict[str, Tensor]:
        """Means, and what the Gaussian is made of."""
        names = [f.name for f in fields(self.joint)]
        return self._shared_tensors() | {f"joint/{name}": getattr(self.joint, name) for name in names}

    @classmethod
    def restore(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> JointGaussian:
        """The inverse of `config` and `tensors`."""
        means = {name: tensors[f"means/{name}"] for name in config["layers"]}
        kind = DenseGaussian if config["form"] == "dense" else LowRankGaussian
        joint = kind(**under("joint/", tensors))
        return cls(means, under("fixed/", tensors), tensors.get("noise"), link_of(config["link"]), joint)


def _rotated(v: Tensor, q: Tensor) -> Tensor:
    """Q diag(V) Qᵀ of every row, (…, B, O, O)."""
    q = q[..., None, :, :]
    return (q * v[..., None, :]) @ q.mT


def flat_precision(means: Mapping[str, Tensor], precision: Mapping[str, Tensor]) -> Tensor:
    """δ of every weight, one layer after another (…, P), from those of the layers (…,)."""
    lead = next(iter(precision.values())).dim()
    parts = [inner(precision[k], m).expand(m.shape).flatten(lead) for k, m in means.items()]
    return torch.cat(parts, -1)


def inner(value: Tensor, like: Tensor) -> Tensor:
    """A number of each member (…,) with ones behind, so that it goes with weights (…, I, O)."""
    return value.reshape(*value.shape, *[1] * (like.dim() - value.dim()))


def summed(values: Tensor, lead: int) -> Tensor:
    """The sum over all but the first `lead` dimensions."""
    return values.sum(list(range(lead, values.dim()))) if values.dim() > lead else values


def unit_columns(f: Tensor) -> Iterator[Tensor]:
    """The outputs' own directions, one after another, (…, B, O)."""
    for e in torch.eye(f.shape[-1], dtype=f.dtype, device=f.device):
        yield e.expand(f.shape)
