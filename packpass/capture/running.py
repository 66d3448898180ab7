"""A Python list of numbers to which every document adds some of its own, counting on from the last one.

::

    bounds = [0]
    for t, h, w in grid.tolist():
        ends = lengths_of_windows(t, h, w).cumsum(0) + bounds[-1]
        bounds.extend(ends.tolist())
    torch.tensor(bounds)

or, one number for each document, ``bounds.append(bounds[-1] + n)``, or ``end += n; bounds.append(end)``.

The first trace finds such a list by its ``extend`` (``append``) and the frame is traced again. Then the last entry is a
number that nobody knows (`markers.LIST_LAST`), what every document adds is collected as a list of tensors would be, and
the list as a whole can be made a tensor, nothing else. The passes must prove how the documents' numbers go on from each
other. Numbers that are appended are sums, which the list is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.capture import plain, plain_numbers
from packpass.capture.dynamo import (
    ConstDictVariable,
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    ValueMutationNew,
    attribute,
    call,
    constant,
    emit,
    example,
)
from packpass.capture.entries import made_of, numbers_made
from packpass.capture.lists import CollectedItems, is_documents, items_of
from packpass.capture.origins import needed_for
from packpass.capture.places import contents
from packpass.capture.state import active, current_frame, restart
from packpass.capture.tallies import collect, tally, vector
from packpass.capture.watch import is_unknown

if TYPE_CHECKING:
    from packpass.capture.region import Region


class RunningItems(CollectedItems):
    """Stands in for the entries of such a list."""

    def __init__(self, region: Region, first: list[int]) -> None:
        super().__init__(region)
        self.first = first
        """The entries before the loop."""
        self._lasts: dict[int, Any] = {}
        """Iteration -> the last entry before the document."""
        self._whole: Any = None
        self._shares: list[Any] = []
        """How the number is made that each traced iteration adds, where it adds one."""
        self._added: list[Any] = []
        """The number itself, where it is added as it is."""
        self._ends: list[Any] = []
        """The offset (`packpass.capture.offsets`) that each traced iteration has counted on and appended, None if it is
        not known to be one yet."""

    def last(self) -> Any:
        """``numbers[-1]``, before the document has added its own."""
        region = self.region
        if not active.regions or active.regions[-1] is not region or self.holds(region.iteration):
            raise self.refusal()
        if region.iteration not in self._lasts:
            _not_replayable()
            args = (region.index.as_proxy(), region.id, region.iteration, region.lists.index(self))
            self._lasts[region.iteration] = emit(region.tx, markers.LIST_LAST, *args)
        return self._lasts[region.iteration]

    def append(self, value: Any) -> None:
        """``numbers.append(numbers[-1] + n)``."""
        region = self.region
        inside = bool(active.regions) and active.regions[-1] is region
        last = self._lasts.get(region.iteration) if inside else None
        if inside and last is None and not self.holds(region.iteration):
            self._ends.append(region.known.offset_at(value.realize()))
            self.values.append([value])
            return
        if last is None or not isinstance(value.realize(), SymNodeVariable):
            raise self.refusal()
        node, before = value.as_proxy().node, last.as_proxy().node
        chain = _steps_from(node, before)
        if chain is None or self.holds(region.iteration) or self.first != [0]:
            raise self.refusal()
        made: Any = 0
        for step, share in reversed(chain):
            known = made_of(share, region.indices[-1], region.indices[0])
            less = step.target in (operator.sub, operator.isub)
            if made is None or known is None:
                made = None
            else:
                made = known if made == 0 and not less else (operator.sub if less else operator.add, made, known)
        for done in (*(step for step, _ in chain), before):
            done.graph.erase_node(done)
        self.values.append([chain[-1][1]])
        self._shares.append(made)
        (step, share), *more = chain
        number = share.meta.get("example_value") if isinstance(share, fx.Node) else share
        if not more and step.target in (operator.add, operator.iadd) and isinstance(number, (int, torch.SymInt)):
            self._added.append(share)

    def go_on(self, numbers: Any) -> None:
        """``extend`` by the numbers that a tensor holds."""
        if self.holds(self.region.iteration):
            raise self._refuse_count()
        if self.first:
            _not_replayable()
        self.values.append([numbers])

    def _close_sums(self) -> None:
        """``[0, first, first + second, ...]``."""
        tx, made = self.region.tx, self._shares[0]
        same = made is not None and all(other == made for other in self._shares)
        vector = numbers_made(tx, made, self.region.length) if same else None
        if self.region.skips or self.region.ways:
            raise self.refusal()
        if vector is None and len(self._added) == len(self.values):  # the size of what a document makes, say
            vector = tally(self.region, self._added).as_proxy()
        if vector is None:
            raise self.refusal()
        sums = emit(tx, "cumsum", vector, 0, method=True)
        self.numbers = call(tx, plain.of_tolist, emit(tx, torch.nn.functional.pad, sums.as_proxy(), (1, 0)))

    def _close_ends(self) -> None:
        """``[first, first + n, ...]``, where the offset is read from."""
        offset = self._ends[0]
        same = len(self._ends) == len(self.values) and all(other is offset for other in self._ends)
        if self.region.skips or not same:
            raise self.refusal()
        if offset is not None and self.first == [offset.offset.first]:
            ends, region = offset.boundaries, self.region
            if region.whole is not region.length:  # it is left before the last document
                ends = call(region.tx, plain_numbers.up_to, ends, region.length)
            self.numbers = call(region.tx, plain.of_tolist, ends)
        else:
            self._close_others()

    def _close_others(self) -> None:
        """``[first, number of the first document, ...]``"""
        tx, made = self.region.tx, [values[0].realize() for values in self.values]
        numbers = all(isinstance(value, SymNodeVariable) for value in made) and not self.region.ways
        others = vector(self.region, made) if numbers else None
        if others is None or others.dtype is torch.bool:
            raise self.refusal()
        first = ListVariable([constant(n) for n in self.first], mutation_type=ValueMutationNew())
        self.numbers = call(tx, plain_numbers.in_front, call(tx, plain.of_tolist, others), first)

    def entries(self) -> Any:
        if self.numbers is None:
            raise self.refusal()
        return super().entries()

    def close(self) -> None:
        if self._ends:
            self._close_ends()
            return
        if self._shares:
            self._close_sums()
            return
        made = [values[0].as_proxy() for values in self.values]
        lasts = [last.as_proxy() for last in self._lasts.values()]
        if lasts and (len(lasts) != len(made) or len(made) != 2):
            raise self.refusal()
        if lasts:
            args = (*made, self.region.id, *lasts, self.first[-1])
            self._whole = emit(self.region.tx, markers.LIST_CONTINUE, *args)
        else:
            self._whole = collect(self.region, made)

    def collected(self) -> Any:
        raise self.refusal()

    def joined(self, function: Any, dim: int) -> Any:
        raise self.refusal()

    def tensor(self) -> Any:
        """All numbers, those before the loop included, as a vector of 64 bits."""
        if self.numbers is not None:
            return attribute(self.region.tx, self.numbers, "origin")
        if self._whole is None:
            raise self.refusal()
        tx = self.region.tx
        if not self.first:  # there may be no numbers at all
            return emit(tx, markers.RAGGED_CAT, self._whole.as_proxy(), 0, True, True)
        row = emit(tx, markers.RAGGED_CAT, self._whole.as_proxy(), 0)
        head = emit(tx, "new_tensor", row.as_proxy(), self.first, method=True)
        return emit(tx, torch.cat, [head.as_proxy(), row.as_proxy()])


def _not_replayable() -> None:
    """What a document makes is known with what those before it have made."""
    current_frame().not_replayable = "a list of numbers goes on from document to document"


def _steps_from(node: Any, before: Any) -> list[tuple[Any, Any]] | None:
    """The sums and differences by which ``before`` becomes ``node``, last one first, and what each adds or takes away;
    None if it becomes that in another way, or somebody looks at what lies between."""
    steps: list[tuple[Any, Any]] = []
    users: list[Any] = []
    while node is not before:
        known = node.target in (operator.add, operator.iadd, operator.sub, operator.isub) and len(node.args) == 2
        sides = list(node.args) if known and list(node.users) == users else []
        if sides and node.target in (operator.add, operator.iadd) and not _is_made_of(sides[0], before):
            sides.reverse()
        if not sides or not _is_made_of(sides[0], before) or _is_made_of(sides[1], before):
            return None
        steps.append((node, sides[1]))
        users, node = [node], sides[0]
    return steps if steps and list(before.users) == users else None


def _is_made_of(node: Any, before: Any) -> bool:
    return isinstance(node, fx.Node) and before in needed_for([node])


def may_extend(tensor: Any) -> bool:
    """May the ``tolist()`` of what a document has made go to such a list, though it is of no integers?"""
    fake = example(tensor)
    return fake.dim() == 1 and fake.is_floating_point() and is_unknown(fake.shape[0])


def extend(items: Any, more: Any) -> Any:
    """``numbers.extend(tensor.tolist())`` in a loop over documents; None if it is none."""
    origin = _numbers(more)
    if origin is None:
        return None
    if isinstance(items.items, RunningItems):
        if items.items.region is not active.regions[-1]:
            raise items.items.refusal()
        items.items.go_on(origin)
        return constant(None)
    learn(active.regions[-1], items, empty=True)
    return None


def learn(region: Region, items: Any, empty: bool = False) -> None:
    """If this may be such a list, the frame is traced again. ``empty``: also if nothing is in it yet."""
    place = region.place_of(items, in_cell=True) or _place_within(region, items)
    known = current_frame().running.setdefault(region.key, set())
    first = _first(items)
    if first is not None and (first or empty) and place is not None and place not in known:
        known.add(place)
        raise restart(f"{place[1]} is a list of numbers that goes on from document to document")


def _place_within(region: Region, items: Any) -> tuple[Any, ...] | None:
    """``(frame, name, key)`` of a list in a list or a dict of the program: ``bounds[0].append(bounds[0][-1] + n)``."""
    for place, held in region.held():
        for key, entry in _within(held.realize()):
            if entry is items:
                return (*place, key)
    return None


def _within(holder: Any) -> list[tuple[Any, Any]]:
    """The entries of a list or a dict that the program has made, by their keys; nothing of others."""
    if holder.source is not None or not isinstance(holder.mutation_type, ValueMutationNew):
        return []
    if type(holder) is ListVariable and type(holder.items) is list:
        return list(enumerate(holder.items))
    keyed = dict.items(holder.items) if type(holder) is ConstDictVariable else ()
    return [(key.vt.as_python_constant(), entry) for key, entry in keyed if key.vt.is_python_constant()]


def _numbers(more: Any) -> Any:
    """The tensor whose ``tolist()`` a sequence is."""
    return _origin(active.regions[-1].tx, more)


def _first(items: Any) -> list[int] | None:
    """The numbers in a list of the traced program."""
    if type(items) is not ListVariable or type(items.items) is not list or items.source is not None:
        return None
    if not isinstance(items.mutation_type, ValueMutationNew):
        return None
    entries = [entry.realize() for entry in items.items]
    known: list[Any] = [entry.as_python_constant() if entry.is_python_constant() else None for entry in entries]
    return known if all(type(v) is int for v in known) else None


def adopt(region: Region, value: Any, keys: Sequence[Any] = ()) -> None:
    """A list that was found to be such a one, where its loop begins: a local, also one that a closure shares, as a
    comprehension does, or the entry ``keys`` of one."""
    held = contents(region.tx, value)
    items: Any = held.realize() if held is not None else None
    for key in keys:
        items = dict(_within(items)).get(key) if items is not None else None
    first = _first(items)
    if first is not None:
        items.items = RunningItems(region, first)
        region.lists.append(items.items)


def last_of(value: Any, key: Any) -> Any:
    """``numbers[-1]`` of such a list; None if it is none."""
    items = items_of(value)
    if not isinstance(items, RunningItems) or items.numbers is not None:
        return None
    at = key.realize()
    if not at.is_python_constant() or at.as_python_constant() != -1:
        raise items.refusal()
    return items.last()


def tensor_of(tx: Any, value: Any) -> Any:
    """The numbers of a finished list, or of a sequence over documents, as a tensor; None if it is something else."""
    items = items_of(value)
    return _origin(tx, value) if items is None else items.tensor()


def _origin(tx: Any, value: Any) -> Any:
    """The tensor whose entries are the numbers of a sequence over documents."""
    if not is_documents(value):
        return None
    origin, cut = attribute(tx, value, "origin"), attribute(tx, value, "cut")
    if isinstance(origin, TensorVariable):
        return origin
    whole = cut.is_python_constant() and cut.as_python_constant() is None
    return None if whole else call(tx, plain_numbers.of_cut, value)
