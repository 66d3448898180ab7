"""As many slots of every document's row, from a number of its own on: ``ret[i] = x[i, :, s : s + size]``, the segments
that a vocoder is trained on; ``out[i, n : n + size] = image[i]``.

After, for all documents at once, from rows one behind the other::

    gather_places(x.flatten(0, 1), i * width + s + arange(size))
    where((s <= at) & (at < s + size), gather_places(image.flatten(0, 1), i * size + at - s), out)    at = arange(width)

Slices of other sizes than the program makes of them (a row ends within one) raise, as in eager: an assertion says so.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example
from passes.document_loops.documents import as_term
from passes.document_loops.emit_documents import lined_up, place_of, vector_of
from passes.document_loops.emit_shifts import stored
from passes.document_loops.indices import expand_index
from passes.document_loops.integers import EVERY, Affine, Reach
from passes.document_loops.machine import Document, Machine, Number
from passes.document_loops.row_slots import Position, behind, put, rows_of, view_of_row, write_spot
from passes.document_loops.terms import Outside, Term
from passes.document_loops.windows import outer_row

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class WindowOf(Term):
    """``size`` slots along the dimension ``at`` (negative) of a value that documents have one of each, as a slice from
    ``start`` to ``stop`` cuts them, in documents of ``reach``."""

    of: Term
    at: int
    start: Position
    stop: Position | None
    size: int | Outside
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...], the last entry of zeros."""
        x = rows_of(emitter, self.of)
        width = emitter.call(torch.ops.aten.sym_size.int, x, example(x).dim() + self.at)
        size = emitter.node(self.size) if isinstance(self.size, Outside) else self.size
        start, stop = _ends(emitter, self, width)
        own = emitter.call(torch.logical_and, _sized(emitter, start, stop, size, self.reach), emitter.reaches(EVERY))
        first = emitter.call(torch.add, emitter.call(operator.mul, emitter.entries(), width), start)
        slots = emitter.call(torch.arange, size, device=emitter.device)
        places = emitter.call(torch.add, behind(emitter, first), slots)
        return _picked(emitter, x, emitter.call(torch.where, behind(emitter, own), places, -1), self.at)


@dataclasses.dataclass(frozen=True, eq=False)
class WithWindow(Term):
    """``of`` with these slots replaced by ``value`` (a term of all documents, an `Outside` or a number); without a
    ``size`` it has as many."""

    of: Term
    at: int
    start: Position
    stop: Position | None
    size: int | Outside | None
    value: Any
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """As ``of``, in its dtype."""
        base = emitter.node(self.of)
        rank = example(base).dim()
        many = isinstance(self.value, (Term, Outside))
        new: Any = lined_up(emitter, self.value, base, rank) if many else stored(self.value, example(base).dtype)
        width = emitter.call(torch.ops.aten.sym_size.int, base, rank + self.at)
        size = emitter.node(self.size) if isinstance(self.size, Outside) else self.size
        if size is None:
            size = emitter.call(torch.ops.aten.sym_size.int, new, example(new).dim() + self.at)
        start, stop = _ends(emitter, self, width)
        own = _sized(emitter, start, stop, size, self.reach)
        own = emitter.call(torch.logical_and, own, emitter.reaches(self.reach))
        slots = emitter.call(torch.arange, width, device=emitter.device)
        into = emitter.call(torch.sub, slots, behind(emitter, start))
        here = emitter.call(torch.logical_and, emitter.call(operator.ge, into, 0), behind(emitter, own))
        here = emitter.call(torch.logical_and, here, emitter.call(operator.lt, into, size))
        if isinstance(new, fx.Node) and not self._alike(new):
            new = self._spread(emitter, new, rank, emitter.call(torch.where, here, into, -1), size)
        return put(emitter, base, here, self.at, new)

    def _alike(self, new: fx.Node) -> bool:
        """Do all slots of a row get one value?"""
        shape = example(new).shape
        return len(shape) < -self.at or statically_known_true(shape[self.at] == 1)

    def _spread(self, emitter: Emitter, new: fx.Node, rank: int, into: fx.Node, size: Any) -> fx.Node:
        """What every slot of the rows gets, of which ``into`` says where among the new ones it is (-1: nowhere)."""
        if isinstance(self.value, Term):
            first = behind(emitter, emitter.call(operator.mul, emitter.entries(), size))
            counted = emitter.call(torch.add, first, into)
            into = emitter.call(torch.where, emitter.call(operator.lt, into, 0), into, counted)
        for _ in range(rank - example(new).dim()):  # one row, that all documents read
            new = emitter.call(torch.unsqueeze, new, 0)
        return _picked(emitter, new, into, self.at)


def _ends(emitter: Emitter, window: WindowOf | WithWindow, width: fx.Node) -> tuple[fx.Node, Any]:
    """Where the slices begin and end, as Python counts."""

    def end(position: Position) -> Any:
        if isinstance(position, Affine) and position.is_const:
            return place_of(emitter, position.const, width)
        at = emitter.node(position) if isinstance(position, Term) else vector_of(emitter, position, torch.int64)
        return place_of(emitter, emitter.on(at, emitter.device), width)

    start = end(window.start)
    if not isinstance(start, fx.Node) or not isinstance(example(start), torch.Tensor):
        start = emitter.call(torch.full_like, emitter.cu, start, dtype=torch.int64)
    return start, width if window.stop is None else end(window.stop)


def _sized(emitter: Emitter, start: fx.Node, stop: Any, size: Any, reach: Reach) -> fx.Node:
    """bool [N + 1]: whose slices have that many slots. The others raise, as in eager."""
    slots = emitter.call(torch.clamp, emitter.call(operator.sub, stop, start), min=0)
    fits = emitter.call(operator.eq, slots, size)
    message = "packpass: a slice of a row ends within it, or has another size than the program makes of it"
    emitter.call(torch._assert_async, emitter.for_every_document(fits, reach), message)
    return fits


