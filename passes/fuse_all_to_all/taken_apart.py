"""What a call moves that is not looked at by its name: torch takes it apart.

``torch.vstack``, ``x.hsplit(2)`` and their like are made of calls that have an entry in `passes.fuse_all_to_all.moves`,
and torch knows which (`packpass.semantics.expand`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from packpass.semantics import call_of, meaning_of
from packpass.semantics.expand import expand
from passes.fuse_all_to_all.blocks import Blocks, NotMovement

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body

_MOVING = frozenset({"views", "indexing", "joins"})


def moved_by_pieces(body: Body, node: fx.Node) -> Any:
    """The result of a call that only moves what it is given; None if that is not known."""
    means = meaning_of(call_of(node))
    given = [body.tensor(n) for n in node.all_input_nodes]
    if means is None or means.family not in _MOVING or not given:
        return None
    if not all(isinstance(value, Blocks) for value in given):
        return None
    pieces = expand(node)
    if pieces is None or not pieces.composite:
        return None
    values = {placeholder: body.tensor(operand) for placeholder, operand in pieces.inputs}
    with body.aside():
        body.values.update(values)
        for piece in pieces.nodes:
            body.step(piece)
        results = tuple(body.tensor(result) for result in pieces.results)
    if not all(isinstance(value, Blocks) for value in results):
        raise NotMovement("a part of a call that is not understood")
    return results if pieces.several else results[0]
