"""``torch.vmap`` of functions that work element by element, as calls on whole tensors; what is inside of transforms.

Dynamo writes ``torch.vmap(f)(x)`` as the steps of which vmap consists: a level is opened, tensors enter it without
their batch axis, leave it with one, and the level is closed. An operation of one element does the same to a whole
tensor, so that the steps can go: what enters has its batch axis in front, what leaves has it put back. (An associative
scan is made of such functions.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics.binding import example
from packpass.semantics.call import call_of, invoke
from packpass.semantics.names import op_name
from packpass.semantics.registry import family_of

_OPEN, _CLOSE, _LOAD = "_vmap_increment_nesting", "_vmap_decrement_nesting", "lazy_load_decompositions"
_ENTER, _LEAVE = "_add_batch_dim", "_remove_batch_dim"
_ENTERS = frozenset({_ENTER, "_wrap_for_grad", "_make_dual"})
_LEAVES = frozenset({_LEAVE, "_unwrap_for_grad", "_unpack_dual"})


def unbatch(graph: fx.Graph) -> None:
    """Write every such part of a graph as calls on whole tensors; other parts stay."""
    part: list[fx.Node] = []
    depth = 0
    for node in list(graph.nodes):
        name = _step(node)
        if name == _OPEN:
            depth += 1
            part = [node] if depth == 1 else []  # a level within a level
        elif part:
            part.append(node)
        if name == _CLOSE:
            depth -= 1
            if depth == 0 and part:
                _unbatch(graph, part)
            part = []
    for node in list(graph.nodes):
        if _step(node) == _LOAD and not node.users and not any(_step(n) == _OPEN for n in graph.nodes):
            graph.erase_node(node)


def inside_transforms(graph: fx.Graph) -> set[fx.Node]:
    """Values inside ``torch.vmap`` or a transform of ``torch.func``: what enters one, and what is computed of that."""
    depths: dict[fx.Node, int] = {}
    for node in graph.nodes:
        name = _step(node)
        depth = max((depths.get(n, 0) for n in node.all_input_nodes), default=0)
        depths[node] = max(depth + (name in _ENTERS) - (name in _LEAVES), 0)
    return {node for node, depth in depths.items() if depth}


def _step(node: fx.Node) -> str:
    """The last word of a function's name."""
    return op_name(node).rpartition(".")[2] if node.op == "call_function" else ""


def _unbatch(graph: fx.Graph, part: list[fx.Node]) -> None:
    if not _element_by_element(part):
        return
    whole: set[fx.Node] = set()
    with torch.no_grad():
        for node in part:
            name = _step(node)
            if name == _ENTER:
                whole.add(_replaced(graph, node, "movedim", (node.args[0], node.args[1], 0)))
            elif name == _LEAVE:
                _replaced(graph, node, "movedim", (node.args[0], 0, node.args[3]))
            elif name not in (_OPEN, _CLOSE, _LOAD) and any(n in whole for n in node.all_input_nodes):
                whole.add(node)
                node.meta["example_value"] = _value(node)
        for node in reversed(part):
            if _step(node) in (_OPEN, _CLOSE, _LOAD):
                graph.erase_node(node)


def _element_by_element(part: list[fx.Node]) -> bool:
    """Is every call between the steps one that a whole tensor can go through, with its batch axis in front?"""
    inside: dict[fx.Node, int] = {}
    for node in part:
        name = _step(node)
        if name in (_OPEN, _CLOSE, _LOAD):
            if node.users:
                return False
        elif name == _ENTER:
            rank = example(node.args[0]).dim() - 1
            if rank < 1:
                return False
            inside[node] = rank
        elif name == _LEAVE:
            if node.args[0] not in inside:
                return False
        elif any(n in inside for n in node.all_input_nodes):  # what reads nothing that entered is a call like others
            call = call_of(node)
            if call is None or call.in_place or call.several or family_of(node) != "pointwise":
                return False
            batched = {inside[n] for n in node.all_input_nodes if n in inside}
            others = [example(n) for n in node.all_input_nodes if n not in inside]
            ranks = [x.dim() for x in others if isinstance(x, torch.Tensor)]
            if len(batched) > 1 or any(rank > min(batched) for rank in ranks):
                return False
            inside[node] = min(batched)
    # Nothing leaves by another door.
    members = set(part)
    return all(n in members for node in inside for n in node.users)


def _replaced(graph: fx.Graph, node: fx.Node, method: str, args: tuple[Any, ...]) -> fx.Node:
    with graph.inserting_before(node):
        new = graph.call_method(method, args)
    new.meta = node.meta.copy()
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    new.meta["example_value"] = _value(new)
    return new


def _value(node: fx.Node) -> Any:
    """What a call of fake tensors gives."""
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), example)
    return invoke(node, args, kwargs)
