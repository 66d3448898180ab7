"""A local that counts on by each document's length: where the next document starts.

::

    start = 0
    for length in lengths.tolist():
        out.append(f(x[start : start + length]))
        start += length

Such a local is carried from one document to the next, and yet known for every document alone: it is its first value
plus the lengths before it. The first trace finds it (`learn`); the frame is traced again, and then the local of
document i is read from ``boundaries = [0, l0, l0 + l1, ...] + first``, made once before the loop. Each traced iteration
must leave exactly that plus the length (`Running.has_grown`), and no document may be skipped. `passes.lengths` tells
the passes that the length is ``boundaries[i + 1] - boundaries[i]``.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.capture.dynamo import SymNodeVariable, call, constant, emit
from packpass.capture.entries import holds_entries, made_of, stepped, vector_of
from packpass.capture.tallies import number
from packpass.markers.lengths import Steps, length_of

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass(frozen=True)
class Offset:
    """``local += step(... lengths[i])``, from ``first`` on.

    ``lengths``: name of the graph node of a list's numbers. ``made``: where the local grows by something else that the
    document's numbers make (`packpass.capture.entries`), how; there are no lengths then.
    """

    first: int
    lengths: str
    steps: Steps
    made: Any = None


def _node(value: Any) -> fx.Node | None:
    return value.as_proxy().node if isinstance(value, SymNodeVariable) else None


def added(value: Any, before: Any) -> fx.Node | None:
    """The node of d if ``value`` is ``before + d``."""
    node, known = _node(value), _node(before) if number(before) is None else number(before)
    if node is None or known is None or node.target not in (operator.add, operator.iadd) or len(node.args) != 2:
        return None
    a, b = node.args
    for one, other in ((a, b), (b, a)):
        if type(one) is type(known) and one == known and isinstance(other, fx.Node):
            return other
    return None


def learn(before: Any, after: list[Any], indices: list[fx.Node], empty: list[list[fx.Node]]) -> Offset | None:
    """How a local grew in all traced iterations, if it is an offset. ``after``: its value at the end of each;
    ``empty``: lengths that are 0 in each, which need not be added."""
    first = number(before)
    if first is None:
        return None
    found: set[Any] = set()
    made: set[Any] = set()
    left: list[set[Any]] = []
    for value, index, lengths in zip(after, indices, empty, strict=True):
        if is_unchanged(value, before):
            left.append({length_of(node, index) for node in lengths})
            continue
        grown = added(value, before)
        found.add(length_of(grown, index) if grown is not None else None)
        made.add(made_of(grown, index, indices[0]) if grown is not None else None)
        before = value
    if len(found) == 1 and None not in found:
        (known,) = found
        return Offset(first, *known) if all(known in lengths for lengths in left) else None
    if left or len(made) != 1 or None in made:
        return None
    (how,) = made
    return None if holds_entries(how) else Offset(first, "", (), how)


def is_unchanged(value: Any, before: Any) -> bool:
    """Is a number what it was?"""
    node, known = _node(value), number(value)
    return node is _node(before) if node is not None else known is not None and known == number(before)


class Running:
    """An offset while the loop is traced again. Not ``ready`` if the lengths are not found."""

    def __init__(self, region: Region, offset: Offset) -> None:
        tx = region.tx
        self.region, self.tx, self.offset, self.documents = region, tx, offset, region.length
        lengths = stepped(tx, offset.lengths, offset.steps) if offset.made is None else vector_of(tx, offset.made)
        self.ready = lengths is not None
        if self.ready:
            ends = emit(tx, torch.cumsum, lengths, 0)
            self.boundaries = emit(tx, torch.nn.functional.pad, ends.as_proxy(), (1, 0))
            if offset.first:
                self.boundaries = emit(tx, operator.add, self.boundaries.as_proxy(), offset.first)

    def after(self) -> Any:
        """Where the last document ends."""
        return self._read(self.documents)

    def begin(self, index: Any) -> None:
        """The local's value for the document ``index`` is ``start``."""
        self.index = index
        self.start = self._read(index)
        if self.offset.made is not None:
            return
        stop = self._read(call(self.tx, operator.add, index, constant(1)))
        length = call(self.tx, operator.sub, stop, self.start)
        # For `passes.lengths`, which finds it by what it is made of; Dynamo would remove it, as nobody uses it yet.
        holds = call(self.tx, operator.ge, length, constant(0))
        message = "packpass: lengths of documents must not be negative"
        create = self.tx.output.create_proxy
        create("call_function", torch.ops.aten._assert_scalar.default, (holds.as_proxy(), message), {})

    def _read(self, at: Any) -> Any:
        entry = self.boundaries.call_method(self.tx, "__getitem__", [at], {})
        return entry.call_method(self.tx, "item", [], {})

    def has_grown(self, values: list[Any]) -> bool:
        """Have all locals been increased by this document's length?"""
        index, known = _node(self.index), (self.offset.lengths, self.offset.steps)
        if all(is_unchanged(value, self.start) for value in values):
            empty = self.region.without_slots(self.region.iteration)
            return index is not None and any(length_of(node, index) == known for node in empty)
        grown = [added(value, self.start) for value in values]
        if self.offset.made is not None:
            return index is not None and all(
                node is not None and made_of(node, index, index) == self.offset.made for node in grown
            )
        return index is not None and all(node is not None and length_of(node, index) == known for node in grown)
