"""Sizes of the tensors that a loop cuts, held against each other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import SymInt

from packpass._compat import hint_of, statically_known_true, values_of


def same_length(a: Any, b: Any) -> bool:
    """Are two sizes equal? Torch gives inputs of varying length one symbol each, even where their sizes agree; a loop
    that cuts both is the place to settle that they do (by a guard, as adding the two tensors would)."""
    return _settled(operator.eq, a, b)


def is_length_or_more(size: Any, length: Any) -> bool:
    """Has a vector one entry for each of so many documents, or one more, as boundaries have?"""
    if any(same_length(size - more, length) for more in (0, 1)):
        return True
    apart = _apart(size, length)
    return apart is not None and {*apart} <= {0, 1}


def are_between(length: Any, size: Any) -> bool:
    """Are there as many documents as lie between so many boundaries? Without boundaries there are none."""
    return same_length(length, size - 1) or _apart(length, size - 1) == (1, 0)


def _apart(a: Any, b: Any) -> tuple[int, int] | None:
    difference = a - b
    return values_of(difference.node.shape_env, difference.node.expr) if isinstance(difference, SymInt) else None


def no_longer(a: Any, b: Any) -> bool:
    """Is a size at most another one? Settled in the same way."""
    return _settled(operator.le, a, b)


def _settled(compare: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Does a comparison hold? Where torch knows no more than what the sizes are now, a guard makes it."""
    if statically_known_true(compare(a, b)):
        return True
    hints = [hint_of(size) for size in (a, b)]
    return None not in hints and compare(*hints) and bool(compare(a, b))
