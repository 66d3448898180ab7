"""Parts of documents whose lengths are numbers of their own: halves, chunks for context parallelism, replies.

::

    d = x[cu[i] : cu[i + 1]]
    half = lengths[i] // 4
    out[cu[i] // 2 : cu[i] // 2 + half] = d[half * rank : half * (rank + 1)]

Such parts are documents as well, with lengths that are made from those of the others. A first look at a body finds what
these are (`OtherDocuments`); in a second one what they are cut from is known by its place alone (`Cut`).
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops import moved
from passes.document_loops.elsewhere import moved_segment, own_documents
from passes.document_loops.inequalities import at_most
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries, Derived, Window, place
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.terms import Outside, Row, Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class Longer:
    """A document with ``behind`` more slots at its end, of which only that they are cut off again is understood."""

    segment: Segment
    behind: int


class OtherDocuments(Refused):
    """A part of a document is no window that all documents have: the loop may go by the lengths of these parts."""

    def __init__(self, refused: Refused, documents: Boundaries, parts: bool = True) -> None:
        """``parts``: are they parts of other documents, which the body cuts first?"""
        super().__init__(refused.code, str(refused), refused.node)
        self.documents, self.parts = documents, parts


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A document of which only parts are looked at: ``entries`` of an outer tensor, cut along ``at``."""

    node: fx.Node
    entries: tuple[Any, ...]
    at: int
    begin: Affine
    length: Affine


def cut(machine: Machine, base: fx.Node, entries: list[Any]) -> Cut | None:
    """``base[entries]`` where one slice is a document, by other boundaries than those of the loop."""
    value = machine.value(base)
    if not isinstance(value, Outside) or value.node is None:
        return None
    found = None
    for d, entry in enumerate(entries):
        if isinstance(entry, slice) and isinstance(entry.start, fx.Node) and isinstance(entry.stop, fx.Node):
            begin, end = machine.affine(entry.start), machine.affine(entry.stop)
            if found is not None or begin is None or end is None or entry.step not in (None, 1):
                return None
            found = d, begin, end.plus(begin, -1)
        elif entry != slice(None):
            return None
    if found is None:
        return None
    at, begin, length = found
    known = length.length_of()
    if known is None or known[1] or (known[0], 0) == machine.boundaries or begin.bound() is None:
        return None
    machine.vectors.add(known[0].node)
    return Cut(value.node, tuple(entries), at, begin, length)


def split_apart(node: fx.Node, rank: int, at: int, documents: tuple[Boundaries, int]) -> Cut:
    """A document of a tensor that is split by other lengths than those of the parts that the loop goes by."""
    begin = Affine.of(Bound(*documents))
    return Cut(node, (slice(None),) * rank, at, begin, moved.own_length(documents))


def own_length(machine: Machine) -> Affine:
    """Slots of the iteration's document."""
    return moved.own_length(machine.boundaries)


def chunks_of(machine: Machine, node: fx.Node, value: Any, count: int, dim: int) -> tuple[Segment, ...]:
    """``document.chunk(count)`` of documents of which the program says that they can be cut in so many equal parts."""
    refused = Refused(
        "no-rule", "chunk of a document that the loop has changed, or cuts in other ways, has no rule", node
    )
    document = value if isinstance(value, Cut) else as_cut(value) if isinstance(value, Segment) else None
    if document is None or dim % len(document.entries) != document.at:
        raise refused
    known = isinstance(value, Cut)
    length = document.length if known else own_length(machine)
    if not _divides(machine, length, count):
        raise Refused(
            "no-rule",
            f"chunk cuts a document in {count} parts, which are not equal where its length is no multiple of {count}; "
            f"say that it is one in front of it: assert length % {count} == 0",
            node,
        )
    part = Affine.of(Derived(operator.floordiv, (length, Affine.of(count))))
    documents = own_documents(part)
    if documents is None or not known or machine.boundaries != (documents, 0):
        raise (
            refused if known or documents is None or machine.parts_of_documents else OtherDocuments(refused, documents)
        )
    entries = list(document.entries)
    begins = [document.begin.plus(part.times(j)) for j in range(count)]
    return tuple(moved_segment(machine, document.node, entries, document.at, begin) for begin in begins)


