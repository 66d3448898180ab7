"""Where a tensor of integers says that something lies, as an expression: sums and products of what is known to lie
between two numbers. A place of a flat table, ``row * width + column``, is a row and a column again, and needs no
check."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from packpass.semantics.limits import NO_LIMITS, Limits
from packpass.semantics.pointwise import WHOLE_SUMS
from passes.ragged_grids.sizes import Looked, placed
from passes.ragged_grids.terms import Applied, Count, Filled, Index, Moved, Number, Numbers, Read, Term, Value

if TYPE_CHECKING:
    from passes.ragged_grids.row import Row


def known_limits(term: Term) -> Limits:
    """Between which integers every slot of a term lies."""
    while isinstance(term, Moved):
        term = term.read.of
    if isinstance(term, Filled) and type(term.value) is int:
        return term.value, term.value
    return term.limits if isinstance(term, Applied) else NO_LIMITS


def place(row: Row, read: Read, dims: tuple[Any, ...], at: tuple[Any, ...]) -> Any:
    """The expression; None if it holds something of which nothing is known."""
    if any(isinstance(where, Index) for where in read.at):
        return None
    places = tuple(placed(where, dims, at) for where in read.at)
    found = expression(read.of, places, functools.partial(_bounded, row))
    return None if found is None else sympy.expand(found)


def expression(term: Term, at: tuple[Any, ...], otherwise: Callable[[Term, tuple[Any, ...]], Any]) -> Any:
    """What a tensor of integers holds at places, where that follows from where they are; ``otherwise`` tells it of
    other terms. None if it is not known."""
    if isinstance(term, Moved):
        if any(isinstance(where, Index) for where in term.read.at):
            return None
        inner = tuple(placed(where, term.dims, at) for where in term.read.at)
        return expression(term.read.of, inner, otherwise)
    if isinstance(term, (Numbers, Number, Filled)):
        known = type(term.value) is int or isinstance(term.value, sympy.Basic)
        return placed(sympy.sympify(term.value), term.dims, at) if known else None
    if isinstance(term, Count):
        return sympy.expand(term.start + term.step * at[0])
    return otherwise(term, at)


def _bounded(row: Row, term: Term, at: tuple[Any, ...]) -> Any:
    if not isinstance(term, Applied) or term.dtype is not torch.int64:
        return None
    least, most = term.limits
    if least is not None and least >= 0 and most is not None:
        node = row.node(term, at)
        name = sympy.Symbol(f"at_{node.name}", integer=True)
        row.looked[name] = node
        return Looked(name, sympy.Integer(most + 1))
    return _summed(row, term, at)


def _summed(row: Row, term: Applied, places: tuple[Any, ...]) -> Any:
    if term.op not in WHOLE_SUMS or len(term.args) != 2:
        return None
    parts: list[Any] = []
    for arg in term.args:
        if isinstance(arg, Read):
            parts.append(place(row, arg, term.dims, places) if arg.of.dtype is torch.int64 else None)
        else:
            number = arg.value if isinstance(arg, Value) else arg
            parts.append(sympy.sympify(number) if type(number) is int or isinstance(number, sympy.Expr) else None)
    return None if None in parts else WHOLE_SUMS[term.op](*parts)
