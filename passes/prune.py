"""Remove what a rewrite left unused, and nothing else: only calls without an effect, and reads on the host."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from packpass.semantics.effects import effects_of


def prune(graph: fx.Graph, candidates: Iterable[fx.Node]) -> int:
    """Erase the candidates, and what only they used, as long as nobody uses them. Returns how many went."""
    stack, erased = list(dict.fromkeys(candidates)), set()
    while stack:
        node = stack.pop()
        if node in erased or node.users or node.op not in ("call_function", "call_method"):
            continue
        if not effects_of(node).repeatable:
            continue
        inputs = node.all_input_nodes
        graph.erase_node(node)
        erased.add(node)
        stack.extend(inputs)
    return len(erased)
