"""One slot of every document's row, by its number: ``h[i, n - 1]``, the last token; ``rewards[i, n - 1] = score``.

After, for all documents at once, from rows one behind the other::

    gather_places(h.flatten(0, 1), i * width + n - 1)
    where(arange(width) == (n - 1)[:, None], score[:, None], rewards)

A number that lies outside of the row raises, as in eager; one below 0 counts from the row's end.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import as_term, cast, read_cell
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.emit_documents import enough_rows, lined_up, slot_number
from passes.document_loops.emit_shifts import stored
from passes.document_loops.integers import EVERY, Affine, Reach
from passes.document_loops.machine import Cell, Document, Machine, Slot
from passes.document_loops.terms import Apply, DocRow, Outside, Term
from passes.refused import Refused, refuse_stale

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class SlotOf(Term):
    """The slot ``position`` along the dimension ``at`` (negative) of a value that documents have one of each, in
    documents of ``reach``."""

    of: Term
    at: int
    position: Position
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...], the last entry of zeros."""
        x = rows_of(emitter, self.of)
        if example(x).dim() + self.at != 1:
            x = emitter.call(torch.movedim, x, self.at, 1)
        width = emitter.call(torch.ops.aten.sym_size.int, x, 1)
        at, inside = slot_number(emitter, self.position, width, self.reach)
        own = emitter.call(torch.logical_and, inside, emitter.reaches(EVERY))
        places = emitter.call(torch.add, emitter.call(operator.mul, emitter.entries(), width), at)
        places = emitter.call(torch.where, own, places, -1)
        made: fx.Node = emitter.call(_ops.gather_places.default, emitter.call(torch.flatten, x, 0, 1), places, 0)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class WithSlot(Term):
    """``of`` with that slot replaced by ``value`` (a term of all documents, an `Outside` or a number)."""

    of: Term
    at: int
    position: Position
    value: Any
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """As ``of``, in its dtype."""
        base = emitter.node(self.of)
        rank = example(base).dim()
        width = emitter.call(torch.ops.aten.sym_size.int, base, rank + self.at)
        at, inside = slot_number(emitter, self.position, width, self.reach)
        here = emitter.call(operator.eq, emitter.call(torch.arange, width, device=emitter.device), behind(emitter, at))
        inside = emitter.call(torch.logical_and, inside, emitter.reaches(self.reach))
        here = emitter.call(torch.logical_and, here, behind(emitter, inside))
        return put(emitter, base, here, self.at, self._beside_others(emitter, base, rank - 1))

    def _beside_others(self, emitter: Emitter, base: fx.Node, rank: int) -> Any:
        """What is put there, of the ``rank`` of a slot of every document, lined up with all slots."""
        if not isinstance(self.value, (Term, Outside)):
            return stored(self.value, example(base).dtype)
        new = lined_up(emitter, self.value, base, rank)
        if example(new).dim() >= -self.at:
            new = emitter.call(torch.unsqueeze, new, example(new).dim() + self.at + 1)
        return new


Position = Affine | Term


def rows_of(emitter: Emitter, of: Term) -> fx.Node:
    """The rows that slots are taken of; outer ones as they are, without one for the entry that means nothing."""
    if not isinstance(of, DocRow) or of.k:
        return emitter.node(of)
    x = emitter.selected(of)
    enough_rows(emitter, of, x)
    rows = of.dim % example(x).dim()
    return emitter.call(torch.movedim, x, rows, 0) if rows else x


def put(emitter: Emitter, base: fx.Node, here: fx.Node, at: int, new: Any) -> fx.Node:
    """The rows ``base`` with ``new`` in the slots along ``at`` that ``here`` names, bool [N + 1, width]."""
    for _ in range(example(base).dim() + at - 1):
        here = emitter.call(torch.unsqueeze, here, 1)
    here = emitter.on(emitter.along(here, at), example(base).device)
    made: fx.Node = emitter.call(torch.where, here, new, base)
    return made


def behind(emitter: Emitter, vector: fx.Node) -> fx.Node:
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
    return view_of_row(machine, value.cell, _Spot(dim % rank - rank, position), node)


@dataclasses.dataclass(frozen=True)
class _Spot:
    """Such a slot of a value: what it holds, and the value with another in it."""

    at: int
    position: Position

    def read(self, machine: Machine, whole: Term) -> Term:
        term: Term
        if isinstance(self.position, Affine) and self.position.is_const:
            term = Apply(torch.select, False, (whole, self.at, self.position.const), (), 0)
        else:
            term = SlotOf(whole, self.at, self.position, machine.reach)
        made: Term = machine.intern(term)
        return made

    def written(self, machine: Machine, whole: Term, value: Any, node: fx.Node) -> Term:
        if isinstance(value, Outside) and machine.fake(value).dim() > example(node.args[0]).dim():
            raise Refused("no-rule", "a slot is set to a value of more dimensions", node)
        made: Term = machine.intern(WithSlot(whole, self.at, self.position, value, machine.reach))
        return made


class Spot(Protocol):
    """Which part of a value."""

    def read(self, machine: Machine, whole: Term) -> Term:
        """What that part of ``whole`` holds."""

    def written(self, machine: Machine, whole: Term, value: Any, node: fx.Node) -> Term:
        """``whole`` with ``value`` (a term of every document, an `Outside` or a number) in that part."""


def view_of_row(machine: Machine, cell: Cell, spot: Spot, node: fx.Node) -> Document | None:
    """A part of a value that documents have one of each: a view, to be read or written."""
    if cell.outer is not None and cell.outer.k:
        return None
    term = spot.read(machine, read_cell(cell, node))
    return Document(Cell(term, parent=(cell, cell.version), spot=spot))


def write_spot(machine: Machine, cell: Cell, value: Any, node: fx.Node) -> None:
    """Assign to such a part (a term of every document, an `Outside` or a number), which is a view of its whole."""
    assert cell.spot is not None and cell.parent is not None
    whole = cell.parent[0]
    if not isinstance(whole, Cell) or whole.parent is not None:
        raise Refused("write-through-view", "a view, or a tensor that may be one, is changed in place", node)
    refuse_stale(cell, node)
    if value is not cell.spot.read(machine, whole.term):  # ``row[k] += v`` assigns what it has changed in place
        whole.term = cell.spot.written(machine, whole.term, value, node)
        whole.version += 1
    cell.term, cell.parent = cell.spot.read(machine, whole.term), (whole, whole.version)


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
