"""Masks of padded rows: what a loop over documents picks with ``row[mask]`` is as long as the mask's sum.

Before (`packpass.capture.masked`)::

    masked(select(x, 0, i), select(mask, 0, i))

After: the same with the mask of all rows and a vector of their sums, which is the program's own where it has made one.
Not a rewrite of its own: runs before the passes that look at loops, changes no value, and leaves what it does not
recognise.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import call_of, example
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.memory import copied
from packpass.semantics.names import name_of_target
from packpass.semantics.pointwise import slot_by_slot
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.refused import Refused

_MASKED = (markers.MASKED, markers.MASKED_PUT)


def with_whole_masks(graph: fx.Graph) -> None:
    """Give every marker the mask of all rows, and the lengths of documents."""
    for loop in find(graph):
        nodes = [node for _, body, _ in loop.iterations for node in body if node.target in _MASKED]
        if nodes:
            _complete(graph, loop, nodes)
        for node in nodes:
            if node.target is markers.MASKED and node.args[2] is None:
                # Nobody knows how many are picked of a document: for passes that need not know, what the program wrote.
                node.target, node.args = operator.getitem, node.args[:2]


def _complete(graph: fx.Graph, loop: LoopFound, nodes: list[fx.Node]) -> None:
    whole = Whole(graph, loop)
    # What is written must fit, but for one value alone, so that documents are as long as where they are written.
    nodes.sort(key=lambda node: node.target is not markers.MASKED_PUT)
    try:
        masks = {node: whole.of(_mask(node)) for node in nodes}
        first = masks[nodes[0]]
        lengths = whole.lengths(first) if first is not None else None
    except Refused:
        whole.build.undo()
        return
    for node, mask in masks.items():
        if mask is not None and lengths is not None:
            node.args = (*node.args[:-2], mask, lengths)


def _mask(node: fx.Node) -> Any:
    return node.args[1]


class Whole:
    """Values of all documents in front of a loop."""

    def __init__(self, graph: fx.Graph, loop: LoopFound) -> None:
        self.graph, self.inside = graph, loop.nodes
        self.begin = loop.iterations[0][0]
        self.indices = [begin for begin, _, _ in loop.iterations]
        self.last = loop.iterations[-1][2]
        self.build = Builder(graph, self.begin, self.begin.graph.find_nodes(op="placeholder")[0])
        self._made: dict[Any, fx.Node] = {}

    def of(self, row: fx.Node) -> fx.Node | None:
        """The rows of all documents, of which ``row`` is the one at the index."""
        if row.target in (torch.select, "select") and row.args[1] == 0 and row.args[2] in self.indices:
            source: Any = row.args[0]
            known = source not in self.inside and not mutated_after(self.graph, source, self.begin, self.last)
            return source if known and example(source).dim() == 2 else None
        tensors = [node for node in row.all_input_nodes if isinstance(example(node), torch.Tensor)]
        if row not in self.inside or len(tensors) != 1 or row.all_input_nodes != tensors or not slot_by_slot(row):
            return None
        if not effects_of(row).repeatable or mutated_after(self.graph, row, row.next, self.last):
            return None  # a mask of its own, or one that the body writes
        source = self.of(tensors[0])
        if source is None:
            return None
        if copied(row) is tensors[0] and example(row).dtype is example(tensors[0]).dtype:
            return source  # mask[i].bool() of a mask
        key = (row.op, row.target, source, repr(row.args[1:]), repr(row.kwargs))
        if key not in self._made:
            args = fx.map_arg(row.args, lambda node: source if node is tensors[0] else node)
            self._made[key] = self.build.call(row.target, *args, method=row.op == "call_method", **row.kwargs)
        return self._made[key]

    def lengths(self, mask: fx.Node) -> fx.Node:
        """How many true places the rows have: the program's own sum, or one that is made here."""
        for node in mask.users:
            call = call_of(node) if node not in self.inside and name_of_target(node.target) == "sum" else None
            if call is None or not node < self.begin or call.arguments.get("keepdim"):
                continue
            dims = call.arguments.get("dim")
            dims = dims if isinstance(dims, (tuple, list)) else [dims]
            integers = example(node).dtype in (torch.int32, torch.int64) and example(mask).dtype is torch.bool
            if integers and list(dims) in ([1], [-1]) and not mutated_after(self.graph, mask, node, self.begin):
                return node
        return self.build.call(torch.sum, mask, 1)
