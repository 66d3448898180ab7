"""Operations that put tensors side by side, and those that pad one."""

from __future__ import annotations

from typing import Any

import torch

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    KEPT,
    ONE,
    Axis,
    Entry,
    Joined,
    Meaning,
    Mixed,
    Padded,
    Relating,
    Traits,
    axis_index,
    is_one,
    meaning,
    same_size,
)

FAMILY = "joins"


def _traits(call: Call) -> Traits:
    return Traits(zero_gradient=frozenset(o.argument for o in call.operands))


def _joined(call: Call) -> Meaning | None:
    """``cat`` and its kin; tensors of one axis and no slots are left out by torch, and have no place here."""
    tensors = call.get("tensors")
    if not isinstance(tensors, (tuple, list)) or len(tensors) != len(call.operands):
        return None
    rank = call.results[0].dim()
    dim = axis_index(_join_dim(call, rank), rank)
    if dim is None:
        return None
    relating = Relating(call)
    relating.from_result()
    offset: Any = 0
    for k, operand in enumerate(call.operands):
        # hstack, vstack and their like first give every tensor enough axes
        shape = _with_axes(call.op, list(operand.value.shape))
        if len(shape) != rank:
            return None
        axes = []
        for d, (size, loops) in enumerate(zip(shape, relating.result, strict=True)):
            if d != dim:
                axes.append(relating.along(size, loops))
            elif same_size(size, call.results[0].shape[d]):
                axes.append(Axis(loops))
            else:
                axes.append(Axis(loops, Joined(offset)))
        relating.axes[k] = _without_axes(call.op, operand.rank, axes)
        offset = offset + shape[dim]
    return meaning(FAMILY, relating.done(), _traits(call))


def _join_dim(call: Call, rank: int) -> Any:
    if call.op == "hstack":
        return 0 if rank == 1 else 1
    return {"vstack": 0, "dstack": 2, "column_stack": 1}.get(call.op, call.get("dim", default=0))


def _with_axes(op: str, shape: list[Any]) -> list[Any]:
    """The shape of a tensor as these operations take it."""
    if op == "vstack" and len(shape) < 2:
        return [1] * (2 - len(shape)) + shape
    if op == "column_stack" and len(shape) < 2:
        return shape + [1] * (2 - len(shape))
    if op == "dstack" and len(shape) < 3:
        return {0: [1, 1, 1], 1: [1, *shape, 1], 2: [*shape, 1]}[len(shape)]
    return shape if shape or op == "cat" else [1]


def _without_axes(op: str, rank: int, axes: list[Axis]) -> tuple[Axis, ...]:
    if rank == len(axes):
        return tuple(axes)
    if rank == 0:
        return ()
    start = {"vstack": 1, "dstack": 1 if rank == 1 else 0}.get(op, 0)
    return tuple(axes[start : start + rank])


def _stacked(call: Call) -> Meaning | None:
    """Each tensor is one slot of a new axis."""
    dim = axis_index(call.get("dim", default=0), call.results[0].dim())
    tensors = call.get("tensors")
    if dim is None or not isinstance(tensors, (tuple, list)) or len(tensors) != len(call.operands):
        return None
    relating = Relating(call)
    relating.from_result()
    rest = [loops for d, loops in enumerate(relating.result) if d != dim]
    for k, operand in enumerate(call.operands):
        relating.axes[k] = tuple(relating.along(s, to) for s, to in zip(operand.value.shape, rest, strict=True))
    return meaning(FAMILY, relating.done(), _traits(call))


def _padded(call: Call) -> Meaning | None:
    """Constant padding, and cutting off by negative padding; other modes read neighbours."""
    operand, pad = call.of("input"), call.get("pad")
    if operand is None or not isinstance(pad, (tuple, list)) or len(pad) % 2 or len(call.operands) != 1:
        return None
    widths = [example(p) for p in pad]
    constant = call.get("mode", default="constant") == "constant"
    relating = Relating(call)
    relating.from_result()
    axes = []
    for d, (size, loops) in enumerate(zip(operand.value.shape, relating.result, strict=True)):
        back = 2 * (operand.rank - 1 - d)
        before, after = widths[back : back + 2] if back < len(widths) else (0, 0)
        if same_size(before, 0) and same_size(after, 0):
            axes.append(ONE if is_one(size) else Axis(loops, KEPT))
        elif constant:
            axes.append(Axis(loops, Padded(before, after, call.get("value") or 0)))
        else:
            axes.append(relating.axis(size, Mixed(call.op)))
    relating.axes[0] = tuple(axes)
    return meaning(FAMILY, relating.done(), _traits(call))


def _crossed(call: Call) -> Meaning | None:
    """``meshgrid``: each tensor is one axis of every result."""
    if not call.several or len(call.results) != len(call.operands):
        return None
    order = list(range(len(call.operands)))
    if call.get("indexing") == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    relations = []
    for item in range(len(call.results)):
        relating = Relating(call, item)
        relating.from_result()
        for k, operand in enumerate(call.operands):
            reads = k == item
            relating.axes[k] = tuple(
                Axis(relating.result[order[k]]) if reads else relating.axis(size, Mixed("size"))
                for size in operand.value.shape
            )
        relations.append(relating.done())
    return meaning(FAMILY, relations, _traits(call))


def _broadcast(call: Call) -> Meaning | None:
    """``broadcast_tensors``: every result is one of the tensors."""
    if not call.several or not all(isinstance(r, torch.Tensor) for r in call.results):
        return None
    relations = []
    for item in range(len(call.results)):
        relating = Relating(call, item)
        relating.from_result()
        for k in range(len(call.operands)):
            relating.aligned(k)
        relations.append(relating.done())
    return meaning(FAMILY, relations, _traits(call))


ENTRIES: dict[str, Entry] = {
    **dict.fromkeys(("cat", "hstack", "vstack", "dstack", "column_stack"), _joined),
    "stack": _stacked,
    "pad": _padded,
    "meshgrid": _crossed,
    "broadcast_tensors": _broadcast,
}
