"""What a distribution over the parameters of a network is, and how its tensors are named in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Generator, Tensor

from bayeswise.linearised import Link
from bayeswise.networks import Network, Params


class WeightDistribution(Protocol):
    """A distribution over the chosen layers' parameters and the noise of a Gaussian likelihood."""

    @property
    def distinct(self) -> int | None:
        """How many different draws there are, after which they repeat; None where every draw is new."""
        ...

    @property
    def turn(self) -> int:
        """How many draws have one of every part: more than one for mixtures only."""
        ...

    @property
    def tangent(self) -> Link | None:
        """How the outputs of the linearised network become predictions; None where networks are drawn."""
        ...

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """A root F of the noise F Fᵀ of each of n draws (n, …, O, O), None where it is not drawn."""
        ...

    def sample(
        self, n: int, network: Network, rng: Generator, noise_factor: Tensor | None = None
    ) -> tuple[Params, Tensor | None]:
        """Parameters (n, …) and, where it is drawn with them, the noise covariance (n, …, O, O).

        `noise_factor` is what the method of that name gave for these draws; without it they draw their own.
        """
        ...

    def noise(self) -> Tensor | None:
        """The noise covariance (…, O, O) of all draws, None where it is drawn or there is none."""
        ...

    def config(self) -> dict[str, Any]:
        """What `restore` needs beside the tensors, as JSON."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All numbers, by name."""
        ...


class OneNoise:
    """What distributions share whose draws all have the same noise."""

    covariance: Tensor | None  # (…, O, O)
    turn = 1

    def noise_factor(self, n: int, rng: Generator) -> Tensor | None:
        """None: all draws share the noise."""
        return None

    def noise(self) -> Tensor | None:
        """The noise covariance."""
        return self.covariance


def named(prefix: str, values: Params) -> dict[str, Tensor]:
    """Tensors under a prefix, for a file."""
    return {f"{prefix}{name}": value for name, value in values.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Params:
    """The inverse of `named`: those that have the prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def noise_named(covariance: Tensor | None) -> dict[str, Tensor]:
    """The noise covariance, where there is one."""
    return {} if covariance is None else {"noise": covariance}
