"""Tokens of a row of a batch that are repeated, each as often as a number of its own says: together they are one row.

Before, for row ``i`` of a batch, as the length regulators of speech models are written::

    part = torch.repeat_interleave(x[i], durations[i], dim=0)

After::

    every = torch.repeat_interleave(x.flatten(0, 1), durations.flatten(), dim=0)
    lengths = durations.sum(1)
    part = every.split(lengths)[i]

Not a rewrite of its own: runs before the passes that look at loops, changes no value, and leaves what it does not
recognise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.semantics import call_of, example, is_tensor, op_name
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.pointwise import slot_by_slot
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.nodes import put_instead
from passes.prune import prune
from passes.refused import Refused


def with_repeated_rows(graph: fx.Graph) -> None:
    """Cut what is repeated in bodies of loops from rows of what all documents repeat."""
    for loop in find(graph):
        nodes = [n for _, body, _ in loop.iterations for n in body if op_name(n) == "repeat_interleave"]
        if nodes and all(_repeats(node) is not None for node in nodes):
            _Repeated(graph, loop).cut(nodes)


def _repeats(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What is repeated along its first dimension, and by which numbers, one for each slot."""
    call = call_of(node)
    if call is None or call.get("output_size") is not None:
        return None
    row, numbers, dim = call.arguments.get("self", call.arguments.get("input")), call.get("repeats"), call.get("dim")
    known = all(isinstance(n, fx.Node) and is_tensor(n) for n in (row, numbers))
    if not known or dim not in (0, -example(row).dim()) or example(numbers).dim() != 1:
        return None
    return row, numbers


class _Repeated:
    """What one loop repeats."""

    def __init__(self, graph: fx.Graph, loop: LoopFound) -> None:
        self.graph, self.loop, self.inside = graph, loop, loop.nodes
        self.first, self.last = loop.iterations[0][0], loop.iterations[-1][2]
        self.build = Builder(graph, self.first, graph.find_nodes(op="placeholder")[0])
        self.builds = [self.build]
        self.made: dict[Any, Any] = {}

    def cut(self, nodes: list[fx.Node]) -> None:
        """All that is repeated, or nothing of it."""
        try:
            new = {node: self._part(node) for node in nodes}
        except Refused:
            for build in reversed(self.builds):
                build.undo()
            return
        for node, part in new.items():
            put_instead(node, part)
        prune(self.graph, nodes)

    def _part(self, node: fx.Node) -> fx.Node:
        found = _repeats(node)
        assert found is not None
        rows, numbers = map(self._whole, found)
        every, lengths = self._every(rows, numbers, node)
        begin = next(begin for begin, body, _ in self.loop.iterations if node in body)
        build = Builder(self.graph, node, self.first)
        self.builds.append(build)
        part = build.call(markers.SPLIT_GET, every, lengths, begin, 0, fake=example(node))
        return build.call("clone", part, method=True, fake=example(node))  # what is repeated is a copy

    def _every(self, rows: fx.Node, numbers: fx.Node, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """What all rows become, one behind the other, and how long each has become."""
        if not self._are_alike(example(rows).shape, example(numbers).shape):
            raise Refused("row-lengths", "tokens are repeated by numbers of another batch", node)
        key = "every", rows, numbers
        if key not in self.made:
            call = self.build.call
            tokens, counts = call(torch.flatten, rows, 0, 1), call(torch.flatten, numbers)
            extents = [call(torch.ops.aten.sym_size.int, numbers, d) for d in (0, 1)]
            lengths = call(torch.sum, call(torch.unflatten, counts, 0, extents), 1)
            self.made[key] = call(torch.repeat_interleave, tokens, counts, 0), lengths
        every, lengths = self.made[key]
        return every, lengths

    def _are_alike(self, rows: Any, numbers: Any) -> bool:
        """Has a batch as many rows as the numbers have, and as many tokens in each? Where that is so now, but need not
        be, a guard says so of later calls."""
        sizes = [*rows[:2], *numbers]
        if len(sizes) != 4 or any(free_unbacked_symbols(size) for size in sizes):
            return False
        return all(statically_known_true(a == b) or bool(a == b) for a, b in zip(sizes[:2], sizes[2:], strict=True))

    def _whole(self, node: fx.Node) -> fx.Node:
        """The batch, of which a value of the body is the document's row."""
        begins = [begin for begin, _, _ in self.loop.iterations]
        source: Any = node.args[0] if node.args else None
        if node not in self.inside or effects_of(node).writes or not isinstance(source, fx.Node):
            raise Refused("no-rule", "what is repeated is no row of a batch", node)
        at = node.args[1:] if op_name(node) == "getitem" else node.args[2:] if node.args[1:2] == (0,) else ()
        if op_name(node) in ("select", "getitem") and at and at[0] in begins and source not in self.inside:
            if mutated_after(self.graph, source, self.first, self.last):
                raise Refused("aliasing", "a batch whose rows are repeated is written by the loop", node)
            return source
        constants = [arg for arg in (*node.args[1:], *node.kwargs.values()) if isinstance(arg, fx.Node)]
        if not slot_by_slot(node) or constants or example(source).shape != example(node).shape:
            raise Refused("no-rule", "what is repeated is no row of a batch", node)
        key = self._whole(source), node.op, node.target, repr(node.args[1:]), repr(node.kwargs)
        if key not in self.made:
            method = node.op == "call_method"
            self.made[key] = self.build.call(node.target, key[0], *node.args[1:], method=method, **node.kwargs)
        whole: fx.Node = self.made[key]
        return whole
