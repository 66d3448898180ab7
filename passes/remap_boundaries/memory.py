"""Which memory a graph writes to, looking into the graphs that its higher-order operators call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass.semantics import storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.inner_graphs import subgraphs


def written_by(gm: Any, node: fx.Node) -> Iterator[fx.Node]:
    """The inputs whose memory a call may write."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        yield from written_inputs(node)
        return
    known = subgraphs(gm, node)
    if not known:
        yield from written_inputs(node)
    for sub, inputs, _ in known:
        inside = written(sub)
        for outer, inner in inputs:
            if storage(inner) in inside:
                yield outer


def written(gm: Any) -> frozenset[Any]:
    """Storages (see `packpass.semantics.storage`) that some call of the graph may write."""
    found = {storage(target) for node in gm.graph.nodes for target in written_by(gm, node)}
    return frozenset(found - {None})


def writes_between(gm: Any, memory: Any, start: fx.Node, stop: fx.Node) -> bool:
    """May a node from ``start`` (exclusive) to ``stop`` (exclusive) write to this storage?"""
    node = start.next
    while node is not stop and node.op != "root":
        if any(storage(target) == memory for target in written_by(gm, node)):
            return True
        node = node.next
    return False
