"""How long a padded document may be: what the code that runs per document takes for granted of a row's length.

Code that was traced for a row takes a way that depends on the row's length (is it a multiple of the chunk? longer than
the window?), which torch notes as guards. There are two ways to choose a length:

* Where the code divides the length by a number, a multiple of that. Its sizes are then plain products, which the
  inner backend compiles several times faster than remainders; whether the code is good for it, the trial says.
* A length that satisfies the same guards. The row's own length always does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from packpass._compat import assumed_of, hint_of

LARGEST = 1024
"""Multiples of more are not tried: documents are shorter."""


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
    constant: bool = False
    """Is the length a number in the code, so that it is good for no other one?"""
    multiple: int = 1
    """Documents are padded to multiples of this, whatever guards say."""
    value_of: Callable[[Any], Callable[[int], int] | None] = lambda size: None

    def at_least(self, longest: int, total: int) -> int:
        """The least length for documents of at most ``longest`` slots, in a row of ``total``."""
        if self.constant:
            return self.example
        if self.multiple > 1:
            return max(-(-longest // self.multiple), 2) * self.multiple  # one multiple would be code of its own
        longest = max(longest, 2)
        return next((n for n in range(longest, total) if self.fits(n)), max(total, longest))

    def trial(self, wanted: int) -> int:
        """A length near the wanted one to try the code with."""
        if self.constant or self.multiple > 1:
            return self.at_least(wanted, wanted)
        near = (n for n in range(wanted, max(2 * wanted, self.example)) if self.fits(n))
        return next(near, self.example)

    def equal(self, size: Any) -> bool:
        """Is a size the row's length wherever the code is good, as far as one tries? (16 * (T // 16) is, in code for
        multiples of 16.)"""
        function = self.value_of(size)
        if function is None or hint_of(size) != self.example:
            return False
        return all(function(n) == n for n in range(2, max(2 * self.example, 512)) if self.fits(n))


def lengths_of(length: Any) -> list[Lengths]:
    """The ways to choose a length for a row whose length is a number, or a symbol; the better one first."""
    length = settled(length)
    if not isinstance(length, torch.SymInt):
        return [Lengths(lambda number: number == length, length, constant=True)]
    assumed = assumed_of(length)
    plain = Lengths(assumed.holds, hint_of(length) or 2, value_of=assumed.value_of)
    multiple = math.lcm(*assumed.divisors)
    return [*([dataclasses.replace(plain, multiple=multiple)] if 1 < multiple <= LARGEST else []), plain]
