"""Values that JSON can hold."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same without numbers that JSON cannot hold: null instead."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
