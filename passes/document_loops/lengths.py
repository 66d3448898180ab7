"""Sizes of the tensors that a loop cuts, held against each other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from packpass._compat import hint_of, statically_known_true


def same_length(a: Any, b: Any) -> bool:
    """Are two sizes equal? Torch gives inputs of varying length one symbol each, even where their sizes agree; a loop
    that cuts both is the place to settle that they do (by a guard, as adding the two tensors would)."""
    return _settled(operator.eq, a, b)


def no_longer(a: Any, b: Any) -> bool:
    """Is a size at most another one? Settled in the same way."""
    return _settled(operator.le, a, b)


def _settled(compare: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Does a comparison hold? Where torch knows no more than what the sizes are now, a guard makes it."""
    if statically_known_true(compare(a, b)):
        return True
    hints = [hint_of(size) for size in (a, b)]
    return None not in hints and compare(*hints) and bool(compare(a, b))
