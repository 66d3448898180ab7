"""Copies of parts of documents and of what they have become: ``x.chunk(4)[r].detach().clone()``.

What is copied is as long as before. Of a part, the document that it is a part of is copied: nothing is computed but
what the part shows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.semantics import call_of, example
from packpass.semantics.pointwise import COPIES
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.parts import Joined, Pieces
from passes.document_loops.terms import Apply, Outside, Term
from passes.document_loops.uneven import Piece
from passes.document_loops.uneven_row import Uneven

_NEW = frozenset({"clone", "_to_copy"})
"""What always has memory of its own."""


def copied(machine: Machine, node: fx.Node) -> Any:
    """The value of such a copy; NotImplemented for any other call."""
    call = call_of(node)
    source = call.of("input") if call is not None and call.op in COPIES else None
    value = machine.value(source.node) if source is not None else None
    if call is None or source is None or not isinstance(value, (Piece, Pieces)):
        return NotImplemented
    have, want = source.value, example(node)
    same = (have.dtype, have.device) == (want.dtype, want.device)
    if isinstance(value, Piece):
        return Piece(_document(machine, node, value.of, call.op, same), value.part)
    if not same:
        return NotImplemented
    if call.op != "detach" or not want.is_floating_point():
        return value
    if not isinstance(value.term, (Joined, Uneven)):
        return NotImplemented
    return Pieces(machine.intern(_detached(machine, value.term)), value.rank)


def _document(machine: Machine, node: fx.Node, segment: Segment, op: str, same: bool) -> Segment:
    term = machine.read(segment, node)
    if op == "detach":
        term = Apply(node.target, node.op == "call_method", (term,), (), segment.dim)
    elif not same:
        term = Apply("to", True, (term, example(node).device, example(node).dtype), (), segment.dim)
    if op in _NEW or not same:
        return machine.fresh(term, segment.rank, segment.window, least=segment.store.least)
    return machine.view(term, segment.rank, segment)


def _detached(machine: Machine, term: Joined | Uneven) -> Any:
    def one(of: Any) -> Any:
        if isinstance(of, Term):
            return machine.intern(Apply("detach", True, (of,), (), of.dim))
        return machine.computed(("detach", True, (of,), ()), machine.fake(of)) if isinstance(of, Outside) else of

    if isinstance(term, Joined):
        return dataclasses.replace(term, parts=tuple(map(one, term.parts)))
    return dataclasses.replace(term, of=tuple(map(one, term.of)))
