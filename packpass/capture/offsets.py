"""A local that counts on by each document's length: where the next document starts.

::

    start = 0
    for length in lengths.tolist():
        out.append(f(x[start : start + length]))
        start += length

or, with numbers that are entries of a tensor, read (``n = lengths[i].item()``) or not (``start = start + lengths[i]``).

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

from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, emit, example
from packpass.capture.entries import holds_entries, made_of, made_of_tensor, stand_in, stepped, tensor_in, vector_of
from packpass.capture.tallies import number
from packpass.markers.lengths import Steps, length_of

if TYPE_CHECKING:
    from packpass.capture.region import Region


NOT_NEGATIVE = "packpass: lengths of documents must not be negative"
"""What a rewrite wants of numbers that an offset is counted on by, and Python does not."""


@dataclasses.dataclass(frozen=True)
class Offset:
    """``local += step(... lengths[i])``, from ``first`` on, a number of the program or where an earlier loop has ended.

    ``lengths``: name of the graph node of a list's numbers. ``made``: where the local grows by something else that the
    document's numbers make (`packpass.capture.entries`), how; there are no lengths then. ``dtype``: that of a local
    which is a tensor of one number.
    """

    first: Any
    lengths: str
    steps: Steps
    made: Any = None
    dtype: torch.dtype | None = None


def _node(value: Any) -> fx.Node | None:
    return value.as_proxy().node if isinstance(value, SymNodeVariable) or dtype_of(value) else None


def dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of a tensor of one integer."""
    fake = example(value) if isinstance(value, TensorVariable) else None
    known = isinstance(fake, torch.Tensor) and not fake.dim() and fake.dtype in (torch.int32, torch.int64)
    return fake.dtype if known and fake is not None else None


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
        made.add(step_made(grown, index, indices[0]) if grown is not None else None)
        before = value
    if len(found) == 1 and None not in found:
        (known,) = found
        return Offset(first, *known) if all(known in lengths for lengths in left) else None
    if left or len(made) != 1 or None in made:
        return None
    kinds = {dtype_of(value) for value in after}
    return Offset(first, "", (), made.pop(), kinds.pop()) if len(kinds) == 1 else None


def step_made(grown: fx.Node, index: fx.Node, begin: fx.Node) -> Any:
    """How what was added is made, a number or a tensor of one."""
    is_tensor = isinstance(grown.meta.get("example_value"), torch.Tensor)
    return made_of_tensor(grown, index, begin) if is_tensor else made_of(grown, index, begin)


def is_unchanged(value: Any, before: Any) -> bool:
    """Is a number what it was?"""
    node, known = _node(value), number(value)
    return node is _node(before) if node is not None else known is not None and known == number(before)


