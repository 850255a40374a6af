"""One file per method; no method imports another. A new one is a file here and a line in `METHODS`."""

from bayeswise.methods.bali import BALI
from bayeswise.methods.bbb import BayesByBackprop
from bayeswise.methods.ensemble import Ensemble
from bayeswise.methods.map import MAP
from bayeswise.methods.mc_dropout import MCDropout
from bayeswise.methods.protocol import Method

METHODS: dict[str, type] = {
    "bali": BALI,
    "map": MAP,
    "mc_dropout": MCDropout,
    "bbb": BayesByBackprop,
    "ensemble": Ensemble,
}

__all__ = ["BALI", "MAP", "METHODS", "BayesByBackprop", "Ensemble", "MCDropout", "Method"]
