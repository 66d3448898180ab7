"""What stands in each slot of a row: constants, slots of another row at a fixed distance, or something unknown.

A row of T slots is described by pieces ``[start, stop)`` with one content each. Positions are ``n * T + c``: T may be
symbolic, and then every constant is taken to be small against it, which is what slices by constants mean, too (a row
shorter than the shift is nothing but fill, for the naive code and for `packed_roll` alike).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from torch import fx


@dataclasses.dataclass(frozen=True, order=True)
class Pos:
    """``n * T + c``. With a static T, ``n`` is always 0."""

    n: int
    c: int

    def __add__(self, other: Pos) -> Pos:
        return Pos(self.n + other.n, self.c + other.c)

    def __sub__(self, other: Pos) -> Pos:
        return Pos(self.n - other.n, self.c - other.c)


ZERO = Pos(0, 0)


@dataclasses.dataclass(frozen=True)
class Source:
    """A row that is read: the value of ``node`` as it was at version ``version`` of its memory."""

    node: fx.Node
    version: int


@dataclasses.dataclass(frozen=True)
class Const:
    """The same number in every slot (and along the other dimensions)."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Read:
    """Slot ``p`` holds ``source[p + offset]``, or ``source[offset - p]`` of a row that is turned round."""

    source: Source
    offset: Pos
    turned: bool = False


@dataclasses.dataclass(frozen=True)
class Ramp:
    """Slot ``p`` holds the number ``p + offset`` (an arange)."""

    offset: Pos


@dataclasses.dataclass(frozen=True)
class Place:
    """Every slot holds this one number, which may grow with the row: ``T - 1``."""

    at: Pos


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Nobody knows."""


Content = Const | Read | Ramp | Place | Unknown
UNKNOWN = Unknown()


@dataclasses.dataclass(frozen=True)
class Piece:
    start: Pos
    stop: Pos
    content: Content


Pieces = tuple[Piece, ...]
"""In order, without gaps, from 0 to the row's length."""


def whole(length: Pos, content: Content) -> Pieces:
    """One content everywhere."""
    return (Piece(ZERO, length, content),) if length > ZERO else ()


def length_of(pieces: Pieces) -> Pos:
    return pieces[-1].stop if pieces else ZERO


def _moved(content: Content, by: Pos) -> Content:
    """The content seen from a row that starts ``by`` slots later."""
    if isinstance(content, Read):
        offset = content.offset - by if content.turned else content.offset + by
        return Read(content.source, offset, content.turned)
    return Ramp(content.offset + by) if isinstance(content, Ramp) else content


def crop(pieces: Pieces, start: Pos, stop: Pos) -> Pieces:
    """Slots ``[start, stop)`` as a row of their own."""
    out = []
    for piece in pieces:
        low, high = max(piece.start, start), min(piece.stop, stop)
        if low < high:
            out.append(Piece(low - start, high - start, _moved(piece.content, start)))
    return tuple(out)


def joined(parts: list[Pieces]) -> Pieces:
    """Rows one after the other."""
    out: list[Piece] = []
    at = ZERO
    for part in parts:
        for piece in part:
            out.append(Piece(piece.start + at, piece.stop + at, _moved(piece.content, ZERO - at)))
        at = at + length_of(part)
    return merged(tuple(out))


def merged(pieces: Pieces) -> Pieces:
    """Neighbours with the same content as one piece."""
    out: list[Piece] = []
    for piece in pieces:
        if out and _same(out[-1].content, piece.content):
            out[-1] = Piece(out[-1].start, piece.stop, piece.content)
        else:
            out.append(piece)
    return tuple(out)


def _same(a: Content, b: Content) -> bool:
    if isinstance(a, Const) and isinstance(b, Const):
        return type(a.value) is type(b.value) and repr(a.value) == repr(b.value)
    return not isinstance(a, Unknown) and a == b


def overwritten(pieces: Pieces, start: Pos, stop: Pos, new: Pieces) -> Pieces:
    """``row[start:stop] = new``."""
    end = length_of(pieces)
    return joined([crop(pieces, ZERO, start), new, crop(pieces, stop, end)])


