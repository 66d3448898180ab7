"""Rows whose documents are longer or shorter than those they are made of: what is appended is as long as it is.

::

    out.append(x[s:e][:-1])                                    # parts of documents
    out.append(torch.cat((bos, ids[s:e], eos)))                # with slots of their own in front or behind
    out.append(torch.cat((h[s:e], h[s:e].mean(0, keepdim=True))))
    pieces = x[s:e].chunk(4); parts.extend([pieces[0], pieces[-1]])

The row that such a list is joined to is gathered at once. Nothing is computed on what a document has become, which is
another row with other boundaries: it is moved. Slots are counted as eager does, in short documents as well.

Of ``chunk`` torch makes every piece as long as the quotient, rounded up, and the last one shorter; of a short document
there are fewer pieces. A program that takes piece ``j`` by its number fails where there is none, so that there being
one is a check which raises where eager does.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.document_loops.documents import read_cell
from passes.document_loops.integers import FULL, Affine, Derived
from passes.document_loops.machine import Document, Machine, Padded, Segment
from passes.document_loops.parts import Joined, Pieces, own_length
from passes.document_loops.terms import Outside, Term
from passes.loops import only_asserted

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


NOTHING = Affine()


class Each(enum.Enum):
    """What every document has of the tensor that a part is cut from."""

    SLOTS = "its slots, in the row of all documents"
    VALUE = "a tensor of its own, of one shape with those of the others"
    ALL = "the whole of it, as all documents"


@dataclasses.dataclass(frozen=True)
class Part:
    """Slots ``start`` to ``stop`` of every document, counted from its own start; ``there``: a number that must be below
    the document's length, or 0, as the piece is not there otherwise."""

    start: Affine
    stop: Affine
    there: Affine = NOTHING
    each: Each = Each.SLOTS


@dataclasses.dataclass(frozen=True)
class Constant:
    """``count`` slots of one number."""

    number: Any
    count: int


@dataclasses.dataclass(frozen=True, eq=False)
class Uneven(Term):
    """The ``parts`` of every document, one behind the other: a row of their own, without a tail."""

    of: tuple[Term | Outside | Constant, ...]
    parts: tuple[Part, ...]
    least: int
    dim: int
    dtype: torch.dtype

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, gathered at once from those of the documents."""
        source, offsets = self._source(emitter)
        begins, lengths = [], []
        for part, offset in zip(self.parts, offsets, strict=True):
            begins.append(self._begin(emitter, part, offset))
            lengths.append(self._length(emitter, part))
            self._check(emitter, emitter.vector(part.there, emitter.boundaries))
        cu = self._boundaries(emitter, lengths)
        begin = self._in_order(emitter, begins)
        begin = emitter.call(torch.nn.functional.pad, begin, (0, 1))
        total = emitter.call(_ops.covered_length.default, cu)
        places = emitter.call(_ops.segment_places.default, cu, begin, total)
        made: fx.Node = emitter.call(_ops.gather_places.default, source, places, self.dim)
        return made

    def boundaries(self, emitter: Emitter) -> fx.Node:
        """Where in the row the parts of each document begin: [N + 1]."""
        lengths = [self._length(emitter, part) for part in self.parts]
        total = functools.reduce(lambda one, other: emitter.call(torch.add, one, other), lengths)
        before = emitter.call(torch.cumsum, total, 0)
        return emitter.call(torch.sub, before, total)

    def _source(self, emitter: Emitter) -> tuple[fx.Node, list[Any]]:
        """One tensor that holds all that parts are cut from, and where in it that of each part begins."""
        rows: list[fx.Node] = []
        for of, part in zip(self.of, self.parts, strict=True):
            row = None if isinstance(of, Constant) else self._row(emitter, of, part.each)
            if row is not None and row not in rows:
                rows.append(row)
        ends: list[Any] = [0]
        for row in rows:
            at = example(row).dim() + self.dim
            size = example(row).shape[at]
            known = size if isinstance(size, int) else emitter.call(torch.ops.aten.sym_size.int, row, at)
            ends.append(_sum(emitter, ends[-1], known))
        source = rows[0] if len(rows) == 1 else emitter.call(torch.cat, tuple(rows), self.dim)
        constants: dict[Constant, Any] = {}
        for of in self.of:
            if isinstance(of, Constant) and of not in constants:
                constants[of] = ends[-1]
                widths = (0, 0) * (-self.dim - 1) + (0, of.count)
                source = emitter.call(torch.nn.functional.pad, source, widths, "constant", of.number)
                ends.append(_sum(emitter, ends[-1], of.count))
        offsets = []
        for of, part in zip(self.of, self.parts, strict=True):
            if isinstance(of, Constant):
                offsets.append(constants[of])
            else:
                offsets.append(ends[rows.index(self._row(emitter, of, part.each))])
        return source, offsets

    def _row(self, emitter: Emitter, of: Term | Outside, each: Each) -> fx.Node:
        """What parts are cut from, along the slots."""
        row = emitter.node(of)
        if example(row).dtype != self.dtype:
            row = emitter.once(("to", row, self.dtype), lambda: emitter.call("to", row, self.dtype, method=True))
        if each is Each.VALUE:
            return emitter.once(("flat", row, self.dim), lambda: self._flat(emitter, row))
        return row

    def _flat(self, emitter: Emitter, values: fx.Node) -> fx.Node:
        """Tensors of all documents, one behind the other along the slots."""
        at = example(values).dim() + self.dim - 1
        if at:
            values = emitter.call(torch.movedim, values, 0, at)
            # A copy in this order: flatten asks whether N is 1 otherwise.
            values = emitter.call(torch.clone, values, memory_format=torch.contiguous_format)
        return emitter.call(torch.flatten, values, at, at + 1)

    def _begin(self, emitter: Emitter, part: Part, offset: Any) -> fx.Node:
        """Where a part of every document begins in the source: [N + 1]."""
        start = emitter.vector(part.start, emitter.boundaries)
        if part.each is Each.SLOTS:
            here = emitter.call(torch.add, emitter.cu, start)
        elif part.each is Each.VALUE:
            here = emitter.call(torch.mul, emitter.entries(), part.stop.const)
        else:
            here = emitter.call(torch.zeros_like, emitter.entries())
        return here if isinstance(offset, int) and not offset else emitter.call(torch.add, here, offset)

    def _length(self, emitter: Emitter, part: Part) -> fx.Node:
        """Slots of a part of every document: [N + 1], the last entry 0."""
        length = emitter.vector(part.stop.plus(part.start, -1), emitter.boundaries)
        if part.each is Each.SLOTS and isinstance(length, fx.Node) and isinstance(example(length), torch.Tensor):
            return length
        return emitter.call(torch.mul, emitter.call("long", emitter.reaches(self.least), method=True), length)

    def _boundaries(self, emitter: Emitter, lengths: list[fx.Node]) -> fx.Node:
        ends = emitter.call(torch.cumsum, self._in_order(emitter, lengths), 0)
        return emitter.call(torch.nn.functional.pad, ends, (1, 0))

    def _in_order(self, emitter: Emitter, vectors: list[fx.Node]) -> fx.Node:
        """All entries of the first document, then all of the second."""
        if len(vectors) == 1:
            return vectors[0]
        return emitter.call(torch.flatten, emitter.call(torch.stack, tuple(vectors), 1))

    def _check(self, emitter: Emitter, there: Any) -> None:
        """Eager's IndexError for a document of which there is no such piece."""
        if not isinstance(there, fx.Node):
            return  # the first one
        lengths = emitter.lengths()
        holds = emitter.call(
            torch.logical_or, emitter.call(operator.lt, there, lengths), emitter.call(operator.eq, lengths, 0)
        )
        message = "packpass: a piece of a document is taken by its number, and chunk makes fewer of so short a document"
        emitter.call(torch._assert_async, emitter.for_every_document(holds, self.least), message)


