"""Rules for the slot that a document names by a number of its own: ``h[s:e][keep.int().argmax()]``, ``h[s + last]``.

Before, for every document::

    last = (arange(e - s) * (ids[s:e] != pad)).argmax()     # 0-d; h[s:e][last] reads it
    out.append(h[s:e][last])

After::

    last = segment_argmax(position_ids * (ids != pad), cu)  # [N + 1], on the device
    out = segment_take(h, cu, last)                         # nothing is read on the host

A number that lies outside of its document (of the row) raises, as in eager.

Does not handle: numbers that are no integers, slots of documents that have become longer or shorter, writes to such a
slot.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.effects import AS_NUMBERS
from passes.document_loops.bits import of_tensor
from passes.document_loops.documents import as_term, cast, document_view, length
from passes.document_loops.emit_documents import check_number, vector_of
from passes.document_loops.indices import through_constants
from passes.document_loops.integers import FULL, Affine, Reach
from passes.document_loops.machine import Document, Machine, Number, Segment, Slot, selection
from passes.document_loops.op_names import label
from passes.document_loops.rates import share
from passes.document_loops.row_slots import slot_of_row
from passes.document_loops.rules import documents, shared_number
from passes.document_loops.rules_documents import constant_part
from passes.document_loops.terms import Apply, Outside, PointRead, Row, Take, Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_PLAIN = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(Term):
    """int64 [N + 1]: the number ``of`` that every document names a slot by, which must be one of its ``extent``."""

    of: Term
    extent: Affine
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """The number, and the check that every document has such a slot."""
        at = emitter.node(self.of)
        extent = vector_of(emitter, self.extent, torch.int64)
        message = "packpass: a slot is chosen by a number that lies outside of its document"
        check_number(emitter, at, extent, self.reach, message)
        return at


@documents(*AS_NUMBERS)
def _number(machine: Machine, node: fx.Node) -> Any:
    """``position.item()``: one number of every document, which stays on the device."""
    value, fake = machine.value(node.args[0]), example(node.args[0])
    if not isinstance(value, (Document, Slot, Number)) or not isinstance(example(node), _PLAIN):
        return shared_number(machine, node)
    assert isinstance(node.args[0], fx.Node)
    term = as_term(machine, node.args[0], node)
    if isinstance(value, Number):
        rounded = share(machine, node)
        if rounded is not None:
            return rounded
        return value if not isinstance(example(node.args[0]), (float, torch.SymFloat)) else shared_number(machine, node)
    if not isinstance(fake, torch.Tensor):
        return shared_number(machine, node)
    if fake.dtype not in _INTEGERS and not fake.dtype.is_floating_point and fake.dtype != torch.bool:
        return shared_number(machine, node)
    if fake.dim():
        term = machine.intern(Apply("reshape", True, (term, -1), (), 0))
    if fake.dtype.is_floating_point:
        term = machine.intern(Apply(torch.detach, False, (term,), (), 0))
        return Number(cast(machine, term, fake.dtype, torch.float64))
    return Number(cast(machine, term, fake.dtype, torch.int64), of_tensor(term, fake.dtype))


@documents("select")
def _select(machine: Machine, node: fx.Node) -> Any:
    """``x[s:e].select(dim, number)``, ``x.select(dim, s + number)``."""
    base, dim, index = argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "index")
    chosen = machine.value(index) if isinstance(index, fx.Node) else None
    if type(index) is int:
        chosen = Affine.of(index)
    if isinstance(chosen, (Affine, Number)) and isinstance(base, fx.Node) and type(dim) is int:
        position = chosen.term if isinstance(chosen, Number) else chosen
        slot = slot_of_row(machine, base, dim, position, node)
        if slot is not None:
            return slot
    if not isinstance(chosen, Number) or not isinstance(base, fx.Node) or type(dim) is not int:
        return constant_part(machine, node)
    value = machine.value(base)
    if isinstance(value, Segment):
        return _of_document(machine, node, value, chosen, dim % value.rank)
    if isinstance(value, Outside):
        return _of_row(machine, node, base, chosen, dim)
    raise Refused("no-rule", f"{label(node)} of this value by a number of the document has no rule", node)


def _of_document(machine: Machine, node: fx.Node, value: Segment, chosen: Number, at: int) -> Document:
    if at != value.rank + value.dim or value.window != FULL or not value.store.exact:
        raise Refused("no-rule", f"{label(node)} of a part of a document by a number of its own has no rule", node)
    if machine.boundaries is None:
        raise Refused("no-segments", "the loop does not cut anything by boundaries", node)
    place = machine.intern(Chosen(chosen.term, length(machine, FULL), machine.reach))
    taken = machine.intern(Take(machine.read(value, node), place, value.dim))
    return document_view(machine, taken, Slot(value))


def _of_row(machine: Machine, node: fx.Node, base: fx.Node, chosen: Number, dim: int) -> Document:
    """Counted from the row's start."""
    rank = example(base).dim()
    entries: list[Any] = [slice(None)] * rank
    entries[dim] = node
    found = through_constants(machine, base, entries)
    if found is None:
        raise Refused("no-rule", f"{label(node)} of this value by a number of the document has no rule", node)
    row, entries = found
    at = entries.index(node)
    index, (packed,), left = selection(entries, at)
    segment = machine.outer_segment(row, index, packed, FULL, left)
    outer = segment.store.outer
    if segment.store.version or not isinstance(outer, Row):
        raise Refused("aliasing", "a slot of a tensor that the loop writes is read by its number in the row", node)
    taken = machine.intern(PointRead(outer, chosen.term, machine.reach))
    return document_view(machine, taken, Slot(segment))
