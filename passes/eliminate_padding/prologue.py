"""What the host must know before a call: the padding mask and the values that conditions look at, as a small graph."""

from __future__ import annotations

from torch import fx

from packpass.semantics import op_of, storage
from packpass.semantics.effects import effects_of, written_inputs
from passes.eliminate_padding.values import Condition
from passes.eliminate_padding.writes import heavy, written
from passes.nodes import needed_for
from passes.refused import Refused


def prologue(gm: fx.GraphModule, mask: fx.Node, conditions: list[Condition]) -> fx.GraphModule:
    """The part of a graph that computes the mask and then, in order, the node of every condition that has one.

    It runs in addition to the graph, so it must come to the same values and change nothing.
    """
    wanted = [mask, *(c.node for c in conditions if c.node is not None)]
    needed = needed_for(wanted)
    memory = {storage(node) for node in needed} - {None}
    for node in gm.graph.nodes:
        name, others = op_of(node), written_inputs(node)[1:]  # such as running statistics
        if node in needed and (effects_of(node).random or heavy(node) or others or name.startswith("higher_order")):
            reason = f"the padding mask, the labels or an index depend on {name}, which cannot be run twice"
            raise Refused("no-rule", reason, node)
        if written(node) and storage(node.args[0]) in memory:
            raise Refused("in-place", "the padding mask or the labels are written in place", node)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta.clear()
    graph.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(gm, graph)
