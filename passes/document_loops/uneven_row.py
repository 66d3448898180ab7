"""Rows whose documents are longer or shorter than those they are made of, as one gather: see `uneven`.

Slots of every document come from its own slots in a row of all documents, from a tensor that it has of its own, from
one that all have, from a row that other boundaries cut, or are a number.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops import emit_documents
from passes.document_loops.inequalities import without_slots
from passes.document_loops.integers import Affine, Reach
from passes.document_loops.terms import DocRow, Outside, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass

NOTHING = Affine()


class Each(enum.Enum):
    """What every document has of the tensor that a part is cut from."""

    SLOTS = "its slots, in the row of all documents"
    VALUE = "a tensor of its own, of one shape with those of the others"
    ALL = "the whole of it, as all documents"
    ROW = "slots of it that are counted from its start"


@dataclasses.dataclass(frozen=True)
class Part:
    """Slots ``start`` to ``stop`` of every document, counted from its own start; ``there``: a number that must be below
    the document's length, or 0, as the piece is not there otherwise."""

    start: Affine
    stop: Affine
    there: Affine = NOTHING
    each: Each = Each.SLOTS
    lengths: fx.Node | None = None
    """Of a row that is split by a vector of lengths: these, instead of start and stop."""

    def begin(self, emitter: Emitter) -> Any:
        """Where the part of every document begins in a row: [N + 1], the last entry as with a document more."""
        start = emitter.vector(self.start, emitter.boundaries)
        return start if self.lengths is None else _starts(emitter, self.lengths)

    def slots(self, emitter: Emitter) -> Any:
        """Slots of the part of every document: [N + 1], whatever the last entry is."""
        if self.lengths is not None:
            return _lengths(emitter, self.lengths)
        return emitter.vector(self.stop.plus(self.start, -1), emitter.boundaries)

    def lies_in(self, emitter: Emitter, row: fx.Node, dim: int, begin: fx.Node, length: fx.Node) -> fx.Node:
        """Is the part of every document in its row, along ``dim``? What a split asks of its lengths is asked here."""
        size = emitter.call(torch.ops.aten.sym_size.int, row, example(row).dim() + dim if dim < 0 else dim)
        if self.lengths is not None:
            total = emitter.call(operator.eq, emitter.call(torch.sum, length), size)
            emitter.call(torch._assert_async, total, "packpass: the lengths of a split do not fill the row")
        inside = emitter.call(operator.le, emitter.call(torch.add, begin, length), size)
        return emitter.call(torch.logical_and, inside, emitter.call(operator.ge, begin, 0))

    def boundaries(self, emitter: Emitter, rows: Sequence[fx.Node], dim: int) -> fx.Node:
        """The boundaries of such parts of all ``rows`` as an op takes them, the parts one behind the other: [N + 1]."""
        begin, length = (emitter.on(vector, emitter.device) for vector in (self.begin(emitter), self.slots(emitter)))
        message = "packpass: what a document is given of another row lies outside of it"
        for row in rows:
            inside = self.lies_in(emitter, row, dim, begin, length)
            holds = emitter.call(torch.logical_and, emitter.call(operator.ge, length, 0), inside)
            emitter.call(torch._assert_async, emitter.for_every_document(holds), message)
        return begin


@dataclasses.dataclass(frozen=True)
class Constant:
    """``count`` slots of one number."""

    number: Any
    count: int


@dataclasses.dataclass(frozen=True)
class Open:
    """Slots of one number, as many as the part is long."""

    number: Any