def _picked(emitter: Emitter, x: fx.Node, places: fx.Node, at: int) -> fx.Node:
    """Of [n, ..., width, ...] the slots along ``at`` that ``places`` [m, k] names, counted through all rows (zeros for
    -1): [m, ..., k, ...]."""
    rank = example(x).dim()
    if rank + at != 1:
        x = emitter.call(torch.movedim, x, at, 1)
    sizes = [emitter.call(torch.ops.aten.sym_size.int, places, d) for d in (0, 1)]
    flat = emitter.call(torch.flatten, places)
    made = emitter.call(_ops.gather_places.default, emitter.call(torch.flatten, x, 0, 1), flat, 0)
    made = emitter.call("unflatten", made, 0, sizes, method=True)
    return emitter.call(torch.movedim, made, 1, rank + at) if rank + at != 1 else made


@dataclasses.dataclass(frozen=True)
class _Spot:
    """Such slots of a value: what they hold, and the value with others in them."""

    at: int
    start: Position
    stop: Position | None
    size: int | Outside | None
    """None where they are only set, to something that has as many."""

    def read(self, machine: Machine, whole: Term) -> Term:
        if self.size is None:
            return whole
        made: Term = machine.intern(WindowOf(whole, self.at, self.start, self.stop, self.size, machine.reach))
        return made

    def written(self, machine: Machine, whole: Term, value: Any, node: fx.Node) -> Term:
        new = WithWindow(whole, self.at, self.start, self.stop, self.size, value, machine.reach)
        made: Term = machine.intern(new)
        return made


def window_of_row(machine: Machine, node: fx.Node, base: fx.Node, index: Any, shape: Any = None) -> Document | None:
    """``row[..., start:stop]`` with numbers of the document, of a size that all documents share; None for any other
    index. ``shape``: of what is assigned there, one for each slot, if anything is."""
    if not isinstance(example(base), torch.Tensor) or (shape is None and not isinstance(example(node), torch.Tensor)):
        return None
    items = index if isinstance(index, tuple) else (index,)
    if any(item is None or isinstance(item, (list, bool)) for item in items):
        return None
    entries = expand_index(index, example(base).dim(), node)
    cuts = [d for d, entry in enumerate(entries) if isinstance(entry, slice) and _by_number(machine, entry)]
    left = [d for d, entry in enumerate(entries) if isinstance(entry, slice)]
    if len(cuts) != 1 or entries[cuts[0]].step not in (None, 1):
        return None
    at = left.index(cuts[0]) - len(left)
    sizes = example(node).shape if shape is None else shape
    if len(sizes) < -at or len(sizes) > len(left) or (shape is None and len(sizes) < len(left)):
        return None
    size = _shared_extent(machine, sizes[at], node)
    if (size is None) if shape is None else statically_known_true(sizes[at] == 1):
        return None
    cut, entries[cuts[0]] = entries[cuts[0]], slice(None)
    row = _row(machine, node, base, entries)
    if row is None:
        return None
    start, stop = (_position(machine, end) for end in (cut.start, cut.stop))
    return view_of_row(machine, row.cell, _Spot(at, Affine.of(0) if start is None else start, stop, size), node)


def write_window(machine: Machine, node: fx.Node) -> bool:
    """``row[..., start:stop] = value``, of which every slot has its own; False for any other assignment."""
    base, index, value = node.args
    new = machine.value(value)
    if not isinstance(base, fx.Node) or not isinstance(value, fx.Node) or not isinstance(new, (Document, Outside)):
        return False
    window = window_of_row(machine, node, base, index, example(value).shape)
    if window is None:
        return False
    write_spot(machine, window.cell, as_term(machine, value, node) if isinstance(new, Document) else new, node)
    return True


def _row(machine: Machine, node: fx.Node, base: fx.Node, entries: list[Any]) -> Document | None:
    value = machine.value(base)
    if isinstance(value, Document):
        return value if all(entry == slice(None) for entry in entries) else None
    return outer_row(machine, base, tuple(entries), node)


def _by_number(machine: Machine, entry: slice) -> bool:
    """Does a slice begin or end at a number of the document?"""
    for end in (entry.start, entry.stop):
        value = machine.value(end) if isinstance(end, fx.Node) else None
        if isinstance(value, Number) or (isinstance(value, Affine) and not value.is_const and not value.is_shared):
            return True
    return False


def _position(machine: Machine, end: Any) -> Position | None:
    value = machine.value(end)
    if isinstance(value, Number):
        return value.term
    return Affine.of(value) if isinstance(value, int) else value if isinstance(value, Affine) else None


def _shared_extent(machine: Machine, size: Any, node: fx.Node) -> int | Outside | None:
    """A size that all documents share, and that a node in front of the loop has; None for one of the document."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    if isinstance(expression, int) or expression.is_number:  # which one that was checked in the loop may have become
        return int(expression)
    for other in _in_front(machine, node.graph):
        fake = example(other)
        if isinstance(fake, torch.SymInt) and fake.node.expr == expression:
            found: Outside = machine.intern(Outside(other))
            return found
        for d, extent in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr == expression:
                tensor = machine.intern(Outside(other))
                return machine.computed((torch.ops.aten.sym_size.int, False, (tensor, d), ()), extent)
    return None


def _in_front(machine: Machine, graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes in front of the loop that are in no other loop."""
    depth = 0
    for node in graph.nodes:
        if node in machine.inside:
            return
        depth += (node.target is markers.LOOP_BEGIN) - (node.target is markers.LOOP_END)
        if not depth:
            yield node