def _divides(machine: Machine, length: Affine, count: int) -> bool:
    """Has the program asserted ``length % k == 0`` for a multiple k of ``count``?"""
    for check in machine.checks:
        if not isinstance(check.left, Affine):
            continue
        zero, rest = check.right == Affine() and check.op == "eq", check.left.single()
        if zero and rest is not None and not rest[1] and isinstance(rest[0], Derived):
            function, (of, by) = rest[0].function, rest[0].args
            if function is operator.mod and of == length and by.is_const and by.const and by.const % count == 0:
                return True
    return False


@dataclasses.dataclass(frozen=True, eq=False)
class Joined(Term):
    """Every document's ``parts``, all as long as the document, one behind the other."""

    parts: tuple[Term, ...]
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row of all documents, so many times as long."""
        rows = emitter.call(torch.cat, tuple(emitter.node(part) for part in self.parts), self.dim)
        places = emitter.call(_ops.interleaved_places.default, emitter.cu, len(self.parts), emitter.total)
        made: fx.Node = emitter.call(_ops.gather_places.default, rows, places, self.dim)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces:
    """What a document gives to a list that is joined in the end: `Joined`, or what `uneven` makes of pieces."""

    term: Any
    rank: int


def pieces(machine: Machine, node: fx.Node, values: list[Any], dim: int) -> Pieces | None:
    """``cat`` of several parts of a document, of one length, along their slots."""
    whole = [v for v in values if isinstance(v, Segment) and v.window == FULL and v.store.exact]
    if len(whole) < len(values) or len(whole) < 2:
        return None
    terms = tuple(machine.read(segment, node) for segment in whole)
    return Pieces(machine.intern(Joined(terms, dim)), whole[0].rank)


def as_cut(segment: Segment) -> Cut | None:
    """A whole document of an outer row that nothing has written yet."""
    row = segment.store.outer
    if not isinstance(row, Row) or segment.store.version or row.index or segment.window != FULL:
        return None
    return Cut(row.node, (slice(None),) * segment.rank, segment.rank + row.dim, Affine(), Affine())


def part_of(machine: Machine, document: Cut, entries: list[Any], node: fx.Node) -> Segment | None:
    """``document[entries]``: slots from one number of the document on up to another."""
    others = [entry for d, entry in enumerate(entries) if d != document.at]
    inner = entries[document.at]
    if not isinstance(inner, slice) or inner.step not in (None, 1) or any(e != slice(None) for e in others):
        return None
    ends = counted(machine, inner, document.length)
    documents = None if ends is None else own_documents(ends[1].plus(ends[0], -1))
    if ends is None or documents is None:
        return None
    begin = document.begin.plus(ends[0])
    if machine.boundaries != (documents, 0):
        raise Refused("two-boundaries", "parts of documents of several lengths are cut in one loop", node)
    return moved_segment(machine, document.node, list(document.entries), document.at, begin)


def counted(machine: Machine, cut: slice, length: Affine) -> tuple[Affine, Affine] | None:
    """Where a slice of ``length`` slots begins and ends, as Python counts; None for numbers that are not the document's
    own. What ends before it begins has no slots."""
    ends = []
    for bound, otherwise in ((cut.start, Affine()), (cut.stop, length)):
        end = otherwise if bound is None else machine.affine(bound)
        if end is None or (end.is_shared and not end.is_const):
            return None
        inside = at_most(Affine(), end, length) and at_most(end, length, length)
        ends.append(end if inside else Affine.of(Derived(place, (end, length))))
    return ends[0], ends[1]


def between(machine: Machine, segment: Segment, cut: Any) -> Window | None:
    """A slice of a document, or of slots of it, by two numbers of the document; None for other slices.

    If something is done to it that has no rule, the loop may go by the lengths of such parts (`OtherDocuments`)."""
    window = segment.window
    if machine.boundaries is None or not isinstance(cut, slice) or not segment.store.exact:
        return None
    whole = moved.ends_of(machine.boundaries, window)
    ends = counted(machine, cut, whole[1].plus(whole[0], -1))
    if ends is None:
        return None
    document = as_cut(segment)
    if machine.part is None and document is not None and not machine.parts_of_documents:
        machine.part = own_documents(ends[1].plus(ends[0], -1))
    start, stop = (whole[0].plus(end) for end in ends)
    if cut.start is not None and cut.stop is not None:
        stop = Affine.of(Derived(max, (start, stop)))
    return Window(between=(start, stop))


def sizes_of(document: Cut, dim: int) -> Any:
    """The size of a document that is only cut, along a dimension; None where it is that of the outer tensor."""
    fake = example(document.node)
    assert isinstance(fake, torch.Tensor)
    return document.length if dim % fake.dim() == document.at else None
