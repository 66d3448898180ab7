"""Integers and tensors of one document's shard, as the interpretation of a loop body knows them.

A shard of a document is one chunk of slots, in one piece, or two, front and back, of a zigzag. Where ``k`` slots of a
chunk go to a neighbour, chunks have ``h + k - 1`` slots: what holds for every ``h >= 1`` holds for all that have so
many, and is proven with lengths and positions that are linear in h. A document without slots is followed beside it by
plain numbers; others with shorter chunks are an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from packpass.semantics.integers import Comparison, Counts
from packpass.semantics.pointwise import NEGATED
from passes.refused import Refused

# === Integers ================================================================================================


@dataclasses.dataclass(frozen=True)
class Int(Counts):
    """``index * i + start * s + half * h + const``: document number, start of its shard in the row, h as above."""

    index: int = 0
    start: int = 0
    half: int = 0
    const: int = 0

    def over(self, divisor: int) -> Int | None:
        """The quotient where it is exact for all values, else None."""
        parts = dataclasses.astuple(self)
        if divisor <= 0 or any(part % divisor for part in parts):
            return None
        return Int(*(part // divisor for part in parts))

    @property
    def number(self) -> int | None:
        """The constant that this is."""
        return self.const if self.is_const else None

    @property
    def local(self) -> bool:
        """Does it depend on the length of the document only?"""
        return not self.index and not self.start

    @property
    def is_const(self) -> bool:
        return self.local and not self.half

    def at_least(self, other: Int) -> bool:
        """Is ``self >= other`` for every h >= 1?"""
        rest = self.plus(other, -1)
        return rest.local and rest.half >= 0 and rest.half + rest.const >= 0


def number(value: int) -> Int:
    return Int(const=value)


def total(parts: Iterable[Int]) -> Int:
    return functools.reduce(Int.plus, parts, Int())


ONE, ZERO = Int(const=1), Int()


@dataclasses.dataclass(frozen=True)
class Form:
    """Shards of ``chunks`` chunks, of which ``width`` slots go to a neighbour and chunks have so many at the least."""

    chunks: int
    width: int = 1

    @property
    def chunk(self) -> Int:
        """Slots of a chunk."""
        return Int(half=1, const=self.width - 1)

    @property
    def whole(self) -> Int:
        """Slots of a document's shard."""
        return self.chunk.times(self.chunks)

    @property
    def sent(self) -> Int:
        """Slots of a message."""
        return number(self.width)

    def if_empty(self, of: Int) -> int:
        """What a number of slots is for a document without any."""
        return of.const - of.half * (self.width - 1)

    def in_slots(self, asked: Comparison) -> Comparison:
        """The same comparison of integers where h is the number of slots of a chunk."""
        rest: Int = asked.difference
        return Comparison(asked.op, rest.plus(number(rest.half * (self.width - 1)), -1))


class Needs(enum.IntEnum):
    """Which documents must have slots, because parts of them are cut out of the row."""

    NONE = 0
    FOLLOWED = 1
    """Those behind which the row goes on: ``x[s : s + 1]`` is a slot of the next document else."""
    ALL = 2
    """All: ``x[e - 1 : e]`` is one of the document before else."""


def always(asked: Comparison) -> bool:
    """Is a comparison of such integers true for every document, also without slots?"""
    rest: Int = asked.difference
    if not rest.local:
        return False
    if asked.op == "eq":
        return rest == ZERO
    if asked.op == "ne":
        return rest.const != 0 and rest.const * rest.half >= 0
    room = _room(asked.op, rest)
    return room.half >= 0 and room.const >= 0


def only_if_empty(asked: Comparison, is_true: bool) -> bool:
    """Does no document with slots make a comparison of such integers ``is_true``?"""
    op = NEGATED[asked.op] if is_true else asked.op
    rest: Int = asked.difference
    if not rest.local:
        return False
    if op == "eq":
        return rest == ZERO
    if op == "ne":  # never 0 for h >= 1
        return rest.at_least(ONE) or rest.times(-1).at_least(ONE)
    return _room(op, rest).at_least(ZERO)


def if_empty(asked: Comparison) -> bool:
    """Is a comparison of such integers true for a document without slots?"""
    rest: Int = asked.difference
    compare: Callable[[int, int], bool] = getattr(operator, asked.op)
    return rest.local and compare(rest.const, 0)


def _room(op: str, difference: Int) -> Int:
    """What is 0 or more where the difference is ``op`` 0, one of the four orderings."""
    above = difference if op in ("ge", "gt") else difference.times(-1)
    return above if op in ("ge", "le") else above.plus(ONE, -1)


# === Slots ===================================================================================================


