"""Documents that lie elsewhere in another tensor: in padded rows, between other boundaries, within other documents.

::

    out[i, :n] = x[s:e]                                  # rows of a padded batch
    new[cu2[i] : cu2[i] + n] = x[cu[i] : cu[i + 1]]      # other gaps between the documents
    torch.cat([values[e - n - 1 : e - 1] for ...])       # the last tokens of each document

All are as many slots as the document has, from a number on that each document has one of. The machine takes them for
slots of the document like any others; only how they are read and written differs (`packpass.ops._segment_places`).
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example
from passes.document_loops.boundaries import taken_apart
from passes.document_loops.emit_documents import extent_of, vector_of
from passes.document_loops.inequalities import counts_from_the_start, never_negative
from passes.document_loops.integers import (
    FULL,
    Affine,
    Bound,
    Boundaries,
    Derived,
    Index,
    Invariant,
    Reach,
    Window,
    place,
)
from passes.document_loops.machine import Machine, Segment, Store, selection
from passes.document_loops.moved import first_slots
from passes.document_loops.terms import Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass
_NEGATIVE = "packpass: a slice of another tensor ends at a negative number, which Python counts from the end"


@dataclasses.dataclass(frozen=True, eq=False)
class Elsewhere(Term):
    """The slots of every document in an outer tensor, before the loop: from ``begin`` on along ``dim``.

    ``index`` selects along the other dimensions. The dimension ``per_row`` (negative, before ``dim``), if there is one,
    has an entry for every document, in which ``begin`` is counted; ``rank`` counts neither it nor what ``index`` drops,
    and ``dim`` is that of the slots with it or without. With ``at_end``,
    ``begin`` is counted from the end; Python takes ``[-0:]`` for all there is, so that no document may be empty.
    """

    node: fx.Node
    index: tuple[Any, ...]
    dim: int
    rank: int
    begin: Affine
    per_row: int | None
    at_end: bool
    reach: Reach
    window: Window
    """The slots of the document that are there, if not all: its first ones, up to a number of its own, or all but some
    in front and behind."""

    def emit(self, emitter: Emitter) -> fx.Node:
        """The slots, moved to where the row has those documents."""
        flat = self.flat(emitter)
        made: fx.Node = emitter.call(_ops.gather_places.default, flat, self.places(emitter), self.dim)
        return made

    def flat(self, emitter: Emitter) -> fx.Node:
        """The outer tensor with its packed dimension, rows one behind the other, at ``dim``."""
        return self._rows_joined(emitter, emitter.selected(self))

    def _rows_joined(self, emitter: Emitter, node: fx.Node) -> fx.Node:
        if self.per_row is None:
            return node
        at = example(node).dim() + self.dim
        return emitter.call(torch.flatten, self._beside(emitter, node, self.per_row, self.dim - 1), at - 1, at)

    def _beside(self, emitter: Emitter, node: fx.Node, source: int, to: int) -> fx.Node:
        """With the dimension of the rows in another place."""
        return node if source == to else emitter.call(torch.movedim, node, source, to)

    def places(self, emitter: Emitter) -> fx.Node:
        """Where every slot of the row lies in `flat`, worked out and checked once."""
        if self not in emitter.places:
            emitter.places[self] = self._places(emitter)
        return emitter.places[self]

    def _places(self, emitter: Emitter) -> fx.Node:
        begins = emitter.begins
        extent = self._extent(emitter)
        if begins is None:
            begins = self._checked(emitter, extent)
        if self.per_row is not None:
            rows = emitter.call(operator.mul, emitter.entries(), extent)
            begins = emitter.call(torch.add, begins, rows)
        places = emitter.call(_ops.segment_places.default, emitter.cu, begins, emitter.total)
        if self.window == FULL:
            return places
        return emitter.call(torch.where, emitter.mask(self.window), places, -1)

    def _checked(self, emitter: Emitter, extent: Any) -> fx.Node:
        """Where the documents begin, all of which must lie within the tensor."""
        begins: Any = emitter.vector(self.begin, emitter.boundaries)
        if not isinstance(begins, fx.Node) or not isinstance(example(begins), torch.Tensor):
            begins = emitter.call(torch.full_like, emitter.given, begins, dtype=torch.int64)
        if self.at_end:
            begins = emitter.call(torch.add, begins, extent)
        slots = self._slots(emitter)
        first = emitter.call(torch.add, begins, self.window.front)
        ends = emitter.call(torch.add, first, slots)
        inside = emitter.call(
            torch.logical_and, emitter.call(operator.ge, first, 0), emitter.call(operator.le, ends, extent)
        )
        empty = emitter.call(operator.eq, slots, 0)
        allowed = emitter.call(torch.logical_and, inside, emitter.call(torch.logical_not, empty))
        fits = allowed if self.at_end else emitter.call(torch.logical_or, inside, empty)
        message = "packpass: a document is longer than the part of another tensor that it is read from or written to"
        emitter.call(torch._assert_async, emitter.for_every_document(fits, self.reach), message)
        return begins

    def _slots(self, emitter: Emitter) -> fx.Node:
        """How many slots of every document are there."""
        if self.window.between is not None:
            return vector_of(emitter, self.window.between[1], torch.int64)
        slots, missing = emitter.lengths(), self.window.front + self.window.back
        if not missing:
            return slots
        return emitter.call(torch.clamp, emitter.call(operator.sub, slots, missing), min=0)

    def _extent(self, emitter: Emitter) -> Any:
        """The size along ``dim``, of one row if there are rows; those must be enough."""
        fake = example(self.node)
        kept = [d for d, entry in enumerate(self.index or (slice(None),) * fake.dim()) if not isinstance(entry, int)]
        if self.per_row is not None:
            rows = emitter.call(torch.ops.aten.sym_size.int, self.node, kept[self.per_row])
            emitter.call(torch._check, emitter.call(operator.ge, rows, emitter.documents()))
        return extent_of(emitter, self.node, kept[self.dim])

    def written(self, emitter: Emitter, rows: fx.Node, before: list[tuple[Elsewhere, fx.Node]]) -> fx.Node:
        """The outer tensor (as ``index`` selects it) with every document's slots replaced by those of ``rows``.

        ``before``: what the loop has written for the same document before, each with the tensor as it was then.
        """
        whole = before[-1][1] if before else emitter.selected(self)
        flat = self._rows_joined(emitter, whole)
        places = self.places(emitter)
        for other, _ in before:
            # What a later document has written before is later than what this one writes now.
            size = emitter.call(torch.ops.aten.sym_size.int, flat, example(flat).dim() + self.dim)
            earlier = other.places(emitter)
            places = emitter.call(_ops.not_overwritten_places.default, places, earlier, emitter.cu, size)
        out = emitter.call(_ops.scatter_places.default, flat, rows, places, self.dim)
        if self.per_row is None:
            return out
        sizes = [extent_of(emitter, whole, d) for d in range(example(whole).dim())]
        at = len(sizes) + self.per_row
        sizes.insert(len(sizes) + self.dim - 1, sizes.pop(at))
        return self._beside(emitter, emitter.call("reshape", out, sizes, method=True), self.dim - 1, self.per_row)


def elsewhere(
    machine: Machine,
    base: fx.Node,
    entries: list[Any],
    row: int | None = None,
    ends: tuple[Affine, Affine] | None = None,
) -> Segment | None:
    """The segment that ``base[entries]`` is, if one slice has as many slots as the document, and begins elsewhere.

    ``row``: the dimension of which the document's own entry is meant, where that is known before. ``ends``: where the
    slice begins and ends, if the program has no numbers for both.
    """
    found = _found(machine, base, entries, row)
    if found is None:
        return None
    cut, row = found
    begin, end = ends or (
        Affine() if bound is None else machine.affine(bound) for bound in (entries[cut].start, entries[cut].stop)
    )
    if begin is None or end is None:
        return None
    counted = begin if entries[cut].stop is not None else _from_end(begin, example(base).shape[cut])
    at_end = entries[cut].stop is None and counted == begin
    length = end.plus(counted, -1)
    if length.length_of() is None:
        length = taken_apart(machine, length, machine.here or base)
    documents = own_documents(length)
    few = None if at_end or machine.boundaries in (None, (documents, 0)) else first_slots(machine, length)
    if few is not None and not _is_beside(begin, machine.boundaries[0]) and counts_from_the_start(begin):
        return _segment(machine, base, entries, cut, row, begin, at_end, few)
    part = None if at_end else _all_but(machine, base, begin, end, length, row)
    if part is not None:
        return _segment(machine, base, entries, cut, row, begin.plus(Affine.of(part.front), -1), at_end, part)
    if documents is None:
        return None
    known = machine.boundaries == (documents, 0)
    if documents.made is not None and (at_end or not counts_from_the_start(begin)):
        return None
    if documents.made is not None and not known and not counts_from_the_start(end):
        return None
    if row is None and _is_beside(begin, documents):
        return None
    if machine.boundaries is None:
        machine.use((documents, 0), base)
    if machine.boundaries != (documents, 0):
        return None
    if documents.made is not None and not never_negative(end):
        machine.require(end, "ge", Affine(), _NEGATIVE, of_slices=True)
    return _segment(machine, base, entries, cut, row, begin, at_end)


def _all_but(
    machine: Machine, base: fx.Node, begin: Affine, end: Affine, length: Affine, row: int | None
) -> Window | None:
    """``out[i, 1:n]`` beside documents of ``n`` slots, as these without some in front or behind; None for others.

    The slots in front are left out where what is in front of them is there."""
    known = length.length_of()
    if known is None or known[1] >= 0 or not counts_from_the_start(begin):
        return None
    if row is None and _is_beside(begin, known[0]):
        return None
    if machine.boundaries is None:
        machine.use((known[0], 0), base)
    if machine.boundaries != (known[0], 0):
        return None
    front = min(begin.number or 0, -known[1])
    if not never_negative(end):
        machine.require(end, "ge", Affine(), _NEGATIVE, of_slices=True)
    return Window(front=front, back=-known[1] - front)


def anywhere(machine: Machine, base: fx.Node, entries: list[Any], row: int | None = None) -> Segment | None:
    """The segment that ``base[entries]`` is, for one slice by any two numbers of the document: as long as what Python
    takes them for. Nothing else that the loop cuts may be taken for as long, unless it is written the same."""
    found = _found(machine, base, entries, row)
    if found is None:
        return None
    cut, row = found
    extent = size_of(example(base).shape[cut], base)
    bounds = [(machine.affine(b), b) for b in (entries[cut].start, entries[cut].stop) if b is not None]
    if extent is None or any(value is None or (value.is_shared and not value.is_const) for value, _ in bounds):
        return None

    def placed(bound: Any, otherwise: Affine) -> Affine:
        return otherwise if bound is None else Affine.of(Derived(place, (machine.affine(bound), extent)))  # type: ignore[arg-type]

    begin, end = placed(entries[cut].start, Affine()), placed(entries[cut].stop, extent)
    length = end.plus(begin, -1)
    vectors = length.bounds()
    if not vectors or any(b.of.lengths or b.k < 0 for b in vectors):
        return None
    documents = Boundaries(vectors[0].of.node, lengths=True, made=length)
    if machine.boundaries is None:
        machine.use((documents, 0), base)
    return _segment(machine, base, entries, cut, row, begin, False) if machine.boundaries == (documents, 0) else None


def _found(machine: Machine, base: fx.Node, entries: list[Any], row: int | None) -> tuple[int, int | None] | None:
    """The dimension that an index cuts by numbers of the document, and that of which it takes the document's entry."""
    cut: int | None = None
    for d, entry in enumerate(entries):
        if d == row:
            continue
        if isinstance(entry, slice) and any(isinstance(bound, fx.Node) for bound in (entry.start, entry.stop)):
            if cut is not None or entry.step not in (None, 1):
                return None
            cut = d
        elif isinstance(entry, fx.Node):
            if row is not None or machine.value(entry) != Affine.of(Index()):
                return None
            row = d
        elif not isinstance(entry, (int, slice)) or isinstance(entry, bool):
            return None
    # A slice of the one slot that there is would broadcast, in eager, to whatever it meets.
    if cut is None or not _follows(entries, row, cut) or statically_known_true(example(base).shape[cut] == 1):
        return None
    return cut, row


