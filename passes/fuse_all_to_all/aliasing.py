"""What may be written in a loop whose documents are exchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import example, storage
from packpass.semantics.effects import written_inputs
from passes.fuse_all_to_all.body import Body
from passes.refused import Refused


def no_aliasing(
    body: Body, nodes: tuple[fx.Node, ...], moved: set[Any], rows: set[fx.Node], chosen: set[fx.Node]
) -> None:
    """Nothing that is ``moved``, and none of the ``rows`` it comes from, may be written by something that is not
    understood; but for what is received, once it is the document's own. What the loop does besides is for
    `vectorize_segments` to prove."""
    watched = {storage(n) for n in (*moved, *rows) if n in rows or n in body.values} - {None}
    for node in nodes:
        if node in body.values:
            continue
        for target in written_inputs(node):
            memory = storage(target)
            if memory in watched and not _is_own(body, node, memory, rows, chosen):
                raise Refused("aliasing", "a tensor that is exchanged is also changed in place in the loop", node)


def _is_own(body: Body, writer: fx.Node, memory: Any, rows: set[fx.Node], chosen: set[fx.Node]) -> bool:
    """Is one of the chosen tensors all that is seen of this memory by the writer, and by what comes after it?"""
    holders = [n for n in body.values if isinstance(example(n), torch.Tensor) and storage(n) == memory]
    received = [n for n in holders if n in chosen]
    if len(received) != 1 or any(storage(row) == memory for row in rows):
        return False
    last = received[0]
    before = all(user <= last for n in holders if n is not last for user in n.users)
    return last < writer and before and not any(body.sees_through(user) for user in last.users)
