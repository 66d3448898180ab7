"""Which nodes of a Dynamo graph write to memory."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from packpass._compat import qualified_name
from packpass.layout.inner_graphs import subgraphs
from packpass.layout.names import AUTOGRAD_FUNCTION, argument, function_name, op_name

_ARITHMETIC = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)
_IN_PLACE = frozenset({operator.setitem, operator.delitem, *(getattr(operator, name) for name in _ARITHMETIC)})
_IN_PLACE_METHODS = frozenset({"__setitem__", "__delitem__", *(f"__{name}__" for name in (*_ARITHMETIC, "idiv"))})
_STATISTICS = re.compile(r"(.*_)?(batch|instance)_norm(_.*)?|_?fused_moving_avg_obs.*")
"""Ops that update running statistics; the schemas of some do not say so."""


def written_inputs(node: fx.Node) -> list[fx.Node]:
    """The input nodes whose memory ``node`` may write. Unknown callables may write all of them."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    tensors = [n for n in node.all_input_nodes if _holds_tensors(n.meta.get("example_value"))]
    first = [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
    if node.kwargs.get("out") is not None:
        return tensors
    if node.op == "call_method":
        name = str(node.target)
        in_place = name.endswith("_") and not name.endswith("__")
        return first if in_place or name in _IN_PLACE_METHODS else []
    if node.op == "call_module":
        return tensors
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _written_inside(node, tensors)
    if target in _IN_PLACE:
        return first
    name = function_name(target).rpartition("::")[2]
    if not name or _STATISTICS.fullmatch(name) or _renormalises(node, name) or _schema_writes(target):
        return tensors
    if node.kwargs.get("inplace") or _inplace_by_position(node):
        return first
    return tensors if name.endswith("_") and getattr(target, "__module__", "") != "_operator" else []


def _holds_tensors(value: Any) -> bool:
    """Is this a tensor, or a list with tensors in it?"""
    return isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def _schema_writes(target: Any) -> bool:
    """Does an operator say that it writes? Of a packet, which Dynamo puts down for ``torch.ops.x.y``, any overload may
    be meant; what a packet of torch's own writes is its ``out=``, or in its name."""
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if not isinstance(target, torch._ops.OpOverloadPacket) or qualified_name(target)[0] in ("aten", "prims"):
        return False
    return any(getattr(target, overload)._schema.is_mutable for overload in target.overloads())


def _renormalises(node: fx.Node, name: str) -> bool:
    """``embedding(ids, table, max_norm=1.0)`` scales rows of the table down, in place."""
    at = 3 if getattr(node.target, "__module__", "") == "torch.nn.functional" else len(node.args)
    return name in ("embedding", "embedding_bag") and argument(node, at, "max_norm") is not None


def _written_inside(node: fx.Node, tensors: list[fx.Node]) -> list[fx.Node]:
    """Operands of a higher-order operator that its graph may write: all of them, unless the graph is at hand and there
    is no other (an ``autograd.Function`` has a backward)."""
    owner = node.graph.owning_module
    inside = subgraphs(owner, node) if owner is not None and op_name(node) != AUTOGRAD_FUNCTION else []
    if len(inside) != 1:
        return tensors
    sub, inputs, _ = inside[0]
    written = {_memory(target) for n in sub.graph.nodes for target in written_inputs(n)}
    if None in written:
        return tensors
    return [outer for outer, inner in inputs if _memory(inner) in written and outer in tensors]


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("example_value")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _inplace_by_position(node: fx.Node) -> bool:
    """``relu(x, True)``: a Python function whose parameter ``inplace`` is given without its name."""
    code = getattr(node.target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return "inplace" in names and any(a is True for a in node.args[names.index("inplace") :][:1])


def mutated_after(
    graph: fx.Graph, node: fx.Node, start: fx.Node, stop: fx.Node | None = None, ignore: Collection[fx.Node] = ()
) -> bool:
    """May any node from ``start`` on (up to ``stop``, exclusive, and not in ``ignore``) write to the memory of
    ``node``?"""
    return any(n not in ignore and _writes(n, node) for n in _between(start, stop))


def _between(start: fx.Node, stop: fx.Node | None) -> Iterable[fx.Node]:
    node = start
    while node is not stop and node.op != "root":
        yield node
        node = node.next


def _writes(n: fx.Node, node: fx.Node) -> bool:
    memory = _memory(node)
    return any(target is node or memory is None or _memory(target) in (None, memory) for target in written_inputs(n))
