"""How long a padded document may be: what the code that runs per document takes for granted of a row's length.

Code that was traced for a row takes a way that depends on the row's length (is it a multiple of the chunk? longer than
the window?), which torch notes as guards. There are two ways to choose a length:

* Where the code divides the length by a number, a multiple of that. Its sizes are then plain products, which the
  inner backend compiles several times faster than remainders. Guards that ask for the remainder alone (is there
  anything to pad?) may not hold then: whether the code is good for it all the same, the trial says. Every other guard
  must hold (how many chunks does a loop go over?).
* A length that satisfies the same guards. The row's own length always does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from packpass._compat import Decision, assumed_of, hint_of

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
    """Documents are padded to multiples of this."""
    good: Callable[[int], bool] = lambda number: True
    """Is the code good for this multiple, as far as guards say?"""
    value_of: Callable[[Any], Callable[[int], int] | None] = lambda size: None
    decisions: tuple[Decision, ...] = ()
    """What Python code has decided by the row's length, and would have decided otherwise for some document."""

    def at_least(self, longest: int, total: int) -> int:
        """The least length for documents of at most ``longest`` slots, in a row of ``total``."""
        if self.constant:
            return self.example
        if self.multiple > 1:
            least, most = (-(-n // self.multiple) * self.multiple for n in (longest, total))
            # One multiple would be code of its own, with one chunk.
            better = [*range(max(least, 2 * self.multiple), max(most, 2 * self.multiple) + 1, self.multiple), least]
            found = next((n for n in better if self.good(n)), None)
            if found is not None:
                return found
        longest = max(longest, 2)
        return next((n for n in range(longest, total) if self.fits(n)), max(total, longest))

    @property
    def chunks(self) -> tuple[int, int] | None:
        """``(count, slots)`` where all that Python code has decided by the row's length is how many chunks it has, as
        ``for i in range(T // 64)`` does; ``count * slots`` is the length of a row whose chunks are all full."""
        counts = {decision.taken for decision in self.decisions}
        count = counts.pop() if len(counts) == 1 else None
        full = next((n for n in range(2 * self.example, 1, -1) if self.fits(n)), 0)
        return None if count is None or count < 2 or full % count else (count, full // count)

    def trial(self, wanted: int) -> int:
        """A length near the wanted one to try the code with."""
        if self.constant:
            return self.example
        if self.multiple > 1:
            return self.at_least(min(wanted, self._most), self._most)
        near = (n for n in range(wanted, max(2 * wanted, self.example)) if self.fits(n))
        return next(near, self.example)

    @property
    def _most(self) -> int:
        """Slots of a row that the code is surely good for, and some more if it is."""
        more = max(self.example, 320) // self.multiple * self.multiple
        return more if self.good(more) else self.example

    def equal(self, size: Any) -> bool:
        """Is a size the row's length wherever the code is good, as far as one tries? (16 * (T // 16) is, in code for
        multiples of 16.)"""
        function = self.value_of(size)
        if function is None or hint_of(size) != self.example:
            return False
        tried = [n for n in range(2, max(2 * self.example, 512)) if self.fits(n)]
        # Where the code is good for one length, every size of that length would be the row's: it may be a chunk's.
        return len(tried) >= 3 and all(function(n) == n for n in tried)


def lengths_of(length: Any) -> list[Lengths]:
    """The ways to choose a length for a row whose length is a number, or a symbol; the better one first."""
    length = settled(length)
    if not isinstance(length, torch.SymInt):
        return [Lengths(lambda number: number == length, length, constant=True)]
    assumed = assumed_of(length)
    example = hint_of(length) or 2
    decisions = tuple(decision for decision in assumed.decisions if _tells_apart(decision, example))
    plain = Lengths(assumed.holds, example, value_of=assumed.value_of, decisions=decisions)
    multiple = math.lcm(*assumed.divisors)
    if not 1 < multiple <= LARGEST:
        return [plain]
    others = [guard for guard in assumed.guards if not _of_the_remainder(guard, multiple, plain.example)]
    good = functools.cache(lambda number: all(guard(number) for guard in others))
    if not good(-(-plain.example // multiple) * multiple):
        return [plain]
    return [dataclasses.replace(plain, multiple=multiple, good=good), plain]


def _tells_apart(decision: Decision, example: int) -> bool:
    """Would Python code have decided otherwise for a document in a row of so many slots?

    Two things are let be: what depends on the remainder of a division alone (is there anything to pad?), and how often
    a ``while`` goes round, as it does for steps of 1, 2, 4, ... slots."""
    if decision.text.startswith("while ") or all(decision.holds(n) for n in range(2, example + 1)):
        return False
    return not (1 < decision.period <= LARGEST and _of_the_remainder(decision.holds, decision.period, example))


def _of_the_remainder(guard: Callable[[int], bool], multiple: int, example: int) -> bool:
    """Does a guard ask for the remainder of a length alone? Looked at from short rows to some longer than this one."""
    remainders = sorted({0, 1, 2 % multiple, multiple // 2, multiple - 1})
    rounds = sorted({*range(1, 9), *(example * k // (4 * multiple) + j for k in range(1, 13) for j in (0, 1))})
    patterns = {tuple(guard(k * multiple + r) for r in remainders) for k in rounds if k}
    return len(patterns) == 1
