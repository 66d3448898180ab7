"""Sequences over documents as plain Python classes: Dynamo traces this code as it traces the user's.

A sequence knows its length, a number that changes from batch to batch, and how its entry is made from an index. All
that Python offers for going over sequences is written here as Python would write it. What plain code cannot decide
is asked with the functions of the first section: the call hook answers them while a frame is traced
(`packpass.capture.sequences`), and they never run.
"""

from __future__ import annotations

import itertools
from typing import Any, NoReturn

import torch

from packpass import markers

# === Questions to the tracer =================================================================================


def _never(*args: Any) -> NoReturn:
    raise RuntimeError("packpass: a sequence over documents reached execution; please report this")


def advance(iterator: Any) -> Any:
    """Begin the next of the two traced documents and return its index; None after them."""
    _never(iterator)


def row(numbers: Any) -> Any:
    """A list of these numbers that is made anew wherever it is asked for, so that nobody may change it."""
    _never(numbers)


def named(names: Any, values: Any) -> Any:
    """The same, of a dict."""
    _never(names, values)


def kept(made: Any) -> Any:
    """The same, of an object that was just made."""
    _never(made)


def function(template: Any, own: Any, values: Any) -> Any:
    """A function like another, of which ``own`` says what it keeps else (`packpass.capture.kept_functions`)."""
    _never(template, own, values)


def position(documents: Any, key: Any) -> Any:
    """The index that a subscript means, if every batch has such an entry; None for a number that is data, of a sequence
    that can be picked from; refuses the loop otherwise."""
    _never(documents, key)


def steps(documents: Any, key: Any) -> Any:
    """Has a slice a step, of a sequence of which entries can be picked?"""
    _never(documents, key)


def bounds(documents: Any, key: Any) -> Any:
    """``(entries left out in front, at the end)`` of a slice; refuses all but ``[1:]``, ``[:-1]`` and ``[:]``."""
    _never(documents, key)


def front(documents: Any, key: Any) -> Any:
    """Where a slice ends that takes the entries in front of a document: ``[:i]`` and ``[: i + 1]`` of a list of
    numbers, in a loop over them, or in front of loops those up to a number that is given; None for any other."""
    _never(documents, key)


def take(documents: Any) -> Any:
    """Somebody goes through an iterator: refuses the loop if somebody has before."""
    _never(documents)


def refuse_use(what: Any) -> Any:
    """Refuse the loop: a sequence is used in a way that needs the number of documents to be a constant."""
    _never(what)


def grow(documents: Any, more: Any, front: Any) -> Any:
    """A list of numbers gets some more, behind its own or in front; refuses the loop where it is more than a list of
    numbers by now."""
    _never(documents, more, front)


# === Sequences ===============================================================================================


