"""Rules for reading and writing parts of documents: slices, setitem, fills, narrow, select, split."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from packpass.semantics.indexing import entries_of
from passes.document_loops.blocks import write_block
from passes.document_loops.by_hand import pad_by_hand
from passes.document_loops.corners import write_corner
from passes.document_loops.documents import as_tensor_dtype, as_term, cast, is_per_document, spread
from passes.document_loops.foreign import foreign
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.integers import Affine, Window
from passes.document_loops.machine import (
    OPAQUE,
    PER_DOCUMENT,
    Document,
    Machine,
    Segment,
    Slot,
    frozen_args,
)
from passes.document_loops.mask_parts import write_part_of_mask
from passes.document_loops.op_names import label
from passes.document_loops.own_parts import part_is_set
from passes.document_loops.parts import Cut, cut, part_of
from passes.document_loops.row_slots import numbered_slot
from passes.document_loops.row_windows import window_of_row, write_window
from passes.document_loops.rules import documents, rule
from passes.document_loops.rules_documents import assign_document, part_of_row
from passes.document_loops.rules_orders import reordered
from passes.document_loops.slots import flattened_in_front, set_slot
from passes.document_loops.spaced import spaced
from passes.document_loops.terms import Apply, Outside, Term
from passes.document_loops.windows import locate, outer_row, outer_slot
from passes.refused import Refused


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
    if (in_order := reordered(machine, node, value, index)) is not None:
        return in_order
    if index is None or (isinstance(index, tuple) and any(entry is None for entry in index)):
        return _with_new_dims(machine, node, base, index)
    window = window_of_row(machine, node, base, index)
    if window is not None:
        return window
    if machine.parts_of_documents:
        part = _of_documents(machine, node, base, index)
        if part is not None:
            return part
    owned = outer_row(machine, base, index, node) or outer_slot(machine, base, index, node)
    if owned is not None:
        return owned
    strided = _strided(machine, node, base, index)
    return _part(machine, node, base, index, example(node).dim()) if strided is None else strided


def _strided(machine: Machine, node: fx.Node, base: fx.Node, index: Any) -> Any:
    """``x[s:e][1::2]`` and ``x[s:e:2]``; None for any other index."""
    value, rank = machine.value(base), example(base).dim()
    entries = list(index) if isinstance(index, tuple) else [index]
    steps = [d for d, e in enumerate(entries) if isinstance(e, slice) and type(e.step) is int and e.step > 1]
    if Ellipsis in entries or len(steps) != 1 or any(e != slice(None) for d, e in enumerate(entries) if d != steps[0]):
        return None
    at, entry = steps[0], entries[steps[0]]
    if isinstance(value, Outside) and isinstance(entry.start, fx.Node) and isinstance(entry.stop, fx.Node):
        entries[at] = slice(entry.start, entry.stop)
        value, first = _part(machine, node, base, tuple(entries), rank), 0
    elif isinstance(value, Segment) and at == value.rank + value.dim and entry.stop is None:
        first = 0 if entry.start is None else entry.start
    else:
        return None
    if type(first) is not int or first < 0:
        return None
    if mutated_after(node.graph, base, node):
        raise Refused("aliasing", "every so many slots of a tensor that is changed afterwards", node)
    return spaced(machine, node, value, first, entry.step)


def _of_documents(machine: Machine, node: fx.Node, base: fx.Node, index: Any) -> Any:
    """A document of which the loop looks at parts, or such a part of it."""
    value = machine.value(base)
    entries = expand_index(index, example(base).dim(), node)
    return part_of(machine, value, entries, node) if isinstance(value, Cut) else cut(machine, base, entries)


def _part(machine: Machine, node: fx.Node, base: fx.Node, index: Any, rank: int) -> Any:
    """``base[index]``, of ``rank`` dimensions."""
    try:
        found = locate(machine, node, base, index)
    except Refused as refused:
        other = (
            foreign(machine, node, base, index, refused)
            if refused.code in ("two-boundaries", "not-a-segment")
            else None
        )
        if other is None:
            raise
        return other
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
        _fill_slot(machine, slot, node)
        return OPAQUE
    if write_part_of_mask(machine, node, base, index, machine.value(value)):
        return OPAQUE
    if write_block(machine, node, base, index, machine.value(value)) or write_window(machine, node):
        return OPAQUE
    if pad_by_hand(machine, node):
        return OPAQUE
    moved = part_of_row(machine, node)
    if moved is not None:
        assign(machine, moved, moved.window, machine.value(value), node)
        return OPAQUE
    if write_corner(machine, node):
        return OPAQUE
    one = numbered_slot(machine, node)
    if one is not None:
        assign_document(machine, one, _value_at_number(machine, value, node), node)
        return OPAQUE
    row = slot if isinstance(slot, Document) else outer_row(machine, base, index, node)
    if row is not None:
        if row is slot and index is not Ellipsis and index != slice(None):
            part_is_set(machine, row, index, _value_of_row(machine, value, node), node)
            return OPAQUE
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
    if isinstance(machine.value(base), Segment):
        slot = isinstance(window, str) or not isinstance(entries[segment.rank + segment.dim], slice)
    else:  # of a column, ``out[s:e, j]``, the dimensions are fewer than the entries
        cut = (entry for entry in entries if isinstance(entry, slice) and not constant_entry(machine, entry))
        slot = isinstance(window, str) or next(cut, None) is None
    new = machine.value(value)
    if slot and isinstance(new, Segment):
        raise Refused(
            "per-document-value", "one slot of a document is set to a value that depends on the document", node
        )
    assign(machine, segment, window, new, node, slot=slot)
    return OPAQUE


def _fill_slot(machine: Machine, slot: Slot, node: fx.Node) -> None:
    """``x[s:e][0][...] = value``."""
    _, index, value = node.args
    if index is not Ellipsis and index != slice(None):
        raise Refused("partial-write", "a part of one slot is assigned", node)
    new = machine.value(value)
    if isinstance(new, Segment):
        raise Refused(
            "per-document-value", "one slot of a document is set to a value that depends on the document", node
        )
    if slot.position is not None and slot.where is None:
        raise Refused("outer-tensor-write", "a slot is written by its number in the row", node)
    assign(machine, slot.segment, slot.where or slot.segment.window, new, node, slot=True)


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


def _value_at_number(machine: Machine, value: Any, node: fx.Node) -> Any:
    """The same, of ``row[at] = value`` where ``at`` has one number: the value may have one entry in front."""
    base, fake = example(node.args[0]), example(value) if isinstance(value, fx.Node) else None
    new = _value_of_row(machine, value, node)
    if not isinstance(fake, torch.Tensor) or fake.dim() < base.dim():
        return new
    if not isinstance(new, Term) or fake.dim() > base.dim():
        raise Refused("no-rule", "a row is set to a value of more dimensions", node)
    return machine.intern(Apply(torch.squeeze, False, (new, 1), (), 0))


def _write_point(machine: Machine, segment: Segment, window: str, value: Any, node: fx.Node) -> None:
    """A slot at a boundary, and at the other one the same: of documents without slots these are slots of others, which
    hold the value already."""
    store = segment.store
    if machine.reach.conditions and machine.reach.slots < 1:
        what = "documents without slots set slots of others, and some documents do not set theirs: skip empty ones too"
        raise Refused("skip-condition", what, node)
    before, store.point_fills = store.point_fills, ()
    if any(type(other) is not type(value) or not (other is value or other == value) for _, other in before):
        raise Refused("point-read", "slots at both boundaries of a document are set to different values", node)
    machine.write(segment, Window(last=1) if window in ("end", "last") else Window(first=1), value, node)
    if machine.reach.slots < 1:
        store.point_fills = (*before, (window, value))


def assign(
    machine: Machine, segment: Segment, window: Window | str, value: Any, node: fx.Node, slot: bool = False
) -> None:
    if isinstance(value, Affine) and value.is_const:
        value = value.const
    value = flattened_in_front(machine, value, segment, node)
    if isinstance(window, str):
        if is_per_document(value):
            if window in ("first", "last"):
                what = f"the {window} slot of a document, which may have none, is set to a value of its own"
                raise Refused("per-document-value", what, node)
            set_slot(machine, segment, window, value, node)
            return
        if isinstance(value, Segment) or value is OPAQUE or (isinstance(value, Outside) and machine.fake(value).dim()):
            raise Refused(
                "per-document-value", "a slot at a boundary is set to a value that depends on the document", node
            )
        _write_point(machine, segment, window, value, node)
        return
    if is_per_document(value):
        if slot:
            set_slot(machine, segment, window, value, node)
            return
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
    if is_per_document(new) and not getattr(example(value), "ndim", 0):
        # A number of the document, where the mask says, as the tensor stores it.
        have = example(value).dtype if isinstance(example(value), torch.Tensor) else None
        new = as_term(machine, value, node)
        new = cast(machine, new, have or as_tensor_dtype(example(value)), example(base).dtype)
        wide = spread(machine, new, (), target.dim, node)
        terms = machine.aligned(mask, target.window, node), wide, machine.read(target, node)
        kept = machine.fresh(Apply(torch.where, False, terms, (), target.dim), target.rank, target.window)
        machine.write(target, target.window, kept, node)
        return
    if (
        isinstance(new, (Segment, *PER_DOCUMENT))
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
