"""Operations that give the same slots other axes: transposes, reshapes, expansions, repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics.binding import example
from packpass.semantics.call import Call, call_of
from packpass.semantics.meaning import (
    ONE,
    UNKNOWN,
    Axis,
    Entry,
    Meaning,
    Mixed,
    Relating,
    Traits,
    axis_index,
    axis_indices,
    is_one,
    meaning,
    same_size,
)

FAMILY = "views"
TRANSPOSING = frozenset({"permute", "transpose", "t", "numpy_T", "mT", "movedim"})
"""The same numbers, with the axes in another order."""
PERMUTING = TRANSPOSING | {"unsqueeze", "squeeze", "getattr"}
"""Calls of which `permutation` may know where every axis goes."""
_CONJUGATING = ("mH", "matrix_H", "adjoint")
REGROUPING = frozenset({"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "ravel"})
"""The same numbers in the same order, with other sizes."""
EXPANDING = frozenset({"expand", "expand_as", "broadcast_to"})
"""Axes of one slot that show it many times."""
_ZERO = Traits(zero_gradient=frozenset({"input"}))


def _made(relating: Relating) -> Meaning | None:
    return meaning(FAMILY, relating.done(), _ZERO)


# === Other orders ============================================================================================


def permutation_of(node: fx.Node) -> list[int] | None:
    """`permutation` of the call of a node."""
    call = call_of(node)
    return None if call is None else permutation(call)


def permutation(call: Call) -> list[int] | None:
    """For every axis of the result of a transposing or (un)squeezing call the input's axis, or -1 for a new one."""
    operand = call.of("input")
    if operand is None:
        return None
    rank, op = operand.rank, call.op.removesuffix("_copy")
    order: list[int] = list(range(rank))
    if op == "getattr":
        op = {"T": "numpy_T", "mT": "mT", "H": "matrix_H", "mH": "mH"}.get(str(call.get("name")), "")
    if op == "permute":
        dims = axis_indices(call.get("dims"), rank)
        return None if dims is None or len(dims) != rank else list(dims)
    if op in ("transpose", "t", "numpy_T", "mT", "mH", "matrix_H", "adjoint"):
        if op == "numpy_T":
            return order[::-1]
        a, b = (call.get("dim0"), call.get("dim1")) if op == "transpose" else (rank - 2, rank - 1)
        first, second = axis_index(a, rank), axis_index(b, rank)
        if op == "t" and rank < 2:
            return order
        if first is None or second is None:
            return None
        order[first], order[second] = order[second], order[first]
        return order
    if op == "movedim":
        return _moved(call, rank)
    if op == "unsqueeze":
        at = axis_index(call.get("dim"), rank + 1)
        return None if at is None else [*order[:at], -1, *order[at:]]
    if op == "squeeze":
        dims = axis_indices(call.get("dim"), rank)
        sizes = operand.value.shape
        if dims is None or not all(is_one(sizes[d]) or statically_known_true(sizes[d] != 1) for d in dims):
            return None  # whether the axis goes depends on its size
        return [d for d in order if d not in dims or not is_one(sizes[d])]
    return None


def _moved(call: Call, rank: int) -> list[int] | None:
    source, to = axis_indices(call.get("source"), rank), axis_indices(call.get("destination"), rank)
    if source is None or to is None or len(source) != len(to):
        return None
    order = [-1] * rank
    for d, j in zip(source, to, strict=True):
        order[j] = d
    rest = iter(d for d in range(rank) if d not in source)
    return [next(rest) if d < 0 else d for d in order]


def _permuted(call: Call) -> Meaning | None:
    """The same axes in another order, with or without some of one slot."""
    order = permutation(call)
    if order is None or len(order) != len(call.results[0].shape):
        return None
    relating = Relating(call)
    relating.axes[0] = tuple(relating.axis(size) for size in call.operands[0].value.shape)
    relating.result = [relating.axes[0][d].loops if d >= 0 else () for d in order]
    return _made(relating)


# === Other shapes ============================================================================================


