"""One dialect: what torch releases write differently into Dynamo's graphs is written one way before anybody reads them.

======================  ==================================  =====================================================
in the user's code      what some release writes            what the passes see
======================  ==================================  =====================================================
``x == 7``              method ``__eq__`` (torch 2.11)      ``operator.eq``
``x.T``, ``x.mT``       ``aten.numpy_T(x)`` (torch 2.15)    ``getattr(x, "T")``
======================  ==================================  =====================================================

What differs before there is a graph (sizes of slices, how a program iterates) is a matter of `packpass.capture`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

_COMPARISONS = {f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_ATTRIBUTES = {
    packet: name
    for name, op in (("T", "numpy_T"), ("mT", "mT"), ("H", "matrix_H"), ("mH", "mH"))
    if (packet := getattr(torch.ops.aten, op, None)) is not None
}


def normalise(graphs: Iterable[fx.Graph]) -> None:
    """Rewrite the nodes of these graphs in place; values and their order stay as they are."""
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_method" and node.target in _COMPARISONS:
                node.op, node.target = "call_function", _COMPARISONS[str(node.target)]
            elif node.op == "call_function":
                target = getattr(node.target, "overloadpacket", node.target)
                if isinstance(target, torch._ops.OpOverloadPacket) and target in _ATTRIBUTES:
                    node.target, node.args = getattr, (node.args[0], _ATTRIBUTES[target])
