"""Rules for reading and writing parts of documents: slices, setitem, fills, narrow, select, split."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.indexing import entries_of
from passes.refused import Refused
from passes.vectorize_segments.blocks import write_block
from passes.vectorize_segments.boundaries import boundary_vector, element, lengths_of
from passes.vectorize_segments.documents import as_term, is_per_document, spread
from passes.vectorize_segments.machine import (
    OPAQUE,
    PER_DOCUMENT,
    Document,
    Machine,
    Segment,
    Slot,
    frozen_args,
)
from passes.vectorize_segments.op_names import label
from passes.vectorize_segments.rules import documents, rule
from passes.vectorize_segments.rules_documents import assign_document, part_of_row
from passes.vectorize_segments.terms import FULL, Affine, Apply, Boundaries, Index, Outside, Window
from passes.vectorize_segments.windows import (
    constant_entry,
    expand_index,
    locate,
    outer_point,
    outer_row,
    outer_slot,
    point,
)


@rule("getitem")
def _getitem(machine: Machine, node: fx.Node) -> Any:
    base, index = node.args[0], node.args[1]
    if not isinstance(base, fx.Node):
        raise Refused("no-rule", "this index has no rule", node)
    value = machine.value(base)
    if isinstance(value, tuple) and isinstance(index, int):
        return value[index]  # one of the results of an op
    if isinstance(value, Outside) and node.all_input_nodes == [base]:
        return machine.computed((node.target, False, (value, frozen_args(index)), ()), example(node))
    if not isinstance(example(base), torch.Tensor):
        raise Refused("no-rule", f"what {label(base)} returns has no rule", node)
    if index is None or (isinstance(index, tuple) and any(entry is None for entry in index)):
        return _with_new_dims(machine, node, base, index)
    owned = outer_row(machine, base, index, node) or outer_slot(machine, base, index, node)
    return owned if owned is not None else _part(machine, node, base, index, example(node).dim())


def _part(machine: Machine, node: fx.Node, base: fx.Node, index: Any, rank: int) -> Any:
    """``base[index]``, of ``rank`` dimensions."""
    found = locate(machine, node, base, index)
    if isinstance(found, Affine):
        return found
    if found is None:
        return machine.computed((node.target, False, (machine.value(base), frozen_args(index)), ()), example(node))
    segment, window = found[:2]
    if isinstance(window, str):
        raise Refused("per-document-value", "one value per document is read; there is no rule for it yet", node)
    if len(found) == 3:
        if window != segment.window:
            raise Refused("no-rule", "slice the packed dimension and the others in two steps", node)
        entries = found[2]
        kept = [d for d, e in enumerate(entries) if isinstance(e, slice)]
        if not all(constant_entry(machine, e) for e in entries):
            raise Refused("no-rule", "this index has no rule", node)
        at = segment.rank + segment.dim
        dim = kept.index(at) - len(kept)
        term = Apply(operator.getitem, False, (machine.read(segment, node), frozen_args(tuple(entries))), (), dim)
        return machine.view(term, rank, segment)
    part = Segment(segment.store, window, segment.rank)
    return part if rank == segment.rank else Slot(part)


def _with_new_dims(machine: Machine, node: fx.Node, base: fx.Node, index: Any) -> Segment:
    """``x[None, s:e]``: what the other entries select, with dimensions of size 1 in between."""
    items = [entry.item for entry in entries_of(index, example(base).dim()) or ()]
    entries = [e if e is None else slice(None) for e in items if e is None or isinstance(e, slice)]
    rest = tuple(e for e in items if e is not None)
    part = _part(machine, node, base, rest, example(node).dim() - items.count(None)) if items else None
    if not isinstance(part, Segment) or len(entries) != example(node).dim():
        raise Refused("no-rule", "index with None and for slots by their number in two steps", node)
    dim = [i for i, e in enumerate(entries) if e is not None][part.rank + part.dim] - len(entries)
    term = Apply(operator.getitem, False, (machine.read(part, node), frozen_args(tuple(entries))), (), dim)
    return machine.view(term, len(entries), part)


@documents("setitem")
@rule("setitem")
def _setitem(machine: Machine, node: fx.Node) -> Any:
    base, index, value = node.args
    if not isinstance(base, fx.Node):
        raise Refused("no-rule", "this assignment has no rule", node)
    mask = machine.value(index) if isinstance(index, fx.Node) else None
    if isinstance(mask, Segment):
        _masked(machine, node, base, mask, value)
        return OPAQUE
    slot = machine.value(base)
    if isinstance(slot, Slot):
        if index is not Ellipsis and index != slice(None):
            raise Refused("partial-write", "a part of one slot is assigned", node)
        new = machine.value(value)
        if isinstance(new, Segment):
            raise Refused(
                "per-document-value", "one slot of a document is set to a value that depends on the document", node
            )
        if is_per_document(new) and not (isinstance(new, Affine) and new.is_const):
            raise Refused(
                "per-document-value", "one slot of a document is set to a value that depends on the document", node
            )
        if slot.position is not None and slot.where is None:
            raise Refused("outer-tensor-write", "a slot is written by its number in the row", node)
        assign(machine, slot.segment, slot.where or slot.segment.window, new, node, slot=True)
        return OPAQUE
    if write_block(machine, node, base, index, machine.value(value)):
        return OPAQUE
    moved = part_of_row(machine, node)
    if moved is not None:
        assign(machine, moved, moved.window, machine.value(value), node)
        return OPAQUE
    row = slot if isinstance(slot, Document) else outer_row(machine, base, index, node)
    if row is not None:
        if row is slot and index is not Ellipsis and index != slice(None):
            raise Refused("partial-write", "a part of a per-document value is assigned", node)
        assign_document(machine, row, _value_of_row(machine, value, node), node)
        return OPAQUE
    found = locate(machine, node, base, index)
    if found is None or isinstance(found, Affine):
        raise Refused(
            "outer-tensor-write", "the loop writes a part of an outer tensor that is not the document's own", node
        )
    if len(found) == 3:
        raise Refused("partial-write", "only a part of a segment's other dimensions is assigned", node)
    segment, window = found
    entries = expand_index(index, example(base).dim(), node)
    slot = not isinstance(entries[example(base).dim() + segment.dim], slice) if not isinstance(window, str) else True
    new = machine.value(value)
    if slot and isinstance(new, Segment):
        raise Refused(
            "per-document-value", "one slot of a document is set to a value that depends on the document", node
        )
    assign(machine, segment, window, new, node, slot=slot)
    return OPAQUE


def _value_of_row(machine: Machine, value: Any, node: fx.Node) -> Any:
    """What is assigned to the row of every document."""
    new = machine.value(value)
    if is_per_document(new):
        if isinstance(example(value), torch.Tensor) and example(value).dim() > example(node.args[0]).dim():
            raise Refused("no-rule", "a row is set to a value of more dimensions", node)
        return as_term(machine, value, node)
    if isinstance(new, Segment) or new is OPAQUE or isinstance(new, tuple):
        raise Refused("per-document-value", "a row of an outer tensor is set to slots of the document", node)
    return new


def assign(
    machine: Machine, segment: Segment, window: Window | str, value: Any, node: fx.Node, slot: bool = False
) -> None:
    if isinstance(value, Affine) and value.is_const:
        value = value.const
    if isinstance(window, str):
        if (
            isinstance(value, (Segment, Affine, *PER_DOCUMENT))
            or value is OPAQUE
            or (isinstance(value, Outside) and machine.fake(value).dim())
        ):
            raise Refused(
                "per-document-value", "a slot at a boundary is set to a value that depends on the document", node
            )
        machine.write(segment, Window(last=1) if window == "end" else Window(first=1), value, node)
        if not machine.skips_empty:
            segment.store.point_fill = (window, value)
        return
    if is_per_document(value):
        if slot:
            raise Refused(
                "per-document-value", "one slot of a document is set to a value that depends on the document", node
            )
        value = _spread_to(machine, segment, window, node)
    if slot and (window.last or window.first or 1) > 1:
        # One slot further in: write up to it, then put back what lies between it and the edge.
        inner = Window(last=window.last - 1) if window.last else Window(first=(window.first or 0) - 1)
        kept = machine.fresh(machine.read(segment, node), segment.rank)
        machine.write(segment, window, value, node)
        machine.write(segment, inner, Segment(kept.store, inner, segment.rank), node)
        return
    outer = segment.store.outer is not None
    if outer and window.back and not isinstance(value, Segment):
        # For a leading empty document the slice [0:-back] would wrap around to the whole row.
        raise Refused(
            "wrapping-slice",
            "a scalar is assigned to a slice that ends before the boundary; fill the segment instead",
            node,
        )
    machine.write(segment, window, value, node)


def _spread_to(machine: Machine, target: Segment, window: Window, node: fx.Node) -> Segment:
    """The value that ``node`` assigns, its last argument, in every slot of the window."""
    arg = node.args[-1] if len(node.args) > 1 else node.kwargs.get("value")
    if not isinstance(arg, fx.Node):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    fake = example(arg)
    shape = fake.shape if isinstance(fake, torch.Tensor) else ()
    if len(shape) > target.rank:
        raise Refused("no-rule", f"{label(node)} of a value of more dimensions", node)
    term = spread(machine, as_term(machine, arg, node), shape, target.dim, node)
    return machine.fresh(term, max(len(shape), -target.dim), window)


def _masked(machine: Machine, node: fx.Node, base: fx.Node, mask: Segment, value: Any) -> None:
    """``segment[mask] = scalar``."""
    target = machine.value(base)
    if (
        not isinstance(target, Segment)
        or target.dim != mask.dim
        or mask.rank != target.rank
        or example(node.args[1]).dtype != torch.bool
    ):
        raise Refused("no-rule", "this masked assignment has no rule", node)
    new = machine.value(value)
    if (
        isinstance(new, (Segment, Affine, *PER_DOCUMENT))
        or new is OPAQUE
        or (isinstance(new, Outside) and machine.fake(new).dim())
    ):
        raise Refused("no-rule", "a masked assignment of more than one value has no rule", node)
    term = Apply(
        "masked_fill",
        True,
        (machine.read(target, node), machine.aligned(mask, target.window, node), new),
        (),
        target.dim,
    )
    machine.write(target, target.window, machine.fresh(term, target.rank, target.window), node)


def _target(machine: Machine, node: fx.Node) -> Segment:
    target = machine.value(node.args[0])
    if isinstance(target, Slot):
        if target.position is not None:
            raise Refused("no-rule", f"{label(node)} on a slot at a boundary has no rule; assign it", node)
        target = target.segment
    if not isinstance(target, Segment):
        raise Refused("outer-tensor-write", f"{label(node)} changes a tensor from outside the loop", node)
    if target.store.outer is not None and target.window.back:
        raise Refused("wrapping-slice", "an in-place op on a slice that ends before the boundary has no rule", node)
    return target


@documents("fill_", "zero_")
@rule("fill_", "zero_")
def _fill(machine: Machine, node: fx.Node) -> Any:
    row = machine.value(node.args[0])
    if isinstance(row, Document):
        assign_document(machine, row, _value_of_row(machine, node.args[1] if len(node.args) > 1 else 0, node), node)
        return row
    target = _target(machine, node)
    value = machine.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("value", 0)
    if isinstance(value, Segment):
        raise Refused("no-rule", "fill_ with a per-document value has no rule", node)
    assign(machine, target, target.window, value, node, slot=isinstance(machine.value(node.args[0]), Slot))
    return target


@documents("copy_")
@rule("copy_")
def _copy(machine: Machine, node: fx.Node) -> Any:
    row = machine.value(node.args[0])
    if isinstance(row, Document):
        assign_document(machine, row, _value_of_row(machine, node.args[1], node), node)
        return row
    target = _target(machine, node)
    value = machine.value(node.args[1])
    if is_per_document(value) and not isinstance(machine.value(node.args[0]), Slot):
        value = _spread_to(machine, target, target.window, node)
    if isinstance(value, Segment) and isinstance(machine.value(node.args[0]), Slot):
        raise Refused("per-document-value", "copy_ of a segment into one slot has no rule", node)
    machine.write(target, target.window, value, node)
    return target


# === Other ways to cut a segment =============================================================================


def _source(machine: Machine, node: fx.Node) -> tuple[fx.Node, Any, int]:
    base = argument(node, 0, "input")
    if not isinstance(base, fx.Node) or not isinstance(example(base), torch.Tensor):
        raise Refused("no-rule", f"{label(node)} of this value has no rule", node)
    return base, machine.value(base), example(base).dim()


@rule("narrow")
def _narrow(machine: Machine, node: fx.Node) -> Any:
    _base, value, rank = _source(machine, node)
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
    if isinstance(value, Outside) and rank == 1 and isinstance(base, fx.Node):
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
    cu = lengths_of(root)
    machine.use((Boundaries(cu), 0) if cu is not None else (Boundaries(root, lengths=True), 0), node)
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
    machine.use((Boundaries(boundaries), 0), node)
    return machine.outer_segment(value.node, (), dim % rank - rank, FULL, rank)


@rule("list_get")
def _list_get(machine: Machine, node: fx.Node) -> Any:
    raise Refused("list-use", "looping over a list that an earlier loop over documents filled has no rule", node)
