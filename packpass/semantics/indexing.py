"""Operations that read a part of an axis: indices, slices, splits, shifts along an axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from packpass._compat import statically_known_true
from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    FLIPPED,
    KEPT,
    ONE,
    UNKNOWN,
    Axis,
    Cut,
    Entry,
    How,
    Looked,
    Meaning,
    Relating,
    Rolled,
    Selected,
    Traits,
    axis_index,
    axis_indices,
    is_one,
    meaning,
    same_size,
)

FAMILY = "indexing"
TURNING = ("flip", "fliplr", "flipud")
"""What turns rows round."""
BINNING = frozenset({"index_add", "index_reduce", "scatter_add", "scatter_reduce"})
"""What puts slots together that have the same number."""
SPLITTING = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind"})
"""Parts of one axis, side by side."""
TAKING = frozenset({"getitem", "select", "narrow"})
"""What gives some of the entries that it got, as they are."""
_ZERO = Traits(zero_gradient=frozenset({"input"}))
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


# === One reader of indices ===================================================================================


@dataclasses.dataclass(frozen=True)
class Item:
    """One item of an index, with the axis of the base that it is for (None: it makes a new one)."""

    item: Any
    axis: int | None


def entries_of(index: Any, rank: int) -> list[Item] | None:
    """The items of an index of a tensor of that rank: integers, slices, None, tensors of integers, with ``Ellipsis``
    and what is left out spelled as full slices. None for anything else (masks take several axes)."""
    items = list(index) if isinstance(index, tuple) else [index]
    used = 0
    for item in items:
        value = example(item)
        if item is None or item is Ellipsis:
            continue
        if isinstance(value, torch.Tensor):
            if value.dtype not in _INTEGERS:
                return None
        elif isinstance(value, bool) or not isinstance(value, (int, torch.SymInt, slice)):
            return None
        used += 1
    if used > rank:
        return None
    where = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(where) > 1:
        return None
    at = where[0] if where else len(items)
    full = [slice(None)] * (rank - used)
    found, axis = [], 0
    for item in [*items[:at], *full, *items[at + 1 :]]:
        found.append(Item(item, None if item is None else axis))
        axis += item is not None
    return found


def cut(item: slice, size: Any) -> tuple[Any, Any, int] | None:
    """``(start, size, step)`` of a slice of an axis; None where it cannot be told."""
    step = 1 if item.step is None else item.step
    start, stop = example(item.start), example(item.stop)
    if not isinstance(step, int) or step < 1:
        return None
    start = _bound(start, size, 0)
    stop = _bound(stop, size, size)
    return None if start is None or stop is None else (start, stop, step)


def _bound(at: Any, size: Any, default: Any) -> Any:
    """A bound of a slice as torch reads it: negative from the end, and never outside."""
    if at is None:
        return default
    if isinstance(at, torch.Tensor):
        return None
    if isinstance(at, int) and isinstance(size, int):
        return max(0, at + size) if at < 0 else min(at, size)
    if statically_known_true(at < 0):
        return at + size if statically_known_true(at + size >= 0) else None
    if statically_known_true(at >= 0):
        # Past the end it would be the end; where it starts is all that matters, and nothing is read past the end.
        return at
    return None


def selection(call: Call, same: Callable[[Any, Any], bool] = same_size) -> tuple[int, int] | None:
    """``(operand, condition)`` of ``x[condition]`` and ``masked_select(x, condition)``, by their places among the
    operands: the slots of the operand, in order, at which the condition holds. The condition has the operand's first
    axes, or all of them. ``same``: are two sizes equal?"""
    if call.several or len(call.operands) != 2 or call.op not in ("getitem", "masked_select"):
        return None
    argument = "index" if call.op == "getitem" else "mask"
    found = {o.argument: k for k, o in enumerate(call.operands)}
    if "input" not in found or argument not in found:
        return None
    x, mask = (call.operands[found[name]] for name in ("input", argument))
    index = call.arguments[argument]
    alone = not isinstance(index, tuple) or len(index) == 1
    if not alone or mask.value.dtype != torch.bool or not 0 < mask.rank <= x.rank:
        return None
    if call.op == "masked_select" and mask.rank != x.rank:
        return None
    fits = all(same(a, b) for a, b in zip(mask.value.shape, x.value.shape, strict=False))
    return (found["input"], found[argument]) if fits else None


def _read(call: Call) -> Meaning | None:
    """``x[...]``: each axis is kept, cut, selected, or looked up by a tensor of integers."""
    if not isinstance(example(call.arguments["input"]), torch.Tensor):
        return _item(call)
    base = call.operands[0].value
    entries = entries_of(call.arguments["index"], base.dim())
    if entries is None or not isinstance(call.results[0], torch.Tensor):
        return None
    relating = Relating(call)
    axes = index_axes(relating, entries, base, list(call.results[0].shape))
    if axes is None:
        return None
    relating.axes[0] = axes
    looks = frozenset({"index"}) if any(isinstance(a.how, Looked) for a in axes) else frozenset()
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input"}), raises=looks))


def index_axes(relating: Relating, entries: Sequence[Item], base: Any, shape: list[Any]) -> tuple[Axis, ...] | None:
    """How an index reads the axes of its base; sets the result's axes and those of the tensors in the index.

    Integers take their axis away first. What tensors pick stands where they do, or in front if they do not stand
    together.
    """
    given = [k for k, o in enumerate(relating.call.operands) if o.argument == "index"]
    tensors = [e for e in entries if isinstance(example(e.item), torch.Tensor)]
    if len(tensors) != len(given):
        return None
    picked = max((example(e.item).dim() for e in tensors), default=0)
    left = [e for e in entries if e.axis is None or e in tensors or isinstance(e.item, slice)]
    at = [i for i, e in enumerate(left) if e in tensors]
    together = not at or at[-1] - at[0] + 1 == len(at)
    if not together and any(example(e.item).dim() == 0 for e in tensors):
        return None  # torch may take a tensor of one integer for that integer
    order: list[Item | None] = [e for e in left if e not in tensors]
    if tensors:
        order[(at[0] if together else 0) : (at[0] if together else 0)] = [None] * picked
    if len(order) != len(shape):
        return None
    relating.result = [() if is_one(size) else (relating.loop(size),) for size in shape]
    axes: list[Axis] = [Axis((), Selected(example(e.item))) for e in entries if e.axis is not None]
    for e, loops in zip(order, relating.result, strict=True):
        if e is not None and e.axis is not None:
            axes[e.axis] = _slice_axis(e.item, base.shape[e.axis], loops)
    looked = [loops for e, loops in zip(order, relating.result, strict=True) if e is None]
    for k, e in zip(given, tensors, strict=True):
        assert e.axis is not None
        axes[e.axis] = Axis((), Looked(tuple(given)))
        shape_of = example(e.item).shape
        back = looked[picked - len(shape_of) :]
        relating.axes[k] = tuple(relating.along(size, to) for size, to in zip(shape_of, back, strict=True))
    return tuple(axes)


def _slice_axis(item: slice, size: Any, loops: tuple[int, ...]) -> Axis:
    """How a slice reads an axis of that size; where it cannot be told, nothing is known of this axis alone."""
    taken = cut(item, size)
    if taken is None:
        return Axis((), UNKNOWN)
    start, stop, step = taken
    if is_one(size) and start == 0:
        return ONE
    if same_size(start, 0) and same_size(stop, size) and step == 1:
        return Axis(loops)
    return Axis(loops, Cut(start, step))


def _item(call: Call) -> Meaning | None:
    """An item of a tuple is what it is; who wants to know follows the call that made the tuple."""
    return None


# === Parts of one axis =======================================================================================


def _others(relating: Relating, dim: int, how: Axis, to: int | None) -> None:
    """The input's axes: ``how`` for one of them, the others as they are in the result, which lacks that one if ``to``
    is None."""
    shape = relating.call.operands[0].value.shape
    axes, at = [], iter(relating.result)
    for d, size in enumerate(shape):
        if d == dim:
            axes.append(how)
            if to is not None:
                next(at)
        else:
            axes.append(relating.along(size, next(at)))
    relating.axes[0] = tuple(axes)


def _narrowed(call: Call) -> Meaning | None:
    """``narrow``, ``select``, and aten's ``slice``"""
    operand = call.of("input")
    if operand is None or len(call.operands) != 1:
        return None
    dim = axis_index(call.get("dim"), operand.rank)
    if dim is None:
        return None
    size = operand.value.shape[dim]
    relating = Relating(call)
    relating.from_result()
    if call.op.startswith("select"):
        _others(relating, dim, Axis((), Selected(example(call.get("index")))), None)
    else:
        start = example(call.get("start"))
        stop = None if call.op.startswith("narrow") else example(call.get("end"))
        if call.op.startswith("narrow"):
            length = example(call.get("length"))
            first = _bound(start, size, 0)
            how = Axis((), UNKNOWN) if first is None else Axis(relating.result[dim], Cut(first))
            how = Axis(relating.result[dim]) if same_size(length, size) else how
            _others(relating, dim, ONE if is_one(size) else how, dim)
        else:
            read = _slice_axis(slice(start, stop, call.get("step")), size, relating.result[dim])
            _others(relating, dim, read, dim)
    return meaning(FAMILY, relating.done(), _ZERO)


