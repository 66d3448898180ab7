"""Distances, areas, products and counts along an axis, or over everything."""

from __future__ import annotations

import torch

from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    Entry,
    Meaning,
    Mixed,
    Reduced,
    Relating,
    Traits,
    axis_indices,
    meaning,
)
from packpass.semantics.reductions import along

FAMILY = "measures"


def _over_everything(call: Call) -> Meaning | None:
    """One number, or as many as there are bins: ``dist``, ``trace``, ``histc``."""
    relating = Relating(call)
    relating.from_result()
    for k, operand in enumerate(call.operands):
        relating.axes[k] = tuple(relating.axis(size, Reduced(call.op)) for size in operand.value.shape)
    return meaning(FAMILY, relating.done(), Traits(reorders=call.op != "histc"))


def _of_two(call: Call) -> Meaning | None:
    """``linalg.cross`` and ``linalg.vecdot``: two operands that are broadcast, along one axis (the last)."""
    if len(call.operands) != 2 or call.operands[0].value.dim() != call.operands[1].value.dim():
        return None
    shape = torch.broadcast_shapes(*(operand.value.shape for operand in call.operands))
    dims = axis_indices(call.get("dim", default=-1), len(shape))
    if dims is None:
        return None
    relating = Relating(call)
    relating.from_result(shape)
    gone = call.op == "linalg_vecdot"
    for loops in (relating.result[d] for d in dims):
        relating.roles.update(dict.fromkeys(loops, Reduced(call.op) if gone else Mixed(call.op)))
    for k in range(2):
        relating.aligned(k)
    if gone:
        relating.result = [loops for d, loops in enumerate(relating.result) if d not in dims]
    return meaning(FAMILY, relating.done(), Traits(reorders=True))


def _area(call: Call) -> Meaning | None:
    """``trapezoid`` between evenly spaced points, of one axis (the last), which goes, or loses a slot."""
    if len(call.operands) != 1:
        return None
    value = call.operands[0].value
    dims = axis_indices(call.get("dim", default=-1), value.dim())
    if dims is None or call.op == "cumulative_trapezoid":
        return along(call, dims, Mixed(call.op), FAMILY, Traits(reorders=True))
    relating = Relating(call)
    role = Reduced(call.op)
    axes = tuple(relating.axis(size, role if d in dims else None) for d, size in enumerate(value.shape))
    relating.axes[0] = axes
    relating.result = [axis.loops for d, axis in enumerate(axes) if d not in dims]
    return meaning(FAMILY, relating.done(), Traits(reorders=True))


def _of_channels(call: Call) -> Meaning | None:
    """``local_response_norm``: over neighbouring channels."""
    return along(call, (1,), Mixed(call.op), FAMILY, Traits(reorders=True))


ENTRIES: dict[str, Entry] = {
    "dist": _over_everything,
    "trace": _over_everything,
    "histc": _over_everything,
    "linalg_cross": _of_two,
    "linalg_vecdot": _of_two,
    "trapezoid": _area,
    "cumulative_trapezoid": _area,
    "local_response_norm": _of_channels,
}
