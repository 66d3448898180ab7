"""Lists that leave the graph, in a result or across a graph break: the code behind it has real lists.

::

    return [f(x[s:e]) for s, e in zip(bounds[:-1], bounds[1:])]
    return {"hidden": hidden, "lengths": lengths}

A graph gives a fixed number of tensors. So it gives the row that the documents of a list are together, and where each
ends; the code behind it cuts the row. Eager's entries have memory of their own, or share it with something that the
code behind the graph may see: only lists of the first kind are made again.
"""

from __future__ import annotations

import operator
import types
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.capture import later, nothing, recut
from packpass.capture.dynamo import (
    ConstDictVariable,
    ListVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    VariableTracker,
    attribute,
    constant,
    emit,
    variable,
)
from packpass.capture.fills import Filled
from packpass.capture.joins import numbers_in
from packpass.capture.lists import CollectedItems, is_collected, is_documents, items_of
from packpass.capture.merges import every_document, stack_of
from packpass.capture.python_functions import CollectedTuple
from packpass.capture.rows import Rows
from packpass.capture.sequences import is_once
from packpass.capture.state import active
from packpass.capture.tallies import end_of
from packpass.capture.watch import is_unknown
from packpass.semantics import call_of, storage
from packpass.semantics import example as example_of
from packpass.semantics.effects import changes_grad_mode, switches_gradients
from packpass.semantics.memory import aliases_of

Made = dict[Any, Any]
"""What lists have become; and the memory of the entries of those that were made again."""


def behind_the_graph(tx: Any, value: Any, made: Made) -> Any:
    """What a value is for the code behind the graph, which has lists with entries; None if it is what it seems."""
    if type(value) in (ListVariable, TupleVariable) and type(value.items) is list:
        if value in made:  # a list may be in itself
            return made[value]
        made[value] = None
        entries = [behind_the_graph(tx, entry, made) or entry for entry in value.items]
        if all(a is b for a, b in zip(entries, value.items, strict=True)):
            return None
        if type(value) is TupleVariable:
            made[value] = TupleVariable(entries)
            return made[value]
        value.items[:] = entries  # the list is still the one that others may hold
        return None
    if isinstance(value, ConstDictVariable):
        if value not in made:
            made[value] = None
            for held in (value.items, getattr(value, "original_items", {})):  # what it holds, and has begun with
                for key, entry in held.items():
                    held[key] = behind_the_graph(tx, entry, made) or entry
        return None
    origin = active.trace.callers.get(value.unwrap())
    if origin is not None:
        return later.Callers(origin)
    if value not in made and (type(value) in (ListVariable, CollectedTuple) or is_documents(value)):
        made[value] = _numbers_behind(tx, value) or _parts_behind(tx, value, made) or _entries_behind(tx, value, made)
    return made.get(value)


def as_python_constant(original: Any, self: Any) -> Any:
    """``ListVariable.as_python_constant``: Dynamo asks whether something is a constant in many places."""
    if isinstance(self.items, CollectedItems):
        raise NotImplementedError("a list that a loop over documents fills is no constant")
    return original(self)


def within(tx: Any, value: Any, made: Made) -> list[Any]:
    """What an object holds, or was made with, or a dict that one may hold: made into what it is behind the graph. Its
    attributes, which are known to the side effects alone."""
    if isinstance(value, ConstDictVariable):
        behind_the_graph(tx, value, made)
    given = getattr(value, "init_args", None)
    if isinstance(given, list):
        given[:] = [behind_the_graph(tx, entry, made) or entry for entry in given]
    attributes = tx.output.side_effects.store_attr_mutations.get(value, {})
    for name, entry in attributes.items():
        attributes[name] = behind_the_graph(tx, entry, made) or entry
    return list(attributes.values())


def _numbers_behind(tx: Any, value: Any) -> Any:
    """A list of numbers that a tensor holds."""
    known = is_collected(value) or (is_documents(value) and not is_once(value))
    found = numbers_in(tx, value) if known else None
    kind = None if found is None else attribute(tx, found, "kind").as_python_constant()
    if kind not in (list, tuple) or (kind is tuple and value in active.trace.listed):
        return None
    kind = tuple if isinstance(value, CollectedTuple) else kind
    return _as(tx, kind, later.Later(later.numbers, [attribute(tx, found, "origin")]))


def _parts_behind(tx: Any, value: Any, made: Made) -> Any:
    """What a tensor is split into by a list of numbers that a tensor holds."""
    parts = attribute(tx, value, "parts") if is_documents(value) and not is_once(value) else None
    if not isinstance(parts, TupleVariable) or value in active.trace.listed:
        return None
    whole, lengths, dim = parts.items
    row, sizes = (value.as_proxy().node for value in (whole, lengths))
    if not recut.is_as_it_was(row) or not recut.is_new_split(row, sizes, made):
        return None
    active.trace.hands_on = True
    found = later.Later(later.split, [whole, later.Later(later.numbers, [lengths]), dim])
    kind = attribute(tx, value, "kind").as_python_constant()
    return found if kind is tuple else later.Later(later.as_list, [found])


def _as(tx: Any, kind: type, made: Any) -> Any:
    """A list, or a tuple of its entries."""
    return made if kind is list else later.Later(later.as_tuple, [made])