@dataclasses.dataclass(frozen=True)
class Own:
    """Slots of the document from ``at`` on, as they were in an outer row (``node``, packed ``dim``) before the loop."""

    node: fx.Node
    dim: int
    at: Int


@dataclasses.dataclass(frozen=True)
class Constant:
    """Slots that hold one number; ``text`` tells 1 from 1.0 and knows NaN."""

    value: Any = dataclasses.field(compare=False)
    text: str


UNKNOWN = Constant(0, "unknown")
"""The fill on ranks that hold no ends of documents."""


@dataclasses.dataclass(frozen=True)
class Received:
    """What the message with this number brought, from its slot ``at`` on."""

    message: tuple[int, int]
    at: Int = ZERO


@dataclasses.dataclass(frozen=True)
class Pending:
    """Memory that a message has been asked for and not been waited for."""

    message: tuple[int, int]
    at: Int = ZERO


@dataclasses.dataclass(frozen=True)
class Unset:
    """Uninitialised memory."""


What = Own | Constant | Received | Pending | Unset


@dataclasses.dataclass(frozen=True)
class Run:
    """``length`` slots in a row."""

    length: Int
    what: What


def normal(runs: list[Run]) -> tuple[Run, ...]:
    """No runs without slots, and slots that follow each other in one run."""
    out: list[Run] = []
    for run in runs:
        if run.length == ZERO:
            continue
        last = out[-1] if out else None
        if last is not None and _follows(last, run.what):
            out[-1] = Run(last.length.plus(run.length), last.what)
        else:
            out.append(run)
    return tuple(out)


def _follows(run: Run, what: What) -> bool:
    if isinstance(run.what, (Own, Received, Pending)):
        return _from(run.what, run.length) == what
    return isinstance(what, (Constant, Unset)) and run.what == what


def _from(what: What, slots: Int) -> What:
    """What begins so many slots further on."""
    return dataclasses.replace(what, at=what.at.plus(slots)) if isinstance(what, (Own, Received, Pending)) else what


def cut(runs: tuple[Run, ...], start: Int, stop: Int, node: fx.Node | None) -> list[Run]:
    """The slots ``[start, stop)``; refuses where their order with the ends of runs depends on the length."""
    out, at = [], ZERO
    for run in runs:
        end = at.plus(run.length)
        low, high = _larger(at, start, node), _smaller(end, stop, node)
        if high.at_least(low) and high != low:
            out.append(Run(high.plus(low, -1), _from(run.what, low.plus(at, -1))))
        elif not low.at_least(high):
            raise unordered(node)
        at = end
    return out


def _larger(a: Int, b: Int, node: fx.Node | None) -> Int:
    if a.at_least(b):
        return a
    if b.at_least(a):
        return b
    raise unordered(node)


def _smaller(a: Int, b: Int, node: fx.Node | None) -> Int:
    return a if _larger(a, b, node) == b else b


def unordered(node: fx.Node | None) -> Refused:
    return Refused("not-a-roll", "which slots a slice has depends on how short the document is", node)


# === Tensors =================================================================================================


@dataclasses.dataclass(eq=False)
class Memory:
    """A tensor that an iteration sees: a fresh one, or the document's part of an outer one."""

    runs: tuple[Run, ...]
    length: Int
    empty: int
    """Slots if the document has none."""
    outer: tuple[fx.Node, int] | None = None
    parent: tuple[Memory, int] | None = None
    """Set for what may share the memory of something else: may be read while that is unchanged, not be written."""
    beside: tuple[tuple[Memory, int], ...] = ()
    """The same of other memory, which it may share as well."""
    version: int = 0
    sending: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    function: Any = None
    """The `functions.Function` that has made all of it, as it is."""

    def roots(self) -> list[Memory]:
        """What is written where this is."""
        parents = () if self.parent is None else (self.parent, *self.beside)
        return [root for parent, _ in parents for root in parent.roots()] or [self]


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """Slots ``[start, start + length)`` of a memory.

    ``dim`` (negative) is the packed dimension. ``kept`` is False where one slot was selected, so that the tensor does
    not have that dimension; both are None for a new tensor of given sizes, which can be a slot in either form.
    """

    memory: Memory
    start: Int
    length: Int
    empty: int
    dim: int | None
    kept: bool | None

    @property
    def whole(self) -> bool:
        return self.start == ZERO and self.length == self.memory.length

    def part(self, start: Int, length: Int, empty: int, kept: bool = True) -> View:
        return View(self.memory, self.start.plus(start), length, empty, self.dim, kept)


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Parts of documents that are stacked along a dimension of their own, ``axis`` (not negative): what is done to all
    is done to each. Each is in memory of its own, or they may not be written."""

    parts: tuple[View, ...]
    axis: int
