"""How long a padded document may be: as long as the code that runs per document takes for granted.

Code that was traced for a row takes a way that depends on the row's length (is it a multiple of the chunk? longer than
the window?), which torch notes as guards. A document is padded to a length that satisfies the same guards; the row's
own length always does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from packpass._compat import assumed_of, hint_of


def settled(size: Any) -> Any:
    """A size, as a number if a guard has fixed it."""
    if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols:
        return int(size.node.expr)
    return size


@dataclasses.dataclass(frozen=True)
class Lengths:
    """``fits``: is the code good for a row of so many slots? ``example``: the length of the row that is traced."""

    fits: Callable[[int], bool]
    example: int
    constant: bool
    """Is the length a number in the code, so that it is good for no other one?"""
    value_of: Callable[[Any], Callable[[int], int] | None] = lambda size: None

    def equal(self, size: Any) -> bool:
        """Is a size the row's length wherever the code is good, as far as one tries? (16 * (T // 16) is, in code for
        multiples of 16.)"""
        function = self.value_of(size)
        if function is None or hint_of(size) != self.example:
            return False
        return all(function(n) == n for n in range(2, max(2 * self.example, 512)) if self.fits(n))

    def at_least(self, longest: int, total: int) -> int:
        """The least length for documents of at most ``longest`` slots, in a row of ``total``."""
        if self.constant:
            return self.example
        longest = max(longest, 2)
        return next((n for n in range(longest, total) if self.fits(n)), max(total, longest))

    def trial(self, wanted: int) -> int:
        """A length near the wanted one to try the code with."""
        if self.constant:
            return self.example
        near = (n for n in range(wanted, max(2 * wanted, self.example)) if self.fits(n))
        return next(near, self.example)


def lengths_of(length: Any) -> Lengths:
    """Of a row whose length is a number, or a symbol."""
    length = settled(length)
    if isinstance(length, torch.SymInt):
        fits, value_of = assumed_of(length)
        return Lengths(fits, hint_of(length) or 2, constant=False, value_of=value_of)
    return Lengths(lambda number: number == length, length, constant=True)
