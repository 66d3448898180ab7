"""Documents of a row that the loop fills part by part, with what it receives.

Before::

    for r in range(cp):
        out[s + r * n : s + (r + 1) * n] = got[r]

After: ``out[s:e] = whole``, one write of what the parts are together.

Every block of the document must have been filled, and nothing of the row be read in the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example, storage
from packpass.semantics.effects import written_inputs
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all.blocks import Blocks, NotMovement
from passes.fuse_all_to_all.exchange import Exchange, only_source, recognise
from passes.fuse_all_to_all.held import Buffer, Source
from passes.fuse_all_to_all.moves import entries_of, index
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body


@dataclasses.dataclass(eq=False)
class Placed(Buffer):
    """What an iteration has written to its document of an outer tensor."""

    source: Source = dataclasses.field(kw_only=True)
    writes: list[fx.Node] = dataclasses.field(default_factory=list)


def place(body: Body, node: fx.Node) -> None:
    """``row[part] = blocks``, or a copy to such a part: what the document holds from here on.

    Raises:
        NotMovement: what is written, or where, is not understood.
    """
    row, part = node.args[0], node.args[-1]
    if not isinstance(row, fx.Node) or not isinstance(part, fx.Node) or node.users or body.exchange(part) is not None:
        return
    content = body.blocks(part)
    places: Blocks | None
    if name_of(node) == "copy_":
        places = body.blocks(row)
    elif body.is_outer(row):
        places = body.places(row, node.args[1], node)
    else:
        known = body.blocks(row)
        places = index(body, node, known, entries_of(node.args[1], known.rank))
    found = None if places is None else only_source(places, body.sources)
    if places is None or found is None or storage(found[0].node) != storage(row) or not _fit(row, part):
        raise NotMovement("a write to what is no part of an outer tensor")
    source, whole, base = found
    placed = body.placed.setdefault(source, Placed(Blocks(whole.dims, whole.data - base), source=source))
    placed.put(Blocks(places.dims, places.data - base), content)
    placed.writes.append(node)


def _fit(row: fx.Node, part: Any) -> bool:
    return bool(example(row).dtype == example(part).dtype and example(row).device == example(part).device)


def settle(body: Body) -> None:
    """The iteration is over: documents that were filled whole with what was received are understood."""
    for source, placed in list(body.placed.items()):
        received = any(write.args[-1] in body.exchanged for write in placed.writes)
        if placed.content is None or not received or source.detached:
            del body.placed[source]
            continue
        for write in placed.writes:
            body.values[write] = placed


def exchanges_of(body: Body, nodes: Sequence[fx.Node]) -> dict[fx.Node, Exchange]:
    """The exchange that gives each such document, by the last write to it. Raises `Refused`."""
    found = {}
    for placed in body.placed.values():
        last = placed.writes[-1]
        reader = _reader(body, nodes, placed)
        if reader is not None:
            raise Refused("aliasing", "a row that is filled with what is received is also used in the loop", reader)
        assert placed.content is not None
        exchange = recognise(placed.content, body.sources, body.cp, body.scale.shard)
        if exchange is None:
            reason = "what a document of the row is filled with is not heads for tokens of shards, nor all its tokens"
            raise Refused("not-zigzag", reason, last)
        found[last] = exchange
    return found


def _reader(body: Body, nodes: Sequence[fx.Node], placed: Placed) -> fx.Node | None:
    """Something that uses the row's memory, but for its sizes and for these writes."""
    memory = storage(placed.source.node)
    for node in nodes:
        used = [n for n in node.all_input_nodes if storage(n) == memory]
        if not used or (node in placed.writes and node.args[-1] not in used):
            continue
        found = example(node) if isinstance(example(node), (tuple, list)) else [example(node)]
        counted = all(isinstance(one, (int, torch.SymInt)) for one in found)
        viewed = all(isinstance(one, torch.Tensor) and storage(one) == memory for one in found)
        if not counted and not (viewed and node in body.values and not written_inputs(node)):
            return node
    return None