@dataclasses.dataclass(frozen=True)
class Nowhere:
    """Where such slots begin that are in no row; there is such a place for each number."""

    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Uneven(Term):
    """The ``parts`` of every document, one behind the other: a row of their own, without a tail."""

    of: tuple[Term | Outside | Constant | Open, ...]
    parts: tuple[Part, ...]
    reach: Reach
    dim: int
    dtype: torch.dtype
    some: bool = False
    """Must there be a document of ``reach``? Torch makes nothing of a list without entries."""

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, gathered at once from those of the documents."""
        if self.some:
            message = "packpass: all documents are skipped, and nothing is made of a list without entries"
            emitter.call(torch._assert_async, emitter.call(torch.any, emitter.reaches(self.reach)), message)
        source, offsets = self._source(emitter)
        begins, lengths = [], []
        for of, part, offset in zip(self.of, self.parts, offsets, strict=True):
            begins.append(self._begin(emitter, part, offset))
            lengths.append(self._length(emitter, part))
            if isinstance(of, Open) or part.each is Each.ROW:
                self._check_part(emitter, of, part)
            self._check(emitter, emitter.vector(part.there, emitter.boundaries))
        cu = self._boundaries(emitter, lengths)
        begin = self._in_order(emitter, begins)
        begin = emitter.call(torch.nn.functional.pad, begin, (0, 1))
        total = emitter.call(_ops.covered_length.default, cu)
        places = emitter.call(_ops.segment_places.default, cu, begin, total)
        made: fx.Node = emitter.call(_ops.gather_places.default, source, places, self.dim)
        for i, number in enumerate(self._numbers()):
            if number or i:  # what has no place is 0
                there = emitter.along(emitter.call(operator.ge, places, _NOWHERE * i), self.dim)
                made = emitter.call(torch.where, there, made, number)
        return made

    def _numbers(self) -> list[Any]:
        """The numbers of which there are as many slots as documents say, 0 first."""
        numbers = {repr(of.number): of.number for of in self.of if isinstance(of, Open)}
        return sorted(numbers.values(), key=bool)

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
            row = None if isinstance(of, (Constant, Open)) else self._row(emitter, of, part.each)
            if row is not None and row not in rows:
                rows.append(row)
        ends: list[Any] = [0]
        for row in rows:
            ends.append(_sum(emitter, ends[-1], emit_documents.extent_of(emitter, row, self.dim)))
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
            elif isinstance(of, Open):
                offsets.append(Nowhere(self._numbers().index(of.number) + 1))
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
        if isinstance(offset, Nowhere):
            return emit_documents.constant(emitter, _NOWHERE * offset.number)
        start = emitter.vector(part.start, emitter.boundaries)
        if part.each is Each.SLOTS:
            here = emitter.call(torch.add, emitter.cu, start)
        elif part.each is Each.VALUE:
            here = emitter.call(torch.mul, emitter.entries(), part.stop.const)
        elif part.each is Each.ROW:
            here = part.begin(emitter)
        else:
            here = emitter.call(torch.zeros_like, emitter.entries())
        return here if isinstance(offset, int) and not offset else emitter.call(torch.add, here, offset)

    def _length(self, emitter: Emitter, part: Part) -> fx.Node:
        """Slots of a part of every document: [N + 1], the last entry 0."""
        if part.lengths is not None:
            return _lengths(emitter, part.lengths)
        slots = part.stop.plus(part.start, -1)
        length = emitter.vector(slots, emitter.boundaries)
        if (
            not self.reach.misses_slots
            and part.each is Each.SLOTS
            and all(bound.of == emitter.boundaries for bound in slots.bounds())
            and without_slots(slots) == 0  # the last entry
            and isinstance(length, fx.Node)
            and isinstance(example(length), torch.Tensor)
        ):
            return length
        return emitter.call(torch.mul, emitter.call("long", emitter.reaches(self.reach), method=True), length)

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
        emitter.call(torch._assert_async, emitter.for_every_document(holds, self.reach), message)

    def _check_part(self, emitter: Emitter, of: Any, part: Part) -> None:
        """What torch wants of a number of slots, of a slice that is not to mean something else, and of a split."""
        length = self._length(emitter, part)
        holds = emitter.call(operator.ge, length, 0)
        message = "packpass: a document is to be filled up with fewer slots than none"
        if not isinstance(of, Open):
            inside = part.lies_in(emitter, emitter.node(of), self.dim, self._begin(emitter, part, 0), length)
            holds = emitter.call(torch.logical_and, holds, inside)
            message = "packpass: what is joined to a document lies outside of its row"
        emitter.call(torch._assert_async, emitter.for_every_document(holds, self.reach), message)


_NOWHERE = -(1 << 40)
"""Where slots begin that lie in no row."""


def _lengths(emitter: Emitter, vector: fx.Node) -> fx.Node:
    """[N + 1]: a vector of lengths, and 0."""
    return emitter.once(("foreign", vector), lambda: emitter.node(DocRow(vector, (), -1)))


def _starts(emitter: Emitter, vector: fx.Node) -> fx.Node:
    """[N + 1]: where each part of a split begins."""
    lengths = _lengths(emitter, vector)
    return emitter.call(torch.sub, emitter.call(torch.cumsum, lengths, 0), lengths)


def _sum(emitter: Emitter, one: Any, other: Any) -> Any:
    """A sum of sizes, of which some are numbers."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return other if one == 0 else emitter.call(operator.add, one, other)
