"""What tensors of a loop body are computed from."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from passes.fuse_all_to_all.body import Body
from passes.fuse_all_to_all.held import Buffer, fills


def needed(body: Body, nodes: tuple[fx.Node, ...], wanted: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes of one iteration that ``wanted`` are computed from, themselves included, with the copies that fill
    their buffers; in order."""
    inside, found, stack = set(nodes), set[fx.Node](), list(wanted)
    while stack:
        node = stack.pop()
        if node in found or node not in inside:
            continue
        found.add(node)
        stack += node.all_input_nodes
        if isinstance(body.values.get(node), Buffer):
            stack += [user for user in node.users if fills(user, node) and user in body.values]
    return [n for n in nodes if n in found]
