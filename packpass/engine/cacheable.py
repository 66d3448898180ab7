"""Graphs that torch keeps from one process to the next.

AOTAutograd's cache knows a list of functions, and ``torch._check`` is none of them: a graph with a single one is traced
anew in every process. The op that torch itself puts there for a condition on sizes says the same.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass.semantics import example


def check_by_ops(graph: fx.Graph) -> None:
    """Every ``torch._check(condition)`` without words of the user's as the op."""
    for node in graph.find_nodes(op="call_function", target=torch._check):
        holds = node.args[0]
        if len(node.args) != 1 or node.kwargs or not isinstance(holds, fx.Node):
            continue
        if example(holds) is True:
            graph.erase_node(node)
        elif isinstance(example(holds), torch.SymBool):
            said = f"Runtime assertion failed for expression {example(holds).node.expr} on node '{holds.name}'"
            node.target, node.args = torch.ops.aten._assert_scalar.default, (holds, said)
