"""Parts that a row is split into, as documents between boundaries: for loops with messages, whose ranks hold shards.

Before::

    parts = x.split((cu.diff() // cp).tolist())    # a loop over the parts

After: documents of ``x`` between ``(cu - cu[0]) // cp``, as ``x[cu[i] // cp : cu[i + 1] // cp]`` cuts them.

Both are the same where every length can be divided, which the exchange of shards checks at every call. So this is only
kept where an exchange has taken the messages' place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from packpass.semantics.memory import copied
from packpass.semantics.pointwise import whole_divisor
from passes.building import Builder
from passes.document_loops.boundaries import check_split, lengths_of, summed, unchanged
from passes.document_loops.run import numbered
from passes.loops import LoopFound
from passes.nodes import Made, or_as_it_was, put_instead
from passes.refused import Refused


def parts_of(loop: LoopFound) -> list[fx.Node]:
    """The parts of rows that a loop goes over."""
    return [node for node in loop.nodes if node.target is markers.SPLIT_GET]


def in_their_place(gm: fx.GraphModule, number: int, attempt: Callable[[], list[Made]]) -> list[Made]:
    """What ``attempt`` makes of a loop once its documents are cut by boundaries, where a row is split by lengths;
    nothing, and the graph as it was, where it has no such parts, or that does not help."""
    if not parts_of(numbered(gm.graph, number)):
        return []
    return or_as_it_was(gm, lambda: attempt() if cut_by_boundaries(gm.graph, numbered(gm.graph, number)) else [])


def cut_by_boundaries(graph: fx.Graph, loop: LoopFound) -> bool:
    """Put documents in the place of such parts; False, and nothing is changed, if that cannot be."""
    parts = parts_of(loop)
    begin, last = loop.iterations[0][0], loop.iterations[-1][2]
    like = graph.find_nodes(op="placeholder")[0]
    build = Builder(graph, begin, like)
    bounds: dict[fx.Node, fx.Node] = {}
    made: dict[Any, fx.Node] = {}
    checked = set[tuple[fx.Node, fx.Node]]()
    try:
        for part in parts:
            x, lengths = part.args[:2]
            if not isinstance(x, fx.Node) or not isinstance(lengths, fx.Node) or {x, lengths} & loop.nodes:
                raise Refused("no-rule", "a part of a row that the loop makes", part)
            if mutated_after(graph, x, begin, last) or not unchanged(lengths, lengths.next):
                raise Refused("aliasing", "a row is changed in the loop over its parts", part)
            bounds[lengths] = _bounds(build, lengths, made)
            if (x, bounds[lengths]) not in checked:
                total = build.call(operator.getitem, summed(build.call, lengths), -1)
                check_split(build.call, x, lengths, part.args[3], total)
                checked.add((x, bounds[lengths]))
    except Refused:
        build.undo()
        return False
    for part in parts:
        x, lengths, index, dim = part.args
        assert isinstance(lengths, fx.Node)
        own = Builder(graph, part, like).call(markers.SEGMENT, x, bounds[lengths], index, dim, fake=example(part))
        put_instead(part, own)
        graph.erase_node(part)
    return True


def _made_of(lengths: fx.Node) -> tuple[fx.Node, int]:
    """The vector of whole documents' lengths that lengths are a quotient of, and by what."""
    node, divisor = lengths, 1
    while True:
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not isinstance(example(source), torch.Tensor):
            return node, divisor
        by = whole_divisor(node, node.args[1] if len(node.args) > 1 else None)
        if by is None and copied(node) is not source:
            return node, divisor
        if not unchanged(source, node) or not unchanged(node, node.next):
            return node, divisor
        node, divisor = source, divisor * (by or 1)


def _bounds(build: Builder, lengths: fx.Node, made: dict[Any, fx.Node]) -> fx.Node:
    """The boundaries of parts with these lengths: those of whole documents, divided as the lengths are."""
    node, divisor = _made_of(lengths)
    root = lengths_of(node) or node
    if (root, 1) not in made:
        made[root, 1] = summed(build.call, node)
    if (root, divisor) not in made:
        made[root, divisor] = build.call(torch.div, made[root, 1], divisor, rounding_mode="floor")
    return made[root, divisor]
