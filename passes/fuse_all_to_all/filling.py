"""Memory that a loop body makes for one document and fills: by a copy, or part by part.

    send = x.new_empty((cp, 2 * h, heads))
    for r in range(cp):
        send[r, :h], send[r, h:] = chunks[r], chunks[2 * cp - 1 - r]

Once every block of it was filled it is a tensor like any other. It must not be read before, nor written afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from packpass.semantics import argument, call_of, example, storage
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import Blocks, NotMovement
from passes.fuse_all_to_all.held import Buffer, fills, spreads
from passes.fuse_all_to_all.integers import UNKNOWN
from passes.fuse_all_to_all.moves import entries_of, index
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body


def places_of(body: Body, node: fx.Node) -> Blocks | None:
    """The blocks of new memory, numbered; None if its sizes are not understood."""
    call = call_of(node)
    sizes = call.get("size") if call is not None else None
    try:
        if sizes is None:
            return B.fresh(body.blocks(argument(node, 0, "input")).dims, body.cp)
        if not isinstance(sizes, (tuple, list)):
            sizes = body.sizes(sizes)
        if sizes is None:
            return None
        found = [body.size(size) for size in sizes]
        return B.fresh([(size.count, *sorted(size.atoms)) for size in found], body.cp)
    except NotMovement:
        return None


def copied_into(body: Body, node: fx.Node) -> Any:
    """``buffer.copy_(whole)``."""
    target = body.values.get(node.args[0])
    if isinstance(target, Blocks) and body.functions and len(node.args) == 2:
        return _copied_over(body, node, target)
    if not isinstance(target, Buffer) or len(node.args) != 2:
        return UNKNOWN
    if target.content is not None:
        raise Refused("aliasing", "a buffer is filled twice in one iteration", node)
    if target.read_before:
        raise Refused("aliasing", "a buffer is used before it is filled", node)
    content = body.blocks(node.args[1])
    fake, given = example(node.args[0]), example(node.args[1])
    if fake.dtype != given.dtype or fake.dim() != given.dim() or any(map(spreads, given.shape, fake.shape)):
        raise NotMovement("a copy that converts")
    target.content = content
    _hand_on(body, node.args[1], node.args[0])
    return target


def _copied_over(body: Body, node: fx.Node, target: Blocks) -> Any:
    """``dist.all_reduce(gradient)`` in a function: a copy, which nothing else shows, holds something else from here."""
    copy: Any = node.args[0]
    shown = any(storage(user) == storage(copy) for user in copy.users if user is not node and user < node)
    if name_of(copy) != "clone" or shown or example(copy).dtype != example(node.args[1]).dtype:
        return UNKNOWN
    content = body.blocks(node.args[1])
    if content.dims != target.dims:
        raise NotMovement("a copy of other sizes")
    body.values[copy] = content
    return content


def put_into(body: Body, node: fx.Node) -> Any:
    """``buffer[index] = part``."""
    buffer, entries, part = node.args
    target = body.values.get(buffer)
    if not isinstance(buffer, fx.Node) or not isinstance(target, Buffer) or not fills(node, buffer):
        return UNKNOWN
    if target.content is not None or target.read_before:
        # A change of something whole, which matters only if it is exchanged: that is for whoever decides to find.
        target.content, target.read_before = None, True
        return UNKNOWN
    try:
        content = body.blocks(part)
        if target.places is None or example(buffer).dtype != example(part).dtype:
            raise NotMovement("a part that is converted, or of something of unknown sizes")
        target.put(index(body, node, target.places, entries_of(entries, target.places.rank)), content)
    except NotMovement:
        target.places = None  # what it holds from here on is not known
        raise
    _hand_on(body, part, buffer)
    return target


def _hand_on(body: Body, content: Any, buffer: Any) -> None:
    """Whoever reads the buffer from here on reads what was exchanged."""
    if content in body.exchanged:
        body.exchanged.add(buffer)