def size_of(size: Any, node: fx.Node) -> Affine | None:
    """A size as an integer: a constant, or an input of the graph of ``node``; None for others."""
    if isinstance(size, int):
        return Affine.of(size)
    for other in node.graph.nodes:
        fake = example(other)
        if other.op == "placeholder" and isinstance(fake, torch.SymInt) and fake.node.expr == size.node.expr:
            return Affine.of(Invariant(other))
    return None


def own_documents(length: Affine) -> Boundaries | None:
    """The documents that are as long as a number says."""
    known = length.length_of()
    if known is not None:
        return None if known[1] else known[0]
    bounds = length.bounds()
    alone = len({bound.of for bound in bounds}) == 1 and all(isinstance(atom, Bound) for atom, _ in length.atoms)
    if alone and not _is_a_multiple(length):
        return None  # more than one document
    if not bounds or any(isinstance(atom, Index) for atom, _ in length.atoms) or any(b.of.lengths for b in bounds):
        return None
    return Boundaries(bounds[0].of.node, lengths=True, made=length)


def _is_a_multiple(length: Affine) -> bool:
    """``2 * cu[i + 1] - 2 * cu[i]``: documents in rows of several slots for each of theirs."""
    if length.const or len(length.atoms) != 2:
        return False
    (first, by), (last, times) = sorted(length.atoms, key=lambda atom: atom[1])
    if not isinstance(first, Bound) or not isinstance(last, Bound):
        return False
    return first.of == last.of and last.k == first.k + 1 and first.k >= 0 and times == -by and times > 1


