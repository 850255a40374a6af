"""What is inferred: a network, a likelihood, the number of data, and the units of the targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayeswise.likelihoods import Gaussian, Likelihood
from bayeswise.networks import Network

RESOLUTION = 1e-3  # neighbouring numbers may be this share of the targets' spread apart


@dataclass(frozen=True)
class Units:
    """An affine map of the targets: the network sees (y - shift) / scale, the user sees y."""

    shift: Tensor  # (…, O)
    scale: Tensor  # (…, O)

    @classmethod
    def identity(cls, outputs: int, dtype: torch.dtype, device: torch.device) -> Units:
        """The user's units are the network's."""
        zeros = torch.zeros(outputs, dtype=dtype, device=device)
        return cls(zeros, torch.ones_like(zeros))

    def to_network(self, y: Tensor) -> Tensor:
        """Targets (…, B, O) as the network sees them."""
        return (y - self.shift[..., None, :]) / self.scale[..., None, :]

    def to_user(self, f: Tensor) -> Tensor:
        """Outputs (…, B, O) in the user's units."""
        return f * self.scale[..., None, :] + self.shift[..., None, :]

    def noise_to_user(self, noise: Tensor) -> Tensor:
        """A covariance (…, O, O) in the user's units."""
        return noise * (self.scale[..., :, None] * self.scale[..., None, :])

    def noise_to_network(self, noise: Tensor) -> Tensor:
        """A covariance (…, O, O) as the network sees it."""
        return noise / (self.scale[..., :, None] * self.scale[..., None, :])

    def resolved_in(self, dtype: torch.dtype) -> bool:
        """Whether numbers of the targets' size lie closer together than a small part of their spread."""
        step = torch.finfo(dtype).eps * self.shift.abs()  # from one number to the next
        return bool((step <= RESOLUTION * self.scale).all())

    def squared_in(self, dtype: torch.dtype) -> bool:
        """Whether variances in the user's units can be written, with room on both sides."""
        about, square = torch.finfo(dtype), self.scale.double().square()
        return bool(((square >= about.tiny / about.eps) & (square <= about.max * about.eps)).all())


@dataclass(frozen=True, eq=False)
class Problem:
    """What is inferred. The one place that knows N, N_eff and how a batch stands for all rows."""

    network: Network
    likelihood: Likelihood
    n: int  # N, the training rows
    units: Units
    members: int | None = None  # K data splits that train in one batched run

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading dimensions that every tensor of a state carries."""
        return () if self.members is None else (self.members,)

    @property
    def infers_noise(self) -> bool:
        """Whether the method has to infer the noise of a Gaussian likelihood."""
        return isinstance(self.likelihood, Gaussian) and self.likelihood.noise is None

    @property
    def is_regression(self) -> bool:
        """Whether the targets are numbers."""
        return isinstance(self.likelihood, Gaussian)

    def effective_rows(self, fraction: float | Tensor) -> float | Tensor:
        """N_eff: the number of rows that the data may count for; it may be another for each member."""
        return fraction * self.n

    def row_weight(self, rows: int, fraction: float | Tensor) -> float | Tensor:
        """How many rows of the data one row of a batch stands for: N_eff / R."""
        return self.effective_rows(fraction) / rows

    def seen_likelihood(self, noise: Tensor) -> Likelihood:
        """The likelihood in the network's units, with the inferred noise or the one that is known."""
        if not isinstance(self.likelihood, Gaussian) or self.infers_noise:
            return self.likelihood.given(noise)
        return self.likelihood.given(self.units.noise_to_network(self.known_noise()))

    def user_likelihood(self, noise: Tensor) -> Likelihood:
        """The likelihood in the user's units."""
        if not isinstance(self.likelihood, Gaussian) or self.infers_noise:
            return self.likelihood.given(self.units.noise_to_user(noise))
        return self.likelihood

    def known_noise(self) -> Tensor:
        """The covariance of a Gaussian likelihood with known noise, in the user's units (…, O, O)."""
        noise = self.likelihood.noise if isinstance(self.likelihood, Gaussian) else None
        if isinstance(noise, Tensor):
            return noise
        eye = torch.eye(self.network.outputs, dtype=torch.float64, device=self.network.device)
        return eye * (1.0 if noise is None else noise)
