"""What the host must know before a call: the padding mask and the values that conditions look at, as a small graph."""

from __future__ import annotations

from torch import fx

from packpass.layout.names import op_name, storage
from passes.eliminate_padding.machine import Condition
from passes.eliminate_padding.op_sets import writes
from passes.refused import Refused


def prologue(gm: fx.GraphModule, mask: fx.Node, conditions: list[Condition]) -> fx.GraphModule:
    """The part of a graph that computes the mask and then, in order, the node of every condition that has one."""
    wanted = [mask, *(c.node for c in conditions if c.node is not None)]
    needed: set[fx.Node] = set()
    stack = list(wanted)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    memory = {storage(node) for node in needed} - {None}
    for node in gm.graph.nodes:
        if writes(op_name(node)) and storage(node.args[0]) in memory:
            raise Refused("in-place", "the padding mask or the labels are written in place", node)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta.clear()
    graph.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(gm, graph)
