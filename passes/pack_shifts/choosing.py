"""Tensors that hold one number, conditions on the position, and choices by such conditions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import contents_of, example, meaning, op_name
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.numbers import arithmetic
from passes.pack_shifts.pieces import (
    UNKNOWN,
    Const,
    Content,
    Piece,
    Pieces,
    Pos,
    Ramp,
    crop,
    joined,
    length_of,
    merged,
    whole,
    zipped,
)
from passes.pack_shifts.registry import rule
from passes.pack_shifts.values import UNDEFINED, Uniform, View, constant, from_right, position, recast


@rule("filled", "tensor", "as_tensor")
def _uniform(run: Interpreter, node: fx.Node) -> Any:
    contents = contents_of(node)
    if isinstance(contents, meaning.Uniform):
        value = contents.value
    elif isinstance(contents, meaning.Uninitialised):
        value = UNDEFINED
    else:
        value = _one_number(node.args[0] if node.args else None)
    if not (value is UNDEFINED or isinstance(value, (bool, int, float))):
        return None
    return Uniform(constant(value, example(node).dtype).value)


def _one_number(data: Any) -> Any:
    """The number that nested lists hold everywhere, or None."""
    while isinstance(data, (tuple, list)) and data:
        if any(repr(item) != repr(data[0]) for item in data[1:]):
            return None
        data = data[0]
    return data


# === Conditions ==============================================================================================


@rule("comparisons")
def _compare(run: Interpreter, node: fx.Node) -> Any:
    """``arange(T) == T - 1``: True and False at known places."""
    view = run.view(node.args[0])
    if view is None or view.dim is None or not view.complete or len(node.args) != 2:
        return None
    at = None if isinstance(node.args[1], float) else position(node.args[1], view.store.size)
    if at is None:
        return None
    out: list[Piece] = []
    for piece in view.store.alternatives[0]:
        if not isinstance(piece.content, Ramp):
            return None
        end, q = piece.stop, at - piece.content.offset
        cuts = [piece.start, *(min(max(p, piece.start), end) for p in (q, q + Pos(0, 1))), end]
        flags = [Const(_holds(node, side)) for side in (-1, 0, 1)]  # below, at and above the number
        out += [Piece(a, b, f) for a, b, f in zip(cuts, cuts[1:], flags, strict=False) if a < b]
    return run.made(node, view.dim, view.store.size, [merged(tuple(out))], None)


def _holds(node: fx.Node, number: int) -> bool:
    """Does the comparison hold for a number and 0?"""
    target: Any = node.target
    compare = getattr(torch.Tensor, target) if node.op == "call_method" else target
    return bool(compare(torch.tensor(number), 0))


@rule("logical_not", "bitwise_not")
def _not(run: Interpreter, node: fx.Node) -> Any:
    view = run.view(node.args[0])
    flags = flags_of(view)
    if view is None or flags is None or view.dim is None:
        return None
    out = tuple(Piece(p.start, p.stop, Const(not p.content.value)) for p in flags)  # type: ignore[union-attr]
    return run.made(node, view.dim, view.store.size, [out], None)


def flags_of(view: View | None, bits: bool = False) -> Pieces | None:
    """The content of a view if it is known to be True or False (``bits``: 1 or 0) everywhere."""
    if view is None or view.dim is None or not view.complete:
        return None
    pieces = view.store.alternatives[0]
    if not all(isinstance(p.content, Const) for p in pieces):
        return None
    values = [p.content.value for p in pieces]  # type: ignore[union-attr]
    if all(isinstance(v, bool) for v in values):
        return pieces
    if bits and all(v in (0, 1) for v in values):
        return tuple(Piece(p.start, p.stop, Const(bool(v))) for p, v in zip(pieces, values, strict=True))
    return None


# === Choices =================================================================================================


@rule("where", "masked_fill")
def _where(run: Interpreter, node: fx.Node) -> Any:
    """A choice by position; conditions on data are uses like any other."""
    if len(node.args) != 3 or node.kwargs:
        return None
    condition, then, otherwise = node.args
    if op_name(node) == "masked_fill":
        otherwise, condition, then = node.args
    elif node.op == "call_method":
        then, condition, otherwise = node.args
    return chosen(run, node, condition, then, otherwise)


@rule("mul")
def _times(run: Interpreter, node: fx.Node) -> Any:
    return _masked(run, node, "mul")


@rule("logical_and", "bitwise_and")
def _and(run: Interpreter, node: fx.Node) -> Any:
    return _masked(run, node, "and")


@rule("logical_or", "bitwise_or")
def _or(run: Interpreter, node: fx.Node) -> Any:
    return _masked(run, node, "or")


def _masked(run: Interpreter, node: fx.Node, name: str) -> Any:
    """``roll(x) * keep`` and ``roll(mask) & keep`` with a mask that is known at every position."""
    if len(node.args) != 2 or node.kwargs:
        return None
    dtype = example(node).dtype
    if dtype.is_floating_point or dtype.is_complex:
        return _uniform_result(run, node)  # 0 * nan is no fill
    if name != "mul" and dtype != torch.bool:
        return None
    for condition, row in (node.args, node.args[::-1]):
        if flags_of(run.view(condition), name == "mul") is not None and flags_of(run.view(row), True) is None:
            if name == "or":
                return chosen(run, node, condition, True, row)
            return chosen(run, node, condition, row, 0 if name == "mul" else False)
    return _uniform_result(run, node)


@rule("sums")
def _sum(run: Interpreter, node: fx.Node) -> Any:
    return _uniform_result(run, node) or arithmetic(run, node)


def _uniform_result(run: Interpreter, node: fx.Node) -> Any:
    """Numbers with a tensor of one number: ``-100 * ones_like(x)``."""
    values = [run.values.get(a) if isinstance(a, fx.Node) else a for a in node.args]
    if node.kwargs or node.op != "call_function" or not any(isinstance(v, Uniform) for v in values):
        return None
    numbers: list[Any] = [v.value if isinstance(v, Uniform) else v for v in values]
    if not all(isinstance(v, (bool, int, float)) for v in numbers):
        return None
    tensors = [
        torch.full((), v, dtype=example(a).dtype) if isinstance(a, fx.Node) else v
        for v, a in zip(numbers, node.args, strict=True)
    ]
    target: Any = node.target
    return Uniform(constant(target(*tensors).item(), example(node).dtype).value)


def chosen(run: Interpreter, node: fx.Node, condition: Any, then: Any, otherwise: Any) -> Any:
    """The row ``where(condition, then, otherwise)``; None if it is not known at every position."""
    mask = run.view(condition)
    flags = flags_of(mask, bits=True)
    rows = [v for a in (then, otherwise) if (v := run.view(a)) is not None]
    if flags is None or mask is None or not rows or not all(r.complete and r.straight for r in rows):
        return None
    row = rows[0]
    if any(from_right(v) != from_right(row) or v.stop != row.stop for v in (*rows, mask)):
        return None
    dtype = example(node).dtype
    sides: list[list[Pieces]] = []
    for side in (then, otherwise):
        view = run.view(side)
        if view is not None:
            cast = [recast(p, example(side).dtype, dtype) for p in run.read(view, node)]
            sides.append([p for p in cast if p is not None])
        else:
            sides.append([whole(row.stop, number(run, side, dtype))])
    if not all(sides):
        return None
    both = [choose(flags, sides[0][i], sides[1][i]) for i in (0, -1)]
    origin = next((r.store.origin for r in rows if r.store.origin is not None), None)
    return run.made(node, example(node).dim() + from_right(row), row.store.size, both, origin)


def choose(flags: Pieces, then: Pieces, otherwise: Pieces) -> Pieces:
    """``where`` of three rows of the same length."""
    out = []
    for start, stop, flag, _ in zipped(flags, flags):
        assert isinstance(flag, Const)
        out.append(_in_place(then if flag.value else otherwise, start, stop))
    return joined(out)


def _in_place(pieces: Pieces, start: Pos, stop: Pos) -> Pieces:
    return crop(pieces, start, min(stop, length_of(pieces)))


def number(run: Interpreter, arg: Any, dtype: torch.dtype) -> Content:
    """A number, or a tensor that holds one number, in a tensor of ``dtype``."""
    if isinstance(arg, (bool, int, float)):
        return constant(arg, dtype)
    value = run.values.get(arg) if isinstance(arg, fx.Node) else None
    return constant(value.value, dtype) if isinstance(value, Uniform) else UNKNOWN
