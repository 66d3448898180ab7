"""One dialect: what torch releases write differently into Dynamo's graphs is written one way before anybody reads them.

======================  ==================================  =====================================================
in the user's code      what some release writes            what the passes see
======================  ==================================  =====================================================
``x == 7``, ``abs(x)``  method ``__eq__``, ``__abs__``      ``operator.eq``, ``abs``
``1 < x``               ``lt(1, x)`` (torch 2.11)           ``gt(x, 1)``
``x.T``, ``x.mT``       ``aten.numpy_T(x)`` (torch 2.15)    ``getattr(x, "T")``
======================  ==================================  =====================================================

And what programs write in two steps, where nobody sees what is in between: ``torch.empty_like(x).fill_(v)`` is
``torch.full_like(empty, v)``.

What differs before there is a graph (sizes of slices, how a program iterates) is a matter of `packpass.capture`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from packpass.semantics.call import example
from packpass.semantics.meaning import Uninitialised
from packpass.semantics.registry import contents_of

_MIRRORED = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}
_UNARY = {"__abs__": operator.abs, "__neg__": operator.neg, "__pos__": operator.pos, "__invert__": operator.invert}
_BINARY = {
    f"__{name}__": getattr(operator, f"{name}_" if name in ("and", "or") else name)
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
}
_ATTRIBUTES = {
    packet: name
    for name, op in (("T", "numpy_T"), ("mT", "mT"), ("H", "matrix_H"), ("mH", "mH"))
    if (packet := getattr(torch.ops.aten, op, None)) is not None
}


def normalise(graphs: Iterable[fx.Graph]) -> None:
    """Rewrite the nodes of these graphs in place; values and their order stay as they are."""
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_method":
                _method(node)
            if node.op == "call_function":
                _function(node)


def _method(node: fx.Node) -> None:
    name, operands = str(node.target), len(node.args)
    table = {1: _UNARY, 2: _BINARY}.get(operands, {})
    if name in table and not node.kwargs:
        node.op, node.target = "call_function", table[name]
    elif not node.kwargs and (name, operands) in (("fill_", 2), ("zero_", 1)):
        _filled(node)


def _filled(node: fx.Node) -> None:
    """Memory that holds nothing yet, and that only this call sees, is made with its number in it."""
    made: Any = node.args[0]
    new = isinstance(made, fx.Node) and list(made.users) == [node] and isinstance(contents_of(made), Uninitialised)
    if new and not getattr(example(made), "requires_grad", True):
        number = node.args[1] if len(node.args) == 2 else 0
        if not isinstance(number, (int, float)):
            return
        node.op, node.target, node.args = "call_function", torch.full_like, (made, number)


def _function(node: fx.Node) -> None:
    if node.target in _MIRRORED and len(node.args) == 2 and not isinstance(node.args[0], fx.Node):
        node.target, node.args = _MIRRORED[node.target], node.args[::-1]
        return
    target = getattr(node.target, "overloadpacket", node.target)
    if isinstance(target, torch._ops.OpOverloadPacket) and target in _ATTRIBUTES:
        node.target, node.args = getattr, (node.args[0], _ATTRIBUTES[target])
