"""Functions of Python on real numbers which torch has on tensors, and where they are defined."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

FUNCTIONS: dict[str, Callable[[float], float]] = {
    of.__name__: of
    for of in (math.log, math.log2, math.log10, math.log1p, math.exp, math.sin, math.cos, math.tanh, math.atan)
}
"""By the name that torch has for the same function, which computes with 64 bits as closely as Python does."""

DEFINED: dict[str, tuple[Any, float]] = {
    **dict.fromkeys(("log", "log2", "log10"), (operator.gt, 0)),
    "log1p": (operator.gt, -1),
    "exp": (operator.le, 709),  # of more, Python has no number that is large enough
}
"""How the argument must compare with a number, else Python raises an error."""
