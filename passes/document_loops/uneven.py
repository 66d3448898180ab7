"""Pieces of ``document.chunk(k)`` whose lengths differ: ``parts.extend([pieces[0], pieces[-1]])``, joined in the end.

Torch makes every piece as long as the quotient, rounded up, and the last one shorter; of a short document there are
fewer pieces. A program that takes piece ``j`` by its number fails where there is none, so that there being one is a
check which raises where eager does. Nothing is computed on such pieces: they are moved.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.document_loops.integers import FULL, Affine, Derived
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.parts import Pieces, own_length
from passes.document_loops.terms import Term
from passes.loops import only_asserted

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True)
class Part:
    """Slots ``start`` to ``stop`` of every document, counted from its own start; ``there``: a number that must be below
    the document's length, or 0, as the piece is not there otherwise."""

    start: Affine
    stop: Affine
    there: Affine


@dataclasses.dataclass(frozen=True, eq=False)
class Uneven(Term):
    """The ``parts`` of every document, one behind the other: a row of their own, without a tail."""

    of: tuple[Term, ...]
    parts: tuple[Part, ...]
    least: int
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, gathered at once from those of the documents."""
        rows = [emitter.node(of) for of in self.of]
        row, same = rows[0], all(node is rows[0] for node in rows)
        size = emitter.call(torch.ops.aten.sym_size.int, row, example(row).dim() + self.dim)
        begins, lengths = [], []
        for number, part in enumerate(self.parts):
            sides = (part.start, part.stop, part.there)
            start, stop, there = (emitter.vector(side, emitter.boundaries) for side in sides)
            self._check(emitter, there)
            begin = emitter.call(torch.add, emitter.given, start)
            begins.append(begin if same else emitter.call(torch.add, begin, emitter.call(operator.mul, size, number)))
            lengths.append(emitter.call(torch.sub, stop, start))
        source = row if same else emitter.call(torch.cat, tuple(rows), self.dim)
        joined = [emitter.call(torch.flatten, emitter.call(torch.stack, tuple(v), 1)) for v in (begins, lengths)]
        ends = emitter.call(torch.cumsum, joined[1], 0)
        cu = emitter.call(torch.nn.functional.pad, ends, (1, 0))
        begin = emitter.call(torch.nn.functional.pad, joined[0], (0, 1))
        places = emitter.call(_ops.segment_places.default, cu, begin, emitter.call(_ops.covered_length.default, cu))
        made: fx.Node = emitter.call(_ops.gather_places.default, source, places, self.dim)
        return made

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
    if any((value.of.rank, value.of.dim) != (first.rank, first.dim) for value in values):
        return None
    terms = tuple(machine.read(value.of, node) for value in values)
    parts = tuple(value.part for value in values)
    return Pieces(machine.intern(Uneven(terms, parts, machine.least, first.dim)), first.rank)
