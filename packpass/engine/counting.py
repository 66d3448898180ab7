"""What a report counts in a graph."""

from __future__ import annotations

from torch import fx

from packpass._compat import is_collective
from packpass.semantics import AUTOGRAD_FUNCTION, op_name
from packpass.semantics.names import targets_of


def graph_modules(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """The graph and those of its higher-order operators."""
    return [m for m in gm.modules() if isinstance(m, fx.GraphModule)]


def count(gm: fx.GraphModule) -> tuple[int, int, int]:
    """Nodes, collectives and host reads of all graphs, in one walk; no collectives of backward bodies, for those that
    AOTAutograd will derive are not there yet either."""
    modules = graph_modules(gm)
    exchanging = any(map(is_collective, targets_of(gm)))
    nodes = collectives = syncs = 0
    backward: set[fx.GraphModule] = set()
    for m in modules:
        nodes += len(m.graph.nodes)
        for node in m.graph.nodes:
            if node.op == "call_method":
                syncs += node.target in ("item", "tolist")
            elif exchanging and node.op == "call_function":
                collectives += m not in backward and is_collective(node.target)
                if op_name(node) == AUTOGRAD_FUNCTION:
                    backward.update(graph_modules(getattr(m, node.args[1].target)))
    return nodes, collectives, syncs
