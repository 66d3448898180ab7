"""Rules for reading, writing and reshaping segments: slices, narrow, select, split, views, setitem, fills."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from passes.vectorize_segments.machine import OPAQUE, Machine, Padded, Refused, Segment, example
from passes.vectorize_segments.rules import label, rule
from passes.vectorize_segments.terms import (
    FULL,
    LENGTH,
    Affine,
    Apply,
    Bound,
    Boundaries,
    Invariant,
    Outside,
    Roll,
    Window,
)



@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """One slot of every document, without its packed dimension: it can be filled, not read."""

    segment: Segment
    where: str | None = None
    """"start" or "end" if the slot of an outer tensor was selected by a boundary itself."""


# === Boundary vectors ========================================================================================


def boundary_vector(node: fx.Node) -> tuple[fx.Node, int, bool]:
    """``(root, offset, lengths)``: element i of ``node`` is ``root[i + offset]``; ``lengths`` marks a length vector.

    Looks through slices such as ``cu[1:]`` and through copies that keep every value.
    """
    offset = 0
    while True:
        fake = example(node)
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is None or not isinstance(example(source), torch.Tensor) or example(source).dim() != 1:
            break
        keeps = node.op == "call_method" and node.target in ("clone", "detach", "contiguous", "cpu", "cuda", "long", "to", "int")
        if keeps and fake.dtype in (torch.int64, example(source).dtype):
            node = source
            continue
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], slice):
            cut = node.args[1]
            start_ok = cut.start is None or isinstance(cut.start, int) and cut.start >= 0
            stop_ok = cut.stop is None or isinstance(cut.stop, int) and cut.stop < 0
            if cut.step in (None, 1) and start_ok and stop_ok:
                offset += cut.start or 0
                node = source
                continue
        break
    return node, offset, _lengths_of(node) is not None


def _lengths_of(node: fx.Node) -> fx.Node | None:
    """``cu`` if ``node`` is ``cu[1:] - cu[:-1]``, ``cu.diff()`` or ``torch.diff(cu)``."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name == "diff" and len(node.args) == 1 and not node.kwargs and isinstance(node.args[0], fx.Node):
        return boundary_vector(node.args[0])[0]
    if name in ("sub", "subtract") and len(node.args) == 2 and not node.kwargs:
        a, b = node.args
        if isinstance(a, fx.Node) and isinstance(b, fx.Node) and all(isinstance(example(v), torch.Tensor) and example(v).dim() == 1 for v in (a, b)):
            (high, i, _), (low, j, _) = boundary_vector(a), boundary_vector(b)
            if high is low and i == 1 and j == 0 and _ends_at(b) == -1 and _ends_at(a) is None:
                return high
    return None


def _ends_at(node: fx.Node) -> int | None:
    """The stop of the outermost slice of a boundary vector (None: to the end)."""
    while isinstance(node, fx.Node) and node.args and isinstance(node.args[0], fx.Node):
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], slice):
            return node.args[1].stop
        if node.op != "call_method":
            return None
        node = node.args[0]
    return None


def _element(machine: Machine, vector: fx.Node, position: Affine, node: fx.Node) -> Any:
    """``vector[i + k]`` for the iteration's document ``i``."""
    from passes.vectorize_segments.terms import Index

    at = position.single()
    if at is None or not isinstance(at[0], Index):
        return None
    root, offset, lengths = boundary_vector(vector)
    k = at[1] + offset
    if lengths:
        cu = _lengths_of(root)
        assert cu is not None
        whole = Boundaries(cu)
        return Affine.of(Bound(whole, k + 1)).plus(Affine.of(Bound(whole, k)), -1)
    return Affine.of(Bound(Boundaries(root), k))


# === Indexing ================================================================================================


