"""Integers that a loop body computes from boundaries and sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import fx

from packpass.semantics import argument
from packpass.semantics.effects import AS_NUMBERS
from packpass.semantics.integers import Comparison, computed
from packpass.semantics.memory import copied
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import TOKENS, Size
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
    if name == "sym_not":
        value = body.values.get(node.args[0])
        return not value if isinstance(value, bool) else UNKNOWN
    if len(node.args) == 1 and (name in AS_NUMBERS or copied(node) is not None):
        size = body.scalar(node.args[0])
        if isinstance(size, Size):
            return size
    if name == "mul" and len(node.args) == 2:
        left, right = (body.scalar(a) for a in node.args)
        if None not in (left, right) and (isinstance(left, Size) or isinstance(right, Size)):
            return _as_size(left).times(_as_size(right))
    found = computed(node, lambda arg: _linear(body.scalar(arg)), lambda *quotient: _divided(body, *quotient))
    if isinstance(found, Comparison):
        difference, equal = found.difference.number, found.op == "eq"
        return (difference == 0) == equal if difference is not None and (equal or found.op == "ne") else UNKNOWN
    return UNKNOWN if found is None else found


def _linear(value: Any) -> Lin | None:
    return value if isinstance(value, Lin) else None


def _divided(body: Body, name: str, value: Lin, by: int) -> Lin | None:
    exact = value.over(by, body.scale)
    return Lin() if exact is not None and name == "remainder" else exact


def _as_size(value: Any) -> Size:
    return value if isinstance(value, Size) else value.size()


def _sizes(body: Body, node: fx.Node) -> Any:
    dims = body.dims(node.args[0])
    if dims is None:
        return UNKNOWN
    dim = argument(node, 1, "dim")
    sizes = [_length(d) for d in dims]
    return tuple(sizes) if dim is None else sizes[dim] if isinstance(dim, int) else UNKNOWN


def _length(dim: B.Dim) -> Lin | Size:
    size = B.size_of(dim)
    if not size.atoms:
        return Lin.of(size.count)
    if size.atoms == {TOKENS}:
        return Lin(unit=Fraction(size.count))
    return size
