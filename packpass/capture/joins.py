"""What a program makes of a list that a loop over documents has filled: cat, stack, pad_sequence, sum, len.

How the entries become one value of the graph is in `packpass.capture.merges`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from packpass import markers
from packpass._compat import statically_known_true
from packpass.capture import either, plain, plain_nested, plain_numbers, running, tallies
from packpass.capture.dynamo import (
    ListVariable,
    LocalGeneratorObjectVariable,
    TensorVariable,
    TupleVariable,
    UserDefinedObjectVariable,
    attribute,
    call,
    constant,
    emit,
    example,
    size_of,
)
from packpass.capture.fills import Filled, entries_of
from packpass.capture.lists import CollectedItems, is_collected, is_documents, items_of, numbers_of
from packpass.capture.merges import cat_of, every_document, present_of, stack_of, stack_of_all
from packpass.capture.sequences import collect
from packpass.capture.state import active, location_of, refuse
from packpass.capture.watch import is_unknown


def cat(tx: Any, tensors: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    items = _collected(tx, tensors)
    if items is None:
        return None
    dim = kwargs.get("axis", dim)
    at = 0 if dim is None else dim.realize().as_python_constant()
    return cat_of(tx, items, at)


def _collected(tx: Any, tensors: Any) -> CollectedItems | None:
    """The entries of a list that a loop over documents has filled."""
    if tensors is None:
        return None
    value = tensors.realize()
    if is_documents(value):
        value = collect(tx, value)
    return items_of(value)


def stack(tx: Any, tensors: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    """``torch.stack`` of values that documents have one of each, or as many."""
    items = _collected(tx, tensors)
    if items is None or set(kwargs) - {"axis"}:
        return None
    dim = kwargs.get("axis", dim)
    at = 0 if dim is None else dim.realize().as_python_constant()
    return stack_of_all(tx, items, at)


def tensor(tx: Any, data: Any = None, **kwargs: Any) -> Any:
    """``torch.tensor(numbers, dtype=..., device=...)`` of a list of numbers, or of tensors of one number, that a loop
    over documents has filled, or of any that a tensor holds; None if it is none."""
    value = data.realize() if data is not None and not active.regions else None
    if value is None or set(kwargs) - {"dtype", "device"}:
        return None
    lists = _lists_of_numbers(value) if "dtype" in kwargs else None
    if lists:
        return emit(tx, torch.stack, [tensor(tx, one, **kwargs).as_proxy() for one in lists])
    items, numbers = items_of(value), running.tensor_of(tx, value)
    if items is not None and numbers is not None and "dtype" not in kwargs and _may_be_none(items, numbers):
        raise items.refusal()  # of no numbers, torch makes a tensor of floating point numbers
    numbers = _conditions(items) if numbers is None else numbers
    out = _single_numbers(tx, items) if numbers is None and items is not None else numbers
    if out is None:
        return None
    own = example(out).dtype if example(out).dtype is torch.bool else torch.int64
    own = torch.get_default_dtype() if example(out).is_floating_point() else own
    given = {"dtype": constant(own), **kwargs} if out is numbers else dict(kwargs)
    if "device" not in given and example(out).device.type != "cpu":
        given["device"] = constant(torch.device("cpu"))
    made = out.call_method(tx, "to", [], given) if given else out
    if out is not numbers or isinstance(items, running.RunningItems):
        return made
    return made.call_method(tx, "clone", [], {})  # others read the numbers as well


def _lists_of_numbers(value: Any) -> list[Any]:
    """The lists in a list, if each is one of numbers that a loop has extended; nothing of others."""
    plain_list = type(value) is ListVariable and type(value.items) is list
    found = [entry.realize() for entry in value.items] if plain_list else []
    return found if all(isinstance(items_of(one), running.RunningItems) for one in found) else []


def _may_be_none(items: CollectedItems, numbers: Any) -> bool:
    """Is it data how many numbers a list has, so that it may have none?"""
    if isinstance(items, running.RunningItems):
        return not items.first and is_unknown(example(numbers).shape[0])
    return bool(items.lacking) or (not items.before and is_unknown(size_of(items.region.length)))


def _conditions(items: CollectedItems | None) -> Any:
    """All documents' truth values, where a list has nothing else; None of other lists."""
    alone = items is not None and not (items.before or items.after or items.lacking) and items.each == 1
    return items.conditions if items is not None and alone else None