def _reshaped(call: Call) -> Meaning | None:
    """Axes are kept, split or merged, as far as sizes tell; else regrouped."""
    operand = call.operands[0] if call.operands else None
    if operand is None or not isinstance(call.results[0], torch.Tensor):
        return None
    if call.op.removesuffix("_copy") == "view" and isinstance(call.get("dtype"), torch.dtype):
        return None  # the same bytes as other numbers
    before, after = list(operand.value.shape), list(call.results[0].shape)
    relating = Relating(call)
    axes: list[Axis] = [ONE] * len(before)
    result: list[tuple[int, ...]] = [()] * len(after)
    for from_axes, to_axes in groups(before, after):
        _refined(relating, [(d, before[d]) for d in from_axes], [(j, after[j]) for j in to_axes], axes, result)
    relating.axes[0], relating.result = tuple(axes), result
    if len(call.operands) > 1 and "other" in call.unread:  # view_as: its slots are where the result's are
        relating.axes[1] = tuple(Axis(loops) for loops in result)
    return _made(relating)


def groups(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes that have as many slots before and after, in order; axes of one slot are in none."""
    left = [d for d, size in enumerate(before) if not is_one(size)]
    right = [j for j, size in enumerate(after) if not is_one(size)]
    found = []
    while left and right:
        ends = ((a + b, a, b) for a in range(1, len(left) + 1) for b in range(1, len(right) + 1))
        for _, a, b in sorted(ends):
            if (a == len(left) and b == len(right)) or same_size(
                _product(before[d] for d in left[:a]), _product(after[j] for j in right[:b])
            ):
                found.append((left[:a], right[:b]))
                left, right = left[a:], right[b:]
                break
    if left or right:
        found.append((left, right))
    return found


def kept_whole(before: Sequence[Any], after: Sequence[Any]) -> list[tuple[int, int]]:
    """Pairs of axes that a reshape keeps whole: as many elements on their left, and as many slots."""
    return [(left[0], right[0]) for left, right in groups(before, after) if len(left) == len(right) == 1]


def _product(sizes: Iterable[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


def _refined(
    relating: Relating,
    before: list[tuple[int, Any]],
    after: list[tuple[int, Any]],
    axes: list[Axis],
    result: list[tuple[int, ...]],
) -> None:
    """Loops for one group: the coarsest that both sides are made of. Where there are none, the slots are regrouped
    across axes and nothing is known of them."""
    loops_before: dict[int, list[int]] = {d: [] for d, _ in before}
    loops_after: dict[int, list[int]] = {j: [] for j, _ in after}
    left, right = list(before), list(after)
    while left and right:  # from the right, as memory is laid out
        (d, a), (j, b) = left[-1], right[-1]
        size, rest_a, rest_b = (a, 1, 1) if same_size(a, b) else (None, None, None)
        if size is None and (rest := divided(a, b)) is not None:
            size, rest_a, rest_b = b, rest, 1
        elif size is None and (rest := divided(b, a)) is not None:
            size, rest_a, rest_b = a, 1, rest
        if size is None:
            break
        loop = relating.loop(size)
        loops_before[d].insert(0, loop)
        loops_after[j].insert(0, loop)
        left[-1], right[-1] = (d, rest_a), (j, rest_b)
        left = left if not is_one(rest_a) else left[:-1]
        right = right if not is_one(rest_b) else right[:-1]
    whole = not left and not right
    for d, loops in loops_before.items():
        axes[d] = Axis(tuple(loops)) if whole else Axis((), UNKNOWN)
    for (j, size), loops in zip(after, loops_after.values(), strict=True):
        result[j] = tuple(loops) if whole else (relating.loop(size, Mixed("reshape")),)


def divided(a: Any, b: Any) -> Any:
    """``a // b`` if that is known to leave no rest, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    try:
        return a // b if statically_known_true(a % b == 0) else None
    except ZeroDivisionError:  # a size that has a name is worked out for the batch at hand as well, where it may be 0
        return None


# === More of the same slots ==================================================================================


def _expanded(call: Call) -> Meaning | None:
    """Axes line up from the right; those of one slot are seen by all."""
    operand = call.of("input")
    if operand is None:
        return None
    relating = Relating(call)
    relating.from_result()
    relating.aligned(0)
    if len(call.operands) > 1:
        relating.aligned(1)  # expand_as: its slots are where the result's are
    return _made(relating)


def _repeated(call: Call) -> Meaning | None:
    """An axis that is repeated is the inner part of the result's."""
    repeats = call.get("repeats", "dims")
    operand = call.of("input")
    if operand is None or not isinstance(repeats, (tuple, list)):
        return None
    times, shape = [example(r) for r in repeats], list(operand.value.shape)
    rank = max(len(times), len(shape))
    times = [1] * (rank - len(times)) + times
    relating = Relating(call)
    axes = tuple(relating.axis(size) for size in shape)
    for d in range(rank):
        inner = axes[d - rank + len(shape)].loops if d >= rank - len(shape) else ()
        relating.result.append(inner if is_one(times[d]) else (relating.loop(times[d]), *inner))
    relating.axes[0] = axes
    return _made(relating)


def _repeated_each(call: Call) -> Meaning | None:
    """Every slot as often as one number says; as often as values say, or of all axes in a row, slots are anywhere."""
    operand, repeats = call.of("input"), example(call.get("repeats"))
    if operand is None or call.operands[0] is not operand:
        return None
    dim = axis_index(call.get("dim"), operand.rank)
    if dim is None and call.get("dim") is not None:
        return None
    if dim is None and operand.rank == 1:
        dim = 0
    relating = Relating(call)
    if dim is not None and isinstance(repeats, (int, torch.SymInt)):
        axes = tuple(relating.axis(size) for size in operand.value.shape)
        relating.result = [axis.loops for axis in axes]
        if not is_one(repeats):
            relating.result[dim] = (*axes[dim].loops, relating.loop(repeats))
        relating.axes[0] = axes
        return _made(relating)
    if isinstance(repeats, torch.Tensor) and call.get("output_size") is None:
        return None  # as long as the values say
    relating.from_result()
    relating.axes[0] = tuple(
        relating.axis(size, Mixed(call.op)) if dim in (None, d) else relating.along(size, relating.result[d])
        for d, size in enumerate(operand.value.shape)
    )
    for k, other in enumerate(call.operands[1:], 1):
        relating.axes[k] = tuple(relating.axis(size, Mixed(call.op)) for size in other.value.shape)
    return _made(relating)


def _complex_pairs(call: Call) -> Meaning | None:
    """The last axis is the two parts of a number."""
    relating = Relating(call)
    shape = list(call.operands[0].value.shape)
    if call.op == "view_as_real":
        axes = tuple(relating.axis(size) for size in shape)
        relating.result = [*(axis.loops for axis in axes), (relating.loop(2),)]
    else:
        axes = (*(relating.axis(size) for size in shape[:-1]), relating.axis(shape[-1], Mixed(call.op)))
        relating.result = [axis.loops for axis in axes[:-1]]
    relating.axes[0] = axes
    return _made(relating)


def _atleast(call: Call) -> Meaning | None:
    """New axes of one slot, before the others and (``atleast_3d``) behind."""
    return _reshaped(call) if len(call.operands) == 1 and not call.several else None


ENTRIES: dict[str, Entry] = {
    **dict.fromkeys((*TRANSPOSING, *_CONJUGATING, "unsqueeze", "squeeze"), _permuted),
    "getattr": _permuted,
    **dict.fromkeys(REGROUPING, _reshaped),
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d"), _atleast),
    **dict.fromkeys(EXPANDING, _expanded),
    **dict.fromkeys(("repeat", "tile"), _repeated),
    "repeat_interleave": _repeated_each,
    **dict.fromkeys(("view_as_real", "view_as_complex"), _complex_pairs),
}
for _copying in ("permute", "transpose", "t", "unsqueeze", "squeeze", "view", "expand"):
    ENTRIES[f"{_copying}_copy"] = ENTRIES[_copying]
