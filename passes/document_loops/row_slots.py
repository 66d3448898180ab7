"""One slot of every document's row in a padded batch, by its number: ``h[i, n - 1]``, the last token of a document.

After, for all documents at once, from rows one behind the other::

    gather_places(h.flatten(0, 1), i * width + n - 1)

A number that lies outside of the row raises, as in eager; one below 0 counts from the row's end.

Does not handle: rows that the loop has written, writes to such a slot.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import document_view
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.emit_documents import check_number, enough_rows, vector_of
from passes.document_loops.integers import Affine, Bound
from passes.document_loops.machine import Document, Machine
from passes.document_loops.terms import DocRow, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class RowSlot(Term):
    """The slot ``position`` of the row ``of``, along the dimension ``at`` of all rows, in documents of at least
    ``least`` slots."""

    of: DocRow
    at: int
    position: Affine
    least: int
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...], the last entry of zeros."""
        x = emitter.selected(self.of)
        enough_rows(emitter, self.of, x)
        width = emitter.call(torch.ops.aten.sym_size.int, x, self.at)
        at = vector_of(emitter, self.position, torch.int64)
        message = "packpass: a slot read by its number lies outside of the row"
        inside = check_number(emitter, at, width, self.least, message)
        at = emitter.call(torch.where, emitter.call(operator.lt, at, 0), emitter.call(operator.add, at, width), at)
        own = emitter.call(torch.logical_and, inside, emitter.reaches(0))
        places = emitter.call(torch.add, emitter.call(operator.mul, emitter.entries(), width), at)
        places = emitter.call(torch.where, own, places, -1)
        rows = self.of.dim % example(x).dim()
        if (rows, self.at) != (0, 1):
            x = emitter.call(torch.movedim, x, [rows, self.at], [0, 1])
        made: fx.Node = emitter.call(_ops.gather_places.default, emitter.call(torch.flatten, x, 0, 1), places, 0)
        return made


def slot_of_row(machine: Machine, base: fx.Node, dim: int, index: Any) -> Document | None:
    """``row.select(dim, number)``; None if it is another slot, or not one of a row."""
    value, position = machine.value(base), machine.affine(index)
    row = value.cell.outer if isinstance(value, Document) and not value.cell.version else None
    if row is None or row.k or position is None or not any(isinstance(atom, Bound) for atom, _ in position.atoms):
        return None
    if machine.boundaries is None:
        documents = own_documents(position.plus(Affine.of(position.const), -1))
        if documents is None:
            return None
        machine.use((documents, 0), base)
    rank = example(base).dim()
    rows = row.dim % (rank + 1)
    at = dim % rank
    term = machine.intern(RowSlot(row, at + (at >= rows), position, machine.least))
    return document_view(machine, term, value)
