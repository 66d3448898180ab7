"""The largest or the smallest of the documents' numbers, as Python finds it.

::

    longest = 0
    for s, e in zip(bounds[:-1], bounds[1:]):
        longest = max(longest, e - s)

Nobody looks at it before the loop is over; then it is the extreme of all documents' numbers, and of what it began with.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.capture.dynamo import SymNodeVariable, emit
from packpass.capture.entries import made_of, numbers_made
from packpass.capture.tallies import nodes_of, number

if TYPE_CHECKING:
    from packpass.capture.region import Region

_OF = {torch.sym_max: "amax", torch.sym_min: "amin"}


@dataclasses.dataclass(frozen=True)
class Extreme:
    """``local = max(local, number)``: ``first`` is what it begins with, a number of the program or what an
    earlier loop has found, ``made`` how the number is made
    (`packpass.capture.entries`), ``of`` the function."""

    first: Any
    made: Any
    of: Any


def _parts(value: Any, before: Any) -> tuple[Any, fx.Node] | None:
    """The function, and the number of the document, of ``max(before, number)``."""
    node = value.as_proxy().node if isinstance(value, SymNodeVariable) else None
    if node is None or node.target not in _OF or len(node.args) != 2:
        return None
    known = before if isinstance(before, (int, fx.Node)) else None
    for one, other in (node.args, reversed(node.args)):
        if (one is known or (type(one) is int and one == known)) and isinstance(other, fx.Node):
            return node.target, other
    return None


def learn_extreme(before: Any, after: list[Any], region: Region) -> Extreme | None:
    """How a number changed in all traced iterations, if so."""
    first = number(before)
    if first is None or region.ways:
        return None
    found, last = set(), first
    for value, index in zip(after, region.indices, strict=True):
        parts = _parts(value, last)
        made = None if parts is None else made_of(parts[1], index, region.indices[0])
        if parts is None or made is None:
            return None
        found.add(Extreme(first, made, parts[0]))
        last = value.as_proxy().node
    return found.pop() if len(found) == 1 else None


class Finding:
    """Such a number while the loop is traced again."""

    ready = True

    def __init__(self, region: Region, extreme: Extreme) -> None:
        self.region, self.extreme = region, extreme

    def begin(self, index: Any) -> None:
        """A stand-in, with which each traced iteration may do nothing else."""
        args = (index.as_proxy(), self.region.id, self.region.iteration, -1)
        self.start = emit(self.region.tx, markers.LIST_LAST, *args)

    def has_grown(self, values: list[Any]) -> bool:
        """Has this document's number been looked at, and nothing else been done with the stand-in?"""
        (value,) = values
        stand_in, region = self.start.as_proxy().node, self.region
        parts = _parts(value, stand_in)
        if parts is None or parts[0] is not self.extreme.of:
            return False
        node = value.as_proxy().node
        made = made_of(parts[1], region.indices[-1], region.indices[0])
        if made != self.extreme.made or list(stand_in.users) != [node] or node.users:
            return False
        if any(node is listed for items in region.lists for kept in items.values for listed in nodes_of(kept)):
            return False
        for done in (node, stand_in):
            done.graph.erase_node(done)
        return True

    def after(self) -> Any:
        """The number after the loop."""
        tx = self.region.tx
        numbers = numbers_made(tx, self.extreme.made, self.region.length)
        first = self.extreme.first
        first = first.as_proxy() if isinstance(first, SymNodeVariable) else first
        every = emit(tx, torch.cat, (emit(tx, "new_full", numbers, (1,), first, method=True).as_proxy(), numbers))
        return every.call_method(tx, _OF[self.extreme.of], [], {}).call_method(tx, "item", [], {})
