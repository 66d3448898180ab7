"""Operations that look slots up by values: tables, ``gather``, ``index_select``; searches in a sorted axis."""

from __future__ import annotations

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    ONE,
    Axis,
    Cut,
    Entry,
    Looked,
    Meaning,
    Reduced,
    Relating,
    Traits,
    axis_index,
    is_one,
    meaning,
    same_size,
)

FAMILY = "lookups"
SEARCHES = frozenset({"bucketize", "searchsorted"})


def _embedding(call: Call) -> Meaning | None:
    """Rows of a table; ``max_norm`` writes the table, and ``scale_grad_by_freq`` counts how often ids occur."""
    weight = call.of("weight")
    ids = next((k for k, o in enumerate(call.operands) if o.argument in ("input", "indices")), None)
    if weight is None or ids is None or len(call.operands) != 2 or call.get("max_norm") is not None:
        return None
    if call.get("scale_grad_by_freq") is not False:
        return None
    relating = Relating(call)
    relating.from_result()
    shape = call.operands[ids].value.shape
    relating.axes[ids] = tuple(relating.along(s, to) for s, to in zip(shape, relating.result, strict=False))
    width = relating.along(weight.value.shape[1], relating.result[-1])
    relating.axes[1 - ids] = (Axis((), Looked((ids,))), width)
    return meaning(FAMILY, relating.done(), Traits(raises=frozenset({call.operands[ids].argument})))


def _one_hot(call: Call) -> Meaning | None:
    """A new axis behind those of the ids."""
    if example(call.get("num_classes")) == -1:
        return None  # as many as the largest value says
    relating = Relating(call)
    relating.from_result()
    shape = call.operands[0].value.shape
    relating.axes[0] = tuple(relating.along(s, to) for s, to in zip(shape, relating.result, strict=False))
    return meaning(FAMILY, relating.done(), Traits(raises=frozenset({"input"})))


def _index_select(call: Call) -> Meaning | None:
    """One axis is looked up by the index."""
    operand, index = call.of("input"), call.of("index")
    if operand is None or index is None or not operand.rank or index.rank != 1:
        return None
    dim = axis_index(call.get("dim"), operand.rank)
    if dim is None:
        return None
    relating = Relating(call)
    relating.from_result()
    relating.axes[0] = tuple(
        Axis((), Looked((1,))) if d == dim else relating.along(size, relating.result[d])
        for d, size in enumerate(operand.value.shape)
    )
    relating.axes[1] = (relating.along(index.value.shape[0], relating.result[dim]),)
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input"}), raises=frozenset({"index"})))


def _gather(call: Call) -> Meaning | None:
    """``gather``: the index may be shorter along the other axes. ``take_along_dim``: those are broadcast."""
    operand, index = call.of("input"), call.of("index") or call.of("indices")
    if operand is None or index is None or operand.rank != index.rank or not operand.rank:
        return None
    dim = axis_index(call.get("dim"), operand.rank)
    if dim is None:
        return None
    at = next(k for k, o in enumerate(call.operands) if o is index)
    relating = Relating(call)
    relating.from_result()
    axes = []
    for d, (size, loops) in enumerate(zip(operand.value.shape, relating.result, strict=True)):
        if d == dim:
            axes.append(Axis((), Looked((at,))))
        elif call.op == "gather" and loops and not same_size(size, call.results[0].shape[d]):
            axes.append(Axis(loops, Cut(0)))
        elif call.op == "gather" and not loops and not is_one(size):
            axes.append(Axis((), Cut(0)))
        else:
            axes.append(relating.along(size, loops))
    relating.axes[1 - at] = tuple(axes)
    relating.axes[at] = tuple(relating.along(s, to) for s, to in zip(index.value.shape, relating.result, strict=True))
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input"}), raises=frozenset({"index"})))


def _searched(call: Call) -> Meaning | None:
    """Where values belong in a sorted axis."""
    table = call.of("boundaries") or call.of("sorted_sequence")
    values = call.of("input")
    if table is None or values is None or len(call.operands) != 2 or table.rank != 1:
        return None
    relating = Relating(call)
    relating.from_result()
    for k, operand in enumerate(call.operands):
        if operand is table:
            relating.axes[k] = (relating.axis(table.value.shape[0], Reduced(call.op)),)
        else:
            relating.aligned(k)
    return meaning(FAMILY, relating.done())


def _isin(call: Call) -> Meaning | None:
    """Is each of the elements among the others, wherever these stand?"""
    relating = Relating(call)
    relating.from_result()
    for k, operand in enumerate(call.operands):
        if operand.argument == "elements":
            relating.aligned(k)
        else:
            relating.axes[k] = tuple(relating.axis(size, Reduced("any")) for size in operand.value.shape)
    return meaning(FAMILY, relating.done())


def _take(call: Call) -> Meaning | None:
    """Slots of all axes in a row."""
    operand, index = call.of("input"), call.of("index")
    if operand is None or index is None:
        return None
    relating = Relating(call)
    relating.from_result()
    relating.axes[0] = tuple(Axis((), Looked((1,))) for _ in operand.value.shape)
    relating.axes[1] = tuple(Axis(loops) if loops else ONE for loops in relating.result)
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input"}), raises=frozenset({"index"})))


ENTRIES: dict[str, Entry] = {
    "embedding": _embedding,
    "one_hot": _one_hot,
    "index_select": _index_select,
    **dict.fromkeys(("gather", "take_along_dim"), _gather),
    **dict.fromkeys(("bucketize", "searchsorted"), _searched),
    "isin": _isin,
    "take": _take,
}
