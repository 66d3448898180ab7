"""Loops that begin several times in one trace, once for every row of a batch, say: what an earlier time has learned is
taken to hold for the vectors of this time, which are made in the same way."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.capture.state import current_frame


def times_before(key: Any, before: int | None = None) -> int:
    """How often a loop has begun in this trace in front of the loop ``before``, or of what is traced now."""
    frame = current_frame()
    last = len(frame.sites) + 1 if before is None else before
    return sum(1 for id_, known in frame.keys.items() if known == key and id_ < last)


class Latest:
    """The nodes of a graph that were made last, of those which are made alike but for the numbers of rows."""

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes = {node.name: node for node in graph.nodes}

    def of(self, made: Any) -> Any:
        """How a number is made (`packpass.capture.entries`), of these."""
        if not isinstance(made, tuple):
            return made
        if made and made[0] in ("lengths", "entry", "column"):
            return (made[0], self._name(made[1]), *made[2:])
        return tuple(self.of(part) for part in made)

    def _name(self, name: str) -> str:
        node = self._nodes.get(name)
        alike = [other for other in self._nodes.values() if node is not None and _are_alike(node, other)]
        return alike[-1].name if alike else name


def _are_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return type(one) is type(other) and (type(one) is int or one == other)
    if one is other:
        return True
    if one.op == "placeholder" or (one.op, one.target, one.kwargs) != (other.op, other.target, other.kwargs):
        return False
    return len(one.args) == len(other.args) and all(map(_are_alike, one.args, other.args))