def _window_of(machine: Machine, start: Any, stop: Any, extent: Any, node: fx.Node) -> Window | None:
    """The document window ``[start, stop)`` of an outer tensor, or None if it does not depend on the document."""
    low = machine.affine(start) if start is not None else Affine.of(0)
    high = machine.affine(stop) if stop is not None else None
    if low is None or (stop is not None and high is None):
        raise Refused("unknown-bounds", "a slice bound is not a boundary of the document", node)
    bounds = [atom for a in (low, high) if a is not None for atom, _ in a.atoms if not isinstance(atom, Invariant)]
    if not bounds:
        return None
    if high is None:
        raise Refused("partial-coverage", "a slice runs from a boundary to the end of the row", node)
    s, e = low.single(), high.single()
    if s is None or e is None or not isinstance(s[0], Bound) or not isinstance(e[0], Bound):
        raise Refused("not-a-segment", "a slice is not cut by two neighbouring boundaries", node)
    (a, front), (b, back) = s, e
    if a.of != b.of or a.k + 1 != b.k or front < 0 or back > 0:
        raise Refused("not-a-segment", "a slice reaches beyond one document", node)
    machine.use((a.of, a.k), node)
    return Window(front, -back)


def _sub_window(machine: Machine, segment: Segment, start: Any, stop: Any, node: fx.Node) -> Window:
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
            raise Refused("unknown-bounds", "slice by a negative constant instead of by the length minus a constant", node)

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


