"""What a loop over documents writes to the slots that a mask keeps: ``out[s:e][mask[s:e]] = f(x[s:e][mask[s:e]])``.

After `passes.kept` has made a row of the kept slots, that is a write to a document of such a row::

    kept = out[order]                              # in front of the loop; order: kept slots first
    for i in range(n):
        kept[cu2[i] : cu2[i + 1]] = f(...)         # as long as the document of kept slots, as eager wants
    out.index_copy_(0, order, kept)                # behind it; order holds every slot once

Only where nothing in the loop looks at ``out`` in another way.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import mutated_after
from passes.building import Builder
from passes.loops import LoopFound, only_asserted
from passes.refused import Refused


def puts(nodes: Any) -> list[fx.Node]:
    """Writes to slots that the mask of a document, and not of the row of a batch, keeps."""
    return [node for node in nodes if node.target is markers.MASKED_PUT and node.args[3] is None]


def written_row(loop: LoopFound, put: fx.Node) -> tuple[fx.Node, fx.Node]:
    """``(part, row)``: the document that is written to, and the tensor that it is cut from, which nothing else in the
    loop looks at; raises `Refused`."""
    part: Any = put.args[0]
    row: Any = part.args[0] if isinstance(part, fx.Node) and part.target is operator.getitem else None
    if not isinstance(row, fx.Node) or row in loop.nodes or part not in loop.nodes:
        raise Refused("no-rule", "slots that a mask keeps are written to what is not cut from a row", put)
    memory, own = storage(row), set[fx.Node]()
    for node in loop.nodes:
        if node.target is markers.MASKED_PUT and node.args[0].args[:1] == (row,):  # type: ignore[union-attr]
            cut: Any = node.args[0]
            own |= {node, cut, *only_asserted(cut)}
            if not set(cut.users) <= own:
                raise Refused("aliasing", "a document is looked at beside the slots that are written", put)
    for node in loop.nodes - own:
        tensors = [n for n in (node, *node.all_input_nodes) if isinstance(example(n), torch.Tensor)]
        if memory is None or any(storage(n) in (memory, None) for n in tensors):
            raise Refused("aliasing", "a row is looked at beside the slots that a mask keeps and the loop writes", put)
    if mutated_after(put.graph, row, loop.iterations[0][0], loop.iterations[-1][2], ignore=own):
        raise Refused("aliasing", "a row is written in two ways", put)
    return part, row


def put_back(loop: LoopFound, row: fx.Node, kept: fx.Node, order: fx.Node) -> Builder:
    """Behind the loop."""
    build = Builder(row.graph, loop.iterations[-1][2].next, row)
    build.call("index_copy_", row, 0, order, kept, method=True, fake=example(row))
    return build


def write_part(build: Builder, kept: fx.Node, bounds: fx.Node, index: fx.Node, put: fx.Node) -> None:
    """In the body, instead of ``put``."""
    value: Any = put.args[2]
    fake = example(kept).new_empty([example(value).shape[0], *example(kept).shape[1:]])
    if example(value).dim() != fake.dim():
        raise Refused("no-rule", "kept slots are set to values of fewer dimensions", put)
    part = build.call(markers.SEGMENT, kept, bounds, index, 0, fake=fake)
    build.call(operator.setitem, part, slice(None), value, fake=NO_VALUE)


def fill(graph: fx.Graph, node: fx.Node) -> None:
    """``part[mask] = number``, where the mask has the first of the part's dimensions, by a mask that has all."""
    part, mask, number = node.args
    if not isinstance(mask, fx.Node) or not isinstance(number, (bool, int, float)) or not isinstance(part, fx.Node):
        return
    fakes = example(part), example(mask)
    if not all(isinstance(fake, torch.Tensor) for fake in fakes) or fakes[1].dtype is not torch.bool:
        return
    if isinstance(number, float) and not fakes[0].is_floating_point():
        return
    missing = fakes[0].dim() - fakes[1].dim()
    if missing <= 0 or not fakes[1].dim():
        return
    build = Builder(graph, node, part)
    try:
        for _ in range(missing):
            mask = build.call("unsqueeze", mask, -1, method=True)
        build.call("masked_fill_", part, mask, number, method=True, fake=fakes[0])
    except Refused:
        build.undo()
        return
    graph.erase_node(node)