def _split(call: Call) -> Meaning | None:
    """Every result is a slice; ``unbind`` has slots."""
    operand = call.of("input")
    if operand is None or not call.several or len(call.operands) != 1:
        return None
    dim = axis_index(_split_dim(call, operand.rank), operand.rank)
    if dim is None:
        return None
    relations, start = [], 0
    for item, result in enumerate(call.results):
        relating = Relating(call, item)
        relating.from_result()
        if call.op.startswith("unbind"):
            _others(relating, dim, Axis((), Selected(item)), None)
        else:
            whole = same_size(result.shape[dim], operand.value.shape[dim])
            how = Axis(relating.result[dim], KEPT if whole else Cut(start))
            _others(relating, dim, how if not is_one(operand.value.shape[dim]) else ONE, dim)
            start = start + result.shape[dim]
        relations.append(relating.done())
    return meaning(FAMILY, relations, _ZERO)


def _split_dim(call: Call, rank: int) -> Any:
    named = {"hsplit": 0 if rank == 1 else 1, "vsplit": 0, "dsplit": 2}
    return named[call.op] if call.op in named else call.get("dim", default=0)


def _moved(call: Call) -> Meaning | None:
    """``roll`` and ``flip``"""
    operand = call.of("input")
    if operand is None:
        return None
    given = {"fliplr": (1,), "flipud": (0,)}.get(call.op, call.get("dims", default=()))
    dims = axis_indices(given, operand.rank)
    shifts = call.get("shifts", default=())
    if dims is None or len(set(dims)) != len(dims):
        return None
    if call.op == "roll" and not dims and operand.rank == 1:
        dims = (0,)
    if call.op == "roll" and (not dims or len(shifts) != len(dims)):
        return None
    hows: dict[int, How] = {}
    for d in dims:
        hows[d] = Rolled(example(shifts[dims.index(d)])) if call.op == "roll" else FLIPPED
    relating = Relating(call)
    relating.from_result()
    relating.axes[0] = tuple(
        ONE if not loops else Axis(loops, hows.get(d, KEPT)) for d, loops in enumerate(relating.result)
    )
    return meaning(FAMILY, relating.done(), _ZERO)


ENTRIES: dict[str, Entry] = {
    "getitem": _read,
    **dict.fromkeys(("narrow", "select", "slice", "narrow_copy", "select_copy", "slice_copy"), _narrowed),
    **dict.fromkeys((*SPLITTING, "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"), _split),
    **dict.fromkeys(("hsplit", "vsplit", "dsplit"), _split),
    **dict.fromkeys(("split_copy", "split_with_sizes_copy", "unbind_copy"), _split),
    **dict.fromkeys(("roll", *TURNING), _moved),
}
