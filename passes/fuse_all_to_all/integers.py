"""Integers that a loop body computes from boundaries and sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import fx

from packpass.semantics import argument
from packpass.semantics.effects import AS_NUMBERS
from packpass.semantics.memory import copied
from packpass.semantics.pointwise import whole_divisor
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import TOKENS, Blocks, Size
from passes.fuse_all_to_all.scalars import Lin

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body

UNKNOWN = object()


def integer(body: Body, node: fx.Node) -> Any:
    name = name_of(node)
    if name in ("size", "sym_size"):
        return _sizes(body, node)
    if name == "getitem":
        base = body.values.get(node.args[0])
        if isinstance(base, tuple) and isinstance(node.args[1], int) and isinstance(base[0], (Lin, Size)):
            return base[node.args[1]]
        return UNKNOWN
    if name == "sym_sum":
        terms = [body.scalar(a) for a in node.args[0]]  # type: ignore[union-attr]
        total = Lin()
        for term in terms:
            if not isinstance(term, Lin):
                return UNKNOWN
            total = total.plus(term)
        return total
    args = [body.scalar(a) for a in node.args]
    if not args or any(a is None for a in args):
        return UNKNOWN
    if len(args) == 1:
        same = name in AS_NUMBERS | {"positive"} or copied(node) is not None
        return args[0] if same else UNKNOWN
    if len(args) != 2:
        return UNKNOWN
    left, right = args
    if name == "mul" and (isinstance(left, Size) or isinstance(right, Size)):
        return _as_size(left).times(_as_size(right))
    if not isinstance(left, Lin) or not isinstance(right, Lin):
        return UNKNOWN
    return _arithmetic(body, node, name, left, right)


def _arithmetic(body: Body, node: fx.Node, name: str, left: Lin, right: Lin) -> Any:
    number = right.number()
    if name in ("add", "sub"):
        return left.plus(right, 1 if name == "add" else -1)
    if name == "mul":
        if number is None:
            left, number = right, left.number()
        return left.times(number) if number is not None else UNKNOWN
    divisor = whole_divisor(node, number)
    if divisor is not None:
        quotient = left.over(divisor, body.scale)
        return UNKNOWN if quotient is None else quotient
    if name == "remainder" and number is not None:
        return Lin() if left.over(number, body.scale) is not None else UNKNOWN
    if name in ("eq", "ne"):
        difference = left.plus(right, -1).number()
        return UNKNOWN if difference is None else (difference == 0) == (name == "eq")
    return UNKNOWN


def _as_size(value: Any) -> Size:
    return value if isinstance(value, Size) else value.size()


def _sizes(body: Body, node: fx.Node) -> Any:
    value = body.tensor(node.args[0])
    if not isinstance(value, Blocks):
        return UNKNOWN
    dim = argument(node, 1, "dim")
    sizes = [_length(d) for d in value.dims]
    return tuple(sizes) if dim is None else sizes[dim] if isinstance(dim, int) else UNKNOWN


def _length(dim: B.Dim) -> Lin | Size:
    size = B.size_of(dim)
    if not size.atoms:
        return Lin.of(size.count)
    if size.atoms == {TOKENS}:
        return Lin(unit=Fraction(size.count))
    return size
