"""A network's linearisation: f(x; w) = f(x; m) + J(x)(w - m), a function linear in its weights."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields
from functools import cache

import torch
from torch import Tensor
from torch.func import jvp

from bayeswise.networks.network import Network, Params

CENTRE = "centre:"  # m travels among the parameters, and so carries the same leading dimensions


@dataclass(frozen=True, eq=False)
class Tangent(Network):
    """The network around the parameters `centre`, called as the network itself."""

    centre: Params = field(default_factory=dict)  # m

    @classmethod
    def of(cls, network: Network, centre: Params) -> Tangent:
        """The same network, seen from m."""
        return cls(**{f.name: getattr(network, f.name) for f in fields(network)}, centre=centre)

    def __call__(self, params: Params, x: Tensor, lead: int = 0, x_lead: int = 0) -> Tensor:
        """Outputs (…, B, O); m has the members' dimensions `x_lead`, the parameters all `lead`."""
        if not any(name.startswith(CENTRE) for name in params):
            draws = next(iter(params.values())).shape[: lead - x_lead]
            params = params | {f"{CENTRE}{k}": v.expand(*draws, *v.shape) for k, v in self.centre.items()}
        if lead:
            return super().__call__(params, x, lead, x_lead)
        m = {k.removeprefix(CENTRE): v for k, v in params.items() if k.startswith(CENTRE)}
        move = {k: params[k] - v for k, v in m.items()}

        rest = {k: v for k, v in params.items() if k not in move and not k.startswith(CENTRE)}

        def along(t: Tensor) -> Tensor:
            return super(Tangent, self).__call__(rest | {k: v + t * move[k] for k, v in m.items()}, x)

        _prepare()
        t = torch.zeros((), dtype=self.dtype, device=self.device)
        f, df = jvp(along, (t,), (torch.ones_like(t),))  # type: ignore[misc]
        return f + df


@cache
def _prepare() -> None:
    """Let torch load what forward derivatives need: it warns of its own deprecated ways when it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))
