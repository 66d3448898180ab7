"""The graphs inside higher-order operators: checkpointed parts of a model, and those of an ``autograd.Function``."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.semantics.names import AUTOGRAD_FUNCTION, op_name

_CALLING = {
    *(f"higher_order::{name}" for name in ("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap")),
    AUTOGRAD_FUNCTION,
}
"""Operators that run one graph on their operands."""


def inner_graph(node: fx.Node, at: int) -> fx.GraphModule | None:
    """The graph that an argument of a higher-order operator names; None if it is not at hand."""
    body, owner = node.args[at], node.graph.owning_module
    found = getattr(owner, str(body.target), None) if isinstance(body, fx.Node) else None
    return found if isinstance(found, fx.GraphModule) else None


def places_of(graph: fx.GraphModule) -> list[fx.Node]:
    """What a graph is given."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def result_of(graph: fx.GraphModule) -> Any:
    """What a graph returns."""
    return next(node for node in reversed(graph.graph.nodes) if node.op == "output").args[0]


def subgraphs(
    gm: Any, node: fx.Node
) -> list[tuple[fx.GraphModule, list[tuple[fx.Node, fx.Node]], list[tuple[int, fx.Node]]]]:
    """``(module, [(outer node, placeholder)], [(item of the result, inner node)])`` for the subgraph that a
    higher-order operator runs on its operands; empty for operators that are not understood."""
    name = op_name(node)
    if name not in _CALLING:
        return []
    body = node.args[0]
    sub = getattr(gm, str(body.target), None) if isinstance(body, fx.Node) and body.op == "get_attr" else None
    if not isinstance(sub, fx.GraphModule):
        return []
    operands = node.args[2:] if name == AUTOGRAD_FUNCTION else node.args[1:]
    places = places_of(sub)
    if len(places) != len(operands):
        return []
    inputs = [(o, p) for o, p in zip(operands, places, strict=True) if isinstance(o, fx.Node)]
    result = result_of(sub)
    if name == AUTOGRAD_FUNCTION:
        result = result[0]
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    return [(sub, inputs, [(i, n) for i, n in enumerate(items) if isinstance(n, fx.Node)])]
