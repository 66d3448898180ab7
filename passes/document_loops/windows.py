"""What an index, into an outer tensor or into a segment, refers to: a document, a window of it, or one slot."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.boundaries import element, running_sums
from passes.document_loops.elsewhere import anywhere, elsewhere
from passes.document_loops.indices import constant_entry, expand_index, through_constants
from passes.document_loops.inner import inner, other_documents
from passes.document_loops.integers import FULL, Affine, Bound, Index, Invariant, Window
from passes.document_loops.machine import (
    Cell,
    Document,
    Machine,
    Padded,
    Segment,
    Slot,
    selection,
)
from passes.document_loops.op_names import label
from passes.document_loops.parts import Longer, between
from passes.document_loops.terms import DocRow, Outside, Roll
from passes.refused import Refused


def window_of(
    machine: Machine, start: Any, stop: Any, node: fx.Node, edges: bool = False, squares: bool = False
) -> Any:
    """The document window ``[start, stop)`` of an outer tensor, or None if it does not depend on the document.

    ``edges``: the one slot at a boundary, which is another document's if this one has none, is "first" or "last".
    ``squares``: nothing but squares is cut, so that documents lie nowhere else (`elsewhere`)."""
    low = machine.affine(start) if start is not None else Affine.of(0)
    high = machine.affine(stop) if stop is not None else None
    if low is None or (stop is not None and high is None):
        raise Refused("unknown-bounds", "a slice bound is not a boundary of the document", node)
    bounds = [atom for a in (low, high) if a is not None for atom, _ in a.atoms if not isinstance(atom, Invariant)]
    if not bounds:
        return None
    if high is None:
        raise Refused("partial-coverage", "a slice runs from a boundary to the end of the row", node)
    s, e = low.bound(), high.bound()
    if s is None or e is None:
        raise Refused("not-a-segment", "a slice is not cut by two neighbouring boundaries", node)
    (a, front), (b, back) = s, e
    if (a.of, a.k) == (b.of, b.k):
        return _at_one_end(machine, a, front, back, node, edges)
    summed = running_sums(a, b, node) if squares and not front and not back else None
    if summed is not None:
        machine.use((summed, 0), node)
        return FULL
    if a.of != b.of or a.k + 1 != b.k or front < 0 or back > 0:
        raise Refused("not-a-segment", "a slice reaches beyond one document", node)
    machine.use((a.of, a.k), node)
    if -back > machine.behind_end[0]:
        machine.behind_end = -back, machine.reach
    return Window(front, -back)


def _at_one_end(machine: Machine, bound: Bound, front: int, back: int, node: fx.Node, edges: bool) -> Window | str:
    """``x[e - n : e]`` and ``x[s : s + n]``, behind a ``continue`` for documents that are shorter."""
    of, first = machine.boundaries or (bound.of, bound.k if back else bound.k - 1)
    last = bound.k == first + 1
    count = -front if last else back
    if bound.of != of or bound.k not in (first, first + 1) or (back if last else front) or count < 1:
        raise Refused("not-a-segment", "a slice reaches beyond one document", node)
    if count == 1 and not machine.reach.slots and edges:
        machine.use((of, first), node)
        return "last" if last else "first"
    if count > machine.reach.slots:
        what = f"a slice of {count} slots reaches beyond a document that is shorter, if none is skipped before"
        raise Refused("not-a-segment", what, node)
    return Window(last=count) if last else Window(first=count)


def sub_window(machine: Machine, segment: Segment, start: Any, stop: Any, node: fx.Node) -> Window:
    """Window of ``segment[start:stop]`` along the packed dimension."""
    have = segment.window
    low = machine.affine(start) if start is not None else Affine.of(0)
    high = machine.affine(stop) if stop is not None else None
    if low is None or (stop is not None and high is None):
        raise Refused("unknown-bounds", "a slice of a segment has a bound that is not understood", node)

    def from_end(v: Affine) -> int | None:
        """k for the position ``length + k`` (k <= 0) of a full segment."""
        if v.is_const:
            return v.const if v.const < 0 else None
        length = v.length_of()
        if length is not None and have == FULL and length[1] <= 0 and machine.boundaries is not None:
            if length[0] == machine.boundaries[0]:
                return length[1]
        raise Refused("unknown-bounds", "a slice of a segment has a bound that is not understood", node)

    def length_minus(k: int) -> None:
        """``length - k`` as a slice bound is negative, and counts from the end again, for documents shorter than k."""
        if k < -2:
            raise Refused(
                "unknown-bounds", "slice by a negative constant instead of by the length minus a constant", node
            )

    lo = low.const if low.is_const and low.const >= 0 else None
    lo_end = from_end(low) if lo is None else None
    if lo_end is not None and not low.is_const:
        length_minus(lo_end)
    if high is None:
        if lo is not None:
            if have.plain:
                return Window(have.front + lo, have.back)
        elif have == FULL:
            return FULL if lo_end == 0 else Window(last=-lo_end)  # type: ignore[operator]
    else:
        hi = high.const if high.is_const and high.const >= 0 else None
        hi_end = from_end(high) if hi is None else None
        if hi_end is not None and not high.is_const:
            length_minus(hi_end)
        if hi_end is not None and lo is not None and have.plain:
            return Window(have.front + lo, have.back - hi_end)
        if hi is not None and lo == 0 and have == FULL:
            return Window(first=hi)
    raise Refused("unknown-bounds", f"this part of a document has no rule ({label(node)})", node)


def locate(machine: Machine, node: fx.Node, base: fx.Node, index: Any) -> Any:
    """What ``base[index]`` refers to: a segment and a window of it, or an integer, or an outside tensor."""
    value = machine.value(base)
    fake = example(base)
    if isinstance(value, Outside) and fake.dim() == 1 and fake.dtype in (torch.int32, torch.int64):
        position = machine.affine(index) if not isinstance(index, (tuple, slice)) else None
        if position is not None and not position.is_const:
            entry = element(machine, base, position, node)
            if entry is not None:
                return entry
    entries = expand_index(index, fake.dim(), node)
    if isinstance(value, Padded):
        return _sliced_padding(machine, value, entries, node)
    if isinstance(value, Longer):
        return _cut_to_length(machine, value, entries, node)
    if isinstance(value, Segment):
        return _of_segment(machine, value, entries, node)
    if isinstance(value, Outside) and value.node is None:
        through = through_constants(machine, base, entries)
        if through is not None:
            return _of_outside(machine, *through, node)
    if not isinstance(value, Outside) or value.node is None:
        raise Refused("no-rule", f"{label(node)} of this value has no rule", node)
    return _of_outside(machine, value.node, entries, node)


def _of_outside(machine: Machine, outer: fx.Node, entries: list[Any], node: fx.Node) -> Any:
    """What an index into a tensor from outside the loop refers to; None if all documents mean the same."""
    one_of_several = inner(machine, outer, entries, between=True)
    if one_of_several is not None:
        return one_of_several
    moved = elsewhere(machine, outer, entries)
    if moved is not None:
        return moved, moved.window
    before = machine.state()
    try:
        return _of_row(machine, outer, entries, node)
    except Refused as refused:
        machine.restore(before)
        part = inner(machine, outer, entries, between=False)
        if part is not None:
            return part
        moved = anywhere(machine, outer, entries)
        if moved is None:
            raise other_documents(machine, entries, refused) from None
        machine.instead = machine.instead or refused
        return moved, moved.window


def _of_segment(machine: Machine, value: Segment, entries: list[Any], node: fx.Node) -> Any:
    """What an index into a segment refers to."""
    at = value.rank + value.dim
    packed = entries[at]
    if isinstance(packed, slice):
        if packed.step not in (None, 1):
            raise Refused("strided-slice", "a slice with a step over documents", node)
        whole = packed == slice(None)
        try:
            window = value.window if whole else sub_window(machine, value, packed.start, packed.stop, node)
        except Refused:
            numbers = between(machine, value, packed)
            if numbers is None:
                raise
            window = numbers
    else:
        window = point(machine, value, packed, node)
    if any(e != slice(None) for d, e in enumerate(entries) if d != at):
        return value, window, entries
    return value, window


def _of_row(machine: Machine, outer: fx.Node, entries: list[Any], node: fx.Node) -> Any:
    """What an index into a tensor from outside the loop refers to; None if all documents mean the same."""
    packed_at: int | None = None
    where: Window | str | None = None
    for d, entry in enumerate(entries):
        if isinstance(entry, slice):
            if entry.step not in (None, 1):
                if not constant_entry(machine, entry):
                    raise Refused("strided-slice", "a slice with a step over documents", node)
                continue
            cut = window_of(machine, entry.start, entry.stop, node, edges=node.target is operator.setitem)
            if cut is not None:
                if packed_at is not None:
                    raise Refused("two-packed-dims", "two dimensions are cut by boundaries in one index", node)
                packed_at, where = d, cut
        elif not constant_entry(machine, entry):
            if packed_at is not None:
                raise Refused("two-packed-dims", "two dimensions are cut by boundaries in one index", node)
            packed_at, where = d, outer_point(machine, entry, node)
    if packed_at is None or where is None:
        if all(constant_entry(machine, e) for e in entries):
            return None
        raise Refused("no-rule", "this index has no rule", node)
    if not all(constant_entry(machine, e) for d, e in enumerate(entries) if d != packed_at):
        raise Refused("no-rule", "this index has no rule", node)
    frozen, (dim,), rank = selection(entries, packed_at)
    return machine.outer_segment(outer, frozen, dim, where if isinstance(where, Window) else FULL, rank), where


def _sliced_padding(machine: Machine, padded: Padded, entries: list[Any], node: fx.Node) -> tuple[Segment, Window]:
    """``pad(seg, (2, 0))[1:-1]``: as many slots as the document has, a shift with a fill."""
    segment = padded.segment
    at = segment.rank + segment.dim
    cut = entries[at]
    others = all(e == slice(None) for d, e in enumerate(entries) if d != at)
    front, behind = _cut_off(machine, cut, padded.left + padded.right) if isinstance(cut, slice) else (None, None)
    if not others or front is None or behind is None or front + behind != padded.left + padded.right:
        raise Refused("no-rule", "this part of a padded document has no rule", node)
    term, shift = machine.read(segment, node), padded.left - front
    moved = Roll(term, shift, padded.fill, segment.dim) if shift else term
    return machine.view(moved, segment.rank, segment), FULL


def _cut_off(machine: Machine, cut: slice, more: int) -> tuple[int | None, int | None]:
    """How many slots a slice leaves out in front and behind of a document with ``more`` slots; None if not known."""
    start, stop = 0 if cut.start is None else cut.start, cut.stop
    if type(start) is not int or start < 0 or cut.step not in (None, 1):
        return None, None
    if stop is None or type(stop) is int:
        return start, 0 if stop is None else -stop if stop < 0 else None
    end = machine.affine(stop)
    length = end.length_of() if end is not None and not end.is_const else None
    own = length is not None and machine.boundaries is not None and length[0] == machine.boundaries[0]
    return start, more - length[1] if own and length is not None else None


def _cut_to_length(machine: Machine, longer: Longer, entries: list[Any], node: fx.Node) -> tuple[Segment, Window]:
    """``longer[..., :n]`` for a document of n slots, and ``longer[..., :-k]`` where it has k more."""
    segment = longer.segment
    at = segment.rank + segment.dim
    cut = entries[at]
    others = all(e == slice(None) for d, e in enumerate(entries) if d != at)
    if not others or not isinstance(cut, slice) or cut.start not in (None, 0) or cut.step not in (None, 1):
        raise Refused("no-rule", "this part of a convolution of a document has no rule", node)
    stop = machine.affine(cut.stop) if cut.stop is not None else None
    length = stop.length_of() if stop is not None and not stop.is_const else None
    own = length is not None and machine.boundaries is not None and length == (machine.boundaries[0], 0)
    if not own and not (stop is not None and stop.is_const and stop.const == -longer.behind):
        raise Refused("no-rule", "this part of a convolution of a document has no rule", node)
    return segment, FULL


def point(machine: Machine, segment: Segment, entry: Any, node: fx.Node) -> Window:
    """The window that ends (or starts) with the slot ``segment[k]``; the slot itself is its first (last) one."""
    position = machine.affine(entry)
    if position is None or segment.window != FULL:
        raise Refused("no-rule", "this index into a document has no rule", node)
    if not position.is_const:
        length = position.length_of()
        if length is None or machine.boundaries is None or length[0] != machine.boundaries[0] or length[1] >= 0:
            raise Refused("no-rule", "this index into a document has no rule", node)
        position = Affine.of(length[1])
    # Eager raises for a document without that slot.
    return Window(last=-position.const) if position.const < 0 else Window(first=position.const + 1)


def outer_point(machine: Machine, entry: Any, node: fx.Node) -> str:
    """ "start" or "end" for an index ``cu[i]`` or ``cu[i + 1] - 1`` into an outer tensor."""
    position = machine.affine(entry)
    single = position.bound() if position is not None else None
    if single is None:
        raise Refused("index-as-number", "a tensor is indexed by something else than a boundary of the document", node)
    bound, const = single
    if machine.boundaries is None:
        machine.use((bound.of, bound.k + const), node)  # a wrong guess is refused at the first real segment
    of, k = machine.boundaries
    if bound.of == of and bound.k == k and const == 0:
        return "start"
    if bound.of == of and bound.k == k + 1 and const == -1:
        return "end"
    raise Refused("not-a-segment", "a slot outside the document is used", node)


def _single_entry(
    machine: Machine, base: fx.Node, index: Any, node: fx.Node
) -> tuple[fx.Node, int, Affine, list[Any]] | None:
    """``(tensor, position of the entry, its integer, all entries)`` of an index by one number of the document."""
    fake = example(base)
    if not isinstance(machine.value(base), Outside) or not isinstance(fake, torch.Tensor):
        return None
    if isinstance(index, fx.Node) or not isinstance(index, tuple):
        index = (index,)
    if any(e is None for e in index):
        return None
    selected = through_constants(machine, base, expand_index(index, fake.dim(), node))
    if selected is None:
        return None
    found = None
    for d, entry in enumerate(selected[1]):
        if constant_entry(machine, entry):
            continue
        position = machine.affine(entry) if isinstance(entry, fx.Node) else None
        if position is None or position.is_const or found is not None:
            return None
        found = d, position
    return (selected[0], *found, selected[1]) if found is not None else None


def outer_row(machine: Machine, base: fx.Node, index: Any, node: fx.Node) -> Document | None:
    """``table[i]`` of an outer tensor with one row per document; reading a vector of integers gives an integer."""
    found = _single_entry(machine, base, index, node)
    if found is None:
        return None
    base, at, position, entries = found
    single = position.single()
    if single is None or not isinstance(single[0], Index) or single[1] < 0:
        return None
    fake = example(base)
    integers = fake.dim() == 1 and fake.dtype in (torch.int32, torch.int64)
    if integers and node.target is not operator.setitem and not _only_written(node):
        return None
    frozen, (dim,), _ = selection(entries, at)
    key = (base, frozen, dim, single[1])
    if key not in machine.rows:
        row = machine.intern(DocRow(*key))
        machine.rows[key] = Cell(row, outer=row)
    return Document(machine.rows[key])


def _only_written(node: fx.Node) -> bool:
    """Is this element of a tensor only assigned to?"""
    return all(user.target is operator.setitem and user.args[0] is node for user in node.users)


def outer_slot(machine: Machine, base: fx.Node, index: Any, node: fx.Node) -> Slot | None:
    """``x[cu[i] + k]`` or ``x[cu[i + 1] - k]``: one slot of an outer row."""
    found = _single_entry(machine, base, index, node)
    if found is None:
        return None
    base, at, position, entries = found
    bound = position.bound()
    if bound is None:
        return None
    frozen, (dim,), rank = selection(entries, at)
    if machine.boundaries is None:
        machine.use((bound[0].of, bound[0].k + (-1 if bound[1] < 0 else 0)), node)
    of, k = machine.boundaries
    if bound[0].of != of or bound[0].k - k not in (0, 1):
        return None
    where = {(k, 0): "start", (k + 1, -1): "end"}.get((bound[0].k, bound[1]))
    segment = machine.outer_segment(base, frozen, dim, FULL, rank)
    return Slot(segment, where, position)
