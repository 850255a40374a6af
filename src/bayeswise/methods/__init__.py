"""One file per method; no method imports another. A new one is a file here and a line in `METHODS`."""

from bayeswise.methods.bali import BALI
from bayeswise.methods.map import MAP
from bayeswise.methods.protocol import Method

METHODS: dict[str, type] = {
    "bali": BALI,
    "map": MAP,
}

__all__ = ["BALI", "MAP", "METHODS", "Method"]