def _expand(index: Any, rank: int, node: fx.Node) -> list[Any]:
    """An index as one entry per dimension of the tensor (no None, no Ellipsis)."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is None for entry in entries):
        raise Refused("no-rule", "indexing a segment with None has no rule; use unsqueeze", node)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if dots:
        at = dots[0]
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    entries += [slice(None)] * (rank - len(entries))
    return entries


def _constant_entry(machine: Machine, entry: Any) -> bool:
    """An index entry for an unpacked dimension: integers and slices that are the same for every document."""
    if isinstance(entry, slice):
        return all(p is None or isinstance(p, int) for p in (entry.start, entry.stop, entry.step))
    return isinstance(entry, int) and not isinstance(entry, bool)


def _locate(machine: Machine, node: fx.Node, base: fx.Node, index: Any) -> tuple[Segment, Window] | Any:
    """What ``base[index]`` refers to: a segment and a window of it, or an integer, or an outside tensor."""
    value = machine.value(base)
    fake = example(base)
    if isinstance(value, Outside) and fake.dim() == 1 and fake.dtype in (torch.int32, torch.int64):
        position = machine.affine(index) if not isinstance(index, (tuple, slice)) else None
        if position is not None and not position.is_const:
            element = _element(machine, base, position, node)
            if element is not None:
                return element
    entries = _expand(index, fake.dim(), node)
    if isinstance(value, Padded):
        return _sliced_padding(machine, value, entries, node)
    if isinstance(value, Segment):
        at = value.rank + value.dim
        packed = entries[at]
        rest = [e for d, e in enumerate(entries) if d != at]
        if isinstance(packed, slice):
            if packed.step not in (None, 1):
                raise Refused("strided-slice", "a slice with a step over documents", node)
            window = value.window if packed == slice(None) else _sub_window(machine, value, packed.start, packed.stop, node)
        else:
            window = _point(machine, value, packed, node)
        if any(e != slice(None) for e in rest):
            return value, window, entries
        return value, window
    if not isinstance(value, Outside) or value.node is None:
        raise Refused("no-rule", f"{label(node)} of this value has no rule", node)
    packed_at, window = None, None
    for d, entry in enumerate(entries):
        if isinstance(entry, slice):
            if entry.step not in (None, 1):
                if not _constant_entry(machine, entry):
                    raise Refused("strided-slice", "a slice with a step over documents", node)
                continue
            found = _window_of(machine, entry.start, entry.stop, fake.shape[d], node)
            if found is not None:
                if packed_at is not None:
                    raise Refused("two-packed-dims", "two dimensions are cut by boundaries in one index", node)
                packed_at, window = d, found
        elif not _constant_entry(machine, entry):
            found = _outer_point(machine, entry, node)
            if packed_at is not None:
                raise Refused("two-packed-dims", "two dimensions are cut by boundaries in one index", node)
            packed_at, window = d, found
    if packed_at is None or window is None:
        if all(_constant_entry(machine, e) for e in entries):
            return None
        raise Refused("no-rule", "this index has no rule", node)
    rest = [e if d != packed_at else slice(None) for d, e in enumerate(entries)]
    if not all(_constant_entry(machine, e) for e in rest):
        raise Refused("no-rule", "this index has no rule", node)
    kept = [d for d, e in enumerate(rest) if isinstance(e, slice)]
    rank, dim = len(kept), kept.index(packed_at) - len(kept)
    frozen = () if all(e == slice(None) for e in rest) else tuple(_plain(e) for e in rest)
    return machine.outer_segment(value.node, frozen, dim, window if isinstance(window, Window) else FULL, rank), window


def _sliced_padding(machine: Machine, padded: Padded, entries: list[Any], node: fx.Node) -> tuple[Segment, Window]:
    """``pad(seg, (0, k))[k:]`` and ``pad(seg, (k, 0))[:-k]``: a shift with a fill, exactly as long as the document."""
    segment = padded.segment
    at = segment.rank + segment.dim
    k = padded.right or padded.left
    cut = entries[at]
    if any(e != slice(None) for d, e in enumerate(entries) if d != at) or not isinstance(cut, slice) or cut.step not in (None, 1):
        raise Refused("no-rule", "this part of a padded document has no rule", node)
    left = (cut.start, cut.stop) == (k, None) and padded.right == k
    right = cut.start in (None, 0) and cut.stop == -k and padded.left == k
    if not (left or right):
        raise Refused("no-rule", "this part of a padded document has no rule", node)
    term = Roll(machine.read(segment, node), -k if left else k, padded.fill, segment.dim)
    return machine.fresh(term, segment.rank), FULL


def _plain(entry: Any) -> Any:
    from passes.vectorize_segments.machine import frozen_args

    return frozen_args(entry)


def _point(machine: Machine, segment: Segment, entry: Any, node: fx.Node) -> Window:
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


def _outer_point(machine: Machine, entry: Any, node: fx.Node) -> str:
    """"start" or "end" for an index ``cu[i]`` or ``cu[i + 1] - 1`` into an outer tensor."""
    position = machine.affine(entry)
    single = position.single() if position is not None else None
    if single is None or not isinstance(single[0], Bound):
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


@rule("getitem")
def _getitem(machine: Machine, node: fx.Node) -> Any:
    base, index = node.args[0], node.args[1]
    if not isinstance(base, fx.Node):
        raise Refused("no-rule", "this index has no rule", node)
    found = _locate(machine, node, base, index)
    if isinstance(found, Affine):
        return found
    if found is None:
        return machine.computed((node.target, False, (machine.value(base), _frozen(index)), ()), example(node))
    segment, window = found[0], found[1]
    if isinstance(window, str):
        raise Refused("per-document-value", "one value per document is read; there is no rule for it yet", node)
    if len(found) == 3:
        if window != segment.window:
            raise Refused("no-rule", "slice the packed dimension and the others in two steps", node)
        entries = found[2]
        kept = [d for d, e in enumerate(entries) if isinstance(e, slice)]
        if not all(_constant_entry(machine, e) for e in entries):
            raise Refused("no-rule", "this index has no rule", node)
        at = segment.rank + segment.dim
        dim = kept.index(at) - len(kept)
        import operator

        term = Apply(operator.getitem, False, (machine.read(segment, node), _frozen(tuple(entries))), (), dim)
        return machine.view(term, example(node).dim(), segment)
    part = Segment(segment.store, window, segment.rank)
    return part if example(node).dim() == segment.rank else Slot(part)


def _frozen(index: Any) -> Any:
    from passes.vectorize_segments.machine import frozen_args

    return frozen_args(index)


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
            raise Refused("per-document-value", "one slot of a document is set to a value that depends on the document", node)
        _assign(machine, slot.segment, slot.where or slot.segment.window, new, node, slot=True)
        return OPAQUE
    found = _locate(machine, node, base, index)
    if found is None or isinstance(found, Affine):
        raise Refused("outer-tensor-write", "the loop writes a part of an outer tensor that is not the document's own", node)
    if len(found) == 3:
        raise Refused("partial-write", "only a part of a segment's other dimensions is assigned", node)
    segment, window = found
    entries = _expand(index, example(base).dim(), node)
    slot = not isinstance(entries[example(base).dim() + segment.dim], slice) if not isinstance(window, str) else True
    new = machine.value(value)
    if slot and isinstance(new, Segment):
        raise Refused("per-document-value", "one slot of a document is set to a value that depends on the document", node)
    _assign(machine, segment, window, new, node, slot=slot)
    return OPAQUE


def _assign(machine: Machine, segment: Segment, window: Window | str, value: Any, node: fx.Node, slot: bool = False) -> None:
    if isinstance(window, str):
        if isinstance(value, (Segment, Affine)) or value is OPAQUE or (isinstance(value, Outside) and machine.fake(value).dim()):
            raise Refused("per-document-value", "a slot at a boundary is set to a value that depends on the document", node)
        machine.write(segment, Window(last=1) if window == "end" else Window(first=1), value, node)
        if not machine.skips_empty:
            segment.store.point_fill = (window, value)
        return
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
        raise Refused("wrapping-slice", "a scalar is assigned to a slice that ends before the boundary; fill the segment instead", node)
    machine.write(segment, window, value, node)


def _masked(machine: Machine, node: fx.Node, base: fx.Node, mask: Segment, value: Any) -> None:
    """``segment[mask] = scalar``."""
    target = machine.value(base)
    if not isinstance(target, Segment) or target.dim != mask.dim or mask.rank != target.rank or example(node.args[1]).dtype != torch.bool:  # type: ignore[arg-type]
        raise Refused("no-rule", "this masked assignment has no rule", node)
    new = machine.value(value)
    if isinstance(new, (Segment, Affine)) or new is OPAQUE or (isinstance(new, Outside) and machine.fake(new).dim()):
        raise Refused("no-rule", "a masked assignment of more than one value has no rule", node)
    term = Apply("masked_fill", True, (machine.read(target, node), machine.aligned(mask, target.window, node), new), (), target.dim)
    machine.write(target, target.window, machine.fresh(term, target.rank, target.window), node)


def _target(machine: Machine, node: fx.Node) -> Segment:
    target = machine.value(node.args[0])
    if isinstance(target, Slot):
        if target.where is not None:
            raise Refused("no-rule", f"{label(node)} on a slot at a boundary has no rule; assign it", node)
        target = target.segment
    if not isinstance(target, Segment):
        raise Refused("outer-tensor-write", f"{label(node)} changes a tensor from outside the loop", node)
    if target.store.outer is not None and target.window.back:
        raise Refused("wrapping-slice", "an in-place op on a slice that ends before the boundary has no rule", node)
    return target


@rule("fill_", "zero_")
def _fill(machine: Machine, node: fx.Node) -> Any:
    target = _target(machine, node)
    value = machine.value(node.args[1]) if len(node.args) > 1 else node.kwargs.get("value", 0)
    if isinstance(value, Segment):
        raise Refused("no-rule", "fill_ with a per-document value has no rule", node)
    _assign(machine, target, target.window, value, node, slot=isinstance(machine.value(node.args[0]), Slot))
    return target


@rule("copy_")
def _copy(machine: Machine, node: fx.Node) -> Any:
    target = _target(machine, node)
    value = machine.value(node.args[1])
    if isinstance(value, Segment) and isinstance(machine.value(node.args[0]), Slot):
        raise Refused("per-document-value", "copy_ of a segment into one slot has no rule", node)
    machine.write(target, target.window, value, node)
    return target


# === Other ways to cut a segment =============================================================================


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """A positional-or-keyword argument."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


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
    s, e = low.single(), high.single()
    if s is None or e is None or not isinstance(s[0], Bound) or not isinstance(e[0], Bound) or s[0].of != e[0].of:
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
    if isinstance(value, Outside) and rank == 1 and isinstance(base, fx.Node):
        position = machine.affine(index)
        if position is not None and not position.is_const:
            element = _element(machine, base, position, node)
            if element is not None:
                return element
    if isinstance(value, Segment):
        if at == value.rank + value.dim:
            return Slot(Segment(value.store, _point(machine, value, index, node), value.rank))
        if isinstance(index, int):
            dim_after = value.dim + 1 if at > value.rank + value.dim else value.dim
            term = Apply(node.target, node.op == "call_method", (machine.read(value, node), dim - rank if dim >= 0 else dim, index), (), dim_after)
            return machine.view(term, rank - 1, value)
    if isinstance(value, Outside) and isinstance(index, int):
        return machine.computed((node.target, node.op == "call_method", (value, dim, index), ()), example(node))
    if isinstance(value, Outside) and value.node is not None:
        where = _outer_point(machine, index, node)
        return Slot(machine.outer_segment(value.node, (), at - rank, FULL, rank), where)
    raise Refused("no-rule", "select with this index has no rule", node)


