"""Numbers that a program reads twice from tensors that hold the same: ``batch.max().item()`` here and there.

Torch makes two sizes of them, and later, with a gradient, takes one calculation for both: sizes that are left with the
other name belong to nobody then, and compiling fails. So what is read again is the number that was read first.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx

from packpass.semantics import effects, example, op_of


def read_once(graph: fx.Graph) -> None:
    """Reads of what is the same for certain become one."""
    reads = [node for node in graph.nodes if isinstance(example(node), torch.SymInt) and op_of(node) == "item"]
    keys: dict[fx.Node, Any] = {}
    first: dict[Any, fx.Node] = {}
    for node in reads if len(reads) > 1 else ():
        known = first.setdefault(_key(node, keys), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)


def _key(node: fx.Node, keys: dict[fx.Node, Any]) -> Any:
    """Equal for calls that give the same; the node itself where that is not known."""
    if node in keys:
        return keys[node]
    keys[node] = node
    if node.op in ("call_function", "call_method") and _is_pure(node):
        key = (node.op, node.target, _hashable((node.args, dict(node.kwargs)), keys))
        with contextlib.suppress(TypeError):  # an argument that cannot be compared
            hash(key)
            keys[node] = key
    return keys[node]


def _hashable(value: Any, keys: dict[fx.Node, Any]) -> Any:
    """Numbers that are equal and not the same, 1 and True, stay apart."""
    if isinstance(value, fx.Node):
        return "node", _key(value, keys)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_hashable(part, keys) for part in value))
    if isinstance(value, dict):
        return tuple((name, _hashable(part, keys)) for name, part in sorted(value.items()))
    if isinstance(value, slice):
        return "slice", _hashable((value.start, value.stop, value.step), keys)
    return type(value).__name__, value


def _is_pure(node: fx.Node) -> bool:
    """Does it give the same each time, of whole numbers that nobody changes? (What is computed with others depends on
    the modes that are on.)"""
    found = effects.effects_of(node)
    if not found.known or found.random or found.collective or effects.written_inputs(node):
        return False
    tensors = [n for n in (node, *node.all_input_nodes) if isinstance(example(n), torch.Tensor)]
    if any(example(tensor).dtype.is_floating_point or example(tensor).dtype.is_complex for tensor in tensors):
        return False
    return not any(effects.mutated_after(node.graph, tensor, tensor) for tensor in tensors)
