"""Copies of graphs."""

from __future__ import annotations

from typing import Any

from torch import fx


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of ``gm`` and its subgraphs that passes do not touch (parameters and other submodules are shared).

    It is of the kind that ``gm`` is, as Dynamo's modules have no Python code before they run, and few copies ever do.
    """
    kind: Any = type(gm).__base__  # torch makes a class of its own for every module
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, values))
    copy: fx.GraphModule = kind(gm, graph)
    for name, child in list(copy.named_children()):
        if isinstance(child, fx.GraphModule):
            setattr(copy, name, copy_graph(child))
    return copy