def _single_numbers(tx: Any, items: CollectedItems) -> Any:
    """The values of tensors of one number, which no gradient goes through; None of other lists."""
    entries = [value.realize() for values in items.values for value in values]
    if not entries or not all(isinstance(v, TensorVariable) and example(v).dim() == 0 for v in entries):
        return None
    return stack_of_all(tx, items, 0).call_method(tx, "detach", [], {})


def hstack(tx: Any, tensors: Any = None) -> Any:
    """``torch.hstack``: entries beside each other, which for vectors is behind each other."""
    return _along(tx, tensors, beside=True)


def vstack(tx: Any, tensors: Any = None) -> Any:
    """``torch.vstack``: entries below each other, vectors as rows."""
    return _along(tx, tensors, beside=False)


def _along(tx: Any, tensors: Any, *, beside: bool) -> Any:
    items = _collected(tx, tensors)
    ranks = set() if items is None else {example(value.realize()).dim() for entry in items.values for value in entry}
    if len(ranks) != 1:
        return None
    rank = ranks.pop()
    if rank >= (1 if beside else 2):
        return cat(tx, tensors, constant(min(rank - 1, 1) if beside else 0))
    rows = stack(tx, tensors, constant(0))
    return rows if rows is None or beside or rank == 1 else rows.call_method(tx, "unsqueeze", [constant(1)], {})


def block_diagonal(entries: Any) -> Any:
    """The arguments of `markers.LIST_DIAGONAL`, if these are squares that a loop over documents has collected."""
    items = items_of(entries.realize())
    if items is None or not is_collected(entries.realize()) or items.each != 1 or items.numbers is not None:
        return None
    collected = items.collected()
    entry = collected.as_proxy().node.args[0].meta["example_value"]
    if (
        entry.dim() != 2
        or not is_unknown(entry.shape[0])
        or not statically_known_true(entry.shape[0] == entry.shape[1])
    ):
        return None
    every_document(items)
    return TupleVariable([collected])


def pad(
    tx: Any, tensors: Any = None, batch_first: Any = None, padding_value: Any = None, padding_side: Any = None
) -> Any:
    """``pad_sequence`` of segments."""
    items = _collected(tx, tensors)
    if items is None:
        return None
    every_document(items)
    given = (batch_first, padding_value, padding_side)
    constants: list[Any] = [
        default if v is None else v.realize().as_python_constant()
        for v, default in zip(given, (False, 0.0, "right"), strict=True)
    ]
    first, number, side = constants
    args = (items.whole().as_proxy(), items.region.length.as_proxy(), first, float(number), side)
    return present_of(tx, items, emit(tx, markers.LIST_PAD, *args), 0 if first else 1)


def jagged(tx: Any, ts: Any = None, dtype: Any = None, device: Any = None, layout: Any = None) -> Any:
    """``torch.nested.as_nested_tensor(parts, layout=torch.jagged)``: the row of the parts, and where each begins."""
    items = _collected(tx, ts)
    if items is None:
        return None
    given = [None if v is None else v.realize().as_python_constant() for v in (dtype, device, layout)]
    collected = items.collected()
    first = collected.as_proxy().node.args[0].meta["example_value"]
    # Torch takes the dimension that differs for the jagged one: it must be the first whatever the lengths are.
    jagged = first.dim() > 0 and is_unknown(first.shape[0]) and not any(is_unknown(size) for size in first.shape[1:])
    if given != [None, None, torch.jagged] or not jagged:
        raise items.refusal()
    every_document(items)
    row = emit(tx, markers.RAGGED_CAT, collected.as_proxy(), 0)
    offsets = emit(tx, markers.LIST_BOUNDARIES, collected.as_proxy(), items.region.length.as_proxy())
    made = call(tx, plain_nested.jagged, row, offsets)
    return made.call_method(tx, "clone", [], {})  # AOTAutograd cannot make such a view of a row again, as a result


