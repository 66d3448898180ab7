"""One slot of every document's row, by its number: ``h[i, n - 1]``, the last token; ``rewards[i, n - 1] = score``.

After, for all documents at once, from rows one behind the other::

    gather_places(h.flatten(0, 1), i * width + n - 1)
    where(arange(width) == (n - 1)[:, None], score[:, None], rewards)

A number that lies outside of the row raises, as in eager; one below 0 counts from the row's end.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import as_term, cast, read_cell
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.emit_documents import enough_rows, lined_up, slot_number
from passes.document_loops.emit_shifts import stored
from passes.document_loops.integers import Affine
from passes.document_loops.machine import Cell, Document, Machine, Slot
from passes.document_loops.terms import Apply, DocRow, Outside, Term
from passes.refused import Refused, refuse_stale

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class SlotOf(Term):
    """The slot ``position`` along the dimension ``at`` (negative) of a value that documents have one of each, in
    documents of at least ``least`` slots."""

    of: Term
    at: int
    position: Position
    least: int
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...], the last entry of zeros."""
        x = self._rows(emitter)
        if example(x).dim() + self.at != 1:
            x = emitter.call(torch.movedim, x, self.at, 1)
        width = emitter.call(torch.ops.aten.sym_size.int, x, 1)
        at, inside = slot_number(emitter, self.position, width, self.least)
        own = emitter.call(torch.logical_and, inside, emitter.reaches(0))
        places = emitter.call(torch.add, emitter.call(operator.mul, emitter.entries(), width), at)
        places = emitter.call(torch.where, own, places, -1)
        made: fx.Node = emitter.call(_ops.gather_places.default, emitter.call(torch.flatten, x, 0, 1), places, 0)
        return made

    def _rows(self, emitter: Emitter) -> fx.Node:
        """The rows that slots are taken of; outer ones as they are, without one for the entry that means nothing."""
        if not isinstance(self.of, DocRow) or self.of.k:
            return emitter.node(self.of)
        x = emitter.selected(self.of)
        enough_rows(emitter, self.of, x)
        rows = self.of.dim % example(x).dim()
        return emitter.call(torch.movedim, x, rows, 0) if rows else x


@dataclasses.dataclass(frozen=True, eq=False)
class WithSlot(Term):
    """``of`` with that slot replaced by ``value`` (a term of all documents, an `Outside` or a number)."""

    of: Term
    at: int
    position: Position
    value: Any
    least: int
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """As ``of``, in its dtype."""
        base = emitter.node(self.of)
        rank = example(base).dim()
        width = emitter.call(torch.ops.aten.sym_size.int, base, rank + self.at)
        at, inside = slot_number(emitter, self.position, width, self.least)
        here = emitter.call(operator.eq, emitter.call(torch.arange, width, device=emitter.device), _behind(emitter, at))
        inside = emitter.call(torch.logical_and, inside, emitter.reaches(self.least))
        here = emitter.call(torch.logical_and, here, _behind(emitter, inside))
        for _ in range(rank + self.at - 1):
            here = emitter.call(torch.unsqueeze, here, 1)
        here = emitter.on(emitter.along(here, self.at), example(base).device)
        made: fx.Node = emitter.call(torch.where, here, self._beside_others(emitter, base, rank - 1), base)
        return made

    def _beside_others(self, emitter: Emitter, base: fx.Node, rank: int) -> Any:
        """What is put there, of the ``rank`` of a slot of every document, lined up with all slots."""
        if not isinstance(self.value, (Term, Outside)):
            return stored(self.value, example(base).dtype)
        new = lined_up(emitter, self.value, base, rank)
        if example(new).dim() >= -self.at:
            new = emitter.call(torch.unsqueeze, new, example(new).dim() + self.at + 1)
        return new


Position = Affine | Term


def _behind(emitter: Emitter, vector: fx.Node) -> fx.Node:
    return emitter.call(torch.unsqueeze, vector, 1)


def slot_of_row(machine: Machine, base: fx.Node, dim: int, position: Position, node: fx.Node) -> Document | None:
    """``value.select(dim, number)`` of what documents have one of each: a view, to be read or written."""
    value = machine.value(base)
    if not isinstance(value, Document):
        return None
    if isinstance(position, Affine) and machine.boundaries is None and not position.is_shared:
        documents = own_documents(position.plus(Affine.of(position.const), -1))
        if documents is not None:
            machine.use((documents, 0), base)
    rank = example(base).dim()
    if value.cell.outer is not None and value.cell.outer.k:
        return None
    spot = dim % rank - rank, position
    term = _slot(machine, value.cell, spot, node)
    return Document(Cell(term, parent=(value.cell, value.cell.version), spot=spot))


def _slot(machine: Machine, cell: Cell, spot: tuple[int, Position], node: fx.Node) -> Term:
    """What a slot of a value holds now."""
    at, position = spot
    term: Term
    if isinstance(position, Affine) and position.is_const:
        term = Apply(torch.select, False, (read_cell(cell, node), at, position.const), (), 0)
    else:
        term = SlotOf(read_cell(cell, node), at, position, machine.least)
    made: Term = machine.intern(term)
    return made


def write_slot(machine: Machine, cell: Cell, value: Any, node: fx.Node) -> None:
    """Assign to such a slot (a term of every document, an `Outside` or a number), which is a view of its whole."""
    assert cell.spot is not None and cell.parent is not None
    whole = cell.parent[0]
    if not isinstance(whole, Cell) or whole.parent is not None:
        raise Refused("write-through-view", "a view, or a tensor that may be one, is changed in place", node)
    refuse_stale(cell, node)
    if isinstance(value, Outside) and machine.fake(value).dim() > example(node.args[0]).dim():
        raise Refused("no-rule", "a slot is set to a value of more dimensions", node)
    at, position = cell.spot
    if value is not _slot(machine, whole, cell.spot, node):  # ``row[k] += v`` assigns what it has changed in place
        whole.term = machine.intern(WithSlot(whole.term, at, position, value, machine.least))
        whole.version += 1
    cell.term, cell.parent = _slot(machine, whole, cell.spot, node), (whole, whole.version)


def numbered_slot(machine: Machine, node: fx.Node) -> Document | None:
    """The slot ``row[at]`` of a value of every document, by a tensor ``at`` of one integer; None for another index."""
    base, index = node.args[:2]
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if not isinstance(base, fx.Node) or not isinstance(index, fx.Node) or not isinstance(example(base), torch.Tensor):
        return None
    fake, value = example(index), machine.value(index)
    if not isinstance(machine.value(base), Document) or not isinstance(value, (Document, Slot)):
        return None
    if not isinstance(fake, torch.Tensor) or fake.dtype not in (torch.int32, torch.int64) or tuple(fake.shape) != (1,):
        return None
    number = machine.intern(Apply("reshape", True, (as_term(machine, index, node), -1), (), 0))
    number = cast(machine, number, fake.dtype, torch.int64)
    return slot_of_row(machine, base, 0, number, node)