@rule("split_get")
def _split_get(machine: Machine, node: fx.Node) -> Any:
    x, lengths, index, dim = node.args
    assert isinstance(x, fx.Node) and isinstance(lengths, fx.Node) and isinstance(dim, int)
    from passes.vectorize_segments.terms import Index

    position = machine.affine(index)
    at = position.single() if position is not None else None
    root, offset, _ = boundary_vector(lengths)
    value = machine.value(x)
    if at is None or not isinstance(at[0], Index) or at[1] or offset or not isinstance(value, Outside) or value.node is None:
        raise Refused("no-rule", "this split has no rule", node)
    rank = example(x).dim()
    cu = _lengths_of(root)
    machine.use((Boundaries(cu), 0) if cu is not None else (Boundaries(root, lengths=True), 0), node)
    segment = machine.outer_segment(value.node, (), dim % rank - rank, FULL, rank)
    if x not in machine.split_of:
        machine.split_of.append(x)
    return segment


@rule("list_get")
def _list_get(machine: Machine, node: fx.Node) -> Any:
    raise Refused("list-use", "looping over a list that an earlier loop over documents filled has no rule", node)


# === Sizes and views =========================================================================================


@rule("size")
def _size(machine: Machine, node: fx.Node) -> Any:
    value, dim = machine.value(node.args[0]), argument(node, 1, "dim")
    if isinstance(value, Segment) and isinstance(dim, int) and value.window == FULL and value.store.exact:
        if dim % value.rank == value.rank + value.dim and machine.boundaries is not None:
            of, k = machine.boundaries
            return Affine.of(Bound(of, k + 1)).plus(Affine.of(Bound(of, k)), -1)
    fake = example(node)
    return Affine.of(fake) if isinstance(fake, int) and not isinstance(fake, bool) else OPAQUE


