"""Rows of whole numbers that are made of positions: what indices are computed from.

``arange(T) + 1``, ``% T``, ``clamp(max=T - 1)``: every slot holds its own place plus a constant, or one number. What an
index of such numbers looks up is known slot by slot (`lookups`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, contents_of, example, family_of, op_name, op_of
from packpass.semantics.meaning import Iota
from packpass.semantics.pointwise import ON_POSITIONS
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.pieces import ZERO, Const, Content, Piece, Pieces, Place, Pos, Ramp, crop, merged, whole, zipped
from passes.pack_shifts.registry import rule
from passes.pack_shifts.values import TOKEN_DTYPES, Uniform, View, from_right, new_store, position


@rule("arange")
def _arange(run: Interpreter, node: fx.Node) -> Any:
    made = contents_of(node)
    if not isinstance(made, Iota) or example(node).is_floating_point():
        return None
    size = example(node).shape[0]
    start = position(made.start, size)
    if start is None or made.step != 1:
        return None
    view = new_store(node, 0, size, [()], None)
    view.store.alternatives = [whole(view.stop, Ramp(start))]
    run.keep(view.store)
    return view


def numbers_of(view: View | None) -> Pieces | None:
    """What a view holds, if these are whole numbers made of positions."""
    if view is None or view.dim is None or example(view.node).dtype not in TOKEN_DTYPES:
        return None
    out = []
    for piece in crop(view.store.alternatives[0], view.start, view.stop):
        content = piece.content
        if isinstance(content, Const) and type(content.value) is int:
            content = Place(Pos(0, content.value))
        if not isinstance(content, (Ramp, Place)):
            return None
        out.append(Piece(piece.start, piece.stop, content))
    return tuple(out) if out else None


def in_units_of(pieces: Pieces, size: Any, row: Any) -> Pieces | None:
    """Positions that count in rows of ``size`` slots, as positions in rows of ``row`` slots."""
    unit = position(size, row)
    if unit is None or (unit.n and not isinstance(size, torch.SymInt)):
        return None

    def moved(at: Pos) -> Pos:
        return Pos(at.n * unit.n, at.c + at.n * unit.c) if unit.n else at

    out = []
    for piece in pieces:
        content = piece.content
        assert isinstance(content, (Ramp, Place))
        content = Ramp(moved(content.offset)) if isinstance(content, Ramp) else Place(moved(content.at))
        out.append(Piece(moved(piece.start), moved(piece.stop), content))
    return tuple(out)


def one_number(run: Interpreter, arg: Any, row: Any) -> Pos | None:
    """A number, a size, or a tensor that holds one of either, as a position."""
    if isinstance(arg, fx.Node) and isinstance(example(arg), torch.Tensor):
        value = run.values.get(arg)
        if isinstance(value, Uniform):
            arg = value.value
        elif example(arg).dim() == 0 and len(arg.args) == 1 and _is_made(arg):
            arg = arg.args[0]
        else:
            return None
    return None if isinstance(arg, float) else position(arg, row)


def _is_made(node: fx.Node) -> bool:
    """Is a tensor made of a number?"""
    return op_name(node) in ("tensor", "as_tensor") or family_of(node) == "creation"


# === Arithmetic ==============================================================================================


def arithmetic(run: Interpreter, node: fx.Node) -> Any:
    """Sums, remainders and extremes of positions; None if the call is none, or what it makes is not known."""
    combine = _ARITHMETIC.get(ON_POSITIONS.get(op_of(node), ""))
    value = example(node)
    if combine is None or node.kwargs or len(node.args) != 2 or not isinstance(value, torch.Tensor):
        return None
    views = [v for a in node.args if (v := run.view(a)) is not None]
    if not views or value.is_floating_point() or value.dtype == torch.bool:
        return None
    row = views[0]
    sides = [_side(run, arg, row) for arg in node.args]
    if sides[0] is None or sides[1] is None or not all(combining(v, row) for v in views):
        return None
    out: list[Piece] = []
    for start, stop, a, b in zipped(sides[0], sides[1]):
        made = combine(start, stop, a, b)
        if made is None:
            return None
        out += [piece for piece in made if piece.start < piece.stop]
    return run.made(node, value.dim() + from_right(row), row.store.size, [merged(tuple(out))], None)


def combining(a: View, b: View) -> bool:
    """Do two rows lie along the same dimension, slot beside slot, and count in the same units?"""
    sizes = (a.store.size, b.store.size)
    fixed = all(at is not None and at.n == 0 for at in (position(n, n) for n in sizes))
    units = fixed or position(*sizes) == Pos(1, 0)
    return from_right(a) == from_right(b) and a.stop - a.start == b.stop - b.start and units


def _side(run: Interpreter, arg: Any, row: View) -> Pieces | None:
    view = run.view(arg)
    if view is not None:
        return numbers_of(view)
    at = one_number(run, arg, row.store.size)
    return None if at is None else whole(row.stop - row.start, Place(at))


def _sum(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    if isinstance(a, Place) and isinstance(b, Place):
        return [Piece(start, stop, Place(a.at + b.at))]
    if isinstance(a, Place):
        a, b = b, a
    if isinstance(a, Ramp) and isinstance(b, Place):
        return [Piece(start, stop, Ramp(a.offset + b.at))]
    return None


def _difference(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    if isinstance(b, Place):
        return _sum(start, stop, a, Place(ZERO - b.at))
    if isinstance(a, Ramp) and isinstance(b, Ramp):
        return [Piece(start, stop, Place(a.offset - b.offset))]
    return None


def _within(at: Pos, start: Pos, stop: Pos) -> Pos:
    return min(max(at, start), stop)


def _least(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    return _extreme(start, stop, a, b, True)


def _most(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    return _extreme(start, stop, a, b, False)


def _extreme(start: Pos, stop: Pos, a: Content, b: Content, least: bool) -> list[Piece] | None:
    if isinstance(a, Place) and isinstance(b, Place):
        return [Piece(start, stop, Place((min if least else max)(a.at, b.at)))]
    if isinstance(a, Place):
        a, b = b, a
    if not isinstance(a, Ramp) or not isinstance(b, Place):
        return None
    equal = b.at - a.offset  # where both are the same, the place stands
    cut = _within(equal + Pos(0, 1) if least else equal, start, stop)
    first, second = (a, b) if least else (b, a)
    return [Piece(start, cut, first), Piece(cut, stop, second)]


def _remainder(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    """By a number between which and its negative all places lie, or at most once beyond it."""
    if not isinstance(b, Place) or b.at <= ZERO or not isinstance(a, Ramp):
        return None
    if start + a.offset < ZERO - b.at or stop + a.offset > b.at + b.at:
        return None
    low, high = _within(ZERO - a.offset, start, stop), _within(b.at - a.offset, start, stop)
    below, inside, beyond = Ramp(a.offset + b.at), a, Ramp(a.offset - b.at)
    return [Piece(start, low, below), Piece(low, high, inside), Piece(high, stop, beyond)]


def _truncated(start: Pos, stop: Pos, a: Content, b: Content) -> list[Piece] | None:
    """``fmod``, which is the remainder of what is not below 0."""
    return _remainder(start, stop, a, b) if isinstance(a, Ramp) and start + a.offset >= ZERO else None


_ARITHMETIC = {
    **{"total": _sum, "difference": _difference, "rounded down": _remainder, "rounded to 0": _truncated},
    **{"least": _least, "most": _most},
}


@rule("numbers")
def _two_numbers(run: Interpreter, node: fx.Node) -> Any:
    return arithmetic(run, node)


@rule("clamp", "clip")
def _clamp(run: Interpreter, node: fx.Node) -> Any:
    view, value = run.view(argument(node, 0, "input")), example(node)
    pieces = numbers_of(view)
    if view is None or pieces is None or not isinstance(value, torch.Tensor) or value.is_floating_point():
        return None
    for at, name, combine in ((1, "min", _most), (2, "max", _least)):
        bound = argument(node, at, name)
        if bound is None:
            continue
        limit = one_number(run, bound, view.store.size)
        if limit is None:
            return None
        parts = [combine(p.start, p.stop, p.content, Place(limit)) or [] for p in pieces]
        pieces = merged(tuple(p for part in parts for p in part if p.start < p.stop))
    return run.made(node, value.dim() + from_right(view), view.store.size, [pieces], None)