class Running:
    """An offset while the loop is traced again. Not ``ready`` if the lengths are not found."""

    def __init__(self, region: Region, offset: Offset) -> None:
        tx = region.tx
        self.region, self.tx, self.offset, self.documents = region, tx, offset, region.length
        of_rows = offset.made is not None and not holds_entries(offset.made)
        self.is_length = not of_rows
        """Is the number that is added the document's length, and not a product of sizes?"""
        self.boundaries: Any = self._boundaries(offset)
        self.found = self.boundaries is not None
        """Are these the lengths of this loop? If not, the first document shows which they are."""
        if not self.found:
            numbers = stand_in(tx, tensor_in(offset.made), self.documents)
            self.boundaries = None if numbers is None else self._of_its_kind(numbers, offset)
        self.ready = self.boundaries is not None

    def _boundaries(self, offset: Offset) -> Any:
        """The local's values for all documents, and behind the last; None if the lengths are not found."""
        tx = self.tx
        if offset.made is None:
            lengths = stepped(tx, offset.lengths, offset.steps)
        else:
            lengths = vector_of(tx, offset.made, self.documents)
        if lengths is None:
            return None
        ends = emit(tx, torch.cumsum, lengths, 0)
        boundaries = emit(tx, torch.nn.functional.pad, ends.as_proxy(), (1, 0))
        if isinstance(offset.first, SymNodeVariable):
            boundaries = emit(tx, operator.add, boundaries.as_proxy(), offset.first.as_proxy())
        elif offset.first:
            boundaries = emit(tx, operator.add, boundaries.as_proxy(), offset.first)
        return self._of_its_kind(boundaries, offset)

    def _of_its_kind(self, boundaries: Any, offset: Offset) -> Any:
        dtype = offset.dtype
        return boundaries if dtype is None else boundaries.call_method(self.tx, "to", [constant(dtype)], {})

    def follow(self, value: Any) -> None:
        """Go by the lengths that the first document has added to the local, if these are others."""
        index, begin, grown = _node(self.index), self.region.indices[0], added(value, self.start)
        if index is None:
            return
        if grown is None:
            empty = {length_of(node, index) for node in self.region.without_slots(self.region.iteration)}
            found: Any = empty.pop() if is_unchanged(value, self.start) and len(empty) == 1 else None
        else:
            found = step_made(grown, index, begin) if self.offset.made is not None else length_of(grown, index)
        if found is None or found in (self.offset.made, (self.offset.lengths, self.offset.steps)):
            return
        by_entries = self.offset.made is not None and (holds_entries(found) is self.is_length)
        if not by_entries and self.offset.made is not None:
            return
        known = {"made": found} if by_entries else {"lengths": found[0], "steps": found[1]}
        offset = dataclasses.replace(self.offset, **known)
        boundaries = self.region.in_front(("offset", offset), lambda: self._boundaries(offset))
        if boundaries is not None and example(boundaries).dtype == example(self.boundaries).dtype:
            self.boundaries.as_proxy().node.replace_all_uses_with(boundaries.as_proxy().node)
            self.offset, self.boundaries, self.found = offset, boundaries, True

    def after(self) -> Any:
        """Where the last document ends."""
        return self._read(self.documents)

    def begin(self, index: Any) -> None:
        """The local's value for the document ``index`` is ``start``."""
        self.index = index
        self.start = self._read(index)
        if not self.is_length:
            return
        stop = self._read(call(self.tx, operator.add, index, constant(1)))
        self.length: Any = call(self.tx, operator.sub, stop, self.start)
        # For `passes.lengths`, which finds it by what it is made of; Dynamo would remove it, as nobody uses it yet.
        holds = call(self.tx, operator.ge, self.length, constant(0))
        check = torch.ops.aten._assert_scalar.default if self.offset.dtype is None else torch._assert_async
        self.tx.output.create_proxy("call_function", check, (holds.as_proxy(), NOT_NEGATIVE), {})

    def _read(self, at: Any) -> Any:
        entry = self.boundaries.call_method(self.tx, "__getitem__", [at], {})
        return entry if self.offset.dtype is not None else entry.call_method(self.tx, "item", [], {})

    def has_grown(self, values: list[Any]) -> bool:
        """Have all locals been increased by this document's length?"""
        index, known = _node(self.index), (self.offset.lengths, self.offset.steps)
        if not self.found:
            return False
        if all(is_unchanged(value, self.start) for value in values):
            empty = self.region.without_slots(self.region.iteration)
            return index is not None and any(length_of(node, index) == known for node in empty)
        grown = [added(value, self.start) for value in values]
        if index is None or any(node is None for node in grown):
            return False
        if self.offset.made is None:
            return all(node is not None and length_of(node, index) == known for node in grown)
        begin = self.region.indices[0]
        if not all(node is not None and step_made(node, index, begin) == self.offset.made for node in grown):
            return False
        sums = [value.as_proxy().node for value in values]
        if self.offset.dtype is not None and not all(map(self._nobody_else_sees, sums)):
            return False
        for node in grown if self.is_length else ():
            self._is_the_length(node)
        for sum_ in sums if self.is_length or self.offset.dtype is not None else ():
            sum_.target = operator.add
        return True

    def _is_the_length(self, node: Any) -> None:
        """Write down that the number which was added, wherever the document uses it, is the difference of two
        boundaries."""
        length = self.length.as_proxy().node
        if node is not length:
            node.replace_all_uses_with(length)

    def _nobody_else_sees(self, sum_: fx.Node) -> bool:
        """Does it not matter that ``start += n`` changes the tensor ``start``, which may be in a list, or have a view,
        and which the next document changes again?"""
        if sum_.target is not operator.iadd:
            return True
        start = self.start.as_proxy().node
        lists = [value for items in self.region.lists for values in items.values for value in values]
        if not all(isinstance(v, TensorVariable) and v.as_proxy().node not in (start, sum_) for v in lists):
            return False
        before = all(user is sum_ or user < sum_ for user in start.users)
        return before and all(_is_a_bound(user) for node in (start, sum_) for user in node.users if user is not sum_)


def _is_a_bound(user: fx.Node) -> bool:
    """Is a number only looked at, as the bound of a slice or as a part of one?"""
    return user.target in (operator.getitem, operator.setitem, operator.add, operator.sub, operator.ge, "item")


def is_looked_at(later: list[Any]) -> bool:
    """Does a document do more with what is carried, a tensor of one number, than to add to it?"""
    if not all(dtype_of(value) for value in later):
        return False
    return any(user.target not in (operator.add, operator.iadd) for user in later[0].as_proxy().node.users)