def total(tx: Any, items: Any = None, start: Any = None) -> Any:
    """``sum(losses)`` of a list with one entry per document, ``sum(lengths)`` of a list of numbers."""
    value = None if items is None else items.realize()
    if isinstance(value, LocalGeneratorObjectVariable):
        listed = call(tx, plain.collected, value)
        return total(tx, listed, start) or call(tx, sum, listed, *([] if start is None else [start]))
    numbers = numbers_in(tx, value)
    if numbers is not None:
        added = _of_numbers(tx, plain_numbers.total, numbers)
        return added if start is None else call(tx, operator.add, start, added)
    floats = _floats(tx, items_of(value)) if value is not None else None
    if floats is not None:
        added = tallies.read(tx, floats)
        return added if start is None else call(tx, operator.add, start, added)
    said = _conditions(items_of(value)) if value is not None else None
    if said is not None:  # how many there are for which it holds
        held = tallies.read(tx, said.call_method(tx, "long", [], {}))
        return held if start is None else call(tx, operator.add, start, held)
    listed = _collected(tx, value)
    if listed is None:
        return None
    entries = listed.alone()
    stacked = stack_of(tx, entries, 0, present=False)
    dtype = torch.int64 if example(stacked).dtype is torch.bool else example(stacked).dtype
    share = stacked.call_method(tx, "sum", [constant(0)], {"dtype": constant(dtype)})
    first = _added_up(tx, constant(0) if start is None else start.realize(), listed.before)
    made = _added_up(tx, call(tx, operator.add, first, share), listed.after)
    if entries.lacking and (listed.before or listed.after):
        raise listed.refusal()
    return either.Either(entries.entries(), made, first) if entries.lacking else made


def _floats(tx: Any, items: CollectedItems | None) -> Any:
    """The vector of a list of floating point numbers, of which there is one at least: without any, ``sum`` is 0."""
    if items is None or items.numbers is None or not items.region.closed:
        return None
    found = attribute(tx, items.numbers, "floats")
    if not isinstance(found, TensorVariable):
        return None
    if not statically_known_true(size_of(items.region.length) >= 1):
        raise items.refusal()
    return items.tensor()


def extreme(tx: Any, function: Any, items: Any) -> Any:
    """``max(lengths)`` of a list of numbers, of what a generator gives, or ``map``; ``function`` as in `plain`."""
    value = items.realize()
    goes_through = isinstance(value, LocalGeneratorObjectVariable)
    if goes_through:
        value = call(tx, plain.collected, value).realize()
        if items_of(value) is None:
            return call(tx, {plain_numbers.largest: max, plain_numbers.smallest: min}[function], value)
    floats = _floats(tx, items_of(value))
    if floats is not None:
        return call(tx, _OF_FLOATS[function], floats)
    numbers = numbers_in(tx, value)
    if numbers is None and goes_through:  # nothing is left of the generator to look at in another way
        raise _own(value).refusal()
    if numbers is None and is_documents(value) and attribute(tx, value, "calls").as_python_constant():
        numbers = numbers_in(tx, collect(tx, value))
    return None if numbers is None else _of_numbers(tx, function, numbers)


_OF_FLOATS = {
    plain_numbers.largest: plain_numbers.largest_float, plain_numbers.smallest: plain_numbers.smallest_float
}  # fmt: skip


def has_entries(tx: Any, items: Any) -> bool:
    """Is a value a list of numbers that a tensor holds, of which there is one at least?"""
    numbers = None if items is None else numbers_in(tx, items.realize())
    if numbers is None:
        return False
    length = attribute(tx, numbers, "length")
    size = size_of(length)
    return bool(statically_known_true(size >= 1))


def _of_numbers(tx: Any, function: Any, numbers: Any) -> Any:
    """What a function makes of the ``tolist()`` of a tensor: one number, whoever asks for it, so that what is made
    twice by ``sum(lengths)`` has one size."""
    origin = attribute(tx, numbers, "origin")
    if not isinstance(origin, TensorVariable):
        return call(tx, function, numbers)
    node, known = origin.as_proxy().node, active.trace.summed
    key = (tx.output.current_tracer, function, node)
    if key not in known and active.regions:
        region = active.regions[-1]
        if len(active.regions) > 1 or not node < region.indices[0]:
            return call(tx, function, numbers)
        known[key] = region.in_front(key, lambda: call(tx, function, numbers))
    elif key not in known:
        known[key] = call(tx, function, numbers)
    return known[key]


def _own(value: Any) -> CollectedItems:
    """What a loop over documents has put into a list that is known to be one."""
    items = items_of(value)
    assert items is not None
    return items


