"""The graphs inside higher-order operators: checkpointed parts of a model, and those of an ``autograd.Function``."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.semantics import op_name


def subgraphs(
    gm: Any, node: fx.Node
) -> list[tuple[fx.GraphModule, list[tuple[fx.Node, fx.Node]], list[tuple[int, fx.Node]]]]:
    """``(module, [(outer node, placeholder)], [(item of the result, inner node)])`` for the subgraph that a
    higher-order operator runs on its operands; empty for operators that are not understood."""
    name = op_name(node).removeprefix("higher_order::")
    if name not in ("tag_activation_checkpoint", "wrap_activation_checkpoint", "wrap", "autograd_function_apply"):
        return []
    body = node.args[0]
    sub = getattr(gm, str(body.target), None) if isinstance(body, fx.Node) and body.op == "get_attr" else None
    if not isinstance(sub, fx.GraphModule):
        return []
    operands = node.args[2:] if name == "autograd_function_apply" else node.args[1:]
    places = [n for n in sub.graph.nodes if n.op == "placeholder"]
    if len(places) != len(operands):
        return []
    inputs = [(o, p) for o, p in zip(operands, places, strict=True) if isinstance(o, fx.Node)]
    result = next(n for n in reversed(sub.graph.nodes) if n.op == "output").args[0]
    if name == "autograd_function_apply":
        result = result[0]
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    return [(sub, inputs, [(i, n) for i, n in enumerate(items) if isinstance(n, fx.Node)])]