def _is_length(machine: Machine, arg: Any) -> bool:
    value = machine.affine(arg)
    length = value.length_of() if value is not None and not value.is_const else None
    return length is not None and length[1] == 0 and machine.boundaries is not None and length[0] == machine.boundaries[0]


def shape_with_length(machine: Machine, sizes: Any, node: fx.Node) -> tuple[tuple[Any, ...], int]:
    """``(sizes with LENGTH in place of the document's length, position of it)``."""
    out, at = [], None
    for d, size in enumerate(sizes):
        if isinstance(size, int):
            out.append(size)
        elif _is_length(machine, size):
            if at is not None:
                raise Refused("no-rule", f"{label(node)} with two packed dimensions has no rule", node)
            out.append(LENGTH)
            at = d
        else:
            value = machine.affine(size)
            single = value.single() if value is not None else None
            if single is None or not isinstance(single[0], Invariant) or single[1]:
                raise Refused("no-rule", f"{label(node)} with a size that is not understood has no rule", node)
            out.append(Outside(single[0].node))
    if at is None:
        raise Refused("no-rule", f"{label(node)} has no dimension of the document's length", node)
    return tuple(out), at - len(out)


@rule("reshape")
def _reshape(machine: Machine, node: fx.Node) -> Any:
    """``view`` / ``reshape`` that keeps the packed dimension whole."""
    value = machine.value(node.args[0])
    if not isinstance(value, Segment):
        from passes.vectorize_segments.rules import outside_call

        return outside_call(machine, node)
    sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if node.kwargs or any(isinstance(s, torch.dtype) for s in sizes) or value.window != FULL:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    before, after = example(node.args[0]), example(node)  # type: ignore[arg-type]
    at = value.rank + value.dim
    length = before.shape[at]
    # The packed dimension stays whole if the dimensions on both of its sides keep their products.
    candidates = [d for d in range(after.dim()) if _same(after.shape[d], length) and _same(_product(after.shape[:d]), _product(before.shape[:at]))]
    if not candidates or any(isinstance(s, int) and s == -1 for s in sizes) and len(candidates) != 1:
        raise Refused("no-rule", f"{label(node)} merges or splits the packed dimension", node)
    to = candidates[0]
    new = tuple(LENGTH if d == to else _static(after.shape[d], node) for d in range(after.dim()))
    term = Apply("reshape", True, (machine.read(value, node), *new), (), to - after.dim())
    return machine.view(term, after.dim(), value)


