"""Remove what a rewrite left unused, and nothing else: only calls without an effect, and reads on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def erase_unused(graph: fx.Graph, stays: Callable[[fx.Node], bool]) -> None:
    """Erase every call that nobody uses, unless it ``stays``. Graphs inside are left alone: `eliminate_dead_code` of
    torch goes into them, and takes a write that is a statement (``mask.masked_fill_(...)``) for unused."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not stays(node):
            graph.erase_node(node)