class Documents:
    """``length`` entries, entry i being ``get(i)``."""

    def __init__(self, length: Any, get: Any, kind: Any, calls: Any = False, origin: Any = None) -> None:
        self.length = length
        self.get = get
        self.kind = kind  # the type it stands for
        self.calls = calls  # does making an entry call code of the user?
        self.origin = origin  # the tensor whose tolist() this is
        self.pick: Any = None  # makes an entry from any number, as a subscript of a list does
        self.within = False  # is that so of numbers of its own entries alone, not of those that count from its end?
        self.cut: Any = None  # for a slice of such a list: that tensor, and how many entries are left out at its ends
        self.floats: Any = None  # the tensor whose tolist() this is, where its numbers are no integers
        self.parts: Any = None  # of what a tensor is split into: that tensor, the lengths, and the dimension

    def __iter__(self) -> Any:
        return Entries(self)

    def __len__(self) -> Any:
        return self.length

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            if steps(self, key):
                return every(self, key)
            stop = front(self, key)
            if stop is not None:
                origin = None if self.origin is None else self.origin[:stop]
                part = Documents(stop, self.get, self.kind, self.calls, origin)
                return part[1:] if key.start else part
            first, last = bounds(self, key)
            get = self.get
            part = Documents(
                self.length - first - last, (lambda i: get(i + first)) if first else get, self.kind, self.calls
            )
            part.cut = None if self.cut or self.origin is None else (self.origin, first, last)
            pick = self.pick
            part.pick, part.within = None if pick is None else lambda i: pick(i + first), True
            return part
        if isinstance(key, torch.Tensor):
            key = key.item()
        at = position(self, key)
        return self.pick(key) if at is None else self.get(at)

    def __getattr__(self, name: Any) -> Any:
        return refuse_use(name)

    def __setitem__(self, key: Any, value: Any) -> Any:
        return refuse_use("an assignment")

    def __contains__(self, value: Any) -> Any:
        return refuse_use("in")

    def __add__(self, other: Any) -> Any:
        return refuse_use("+")

    def __radd__(self, other: Any) -> Any:
        return refuse_use("+")

    def __mul__(self, other: Any) -> Any:
        return refuse_use("*")

    def __eq__(self, other: Any) -> Any:
        return refuse_use("a comparison")

    def __lt__(self, other: Any) -> Any:
        return refuse_use("a comparison")

    def append(self, value: Any) -> Any:
        grow(self, [value], False)

    def extend(self, more: Any) -> Any:
        grow(self, more, False)

    def insert(self, at: Any, value: Any) -> Any:
        grow(self, [value], True) if at == 0 else refuse_use("insert")

    def __iadd__(self, other: Any) -> Any:
        grow(self, other, False)
        return self

    def become(self, other: Any) -> Any:
        """Hold what another list holds."""
        self.length, self.get, self.origin, self.cut = other.length, other.get, other.origin, other.cut

    __rmul__ = __imul__ = __mul__
    __ne__ = __eq__
    __gt__ = __le__ = __ge__ = __lt__
    __hash__ = None  # type: ignore[assignment]


class Once(Documents):
    """An iterator over documents (zip, enumerate, map): good for one loop, without a length and subscripts."""

    def __iter__(self) -> Any:
        take(self)
        return Entries(self)

    def __next__(self) -> Any:
        return refuse_use("next()")

    def __len__(self) -> Any:
        return refuse_use("the length of an iterator")

    def __getitem__(self, key: Any) -> Any:
        return refuse_use("a subscript of an iterator")


class Entries:
    """What ``iter`` returns."""

    def __init__(self, documents: Any) -> None:
        self.documents = documents

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        index = advance(self)
        if index is None:
            raise StopIteration
        return self.documents.get(index)


def entries(documents: Any) -> Any:
    """``iter(documents)``."""
    return Entries(documents)


def identity(i: Any) -> Any:
    return i


def of_count(stop: Any) -> Any:
    """``range(stop)``."""
    return Documents(stop, identity, range)


def of_steps(length: Any, start: Any, step: Any) -> Any:
    """``range(start, stop, step)``, which has so many entries."""
    return Documents(length, lambda i: start + i * step, range)


