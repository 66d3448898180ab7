"""Which expressions of sizes are never negative, of those that hold the smaller or the larger of some numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy


def is_extreme(value: Any) -> bool:
    """Is an expression the smaller, or the larger, of some numbers? Torch has functions of its own for these."""
    return type(value).__name__ in ("Min", "Max")


def not_negative(value: Any, known: Callable[[Any], bool]) -> bool:
    """Is an expression at least 0, where ``known`` says so of others? False if it is not certain."""
    value = sympy.expand(value)
    if value.is_Integer:
        return bool(value >= 0)
    if known(value):
        return True
    for part in sympy.Add.make_args(value):
        factor, of = part.as_coeff_Mul()
        if is_extreme(of):
            cases = [value - part + factor * arg for arg in of.args]
            # The larger of two numbers is not negative if one is not, the smaller if both are not.
            enough = any if (type(of).__name__ == "Max") == (factor > 0) else all
            return enough(not_negative(case, known) for case in cases)
    return False
