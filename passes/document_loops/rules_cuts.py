"""Rules for other ways to cut a segment than slices: narrow, select, split, and what an earlier loop has listed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from passes.document_loops.boundaries import boundary_vector, documents_of_lengths, element
from passes.document_loops.elsewhere import elsewhere
from passes.document_loops.foreign import foreign_split
from passes.document_loops.integers import FULL, Affine, Boundaries, Index, Window
from passes.document_loops.machine import (
    Machine,
    Segment,
    Slot,
)
from passes.document_loops.op_names import label
from passes.document_loops.parts import split_apart
from passes.document_loops.rules import rule
from passes.document_loops.terms import Apply, Outside
from passes.document_loops.windows import (
    outer_point,
    outer_row,
    outer_slot,
    point,
)
from passes.refused import Refused


def _source(machine: Machine, node: fx.Node) -> tuple[fx.Node, Any, int]:
    base = argument(node, 0, "input")
    if not isinstance(base, fx.Node) or not isinstance(example(base), torch.Tensor):
        raise Refused("no-rule", f"{label(node)} of this value has no rule", node)
    return base, machine.value(base), example(base).dim()


@rule("narrow")
def _narrow(machine: Machine, node: fx.Node) -> Any:
    base, value, rank = _source(machine, node)
    dim, start, length = (argument(node, i, n) for i, n in ((1, "dim"), (2, "start"), (3, "length")))
    low, count = machine.affine(start), machine.affine(length)
    if low is None or count is None or not isinstance(dim, int):
        raise Refused("unknown-bounds", "narrow with bounds that are not understood", node)
    at = dim % rank
    high = low.plus(count)
    if isinstance(value, Segment):
        if at != value.rank + value.dim:
            raise Refused("no-rule", "narrow along another dimension of a segment has no rule", node)
        length_of = high.length_of()
        if value.window == FULL and length_of is not None and length_of[1] == 0 and low.is_const and low.const >= 0:
            # narrow raises where a slice would clamp, so the window is exact.
            return Segment(value.store, Window(front=low.const), value.rank)
        if value.window == FULL and low.is_const and low.const == 0 and length_of is not None and length_of[1] < 0:
            return Segment(value.store, Window(back=-length_of[1]), value.rank)
        if value.window == FULL and count.is_const and count.const >= 1:
            # narrow raises for a document that is shorter
            if low.is_const and low.const == 0:
                return Segment(value.store, Window(first=count.const), value.rank)
            if length_of is not None and length_of[1] == 0:
                return Segment(value.store, Window(last=count.const), value.rank)
        raise Refused("unknown-bounds", "this part of a document has no rule", node)
    if not isinstance(value, Outside) or value.node is None:
        raise Refused("no-rule", "narrow of this value has no rule", node)
    s, e = low.bound(), high.bound()
    if isinstance(start, fx.Node) and (s is None or e is None or s[0].of != e[0].of):
        entries = [slice(start, length) if d == at else slice(None) for d in range(rank)]
        moved = elsewhere(machine, base, entries, ends=(low, high))
        if moved is not None:
            machine.require(count, "ge", Affine(), "packpass: narrow has no negative length")
            return moved
    if s is None or e is None or s[0].of != e[0].of:
        raise Refused("not-a-segment", "narrow is not cut by two neighbouring boundaries", node)
    if s[0].k + 1 != e[0].k or s[1] < 0 or e[1] > 0:
        raise Refused("not-a-segment", "narrow reaches beyond one document", node)
    machine.use((s[0].of, s[0].k), node)
    return machine.outer_segment(value.node, (), at - rank, Window(s[1], -e[1]), rank)


@rule("select")
def _select(machine: Machine, node: fx.Node) -> Any:
    base, value, rank = _source(machine, node)
    dim, index = argument(node, 1, "dim"), argument(node, 2, "index")
    at = dim % rank
    key = (*(slice(None) for _ in range(at)), index)
    owned = (
        None if isinstance(index, int) else outer_row(machine, base, key, node) or outer_slot(machine, base, key, node)
    )
    if owned is not None:
        return owned
    integers = example(base).dtype in (torch.int32, torch.int64)
    if isinstance(value, Outside) and rank == 1 and integers and isinstance(base, fx.Node):
        position = machine.affine(index)
        if position is not None and not position.is_const:
            entry = element(machine, base, position, node)
            if entry is not None:
                return entry
    if isinstance(value, Segment):
        if at == value.rank + value.dim:
            return Slot(Segment(value.store, point(machine, value, index, node), value.rank))
        if isinstance(index, int):
            dim_after = value.dim + 1 if at > value.rank + value.dim else value.dim
            term = Apply(
                node.target,
                node.op == "call_method",
                (machine.read(value, node), dim - rank if dim >= 0 else dim, index),
                (),
                dim_after,
            )
            return machine.view(term, rank - 1, value)
    if isinstance(value, Outside) and isinstance(index, int):
        return machine.computed((node.target, node.op == "call_method", (value, dim, index), ()), example(node))
    if isinstance(value, Outside) and value.node is not None:
        where = outer_point(machine, index, node)
        return Slot(machine.outer_segment(value.node, (), at - rank, FULL, rank), where)
    raise Refused("no-rule", "select with this index has no rule", node)


@rule("split_get")
def _split_get(machine: Machine, node: fx.Node) -> Any:
    x, lengths, index, dim = node.args
    assert isinstance(x, fx.Node) and isinstance(lengths, fx.Node) and isinstance(dim, int)
    position = machine.affine(index)
    at = position.single() if position is not None else None
    root, offset, _ = boundary_vector(lengths)
    value = machine.value(x)
    if (
        at is None
        or not isinstance(at[0], Index)
        or at[1]
        or offset
        or not isinstance(value, Outside)
        or value.node is None
    ):
        raise Refused("no-rule", "this split has no rule", node)
    rank = example(x).dim()
    documents = documents_of_lengths(machine, root, node)
    if machine.parts_of_documents and machine.boundaries != documents:
        if (x, root, dim) not in machine.filled:
            machine.filled.append((x, root, dim))
        return split_apart(value.node, rank, dim % rank, documents)
    try:
        machine.use(documents, node)
    except Refused as refused:
        if refused.code != "two-boundaries":
            raise
        return foreign_split(value, root, rank, dim, documents[0], refused)
    segment = machine.outer_segment(value.node, (), dim % rank - rank, FULL, rank)
    if x not in machine.split_of:
        machine.split_of.append(x)
    return segment


@rule("segment")
def _segment(machine: Machine, node: fx.Node) -> Any:
    """A document that an earlier pass cuts by a vector of boundaries."""
    x, boundaries, index, dim = node.args
    assert isinstance(x, fx.Node) and isinstance(boundaries, fx.Node) and isinstance(dim, int)
    position = machine.affine(index)
    value, rank = machine.value(x), example(x).dim()
    if position != Affine.of(Index()) or not isinstance(value, Outside) or value.node is None:
        raise Refused("no-rule", "this document has no rule", node)
    root, ahead, lengths = boundary_vector(boundaries)
    machine.use((Boundaries(boundaries), 0) if lengths else (Boundaries(root), ahead), node)
    return machine.outer_segment(value.node, (), dim % rank - rank, FULL, rank)


@rule("list_get")
def _list_get(machine: Machine, node: fx.Node) -> Any:
    raise Refused("list-use", "looping over a list that an earlier loop over documents filled has no rule", node)
