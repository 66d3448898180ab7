"""Rules for the best slots of a document, as many as it asks for by a number of its own.

::

    k = max(1, int(n * 0.5))
    best = scores[s:e].topk(k).indices.sort().values
    out.append(x[s:e][best])

Positions of all documents' slots lie in one row, where each document's first ``k`` are those. Sorted are whole numbers
alone, whose order does not depend on what lies behind them: the slots behind are filled with the largest there is.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from passes.document_loops.emit_documents import vector_of
from passes.document_loops.inequalities import at_most
from passes.document_loops.integers import FULL, Affine, Window
from passes.document_loops.moved import count, ends_of, own_length
from passes.document_loops.op_names import label
from passes.document_loops.rules_reductions import Over
from passes.document_loops.terms import Fill, Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter
    from passes.document_loops.machine import Machine, Segment

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class Best(Term):
    """Positions of the ``count`` largest (smallest) slots of every document, its own; the others hold anything."""

    of: Term
    count: Affine
    largest: bool
    in_order: bool
    dim: int = -1

    def emit(self, emitter: Emitter) -> fx.Node:
        """int64: the row."""
        counts = vector_of(emitter, self.count, torch.int64)
        given = (emitter.node(self.of), emitter.cu, counts, self.largest, self.in_order)
        made: fx.Node = emitter.call(_ops.segment_topk.default, *given)
        return made


def best(machine: Machine, node: fx.Node, found: Over, given: dict[str, Any]) -> tuple[Term, Window] | None:
    """Positions of the slots that ``topk`` picks, and the slots of the row that they lie on; None if ``k`` is no number
    of the document's own."""
    k = machine.affine(given.get("k"))
    if k is None or k.is_shared or machine.boundaries is None or found.segment.rank != 1 or found.others:
        return None
    length = own_length(machine.boundaries)
    message = f"packpass: {label(node)} of a document with fewer slots"
    for low, high in ((Affine(), k), (k, length)):
        if not at_most(low, high, length):
            machine.require(low, "le", high, message)
    largest, in_order = given.get("largest", True), given.get("sorted", True)
    if type(largest) is not bool or type(in_order) is not bool:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    term: Term = machine.intern(Best(found.term, k, largest, in_order))
    return term, FULL if k == length else Window(between=(Affine(), k))


def in_front(machine: Machine, segment: Segment, term: Term, dtype: torch.dtype, descending: bool) -> Any:
    """``(term, window)``: whole numbers of a part of a document, with all other slots behind them in a sorted document;
    None for other numbers."""
    if machine.boundaries is None or not segment.store.exact or segment.rank != 1:
        return None
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return None
    info = torch.iinfo(dtype)
    filled = machine.intern(Fill(term, segment.window, info.min if descending else info.max, segment.dim))
    return filled, Window(between=(Affine(), count(ends_of(machine.boundaries, segment.window))))
