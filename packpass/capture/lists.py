"""A Python list that the body of a loop over documents fills."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from packpass import markers
from packpass.capture import appended_later, by_way, entry_rows, filtered, message_lists, nothing, plain, widths
from packpass.capture.dynamo import (
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    UserDefinedObjectVariable,
    VariableTracker,
    attribute,
    call,
    constant,
    emit,
)
from packpass.capture.fills import Filled, fill_in
from packpass.capture.float_tallies import float_vector, is_float
from packpass.capture.kept_functions import functions_of
from packpass.capture.rows import Rows, is_function, parts_of, rows_of
from packpass.capture.state import Restart, active, current_frame, refuse
from packpass.capture.tallies import (
    Every,
    are_written,
    collect,
    end_of,
    number,
    read,
    row_of,
    tally,
    vector,
)

if TYPE_CHECKING:
    from packpass.capture.region import Region


LACKING = "a list lacks the documents that a branch leaves out"
"""What speaks against a replay that knows no branches."""


class CollectedItems(list[Any]):
    """Stands in for the items of a Python list that a loop body appends to, as often for each document.

    While the loop is traced only ``append`` and ``extend`` are allowed; afterwards the passes see one ``list_collect``
    node and any access to the elements refuses the loop.
    """

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region
        self.values: list[list[VariableTracker]] = []
        """What each traced iteration appends."""
        self.numbers: Any = None
        """The list, where its entries are numbers (``[n // 2 for n in lengths]``), or handles that are complete."""
        self.conditions: Any = None
        """All documents' conditions, where its entries are such: ``[n > 3 for n in lengths]``."""
        self.columns: list[Any] | None = None
        """Where its entries are rows of numbers, the shapes of documents, say: for every column a tensor, or an int."""
        self.listed: ListedItems | None = None
        """Where each document has added the numbers of a range (`packpass.capture.ranges`)."""
        self.rows: Rows | None = None
        """Where its entries are rows of several values."""
        self.lacking: set[int] = set()
        """Traced iterations that append nothing: the list lacks the documents that go their way."""
        self._tensors = False
        self._waits: list[int] = []
        """Numbers of the messages that are waited for where the iteration ends."""
        self.sent = False
        """Where its entries are messages: are they sent?"""
        self.also: list[CollectedItems] = []
        """Other lists of messages, whose entries follow."""
        self.before: list[Any] = []
        self.after: list[Any] = []
        """Tensors of the program, and what other loops have filled in, in front of documents' entries and behind."""
        self._present: Any = None
        self._count: Any = None
        self._one: Any = None
        self._joined: dict[Any, Any] = {}

    def append(self, value: VariableTracker) -> None:
        region = self.region
        if region.closed and not active.regions and appended_later.is_put_behind(self, value.realize()):
            return
        if not active.regions or active.regions[-1] is not region:
            raise refuse(
                "list-use", "a list filled by the loop over documents is appended to again after it", region.location
            )
        while region.ways and len(self.values) < region.iteration:
            self.values.append([])
        if not region.iteration <= len(self.values) <= region.iteration + 1:
            raise self._refuse_count()
        value = message_lists.complete(region.tx, widths.as_numbers(region.tx, value.realize()), self._waits)
        known = isinstance(value, (TensorVariable, SymNodeVariable, Every)) or nothing.says_nothing(value)
        known = known or message_lists.is_message(value) or is_float(value) or is_function(value)
        known = known or by_way.kind(value) is not None  # of an offset, as the first trace sees it, or of a branch
        if not known and row_of(value) is None and parts_of(region.tx, value) is None:
            raise self._refuse_entry(value)
        if not self.holds(region.iteration):
            self.values.append([])
        self.values[-1].append(value)

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)

    def may_be_among(self, value: Any) -> bool:
        """Tensors of the program go with tensors of documents."""
        return isinstance(value.realize(), TensorVariable) and self._tensors

    def alone(self) -> CollectedItems:
        """The list without what the program itself has put into it."""
        return self._between([], []) if self.before or self.after else self

    def copied(self) -> CollectedItems:
        """The entries of another list, which gets no more when this one does."""
        return self._between(self.before, self.after)

    def _between(self, before: list[Any], after: list[Any]) -> CollectedItems:
        other = type(self).__new__(type(self))
        other.__dict__ |= {**self.__dict__, "before": list(before), "after": list(after)}
        return other

    def check_filled(self) -> None:
        """Refuses the loop if the list lacks entries that were to come."""

    def _check_alone(self) -> None:
        self.check_filled()
        if self.before or self.after:
            raise self.refusal()

    def holds(self, iteration: int) -> bool:
        """Has this iteration appended something?"""
        return len(self.values) > iteration

    def end_iteration(self, iteration: int) -> None:
        message_lists.wait_for(self.region.tx, self._waits)
        if self.region.ways and len(self.values) == iteration:
            self.values.append([])
        if len(self.values) != iteration + 1:
            raise self._refuse_count()
        counts = {len(values) for values in self.values}
        if len(counts) > 1:
            if not self.region.ways or counts != {0, 1}:
                raise self._refuse_count()
            self.lacking = {i for i, values in enumerate(self.values) if not values}

    @property
    def each(self) -> int:
        """The number of entries of one document."""
        return len(self.values[0])

    def close(self) -> None:
        """The loop is over: its entries become one value."""
        region = self.region
        filtered.watch(self)
        if (picked := filtered.numbers(self)) is not None:
            self.numbers = call(region.tx, plain.of_tolist, picked)
            return
        if self.lacking:
            current_frame().not_replayable = LACKING
            if not fill_in(region, self.values, self.lacking):
                raise self._refuse_count()
        if all(isinstance(value, TensorVariable) for values in self.values for value in values):
            self._tensors = True
            self._one = self._collect([values[0] for values in self.values]) if self.each == 1 else None
            return
        if all(nothing.is_none(value) for values in self.values for value in values):
            return  # weights of attention that nobody asked for, say: any use of the list needs its entries
        if message_lists.are_messages(self):
            return
        self._check_alone()
        made = [values[0] for values in self.values]
        if not region.skips and nothing.same_for_all([value for values in self.values for value in values]):
            self.numbers = call(region.tx, plain.of_same, self._length(), made[0])
            return
        vectors = [value.vector for value in made if isinstance(value, Every)]
        if self.each == 1 and len(vectors) == len(made) and not region.skips:
            self.listed = ListedItems(region, self._collect(vectors), [], [])
            return
        rows = [row_of(value) for value in made]
        if rows[0] is not None and self.each == 1 and not region.skips:
            columns = entry_rows.columns(region, made, rows)
            if columns is None:
                raise self._refuse_entry(made[0])
            self.columns = None if made[0].python_type() is slice else columns
            self.numbers = entry_rows.as_numbers(region, columns, made[0].python_type())
            return
        if self.each == 1 and not region.skips:
            self.rows = rows_of(self, made) or functions_of(self, made)
        if self.rows is not None:
            return
        make = (vector, by_way.vector, float_vector) if self.each == 1 and not region.skips else ()
        numbers = next((found for found in (of(region, made) for of in make) if found is not None), None)
        if numbers is None:
            raise self._refuse_entry(made[0])
        if numbers.dtype is torch.bool:
            self.conditions = numbers
        else:
            listed = plain.of_floats if numbers.dtype.is_floating_point else plain.of_tolist
            self.numbers = call(region.tx, listed, numbers)

    def present(self) -> Any:
        """int64 ``[documents]``: how many entries of the list each document has left, where it lacks some."""
        if self._present is None:
            self._present = tally(self.region, [int(i not in self.lacking) for i in range(len(self.values))])
        return self._present

    def entries(self) -> Any:
        """The number of entries."""
        self._check_alone()
        tx = self.region.tx
        if self.listed is not None:  # of each document as many as it has numbers
            return self.listed.tensor().call_method(tx, "size", [constant(0)], {})
        if self.lacking:
            self._count = self._count or read(tx, self.present())
            return self._count
        length = self._length() if self.numbers is None else attribute(tx, self.numbers, "length")
        for other in self.also:
            length = call(tx, operator.add, length, other.entries())
        return length

    def _length(self) -> Any:
        """The number of entries of all documents, where each has as many."""
        length = self.region.length
        return length if self.each == 1 else call(self.region.tx, operator.mul, length, constant(self.each))

    def tensor(self) -> Any:
        """All numbers as a tensor, the entries of rows along its second dimension; None if there are none."""
        self._check_alone()
        if self.listed is not None:
            return self.listed.tensor()
        return entry_rows.as_tensor(self.region, self.columns, self.numbers)

    def _collect(self, values: list[Any]) -> Any:
        return collect(self.region, [value.as_proxy() for value in values])

    def collected(self) -> Any:
        """The entries as a value of the graph, one per document; refuses the loop if there are others."""
        self._check_alone()
        if self._one is None or self.lacking:
            raise self.refusal()
        return self._one

    def whole(self) -> Any:
        """The same, with entries of documents that the list lacks."""
        self._check_alone()
        if self._one is None:
            raise self.refusal()
        return self._one

    def joined(self, function: Any, dim: int) -> Any:
        """The same of what ``torch.cat`` or ``torch.stack`` makes of a document's entries."""
        self._check_alone()
        others = self.numbers is not None or self.rows is not None
        if others or any(nothing.is_none(value) for values in self.values for value in values):
            raise self.refusal()
        known = self._joined.get((function, dim), self._one if function is torch.cat else None)
        if self.each > 1:
            self._refuse_if_written()
        if known is None:
            known = self._collect([self._join(function, dim, i) for i in range(len(self.values))])
            self._joined[function, dim] = known
        return known

    def _join(self, function: Any, dim: int, iteration: int) -> Any:
        """A document's entries put together where its iteration ends."""
        end = end_of(self.region, iteration)
        with end.graph.inserting_before(end):
            return emit(self.region.tx, function, [value.as_proxy() for value in self.values[iteration]], dim)

    def _refuse_if_written(self) -> None:
        """A list holds tensors, and shows what is written to them before it is used; a copy of them does not."""
        if are_written(self.region, self.values):
            reason = "a list holds a tensor that is changed before the list is used"
            raise refuse("aliasing", reason, self.region.location, self.region.key)

    def _refuse_count(self) -> Restart:
        return self._refuse_append("every document must append to the list, and as often as every other")

    def _refuse_entry(self, value: VariableTracker) -> Restart:
        return self._refuse_append(f"only tensors may be appended per document, not {value.python_type_name()}")

    def _refuse_append(self, reason: str) -> Restart:
        return refuse("list-append", reason, self.region.location, self.region.key)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self.refusal()

    def refusal(self) -> Restart:
        """For uses that need the entries."""
        uses = "concatenated (torch.cat), stacked, padded, summed, looped over again, or returned if it shares nothing"
        reason = f"a list filled by the loop over documents may only be {uses}"
        return refuse("list-use", reason, self.region.location, self.region.key)

    def __add__(self, others: Any) -> Any:
        if self.listed is not None:
            return self.listed + others
        if message_lists.are_messages(self) and message_lists.are_messages(others):
            joined = self.copied()
            joined.also = [*self.also, others, *others.also]
            return joined
        return self._between(self.before, [*self.after, *self._own(others)])

    def __radd__(self, others: Any) -> Any:
        if self.listed is not None:
            return others + self.listed
        return self._between([*self._own(others), *self.before], self.after)

    def _own(self, others: Any) -> list[Any]:
        if isinstance(others, CollectedItems) and (filled := others.as_filled()) is not None and self._tensors:
            return [filled]
        if type(others) is not list or active.regions or not all(self.may_be_among(other) for other in others):
            raise self.refusal()
        return others

    def as_filled(self) -> Filled | None:
        """What stands for its entries in a longer list; None if these are no tensors."""
        known = type(self) is CollectedItems and self.region.closed and self._tensors
        return Filled(self.copied()) if known else None

    def __getitem__(self, index: Any) -> Any:
        found = nothing.entry(self, index)
        if found is None:
            raise self.refusal()
        return found

    if not TYPE_CHECKING:
        __iter__ = __len__ = __setitem__ = __delitem__ = __contains__ = __iadd__ = _refuse
        __bool__ = __reversed__ = __mul__ = __eq__ = insert = pop = clear = copy = reverse = _refuse
        remove = index = count = sort = _refuse


class ListedItems(CollectedItems):
    """Stands in for the entries of such a list, between other numbers."""

    def __init__(self, region: Any, row: Any, before: list[Any], after: list[Any]) -> None:
        super().__init__(region)
        self.row, self.before, self.after = row, before, after

    def __add__(self, others: Any) -> Any:
        return ListedItems(self.region, self.row, self.before, [*self.after, *self._numbers(others)])

    def __radd__(self, others: Any) -> Any:
        return ListedItems(self.region, self.row, [*self._numbers(others), *self.before], self.after)

    def _numbers(self, others: Any) -> list[Any]:
        given = [other.realize() for other in others] if type(others) is list else [None]
        if all(isinstance(other, SymNodeVariable) or number(other) is not None for other in given):
            return given
        raise self.refusal()

    def append(self, value: Any) -> None:
        raise self.refusal()

    def collected(self) -> Any:
        raise self.refusal()

    def joined(self, function: Any, dim: int) -> Any:
        raise self.refusal()

    def tensor(self) -> Any:
        """All numbers, as a vector of 64 bits."""
        tx = self.region.tx
        row = emit(tx, markers.RAGGED_CAT, self.row.as_proxy(), 0)
        sides = [[self._single(row, value) for value in side] for side in (self.before, self.after)]
        current_frame().not_replayable = "a list of the numbers of all documents is made a tensor"
        return emit(tx, torch.cat, [v.as_proxy() for v in (*sides[0], row, *sides[1])])

    def _single(self, row: Any, value: Any) -> Any:
        return row.call_method(self.region.tx, "new_full", [constant((1,)), value], {})


def items_of(value: Any) -> CollectedItems | None:
    """What a loop over documents has put into a list, or is putting into it."""
    known = isinstance(value, ListVariable) and isinstance(value.items, CollectedItems)
    return value.items if known else None


def is_documents(value: Any) -> bool:
    """Is this one of our sequences over documents?"""
    return isinstance(value, UserDefinedObjectVariable) and issubclass(value.python_type(), plain.Documents)


def is_collected(value: Any) -> bool:
    """A finished list with one entry per document: nothing can change it any more, so that a copy is the list."""
    return items_of(value) is not None and not active.regions


def numbers_of(value: Any) -> Any:
    """The sequence over documents that a list of numbers is, which a loop over documents has filled; or None."""
    items = items_of(value)
    filled = items is not None and items.region is not None and items.region.closed
    return items.numbers if items is not None and filled else None