def _goes_over_documents(tx: Any, generator: Any) -> bool:
    """Is it a generator expression over documents, written where it is used, and over nothing that somebody else goes
    through? ``any`` leaves those where it has found what it looks for; of another, nobody sees how far it went."""
    at = tx.instruction_pointer - 2
    while tx.instructions[at].opname in ("PRECALL", "CACHE"):
        at -= 1
    if generator.code.co_name != "<genexpr>" or not tx.instructions[at].opname.startswith("CALL"):
        return False
    own = [value.realize() for value in dict.values(generator.inline_tracer.symbolic_locals)]
    outermost = [value for value in own if isinstance(value, UserDefinedObjectVariable)]
    over = [value for value in outermost if value.python_type().__module__ == plain.__name__]
    while tx is not None:
        held = [value for value in dict(tx.symbolic_locals).values() if any(value is one for one in (*over, generator))]
        if held:
            return False
        tx = tx.parent
    return bool(over)


def condition(tx: Any, name: str, items: Any) -> Any:
    """``any`` and ``all`` of what is said of the documents' numbers, given by their ``name``; None if it is asked of
    something else."""
    value = items.realize()
    if isinstance(value, LocalGeneratorObjectVariable) and _goes_over_documents(tx, value):
        value = call(tx, plain.collected, value).realize()
        if items_of(value) is None:
            return call(tx, {"any": any, "all": all}[name], value)
    if not is_collected(value):
        return None
    vector = _said(tx, _own(value))
    found = call(tx, operator.ne, vector, constant(0)).call_method(tx, name, [], {}).call_method(tx, "long", [], {})
    return call(tx, operator.ne, found.call_method(tx, "item", [], {}), constant(0))


def _said(tx: Any, items: CollectedItems) -> Any:
    """Conditions, numbers or tensors of one number, one for each document, as a vector."""
    rows = items.columns is not None or items.listed is not None
    if rows or items.before or items.after or items.lacking or items.each != 1:
        raise items.refusal()
    vector = items.conditions if items.conditions is not None else items.tensor()
    if vector is not None:
        return vector
    entries = [value.realize() for entry in items.values for value in entry]
    if not all(isinstance(value, TensorVariable) and not example(value).dim() for value in entries):
        raise items.refusal()
    return stack_of(tx, items, 0)


def _added_up(tx: Any, first: Any, values: list[Any]) -> Any:
    for value in values:
        if not isinstance(value, Filled):
            first = call(tx, operator.add, first, value)
        elif value.items.lacking or (first := total(tx, value.list, first)) is None:
            raise value.items.refusal()
    return first


def truth(tx: Any, value: Any) -> Any:
    """``if losses:`` of a list that a loop over documents has filled: whether it has entries; None if it is none."""
    if not is_collected(value) or type(value.items) is not CollectedItems or value.items.listed is not None:
        return None
    every_document(value.items)
    others = [*value.items.before, *value.items.after]
    if len(entries_of(others)) < len(others):
        return constant(True)
    entries = count(tx, value)
    return None if entries is None else call(tx, operator.ne, entries, constant(0))


def numbers_in(tx: Any, value: Any) -> Any:
    """The sequence over documents, if a value is one of numbers that are the entries of a tensor."""
    value = numbers_of(value) if is_collected(value) else value
    if value is None or not is_documents(value) or attribute(tx, value, "origin").is_python_constant():
        return None
    return value


def count(tx: Any, items: Any = None) -> Any:
    """The number of entries in a list that a loop over documents has filled."""
    value: Any = items.realize() if items is not None else None
    if active.regions and value in active.trace.chunks:
        reason = "how many pieces chunk makes of a document depends on its length, and the pieces are counted"
        raise refuse("length-branch", reason, location_of(tx))
    if not is_collected(value):
        return None
    value.items.check_filled()
    every_document(value.items)
    if value.items.region.skips:
        return None
    others = [*value.items.before, *value.items.after]
    entries, filled = value.items.alone().entries(), entries_of(others)
    for other in filled:
        more = count(tx, other.list)
        if more is None:
            return None
        entries = call(tx, operator.add, entries, more)
    own = len(others) - len(filled)
    return call(tx, operator.add, entries, constant(own)) if own else entries
