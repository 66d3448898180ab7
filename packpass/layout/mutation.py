"""Which nodes of a Dynamo graph write to memory."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from packpass.layout.inner_graphs import subgraphs
from packpass.layout.names import AUTOGRAD_FUNCTION, op_name

_IN_PLACE = frozenset(
    {
        operator.setitem,
        operator.delitem,
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
        operator.ifloordiv,
        operator.imod,
    }
    | {operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift, operator.imatmul}
)


def written_inputs(node: fx.Node) -> list[fx.Node]:
    """The input nodes whose memory ``node`` may write. Unknown callables may write all of them."""
    if node.op in ("placeholder", "get_attr", "output"):
        return []
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("example_value"), torch.Tensor)]
    first = [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
    if isinstance(node.kwargs.get("out"), (fx.Node, tuple, list)):
        return tensors
    if node.op == "call_method":
        name = str(node.target)
        if name in ("__setitem__", "__iadd__", "__imul__") or (name.endswith("_") and not name.endswith("__")):
            return first
        return []
    if node.op == "call_module":
        return tensors
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return tensors if target._schema.is_mutable else []
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _written_inside(node, tensors)
    if target in _IN_PLACE:
        return first
    if node.kwargs.get("inplace") or _inplace_by_position(node):
        return first
    name = getattr(target, "__name__", "")
    if name.endswith("_") and not name.endswith("__") and getattr(target, "__module__", "") != "_operator":
        return tensors
    module = getattr(target, "__module__", None) or ""
    known = (
        module.startswith(("torch", "_operator", "math", "builtins"))
        or type(target).__name__ == "builtin_function_or_method"
    )
    if name in ("batch_norm", "instance_norm"):
        return tensors  # running statistics
    return [] if known else tensors


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