def _static(size: Any, node: fx.Node) -> int:
    if isinstance(size, int):
        return size
    raise Refused("no-rule", f"{label(node)} with a dynamic size beside the packed one has no rule", node)


def _same(a: Any, b: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def _product(sizes: Any) -> Any:
    out: Any = 1
    for s in sizes:
        out = out * s
    return out


def _dims(machine: Machine, node: fx.Node, rank_in: int) -> list[int] | None:
    """For a pure permutation or (un)squeeze: source dimension of every result dimension (-1: new)."""
    from passes.vectorize_segments.rules import name_of

    name = name_of(node)
    a = node.args[1:]
    order: list[int] = list(range(rank_in))
    if name in ("transpose", "swapaxes"):
        i, j = (int(argument(node, k, n)) % rank_in for k, n in ((1, "dim0"), (2, "dim1")))
        order[i], order[j] = order[j], order[i]
    elif name == "permute":
        dims = a[0] if len(a) == 1 and isinstance(a[0], (tuple, list)) else a
        order = [int(d) % rank_in for d in dims]  # type: ignore[arg-type]
    elif name == "unsqueeze":
        order.insert(int(argument(node, 1, "dim")) % (rank_in + 1), -1)
    elif name == "squeeze" and len(a) == 1 and isinstance(a[0], int):
        size = example(node.args[0]).shape[a[0]]  # type: ignore[arg-type]
        if isinstance(size, int) and size == 1:
            order.pop(a[0] % rank_in)
        elif not isinstance(size, int):
            return None
    else:
        return None
    return order


@rule("transpose", "swapaxes", "permute", "unsqueeze", "squeeze")
def _permute(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if not isinstance(value, Segment):
        from passes.vectorize_segments.rules import outside_call

        return outside_call(machine, node)
    order = _dims(machine, node, value.rank)
    at = value.rank + value.dim
    if order is None or at not in order or node.kwargs and any(k not in ("dim", "dim0", "dim1") for k in node.kwargs):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    dim = order.index(at) - len(order)
    kwargs = tuple(sorted(node.kwargs.items()))
    term = Apply(node.target, node.op == "call_method", (machine.read(value, node), *_frozen(node.args[1:])), kwargs, dim)
    return machine.view(term, len(order), value)