def rolled(pieces: Pieces, shift: int) -> Pieces | None:
    """``torch.roll`` by a constant; None if it may exceed the row."""
    length = length_of(pieces)
    cut = length - Pos(0, shift) if shift > 0 else Pos(0, -shift)
    if not ZERO < cut < length:
        return None
    return joined([crop(pieces, cut, length), crop(pieces, ZERO, cut)])


def flipped(pieces: Pieces) -> Pieces:
    """The last slot first."""
    last, out = length_of(pieces) - Pos(0, 1), list[Piece]()
    for piece in reversed(pieces):
        content = piece.content
        if isinstance(content, Read):
            offset = content.offset - last if content.turned else content.offset + last
            content = Read(content.source, offset, not content.turned)
        elif isinstance(content, Ramp):
            content = UNKNOWN
        out.append(Piece(length_of(pieces) - piece.stop, length_of(pieces) - piece.start, content))
    return tuple(out)


def zipped(a: Pieces, b: Pieces) -> list[tuple[Pos, Pos, Content, Content]]:
    """Both rows cut where either is cut."""
    edges = sorted({p.start for p in (*a, *b)} | {length_of(a)})
    out = []
    for start, stop in itertools.pairwise(edges):
        first, second = crop(a, start, stop), crop(b, start, stop)
        # Contents as seen from the whole row again.
        out.append((start, stop, _moved(first[0].content, ZERO - start), _moved(second[0].content, ZERO - start)))
    return out


# === What a row is ===========================================================================================


@dataclasses.dataclass(frozen=True)
class Shift:
    """``source`` moved by ``by`` slots (negative: towards the front), ``fill`` in the slots that opens.

    ``dropped`` slots at the end (the front) are not there at all: ``x[k:]``, which has no fill.
    """

    source: Source
    by: int
    fill: Any = None
    wraps: bool = False
    dropped: int = 0


def shift_of(pieces: Pieces, row: Pos) -> Shift | None:
    """Is this row of ``row`` slots another one, shifted?"""
    if len(pieces) == 1:
        content = pieces[0].content
        if isinstance(content, Read) and not content.turned and content.offset.n == 0 and content.offset.c > 0:
            k = content.offset.c
            if length_of(pieces) == row - Pos(0, k):
                return Shift(content.source, -k, dropped=k)
        return None
    if len(pieces) != 2 or length_of(pieces) != row:
        return None
    for moved, opened, left in ((pieces[0], pieces[1], True), (pieces[1], pieces[0], False)):
        if not isinstance(moved.content, Read) or moved.content.turned or moved.content.offset.n:
            continue
        by = -moved.content.offset.c
        if (left and by >= 0) or (not left and by <= 0):
            continue
        edge = row - Pos(0, -by) if left else Pos(0, by)
        if (moved.stop if left else moved.start) != edge:
            continue
        if isinstance(opened.content, Const):
            return Shift(moved.content.source, by, opened.content.value)
        same = isinstance(opened.content, Read) and not opened.content.turned
        if same and isinstance(opened.content, Read) and opened.content.source == moved.content.source:
            wrap = moved.content.offset + (ZERO - row if left else row)
            if opened.content.offset == wrap:
                return Shift(moved.content.source, by, wraps=True)
    return None


def moved_part(pieces: Pieces, row: Pos) -> Source | None:
    """The row that is shifted, where what comes in at the open end is neither a number nor the other end; or that is
    turned round as well."""
    if len(pieces) < 2 or length_of(pieces) != row:
        return None
    for moved, to_front in ((pieces[0], True), (pieces[-1], False)):
        at = moved.content.offset if isinstance(moved.content, Read) else row
        if isinstance(moved.content, Read) and moved.content.turned:
            at = row - Pos(0, 1) - at
        if isinstance(moved.content, Read) and at.n == 0:
            by = at.c
            if (to_front and by > 0 and moved.stop == row - Pos(0, by)) or (
                not to_front and by < 0 and moved.start == Pos(0, -by)
            ):
                return moved.content.source
    return None


def source_of(pieces: Pieces) -> Source | None:
    """The row itself, if the pieces are exactly that."""
    content = pieces[0].content if len(pieces) == 1 else UNKNOWN
    return content.source if isinstance(content, Read) and content == Read(content.source, ZERO) else None