def _sum(emitter: Emitter, one: Any, other: Any) -> Any:
    """A sum of sizes, of which some are numbers."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return other if one == 0 else emitter.call(operator.add, one, other)


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """One piece of a document."""

    of: Segment
    part: Part


@dataclasses.dataclass(frozen=True)
class Strided:
    """``arange(start, stop, step)`` over the slots of a document."""

    start: Affine
    step: int
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True, eq=False)
class StridedRow(Term):
    """Such numbers of every document, one document behind the other: a row of their own."""

    of: Strided
    dim: int = -1

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, as long as the quotients of the lengths, rounded up, are together."""
        step, given = self.of.step, emitter.vector(self.of.start, emitter.boundaries)
        counts = emitter.call(operator.floordiv, emitter.call(torch.add, emitter.lengths(), step - 1), step)
        cu = emitter.call(torch.nn.functional.pad, emitter.call(torch.cumsum, counts, 0), (1, 0))
        total = emitter.call(_ops.covered_length.default, cu)
        if not isinstance(given, fx.Node) or not isinstance(example(given), torch.Tensor):
            given = emitter.call(torch.full_like, emitter.cu, given)
        starts = emitter.call(torch.nn.functional.pad, emitter.call("long", given, method=True), (0, 1))
        places = emitter.call(_ops.segment_places.default, cu, emitter.call(torch.zeros_like, starts), total)
        first = emitter.call(_ops.segment_spread.default, starts, cu, total)
        out = emitter.call(torch.add, first, emitter.call(torch.mul, places, step))
        made: fx.Node = emitter.call("to", out, device=self.of.device, dtype=self.of.dtype, method=True)
        return made


def pieces_of(machine: Machine, node: fx.Node, value: Any, count: int, dim: int) -> tuple[Piece, ...] | None:
    """What ``chunk`` makes of a document of any length, where the program takes pieces by their numbers."""
    taken = node.target is markers.PIECES or all(set(part.users) <= set(only_asserted(part)) for part in node.users)
    if not taken or not isinstance(value, Segment) or machine.parts_of_documents:
        return None
    if value.window != FULL or not value.store.exact or dim % value.rank != value.rank + value.dim:
        return None
    if machine.boundaries is None:
        return None
    length = own_length(machine)
    size = Affine.of(Derived(operator.floordiv, (length.plus(Affine.of(count - 1)), Affine.of(count))))

    def end(j: int) -> Affine:
        return Affine() if j == 0 else Affine.of(Derived(min, (size.times(j), length)))

    return tuple(Piece(value, Part(end(j), end(j + 1), size.times(j))) for j in range(count))


