"""Rows that are looked up at places made of positions: ``x[:, arange(T) + 1]``, ``gather``, ``index_select``.

Where an index holds is known slot by slot (`numbers`), so that what it looks up is: the slots of the row that it names.
An index that is made of positions alone, but in another way, moves slots to nobody knows where, and is said to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass.semantics import (
    Call,
    Operand,
    Relation,
    call_of,
    contents_of,
    example,
    family_of,
    meaning_of,
    read_inputs,
)
from packpass.semantics.effects import effects_of
from packpass.semantics.meaning import Iota, Looked, is_one, same_size
from packpass.semantics.writes import CHOICES
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.numbers import in_units_of, numbers_of
from passes.pack_shifts.pieces import UNKNOWN, ZERO, Const, Pieces, Place, Pos, Ramp, Read, crop, joined, whole
from passes.pack_shifts.registry import rule
from passes.pack_shifts.values import Left, View, position

_ONE = Pos(0, 1)


@rule("lookups")
def looked_up(run: Interpreter, node: fx.Node) -> Any:
    """A row at the places of an index; None if it is not known which these are."""
    read = _read_of(node)
    if read is None:
        return None
    base, dim, index, relation = read
    view, places = run.view(base.node), run.view(index.node)
    if view is None or view.dim is None or view.dim != dim or places is None or places.dim is None:
        return None
    numbers = numbers_of(places)
    numbers = None if numbers is None else in_units_of(numbers, places.store.size, view.store.size)
    loops = relation.operands[index_of(node, index)][places.dim].loops  # type: ignore[index]
    at = [j for j, result in enumerate(relation.result) if result == loops]
    if numbers is None or len(loops) != 1 or len(at) != 1:
        return None
    if not _same_beside(example(node).shape, at[0], base.value.shape, dim):
        return None
    rows = [taken(numbers, slots) for slots in run.read(view, node) if slots]
    return run.made(node, at[0], view.store.size, [r for r in rows if r is not None], node)


def _read_of(node: fx.Node) -> tuple[Operand, int, Operand, Relation] | None:
    """The operand of which one axis is looked up, the axis, the index, and how the result depends on both."""
    call, meaning = call_of(node), meaning_of(call_of(node))
    if call is None or meaning is None or len(meaning.relations) != 1:
        return None
    relation = meaning.relations[0]
    looked = [
        (operand, dim, axis.how.by)
        for operand, axes in zip(call.operands, relation.operands, strict=True)
        for dim, axis in enumerate(axes or ())
        if isinstance(axis.how, Looked)
    ]
    if len(looked) != 1 or len(looked[0][2]) != 1:
        return None
    operand, dim, (by,) = looked[0]
    return operand, dim, call.operands[by], relation


def index_of(node: fx.Node, operand: Operand) -> int:
    """The place of an operand among those of a call."""
    call = call_of(node)
    assert call is not None
    return next(k for k, o in enumerate(call.operands) if o is operand)


def _same_beside(shape: Any, at: int, before: Any, dim: int) -> bool:
    """Are the dimensions on both sides of the row the same, but for those of one slot?"""
    for left, right in ((shape[:at], before[:dim]), (shape[at + 1 :], before[dim + 1 :])):
        a, b = ([n for n in sizes if not is_one(n)] for sizes in (left, right))
        if len(a) != len(b) or not all(same_size(m, n) for m, n in zip(a, b, strict=True)):
            return False
    return True


def taken(numbers: Pieces, slots: Pieces) -> Pieces | None:
    """The slots at these places, of a row of these slots; places below 0 count from its end."""
    end = slots[-1].stop
    out: list[Pieces] = []
    for piece in numbers:
        content, length = piece.content, piece.stop - piece.start
        if isinstance(content, Place):
            at = content.at + end if content.at < ZERO else content.at
            found = crop(slots, at, at + _ONE) if ZERO <= at < end else ()
            if not found:
                return None
            if length != _ONE:
                same = found[0].content
                found = whole(length, same if isinstance(same, Const) else UNKNOWN)
            out.append(found)
            continue
        assert isinstance(content, Ramp)
        start, stop = piece.start + content.offset, piece.stop + content.offset
        for low, high in ((start, min(stop, ZERO)), (max(start, ZERO), stop)):
            if low >= high:
                continue
            if low < ZERO:
                low, high = low + end, high + end
            found = crop(slots, low, high)
            if low < ZERO or high > end or not found:
                return None
            out.append(found)
    return joined(out)


# === Moves that are not understood ===========================================================================

_MOVING = frozenset({"indexing", "lookups", "writes"})
_PLACES = frozenset({"index", "indices", "mask"})
_WINDOWS = frozenset({"unfold", "as_strided"})


def refused_moves(run: Interpreter) -> Iterator[tuple[fx.Node, Left]]:
    """Calls that move slots of a packed row to places that nobody understood, although no data decides about them."""
    for node in run.unknown:
        call = call_of(node)
        if call is not None and _moves(run, call):
            yield (
                node,
                Left(
                    "moved-slots",
                    f"{call.op} moves slots of a packed row by positions, in a way that is not understood as a shift; "
                    "write it as torch.roll(x, -k, dim) whose end is filled, as x[:, k:] padded with a number, or use "
                    "packpass.ops.packed_roll",
                ),
            )


def _moves(run: Interpreter, call: Call) -> bool:
    rows = [(o, v) for o in call.operands if (v := run.view(o.node)) is not None and v.dim is not None]
    packed = [(o, v) for o, v in rows if _of_packed(run, v)]
    if call.op in _WINDOWS and not is_one(call.get("size")):
        if example(call.node).is_floating_point():
            return False  # windows of features are what convolutions read: no shift, and isolate's to name
        return any(o.argument == "input" and call.get("dimension", default=v.dim) == v.dim for o, v in packed)
    meaning = meaning_of(call)
    if call.op in CHOICES - {"setitem", "index_put"} or (meaning is None and call.op != "masked_scatter"):
        return False
    if meaning is not None and meaning.family not in _MOVING:
        return False
    places = [o for o in call.operands if o.argument in _PLACES]
    others = [v for o, v in packed if o.argument not in _PLACES]
    if len(places) != 1 or not others or not of_positions(places[0].node):
        return False
    return any(_as_long(places[0].value.shape, view) for view in others)


def _of_packed(run: Interpreter, view: View) -> bool:
    """Is this a packed row, or made of the slots of one?"""
    read = [p.content.source.node for p in view.store.alternatives[0] if isinstance(p.content, Read)]
    return any(run.layouts.packed_dim(node) is not None for node in (view.base, *read))


def _as_long(shape: Any, view: View) -> bool:
    """Has an index about as many entries as a row has slots?"""
    row = position(view.store.size, view.store.size)
    sizes = [position(n, view.store.size) for n in shape]
    return any(at is not None and row is not None and at.n == row.n and 2 * at.c >= row.c - 16 for at in sizes)


def of_positions(node: fx.Node) -> bool:
    """Is a tensor made of nothing but sizes, numbers and the places of slots?"""
    stack, seen, counted = [node], set[fx.Node](), False
    while stack:
        at = stack.pop()
        if at in seen or not isinstance(example(at), torch.Tensor):
            continue
        seen.add(at)
        counted = counted or isinstance(contents_of(at), Iota)
        effects = effects_of(at)
        if at.op not in ("call_function", "call_method") or not effects.known or effects.random or effects.host:
            return False
        stack += [] if family_of(at) == "creation" else read_inputs(at)
    return counted