def every(documents: Any, key: Any) -> Any:
    """``documents[start::step]``."""
    start, step, pick = key.start or 0, key.step, documents.pick
    if step == -1:
        return backwards(documents)
    made = pickable((documents.length - start + step - 1) // step, lambda i: pick(start + i * step), documents.kind)
    made.within = True
    return made


def backwards(documents: Any) -> Any:
    """``reversed(documents)`` of a sequence."""
    get, last = documents.get if documents.pick is None else documents.pick, documents.length - 1
    made = pickable(documents.length, lambda i: get(last - i), documents.kind)
    made.within = True
    return made


def pickable(length: Any, get: Any, kind: Any, origin: Any = None) -> Any:
    """A sequence whose entries are read from tensors by their place, so that any number may pick them."""
    made = Documents(length, get, kind, False, origin)
    made.pick = get
    return made


def of_range(start: Any, stop: Any) -> Any:
    """``range(start, stop)``."""
    return Documents(stop - start, lambda i: i + start, range)


def of_tensor(x: Any) -> Any:
    """The 0-d entries of a 1-D tensor, as ``for t in x`` yields them."""
    return pickable(x.size(0), lambda i: x[i], list)


def of_tolist(x: Any) -> Any:
    """``x.tolist()`` of a 1-D integer tensor.

    The list keeps its numbers when the tensor changes; the passes see through a copy of one that does not.
    """
    numbers = x.clone()
    return pickable(x.size(0), lambda i: numbers[i].item(), list, numbers)


def of_floats(x: Any) -> Any:
    """``x.tolist()`` of a 1-D tensor of float64, which nobody changes: no boundaries, and no places."""
    made = pickable(x.size(0), lambda i: x[i].item(), list)
    made.floats = x
    return made


def of_rows(x: Any, columns: Any) -> Any:
    """``x.tolist()`` of a matrix of integers: a list of ``columns`` numbers per row."""
    numbers = x.clone()
    return Documents(x.size(0), lambda i: row([numbers[i][c].item() for c in range(columns)]), list)


def of_columns(length: Any, columns: Any, kind: Any) -> Any:
    """A list of rows of numbers; a column is a tensor with one for each row, or what all rows have there."""
    return Documents(length, lambda i: kind([_entry(c, i) for c in columns]), list)


def _entry(column: Any, i: Any) -> Any:
    return column if column is None or isinstance(column, int) else column[i].item()


def part(numbers: Any) -> Any:
    """The slice with these numbers."""
    return slice(*numbers)


def of_vectors(length: Any, columns: Any) -> Any:
    """The rows of a matrix with these columns, as they are unpacked."""
    return Documents(length, lambda i: tuple([c[i] for c in columns]), list)


def collected(iterator: Any) -> Any:
    """``list(iterator)``, of a generator."""
    out = []
    for entry in iterator:
        out.append(entry)
    return out


def of_tuples(kind: Any, columns: Any) -> Any:
    """Rows of what several lists hold for a document."""
    return Documents(columns[0].length, lambda i: kind([column.get(i) for column in columns]), list)


def of_dicts(names: Any, columns: Any) -> Any:
    """The same, by name."""
    return Documents(columns[0].length, lambda i: named(names, [column.get(i) for column in columns]), list)


def of_objects(kind: Any, columns: Any) -> Any:
    """The same, as the arguments of a class that keeps them."""
    return Documents(columns[0].length, lambda i: kept(kind(*[column.get(i) for column in columns])), list)


def of_functions(length: Any, template: Any, own: Any, columns: Any) -> Any:
    """Functions that are alike but for what they keep."""
    return Documents(length, lambda i: function(template, own, [column.get(i) for column in columns]), list)


def of_same(length: Any, value: Any) -> Any:
    """One value for all documents."""
    return Documents(length, lambda i: value, list)


def columns(*lists: Any, strict: bool = False) -> Any:
    """What ``zip(*rows)`` returns; all rows are as long as each other."""
    return iter(lists)


def of_collected(collected: Any, length: Any) -> Any:
    """A list that an earlier loop over documents has filled."""
    return Documents(length, lambda i: markers.LIST_GET(collected, i), list)


def listed(documents: Any, kind: Any) -> Any:
    """``list(iterator)``: the same entries, to be gone through as often as one likes."""
    take(documents)
    return Documents(documents.length, documents.get, kind, False, documents.origin)


def of_zip(length: Any, calls: Any, *items: Any) -> Any:
    """``zip(*items)``."""
    return Once(length, lambda i: tuple([item.get(i) for item in items]), zip, calls)


def of_pairwise(items: Any) -> Any:
    """``itertools.pairwise(items)``."""
    return Once(items.length - 1, lambda i: (items.get(i), items.get(i + 1)), itertools.pairwise, items.calls)


def of_map(length: Any, function: Any, *items: Any) -> Any:
    """``map(function, *items)``."""
    return Once(length, lambda i: function(*[item.get(i) for item in items]), map, True)


def of_starmap(function: Any, items: Any) -> Any:
    """``itertools.starmap(function, items)``."""
    return Once(items.length, lambda i: function(*items.get(i)), itertools.starmap, True)


def of_enumerate(items: Any) -> Any:
    """``enumerate(items)``."""
    return Once(items.length, lambda i: (i, items.get(i)), enumerate, items.calls)


def of_enumerate_from(items: Any, start: Any) -> Any:
    """``enumerate(items, start)``."""
    return Once(items.length, lambda i: (i + start, items.get(i)), enumerate, items.calls)