def moved_segment(machine: Machine, base: fx.Node, entries: list[Any], at: int, begin: Affine) -> Segment:
    """Slots of a tensor, as many as the documents have, from a number on."""
    return _segment(machine, base, entries, at, None, begin, False)


def _from_end(begin: Affine, extent: Any) -> Affine:
    """A number counted from the end, also where it is written ``extent - n``."""
    known = begin.shared()
    return begin.plus(known, -1) if is_size(known, extent) else begin


def is_size(number: Affine, extent: Any) -> bool:
    """Is a number known to be a size: the constant, or what torch knows to be as much?"""
    single = number.single()
    size: Any = number.const if number.is_const else None
    if single is not None and isinstance(single[0], Invariant):
        size = example(single[0].node) + single[1]
    return size is not None and statically_known_true(size == extent)


def _follows(entries: list[Any], row: int | None, cut: int) -> bool:
    """Is there no row, or does the dimension of the slots come behind that of the rows?"""
    if row is None:
        return True
    between = entries[row + 1 : cut] if row < cut else None
    return between is not None and all(isinstance(entry, int) or entry == slice(None) for entry in between)


def _is_beside(begin: Affine, boundaries: Any) -> bool:
    """Does it begin where the document does, or some slots before or behind that? Of the last document, or the first,
    Python cuts off what is beyond the row, or counts from its end."""
    found = begin.bound()
    return found is not None and (found[0].of, found[0].k) == (boundaries, 0)


def _segment(
    machine: Machine,
    base: fx.Node,
    entries: list[Any],
    cut: int,
    row: int | None,
    begin: Affine,
    at_end: bool,
    window: Window = FULL,
) -> Segment:
    index, (dim, *rows), rank = selection(entries, *(d for d in (cut, row) if d is not None))
    rank -= len(rows)
    per_row = rows[0] if rows else None
    key = (base, index, dim, begin, per_row, at_end, machine.reach, window)
    store = machine.outer.get(key)
    if store is None:
        term = machine.intern(Elsewhere(base, index, dim, rank, begin, per_row, at_end, machine.reach, window))
        store = machine.outer[key] = Store(term, outer=term)
    return Segment(store, window, rank)
