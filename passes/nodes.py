"""What every rewriter needs when it adds nodes to a Dynamo graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from packpass.layout.mutation import mutated_after

SNAPSHOT = torch.ops.packpass.snapshot.default


def copy_of(graph: fx.Graph) -> fx.Graph:
    """The graph as it is now, to go back to."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def snapshot_of(cu: fx.Node, before: fx.Node, call: Callable[..., fx.Node]) -> fx.Node:
    """A copy of boundaries for the backward, one for all calls over them: the program may write those of the next batch
    to the same memory before it runs. ``call`` adds a node in front of ``before``."""
    for node in before.graph.nodes:
        if node is before:
            break
        if node.target is SNAPSHOT and node.args == (cu,) and not mutated_after(before.graph, cu, node, before):
            return node
    return call(SNAPSHOT, cu)
