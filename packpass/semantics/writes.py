"""Operations that write a part of a tensor, in place or to a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.indexing import Item, cut, entries_of
from packpass.semantics.meaning import (
    ONE,
    UNKNOWN,
    Addressed,
    Axis,
    Entry,
    Joined,
    Looked,
    Meaning,
    Mixed,
    Relating,
    Sent,
    Traits,
    axis_index,
    is_one,
    meaning,
    same_size,
)

FAMILY = "writes"
CHOICES = frozenset({"where", "masked_fill", "setitem", "index_fill", "index_put"})
"""Calls that take some slots of one operand and the others of another, by a condition or an index."""


def _written(call: Call) -> Meaning | None:
    """``x[...] = v``: slots of the value go where the index says, the others stay."""
    base = call.of("input")
    if base is None or call.operands[0] is not base:
        return None
    if call.op == "index_put":
        index: Any = tuple(slice(None) if i is None else i for i in call.arguments["indices"])
    else:
        index = call.arguments["index"]
    entries = entries_of(index, base.rank)
    if entries is None:
        return _masked_write(call)
    relating = Relating(call)
    relating.from_result(base.value.shape)
    relating.axes[0] = tuple(Axis(loops) for loops in relating.result)
    for e in entries:
        if e.axis is not None and not (isinstance(e.item, slice) and e.item == slice(None)):
            _address(relating, e.axis)
    by = tuple(k for k, o in enumerate(call.operands) if o.argument in ("index", "indices"))
    for k in by:
        relating.axes[k] = tuple(Axis((), Sent(by)) for _ in call.operands[k].value.shape)
    places = _places(relating, entries, by)
    value = next((k for k, o in enumerate(call.operands) if o.argument in ("value", "values")), None)
    if value is not None:
        shape = call.operands[value].value.shape
        if places is None or len(shape) > len(places):
            return None
        relating.axes[value] = tuple(
            ONE if is_one(size) or place is None else place
            for size, place in zip(shape, places[len(places) - len(shape) :], strict=True)
        )
    raises = frozenset({"index", "indices"}) if by else frozenset()
    return meaning(FAMILY, relating.done(), Traits(raises=raises, reorders=bool(by)))


def _places(relating: Relating, entries: Sequence[Item], by: tuple[int, ...]) -> list[Axis | None] | None:
    """Where the axes of a value would go that has them all; None for an axis that the index makes."""
    picked = max((relating.call.operands[k].rank for k in by), default=0)
    left = [e for e in entries if e.axis is None or isinstance(example(e.item), (slice, torch.Tensor))]
    at = [i for i, e in enumerate(left) if isinstance(example(e.item), torch.Tensor)]
    together = not at or at[-1] - at[0] + 1 == len(at)
    if not together and any(relating.call.operands[k].rank == 0 for k in by):
        return None  # torch may take a tensor of one integer for that integer
    found: list[Axis | None] = []
    for e in left:
        if e.axis is None:
            found.append(None)
        elif isinstance(e.item, slice):
            size, loops = relating.call.operands[0].value.shape[e.axis], relating.result[e.axis]
            taken = cut(e.item, size)
            if taken is None:
                found.append(Axis((), UNKNOWN))
                continue
            whole = same_size(taken[0], 0) and same_size(taken[1], size) and taken[2] == 1
            found.append(Axis(loops) if whole else Axis(loops, Joined(taken[0], taken[2])))
    if at:
        place = at[0] if together else 0
        found[place:place] = [Axis((), Sent(by))] * picked
    return found


def _masked_write(call: Call) -> Meaning | None:
    """``x[mask] = 0`` with a mask of the leading axes."""
    mask, base = call.of("index"), call.operands[0]
    value = example(call.get("value"))
    if mask is None or mask.value.dtype is not torch.bool or mask.rank > base.rank:
        return None
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        return None
    relating = Relating(call)
    relating.from_result(base.value.shape)
    relating.axes[0] = tuple(Axis(loops) for loops in relating.result)
    relating.axes[1] = tuple(relating.along(s, to) for s, to in zip(mask.value.shape, relating.result, strict=False))
    for k in range(2, len(call.operands)):
        relating.axes[k] = ()
    return meaning(FAMILY, relating.done())


def _filled_in_order(call: Call) -> Meaning | None:
    """``masked_scatter``: every slot that the mask holds for gets the next one of the source."""
    source = call.of("source")
    mask = next((k for k, o in enumerate(call.operands) if o.argument == "mask"), None)
    if source is None or mask is None:
        return None
    relating = Relating(call)
    relating.from_result()
    for k, operand in enumerate(call.operands):
        if operand is source:
            relating.axes[k] = tuple(Axis((), Looked((mask,))) for _ in operand.value.shape)
        else:
            relating.aligned(k)
    for loop in range(len(relating.sizes)):
        relating.roles[loop] = Mixed(call.op, together=True)
    return meaning(FAMILY, relating.done(), Traits(raises=frozenset({"mask"})))


def _copied(call: Call) -> Meaning | None:
    """``copy_``, ``fill_``, ``zero_``: all slots are written."""
    relating = Relating(call)
    relating.from_result()
    for k in range(len(call.operands)):
        relating.aligned(k)
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input", "src", "value"})))


def _part_replaced(call: Call) -> Meaning | None:
    """``select_scatter`` and ``slice_scatter``: a copy with one slot or one slice replaced."""
    base, source = call.of("input"), call.of("src")
    if base is None or source is None:
        return None
    dim = axis_index(call.get("dim", default=0), base.rank)
    if dim is None:
        return None
    relating = Relating(call)
    relating.from_result()
    _address(relating, dim)
    relating.axes[0] = tuple(Axis(loops) for loops in relating.result)
    if call.op == "select_scatter":
        rest = [loops for d, loops in enumerate(relating.result) if d != dim]
        relating.axes[1] = tuple(relating.along(s, to) for s, to in zip(source.value.shape, rest, strict=True))
    else:
        item = slice(call.get("start"), call.get("end"), call.get("step"))
        taken = cut(item, base.value.shape[dim])
        if taken is None:
            return None
        relating.axes[1] = tuple(
            Axis(to, Joined(taken[0], taken[2])) if d == dim and not is_one(size) else relating.along(size, to)
            for d, (size, to) in enumerate(zip(source.value.shape, relating.result, strict=True))
        )
    return meaning(FAMILY, relating.done())


def _sent(call: Call) -> Meaning | None:
    """``scatter``, ``index_add`` and their like: slots go where an index says along one axis."""
    base, index = call.of("input"), call.of("index")
    if base is None or index is None:
        return None
    dim = axis_index(call.get("dim"), base.rank)
    if dim is None:
        return None
    relating = Relating(call)
    relating.from_result()
    _address(relating, dim)
    for k, operand in enumerate(call.operands):
        by = next(k for k, o in enumerate(call.operands) if o is index)
        if operand is base:
            relating.axes[k] = tuple(Axis(loops) for loops in relating.result)
        elif operand is index and call.op.startswith("index_"):
            relating.axes[k] = tuple(Axis((), Sent((by,))) for _ in operand.value.shape)
        elif operand.rank == 0:
            relating.axes[k] = ()
        elif operand.rank == base.rank:
            relating.axes[k] = tuple(
                Axis((), Sent((by,))) if d == dim else _leading(relating, size, to)
                for d, (size, to) in enumerate(zip(operand.value.shape, relating.result, strict=True))
            )
        else:
            return None
    return meaning(FAMILY, relating.done(), Traits(raises=frozenset({"index"}), reorders=True))


def _leading(relating: Relating, size: Any, loops: tuple[int, ...]) -> Axis:
    """An axis that is as long as the result's or, as ``gather`` and ``scatter`` allow, its beginning."""
    if not loops or same_size(size, relating.sizes[loops[0]]):
        return Axis(loops) if loops else ONE
    relating.roles.setdefault(loops[0], Addressed(relating.call.op))
    return Axis(loops, Joined(0))


def _address(relating: Relating, dim: int) -> None:
    """Slots of this axis of the result are told apart by their numbers."""
    for loop in relating.result[dim]:
        relating.roles[loop] = Addressed(relating.call.op)


ENTRIES: dict[str, Entry] = {
    **dict.fromkeys(("setitem", "index_put"), _written),
    "masked_scatter": _filled_in_order,
    **dict.fromkeys(("copy", "fill", "zero"), _copied),
    **dict.fromkeys(("select_scatter", "slice_scatter"), _part_replaced),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill"), _sent),
    "index_reduce": _sent,
}
