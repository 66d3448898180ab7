"""A local that keeps the last document's end: where the next document starts.

::

    start = 0
    for end in cu_seqlens[1:].tolist():
        out.append(f(x[start:end]))
        start = end

Such a local is carried from one document to the next, and yet known for every document alone: it is its first value,
and then an entry of the vector that the loop goes over. As in `packpass.capture.offsets` the first trace finds it, and
when the frame is traced again the local of document i is entry i of ``[0, *cu_seqlens[1:]]``, made once before the
loop, of which the passes know that its entries are boundaries with those of the vector (`document_loops.boundaries`).
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, emit, example
from packpass.capture.entries import entries_ahead, entry_of, node_called, stand_in
from packpass.capture.tallies import number
from packpass.capture.watch import ROWS
from packpass.markers.entries import read_from
from packpass.semantics.effects import mutated_after

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass(frozen=True)
class Behind:
    """The local becomes the entry of a vector (the name of its node) at the document's index plus ``ahead``, as a
    number or as a tensor."""

    vector: str
    ahead: int
    as_tensor: bool
    plus: int = 0
    """What is added to the entry: ``start = end + 1``, where ends are the last slots of documents."""
    whole: str = ""
    """The vector of which it was the first entry before the loop, if it was not 0, and of which these are those behind
    it."""


def _entry(value: Any, index: Any, begin: Any) -> Behind | None:
    """What a local has become in the iteration with that index."""
    if not isinstance(value, (SymNodeVariable, TensorVariable)):
        return None
    as_tensor = isinstance(value, TensorVariable)
    node, plus = _without_constant(value.as_proxy().node)
    found = entry_of(node if as_tensor else read_from(node), index, begin)
    return Behind(*found, as_tensor, plus) if found is not None and found[1] >= 0 else None


def _without_constant(node: Any) -> tuple[Any, int]:
    """``(number, constant)`` of their sum."""
    if node.op == "call_function" and node.target in (operator.add, operator.sub) and type(node.args[1]) is int:
        return node.args[0], node.args[1] if node.target is operator.add else -node.args[1]
    return node, 0


def learn_behind(before: Any, after: list[Any], indices: list[Any]) -> Behind | None:
    """Which entry a local was left with in all traced iterations, if it was 0 before the loop, or the entry before."""
    found = [_entry(value, index, indices[0]) for value, index in zip(after, indices, strict=True)]
    known = found[0] if all(other == found[0] for other in found) else None
    if known is None or _is_a_length(after, known.vector):
        return None
    if number(before) == 0:
        return known
    if known.plus:
        return None
    whole = _first_of(before, known, indices[0])
    return None if whole is None else dataclasses.replace(known, whole=whole)


def begins_alike(known: Behind, before: Any) -> bool:
    """Is what a local holds before the loop what was learned of it?"""
    if not known.whole:
        return number(before) == 0
    return _first_of(before, dataclasses.replace(known, whole=""), None) == known.whole


def _first_of(value: Any, of: Behind, begin: Any) -> str | None:
    """The vector of which a local holds entry 0, as it was read, if those that follow are its entries from 1 on."""
    if not isinstance(value, TensorVariable if of.as_tensor else SymNodeVariable):
        return None
    node: Any = value.as_proxy().node
    if not of.as_tensor:
        node = read_from(node)
    at = node.args[1:] if node is not None and node.target in ROWS else ()
    vector: Any = node.args[0] if at in ((0,), (0, 0)) else None
    if vector is None or vector.meta["example_value"].dim() != 1 or mutated_after(vector.graph, vector, node, begin):
        return None
    rest: Any = next(n for n in vector.graph.nodes if n.name == of.vector)
    behind = rest.target is operator.getitem and rest.args == (vector, slice(1, None, None))
    return str(vector.name) if (rest is vector and of.ahead == 1) or (behind and of.ahead == 0) else None


def _is_a_length(after: list[Any], vector: str) -> bool:
    """Is an entry of the vector added to the one before? Then documents do not start where the last one ended, and may
    overlap."""
    sums = [user for value in after for user in value.as_proxy().node.users if user.target is operator.add]
    others = [source for user in sums for source in user.all_input_nodes]
    return len({source for source in others if any(node.name == vector for node in _read_from(source))}) > 1


def _read_from(number: Any) -> list[Any]:
    """The tensors that a number is read from."""
    entry = read_from(number)
    return [] if entry is None else entry.all_input_nodes


class Last:
    """Such a local while the loop is traced again. Not ``ready`` if the vector is not found."""

    def __init__(self, region: Region, behind: Behind) -> None:
        self.region, self.tx, self.behind, self.documents = region, region.tx, behind, region.length
        self.boundaries: Any = self._boundaries(behind)
        self.found = self.boundaries is not None
        """Is that the vector of this loop, or one that stands for it until the first document has shown which it is?"""
        if not self.found and not behind.whole:
            self.boundaries = stand_in(self.tx, behind.vector, self.documents)
        self.ready = self.boundaries is not None

    def _boundaries(self, behind: Behind) -> Any:
        """The local's values for all documents, and behind the last; None if the vector is not found."""
        tx, vector = self.tx, entries_ahead(self.tx, behind.vector, behind.ahead, self.documents)
        if vector is None:
            return None
        if behind.whole:
            return emit(tx, operator.getitem, node_called(tx, behind.whole), slice(None))
        if behind.plus:
            vector = emit(tx, operator.add, vector, behind.plus).as_proxy()
        return emit(tx, torch.nn.functional.pad, vector, (1, 0))

    def follow(self, value: Any) -> None:
        """Go by the vector of which the first document has left the local an entry, if it is another."""
        index = self.index.as_proxy().node
        found = None if self.behind.whole else _entry(value, index, index)
        if found in (None, self.behind):
            return
        known: Any = found
        boundaries = self.region.in_front(("behind", known), lambda: self._boundaries(known))
        alike = boundaries is not None and example(boundaries).dtype == example(self.boundaries).dtype
        if alike and known.plus == self.behind.plus:
            self.boundaries.as_proxy().node.replace_all_uses_with(boundaries.as_proxy().node)
            self.behind, self.boundaries, self.found = known, boundaries, True

    def after(self) -> Any:
        """Where the last document ends."""
        return self._read(self.documents)

    def begin(self, index: Any) -> None:
        """The local's value for the document ``index`` is ``start``."""
        self.index = index
        self.start = self._read(index)
        if self.behind.plus:
            self.stop = self._read(call(self.tx, operator.add, index, constant(1)))

    def _read(self, at: Any) -> Any:
        entry = self.boundaries.call_method(self.tx, "__getitem__", [at], {})
        return entry if self.behind.as_tensor else entry.call_method(self.tx, "item", [], {})

    def has_grown(self, values: list[Any]) -> bool:
        """Do all locals hold this document's entry?"""
        index = self.index.as_proxy().node
        known = dataclasses.replace(self.behind, whole="")
        if not self.found or not all(_entry(value, index, index) == known for value in values):
            return False
        if known.plus:
            self._is_the_end(index)
        return True

    def _is_the_end(self, index: fx.Node) -> None:
        """Write down that the number is the next boundary, wherever the document uses it."""
        stop = self.stop.as_proxy().node
        node = stop.next
        while node.op != "root":
            inner, plus = _without_constant(node)
            as_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
            if plus == self.behind.plus and as_tensor is self.behind.as_tensor:
                found = entry_of(inner if as_tensor else read_from(inner), index, index)
            else:
                found = None
            if found == (self.behind.vector, self.behind.ahead):
                node.replace_all_uses_with(stop)
            node = node.next
