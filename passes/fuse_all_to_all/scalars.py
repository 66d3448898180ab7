"""Integers of a loop body, for documents that divide: positions and lengths in units of a chunk.

With every document cut in ``2 * cp`` chunks of ``h`` tokens (in ``cp`` where shards are one piece), each integer of a
body is ``start * S + unit * h + const``, where S is the document's first boundary. Integer division is then exact, or
the value is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from packpass.semantics.integers import Counts
from passes.document_loops.integers import Affine, Bound, Boundaries
from passes.fuse_all_to_all.blocks import TOKENS, NotMovement, Size

_ZERO = Fraction(0)


@dataclasses.dataclass(frozen=True)
class Scale:
    """How the boundaries that a loop uses count: a document is ``chunks`` chunks, its start a multiple of ``align``.

    ``shard``: chunks of a document that one rank holds: 2 of a zigzag, else 1."""

    chunks: int
    align: int
    shard: int = 2

    @property
    def zigzag(self) -> bool:
        return self.shard == 2

    def of_whole_row(self, cp: int) -> bool:
        """Do the boundaries count the whole row, rather than one rank's shard?"""
        return self.chunks == self.shard * cp


@dataclasses.dataclass(frozen=True)
class Lin(Counts):
    """``start * S + unit * h + const``."""

    start: Fraction = _ZERO
    unit: Fraction = _ZERO
    const: Fraction = _ZERO

    @staticmethod
    def of(number: int) -> Lin:
        return Lin(const=Fraction(number))

    def over(self, divisor: int, scale: Scale) -> Lin | None:
        """Floor division, if it has no remainder for any document."""
        if divisor <= 0:
            return None
        parts = (self.start * scale.align / divisor, self.unit / divisor, self.const / divisor)
        if any(p.denominator != 1 for p in parts):
            return None
        return Lin(self.start / divisor, self.unit / divisor, self.const / divisor)

    @property
    def number(self) -> int | None:
        """The constant that this is."""
        known = not self.start and not self.unit and self.const.denominator == 1
        return int(self.const) if known else None

    def size(self) -> Size:
        """As a number of elements."""
        if self.start or (self.unit and self.const):
            raise NotMovement("a length that is not a number of chunks")
        value = self.unit or self.const
        if value.denominator != 1 or value < 0:
            raise NotMovement("a length that is not a number of chunks")
        return Size(int(value), frozenset({TOKENS} if self.unit else ()))


@dataclasses.dataclass(frozen=True)
class Counted:
    """Element ``i`` of a vector is ``factor`` times element ``i + offset`` of the one that all come from."""

    factor: Fraction
    offset: int = 0


def from_affine(value: Affine, counted: Mapping[Boundaries, Counted], scale: Scale) -> Lin | None:
    """An integer that the machine knows in terms of the document's two boundaries, each as it is counted."""
    out = Lin.of(value.const)
    for atom, c in value.atoms:
        if not isinstance(atom, Bound) or atom.of not in counted:
            return None
        of = counted[atom.of]
        if atom.k + of.offset not in (0, 1):
            return None
        factor = c * of.factor
        out = out.plus(Lin(start=factor, unit=factor * scale.chunks * (atom.k + of.offset)))
    return out
