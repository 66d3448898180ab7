"""Views of outer tensors that the body of a loop makes for every document anew, ``x.detach()[s:e]``, in front of it.

Before::

    for s, e in bounds:
        part = x.detach()[s:e]
        parts.append(part.view(..))

After::

    detached = x.detach()
    for s, e in bounds:
        parts.append(detached[s:e].view(..))

Every document makes the same view, and the passes know what is cut from a tensor outside. Not a rewrite of its own:
runs before the passes that look at loops, changes no value and no gradient, and leaves views of what the loop writes,
what is looked at by anything that could tell one view from another, and loops that switch modes or whose documents go
several ways (a view that only some make has no gradient where none does).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import call_of, example, storage
from packpass.semantics.effects import changes_mode, effects_of, reshapes_in_place, written_inputs
from packpass.semantics.names import base_name, is_in_place, op_name
from passes.loops import WAYS, find


def with_views_in_front(graph: fx.Graph) -> None:
    """Make such views once, in front of the loop."""
    for loop in find(graph):
        inside = loop.nodes
        if any(changes_mode(node) or node.target in WAYS or _reshapes(node) for node in inside):
            continue
        first, written = loop.iterations[0][0], loop.written
        made: dict[Any, fx.Node] = {}
        for node in [node for _, body, _ in loop.iterations for node in body]:
            if not _is_view(node, inside) or storage(node) in written:
                continue
            key = (node.op, node.target, node.args, tuple(node.kwargs.items()))
            if key not in made:
                made[key] = node
                first.prepend(node)
            else:
                node.replace_all_uses_with(made[key])
                graph.erase_node(node)


def _is_view(node: fx.Node, inside: set[fx.Node]) -> bool:
    """Is this a view of one tensor from outside, by numbers that are known there?"""
    fake, given = example(node), node.args[0] if node.args else None
    if not isinstance(fake, torch.Tensor) or not isinstance(given, fx.Node) or call_of(node) is None:
        return False
    if set(node.all_input_nodes) & inside or storage(given) is None or storage(node) != storage(given):
        return False
    selects = op_name(node) == "getitem"  # what an index says of a document is for the passes to see
    return not selects and effects_of(node).repeatable and not _is_written(node)


def _is_written(view: fx.Node) -> bool:
    return any(view in written_inputs(user) for user in view.users)


def _reshapes(node: fx.Node) -> bool:
    """May the node change what a tensor is, rather than what it holds?"""
    name = op_name(node)
    return (is_in_place(name) and base_name(name) == "requires_grad") or reshapes_in_place(name)