def _entries_behind(tx: Any, value: Any, made: Made) -> Any:
    """A list that a loop over documents has filled; None if it is none, or its entries are not its own."""
    items = items_of(value)
    if items is None or type(items) is not CollectedItems or not items.region.closed:
        return None
    entries = _entries(tx, items.alone(), made)
    if entries is None:
        return None
    sides = [_others(tx, side, made) for side in (items.before, items.after)]
    if None in sides:
        return None
    if any(sides):
        entries = later.Later(later.together, [*(sides[0] or ()), entries, *(sides[1] or ())])
    return _as(tx, value.python_type(), entries)


def _others(tx: Any, values: list[Any], made: Made) -> list[Any] | None:
    """What else is in such a list, at one of its ends, as lists."""
    found = list[Any]()
    for value in values:
        filled = isinstance(value, Filled)
        one = (
            _entries_behind(tx, value.list, made) if filled else ListVariable([value], mutation_type=ValueMutationNew())
        )
        if one is None:
            return None
        found.append(one)
    return found


def _entries(tx: Any, items: CollectedItems, made: Made) -> Any:
    """What documents have left in a list."""
    if items.numbers is not None or items.conditions is not None:
        held = items.conditions if items.numbers is None else items.tensor()
        whole = items.columns is None and held is not None
        return later.Later(later.numbers, [held]) if whole else None
    if items.rows is not None:
        return None if items.rows.kind is types.FunctionType else _rows(tx, items.rows, made)
    if items.lacking and items.each != 1:
        return None
    each = [_tensors(tx, items, [values[k] for values in items.values], made) for k in range(items.each)]
    if any(one is None for one in each):
        return None
    return each[0] if len(each) == 1 else later.Later(later.in_turn, each)


def _rows(tx: Any, rows: Rows, made: Made) -> Any:
    """A list of tuples, lists, dicts, or objects that do nothing but keep their values."""
    own = [
        _entries(tx, c, made) if isinstance(c, CollectedItems) else later.Later(later.same, [c]) for c in rows.columns
    ]
    if any(column is None for column in own):
        return None
    named = rows.kind is dict
    plain_kind = named or rows.kind in (tuple, list)
    kind = variable(tx, rows.kind) if plain_kind else VariableTracker.build(tx, rows.kind, rows.source)
    return later.Later(later.rows, [kind, constant(rows.names if named else None), *own])


def _tensors(tx: Any, items: CollectedItems, values: list[Any], made: Made) -> Any:
    """One tensor of each document."""
    if not all(isinstance(value, TensorVariable) for value in values) or any(nothing.is_none(v) for v in values):
        return None
    entries = [value.as_proxy().node for i, value in enumerate(values) if i not in items.lacking]
    if not _are_its_own(items, entries, made):
        return None if items.lacking or items.region.skips else recut.views(tx, items.region, entries, made)
    ragged = {d for entry in entries for d, size in enumerate(example_of(entry).shape) if is_unknown(size)}
    one = items if items.each == 1 else _one_of(items, values)
    present = items.present() if items.lacking else constant(None)
    if not ragged:
        return later.Later(later.listed, [stack_of(tx, one, 0, present=False), present])
    if len(ragged) > 1:
        return None
    (dim,) = ragged
    every_document(one)
    collected = one.whole().as_proxy()
    row = emit(tx, markers.RAGGED_CAT, collected, dim, True, True)
    ends = emit(tx, markers.LIST_BOUNDARIES, collected, items.region.length.as_proxy(), dim)
    return later.Later(later.cut, [row, ends, constant(dim), present])


def _one_of(items: CollectedItems, values: list[Any]) -> CollectedItems:
    """A list with one of the entries that each document leaves."""
    one = CollectedItems(items.region)
    one.values = [[value] for value in values]
    one.close()
    return one


def _are_its_own(items: CollectedItems, entries: list[fx.Node], made: Made) -> bool:
    """Has each document's entry memory of its own, which nothing else knows?"""
    begin = items.region.indices[0]
    recorded = any(example_of(entry).requires_grad for entry in entries)
    inference = any(switches_gradients(node) and not changes_grad_mode(node) for node in begin.graph.nodes)
    if inference or (recorded and not torch.is_grad_enabled()):
        return False
    if len(set(entries)) < len(entries) or any(entry < begin for entry in entries):
        return False
    end = end_of(items.region, -1)
    memories = _memories(entries)
    lists = (markers.LIST_COLLECT, markers.LIST_GET)  # what stands for the list itself shares memory with its entries
    others = (node for node in begin.graph.nodes if not begin < node < end and node.target not in lists)
    if False in memories or memories & made.keys() or any(storage(node) in memories for node in others):
        return False
    made |= dict.fromkeys(memories)
    return True


def _memories(entries: list[fx.Node]) -> set[Any]:
    """The memory that entries are in, or may be; False: with something from in front of the loop."""
    found = {storage(entry) for entry in entries}
    node = max(entries)
    while node.op != "root":
        if storage(node) in found and (source := _shares(node)) is not None:
            found.add(source and storage(source))
        node = node.prev
    return found


def _shares(node: fx.Node) -> Any:
    """What a node may share memory with, though it seems to have its own; False if that was there before the loop.

    What a marker returns is new to torch. And of a copy that is only made where it has to be, as of ``contiguous``,
    torch looks at one size only.
    """
    if node.target in (markers.SPLIT_GET, markers.LIST_GET, markers.SEGMENT):
        return False
    made: Any = node.args[0] if node.target is operator.getitem else node
    if made.target in markers.VIEWS:
        return made.args[0]
    call = call_of(node)
    if call is None or len(call.operands) != 1 or not any(aliases_of(call)):
        return None
    same = example_of(node).dtype is call.operands[0].value.dtype
    return call.operands[0].node if same else None
