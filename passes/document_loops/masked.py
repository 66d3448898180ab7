"""Documents that a mask picks from padded rows: ``rows[i, mask[i]]``, read and written."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from packpass.semantics.effects import CHECKS
from packpass.semantics.names import op_name
from packpass.semantics.pointwise import slot_by_slot
from passes.document_loops.boundaries import documents_of_lengths
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import OPAQUE, Document, Machine, Segment, Store
from passes.document_loops.rules import documents, rule
from passes.document_loops.rules_indexing import assign
from passes.document_loops.terms import Outside
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedRow(Elsewhere):
    """The slots of every document at the true places of its row of ``mask``; ``exactly``: documents are as long as
    there are such places, for any other mask that is checked."""

    mask: Outside
    exactly: bool

    def _places(self, emitter: Emitter) -> fx.Node:
        mask = emitter.node(self.mask)
        self._extent(emitter)
        if not self.exactly:
            sums = emitter.call(torch.nn.functional.pad, emitter.call(torch.sum, mask, 1), (0, 1))
            counts = emitter.call(torch.index_select, sums, 0, emitter.entries())
            fits = emitter.call(operator.eq, counts, emitter.lengths())
            fits = emitter.call(torch.logical_or, fits, emitter.call(operator.eq, counts, 1))
            message = "packpass: two masks pick different numbers of slots from the rows of one document"
            emitter.call(torch._assert_async, emitter.for_every_document(fits, self.reach), message)
        return emitter.call(_ops.mask_places.default, mask, emitter.cu, emitter.total)


def _segment(machine: Machine, node: fx.Node, exactly: bool) -> Segment:
    row, all_rows, lengths = machine.value(node.args[0]), node.args[-2], node.args[-1]
    outer = row.cell.outer if isinstance(row, Document) and row.cell.parent is None and not row.cell.version else None
    if outer is None or outer.index or outer.k or not isinstance(all_rows, fx.Node) or not isinstance(lengths, fx.Node):
        raise Refused("no-rule", "slots picked by a mask that is not that of the document's row have no rule", node)
    fake, rows = example(outer.node), example(all_rows)
    if fake.dim() + outer.dim != 0 or rows.shape[1] != fake.shape[1]:
        raise Refused("no-rule", "slots picked by a mask along another dimension have no rule", node)
    machine.use(documents_of_lengths(machine, lengths, node), node)
    key: Any = ("masked", outer.node, all_rows)
    store = machine.outer.get(key)
    if store is None:
        mask, dim = machine.intern(Outside(all_rows)), 1 - fake.dim()
        own = sums_of(lengths) is all_rows
        if not own and not exactly and not _only_put(node):
            reason = "slots picked by two masks, of which nothing says that they are as many"
            raise Refused("two-boundaries", reason, node)
        term = MaskedRow(outer.node, (), dim, -dim, Affine(), dim - 1, False, machine.reach, FULL, mask, own)
        interned = machine.intern(term)
        store = machine.outer[key] = Store(interned, outer=interned)
    if exactly and not store.outer.exactly:  # type: ignore[union-attr]
        raise Refused("two-boundaries", "slots are written by two masks", node)
    return Segment(store, FULL, -store.term.dim)


def _only_put(node: fx.Node) -> bool:
    """Is all that becomes of picked slots written to the places of a mask, where eager wants as many of them?"""
    return all(
        user.args[2] is node
        if user.target is markers.MASKED_PUT
        else _only_checked(user) or (slot_by_slot(user) and _only_put(user))
        for user in node.users
    )


def _only_checked(node: fx.Node) -> bool:
    """Is a node a number, or a check, that nothing but checks sees?"""
    known = op_name(node) in CHECKS or not isinstance(example(node), torch.Tensor)
    return known and node.target is not markers.MASKED_PUT and all(_only_checked(user) for user in node.users)


def sums_of(lengths: fx.Node) -> Any:
    """The mask of which a vector holds the sums of rows."""
    return lengths.args[0] if lengths.args else None


@documents("masked")
@rule("masked")
def _masked(machine: Machine, node: fx.Node) -> Any:
    return _segment(machine, node, exactly=False)


@documents("masked_put")
@rule("masked_put")
def _masked_put(machine: Machine, node: fx.Node) -> Any:
    target = _segment(machine, node, exactly=True)
    assign(machine, target, FULL, machine.value(node.args[2]), node)
    return OPAQUE
