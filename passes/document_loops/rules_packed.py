"""Rules for ops that move slots within a document or make per-document values: roll, flip, cat, pad, arange, checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument
from passes.document_loops.emit_documents import _flattened
from passes.document_loops.integers import FULL
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label
from passes.document_loops.parts import OtherDocuments, chunks_of
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.terms import Apply, Flip, Outside, Roll, Term
from passes.document_loops.uneven import pieces_of
from passes.refused import Refused


def _whole(machine: Machine, node: fx.Node, value: Any) -> Segment:
    if not isinstance(value, Segment) or value.window != FULL or not value.store.exact:
        raise Refused("no-rule", f"{label(node)} of a part of a document has no rule", node)
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class FlatRoll(Term):
    """All numbers of a document, in the order of its rows, rolled around its end."""

    of: Term
    shift: int
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """A roll of the flattened row, by boundaries that count numbers."""
        row = emitter.node(self.of)
        x, cu, _ = _flattened(emitter, self.of, self.dim, tuple(range(self.dim + 1, 0)))
        rolled = emitter.call(torch.ops.packpass.packed_roll.default, x, cu, self.shift, 0, None, None)
        made: fx.Node = emitter.call("view_as", rolled, row, method=True)
        return made


@rule("roll")
def _roll(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Outside):
        return outside_call(machine, node)
    segment = _whole(machine, node, value)
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims", ())
    shifts = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    dims = list(dims) if isinstance(dims, (list, tuple)) else [] if dims is None else [dims]
    if not dims:
        if segment.dim != -segment.rank or len(shifts) != 1 or not isinstance(shifts[0], int):
            raise Refused("no-rule", "roll without dims flattens a document whose slots are not its rows", node)
        if segment.rank > 1:
            return machine.fresh(
                machine.intern(FlatRoll(machine.read(segment, node), shifts[0], segment.dim)), segment.rank
            )
        dims = [0]
    if len(dims) != len(shifts) or not all(isinstance(v, int) for v in (*shifts, *dims)):
        raise Refused("no-rule", "roll by an amount that depends on data has no rule", node)
    term = machine.read(segment, node)
    others = [(s, d) for s, d in zip(shifts, dims, strict=True) if d % segment.rank != segment.rank + segment.dim]
    if others:
        args = (term, tuple(s for s, _ in others), tuple(d for _, d in others))
        term = machine.intern(Apply(torch.roll, False, args, (), segment.dim))
    total = sum(s for s, d in zip(shifts, dims, strict=True) if d % segment.rank == segment.rank + segment.dim)
    if total:
        term = machine.intern(Roll(term, total, None, segment.dim))
    elif not others:
        term = machine.intern(Apply(torch.clone, False, (term,), (), segment.dim))
    return machine.fresh(term, segment.rank)


@rule("flip")
def _flip(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Outside):
        return outside_call(machine, node)
    segment = _whole(machine, node, value)
    rest = node.args[1:] if len(node.args) > 1 else (node.kwargs["dims"],)
    dims = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest
    packed = segment.rank + segment.dim
    others = tuple(d for d in dims if d % segment.rank != packed)  # type: ignore[operator]
    term = machine.read(segment, node)
    if others:
        term = machine.intern(Apply(torch.flip, False, (term, others), (), segment.dim))
    if len(others) != len(dims):
        term = Flip(term, segment.dim)
    return machine.fresh(term, segment.rank)


@rule("chunk")
def _chunk(machine: Machine, node: fx.Node) -> Any:
    """Equal parts of a document."""
    count, dim = argument(node, 1, "chunks"), argument(node, 2, "dim", 0)
    if type(count) is not int or type(dim) is not int or count < 1:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    value = machine.value(node.args[0])
    try:
        return chunks_of(machine, node, value, count, dim)
    except Refused as refused:
        uneven = None if isinstance(refused, OtherDocuments) else pieces_of(machine, node, value, count, dim)
        if uneven is None:
            raise
        return uneven