def joined(machine: Machine, node: fx.Node, values: list[Any]) -> Pieces | None:
    """``cat`` of such pieces, or one alone, that goes into a list; numbers of which a document has fewer than slots."""
    if len(values) == 1 and isinstance(values[0], Strided):
        return Pieces(machine.intern(StridedRow(values[0])), 1)
    if not values or not all(isinstance(value, Piece) for value in values):
        return None
    first = values[0].of
    return sequence(machine, node, values, first.rank, first.dim)


def sequence(machine: Machine, node: fx.Node, values: list[Any], rank: int, dim: int) -> Pieces | None:
    """What documents give to a list, one value behind the other along the slots (``dim``, negative), if the length of
    each is known; None if there is one of which it is not."""
    found: list[tuple[Term | Outside | Constant, Part]] = []
    for value in values:
        more = _parts(machine, node, value, rank, dim)
        if more is None:
            return None
        found += more
    if machine.boundaries is None or not found:
        return None
    of, parts = zip(*found, strict=True)
    term = Uneven(of, parts, machine.least, dim, example(node).dtype)
    return Pieces(machine.intern(term), rank)


def slots_of(value: Any) -> tuple[int, int] | None:
    """``(rank, dimension of the slots)`` of a value that has slots of each document."""
    if isinstance(value, Pieces):
        return value.rank, value.term.dim
    inner = value.of if isinstance(value, Piece) else value.segment if isinstance(value, Padded) else value
    return (inner.rank, inner.dim) if isinstance(inner, Segment) else None


def _parts(
    machine: Machine, node: fx.Node, value: Any, rank: int, dim: int
) -> list[tuple[Term | Outside | Constant, Part]] | None:
    if isinstance(value, Piece):
        fits = (value.of.rank, value.of.dim) == (rank, dim)
        return [(machine.read(value.of, node), value.part)] if fits else None
    if isinstance(value, Pieces):
        term = value.term
        if isinstance(term, Joined) and (value.rank, term.dim) == (rank, dim):
            return [(part, Part(Affine(), own_length(machine))) for part in term.parts]
        fits = isinstance(term, Uneven) and (value.rank, term.dim, term.least) == (rank, dim, machine.least)
        return list(zip(term.of, term.parts, strict=True)) if fits and term.dtype == example(node).dtype else None
    if isinstance(value, Padded):
        inner = _parts(machine, node, value.segment, rank, dim)
        ends = [[(Constant(value.fill, n), _whole(n))] if n else [] for n in (value.left, value.right)]
        return [*ends[0], *inner, *ends[1]] if inner is not None else None
    if isinstance(value, Segment):
        return _window(machine, node, value) if (value.rank, value.dim) == (rank, dim) else None
    if isinstance(value, Outside):
        fake = machine.fake(value)
        fits = fake.dim() == rank and isinstance(fake.shape[dim], int)
        return [(value, _whole(fake.shape[dim], Each.ALL))] if fits else None
    if isinstance(value, Document):
        fake = _fake(machine, node, value)
        fits = fake is not None and fake.dim() == rank and isinstance(fake.shape[dim], int)
        return [(read_cell(value.cell, node), _whole(fake.shape[dim], Each.VALUE))] if fits else None
    return None


def _whole(count: int, each: Each = Each.ALL) -> Part:
    return Part(Affine(), Affine.of(count), each=each)


def _fake(machine: Machine, node: fx.Node, value: Any) -> Any:
    """The traced value of an operand of a call."""
    return next((example(n) for n in node.all_input_nodes if machine.value(n) is value), None)


def _window(machine: Machine, node: fx.Node, segment: Segment) -> list[tuple[Any, Part]] | None:
    """Some slots of every document; as many as there are, where it has fewer."""
    store, window = segment.store, segment.window
    if machine.boundaries is None:
        return None
    if not store.exact:
        made = store.made_of
        if made is None or store.version or window != FULL:
            return None
        return list(zip(made.term.of, made.term.parts, strict=True))
    term, length = machine.read(segment, node), own_length(machine)
    if window == FULL:
        return [(term, Part(Affine(), length))]
    if window.plain:
        rest = length.plus(Affine.of(window.front + window.back), -1)
        start = Affine.of(window.front)
        return [(term, Part(start, start.plus(Affine.of(Derived(max, (Affine(), rest))))))]
    count = window.first if window.first is not None else window.last
    shorter = Affine.of(Derived(min, (Affine.of(count or 0), length)))
    start = Affine() if window.first is not None else length.plus(shorter, -1)
    return [(term, Part(start, start.plus(shorter)))]
