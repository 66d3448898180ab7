"""Lists of numbers that a program is given: ``lengths: list[int]``, or rows of sizes, ``list[tuple[int, int]]``.

To Dynamo they are constants, so that every batch is a graph of its own. Where a loop goes over such a list, and its
numbers fit a tensor beside it as lengths of documents do, it is what ``tolist()`` of a tensor would be: torch makes a
tensor of it at every call, as it does of a float, and that is the input of the graph.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packpass.capture import code_loops, plain, tensor_lists
from packpass.capture.dynamo import (
    ListVariable,
    TupleVariable,
    attribute,
    call,
    constant,
    expression,
    variable,
)
from packpass.capture.frame import FrameState, GivenList, Mode
from packpass.capture.hooks import group_is_on
from packpass.capture.made_inputs import Made, guard, held, made
from packpass.capture.state import active, current_frame, restart
from packpass.capture.watch import enter_loop_mode, loops_are_sought, source_name
from packpass.semantics.binding import example as example_of


def values_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """What a function is given: a name for people, that of the source, and the value; entries of dicts by theirs."""
    for name, value in arguments.items():
        yield name, f"L[{name!r}]", value
        if type(value) is dict:
            for key, entry in value.items():
                yield f"{name}[{key!r}]", f"L[{name!r}][{key!r}]", entry


def numbers_of(value: Any) -> tuple[int, ...] | None:
    """A list of integers; of rows of sizes, their products."""
    if type(value) not in (list, tuple) or not value:
        return None
    if all(type(entry) is int for entry in value):
        return tuple(value)
    rows = all(type(row) in (list, tuple) and row and all(type(n) is int for n in row) for row in value)
    return tuple(math.prod(row) for row in value) if rows else None


def is_even(value: Any) -> bool:
    """Are rows of sizes as long as each other?"""
    return type(value[0]) is int or len({len(row) for row in value}) == 1


def fits(numbers: tuple[int, ...], sizes: set[int]) -> bool:
    """May they be lengths of documents in a row of such a size, or boundaries? A row may have slots left behind the
    last document, as buffers of servers do, but not as many as there are in documents."""
    if min(numbers) < 0:
        return False
    ends = len(numbers) > 1 and numbers[0] == 0 and all(a <= b for a, b in itertools.pairwise(numbers))
    totals = (sum(numbers), numbers[-1]) if ends else (sum(numbers),)
    if sizes.intersection(totals):
        return True
    return len(numbers) > 1 and any(total <= size < 2 * total for total in totals for size in sizes)


def are_rows(numbers: tuple[int, ...], tensors: list[torch.Tensor]) -> bool:
    """May they be lengths of the documents in a padded batch?"""
    batches = [value.shape for value in tensors if value.dim() > 1 and len(numbers) == value.shape[0]]
    return min(numbers) >= 0 and any(max(numbers) <= shape[1] for shape in batches)


# === Which lists =============================================================================================


def seen_together(tx: Any, function: Any, args: list[Any]) -> None:
    """A function of Python is given lists. Beside layers, of which there are always as many, they are no documents."""
    if not any(map(_is_module, args)):
        for arg in args:
            seen(tx, arg, function in _GOING_OVER)


_GOING_OVER = frozenset({zip, enumerate, map, iter, reversed})
"""Functions that hand on the entries of a list."""


def _is_module(value: Any) -> bool:
    try:
        return issubclass(value.python_type(), torch.nn.Module)
    except NotImplementedError:
        return False


def seen(tx: Any, value: Any, gone_over: bool = False) -> None:
    """The program uses a list. Is it one of lengths, or of documents? Then the frame is traced again, with that in
    mind. ``gone_over``: in a loop, perhaps."""
    if type(value) not in (ListVariable, TupleVariable) or value.source is None or current_frame().mode is Mode.STOCK:
        return
    if not loops_are_sought() or not group_is_on("list-inputs") or code_loops.unpacks(tx):
        return
    place, arguments = source_name(value.source), tx.output.root_tx.f_locals
    modules = (name for name, argument in arguments.items() if isinstance(argument, torch.nn.Module))
    if any(place.startswith(f"L[{name!r}]") for name in modules):
        return  # a setting
    source = value.source
    value, names = _held(tx, source)
    if names is None:
        return
    given = any(place == other for _, other, _ in values_of(arguments))  # what an object holds may be a setting
    if _are_documents(tx, value, place, gone_over or (given and code_loops.loop_ahead(tx))):
        _note(value, source, names)
        enter_loop_mode(tx, (len(value),), rank=_rank(value))


def _held(tx: Any, source: Any) -> tuple[Any, tuple[str, ...] | None]:
    """A list that the program is given, and the names of the inputs that it becomes; None of another, and of a
    setting."""
    value, place = held(source, tx.output.root_tx.f_locals), source_name(source)
    return value, None if place in current_frame().settings else names_of(tx.output.root_tx.f_code, value, place)


def names_of(code: types.CodeType, value: Any, place: str) -> tuple[str, ...] | None:
    """The names of the inputs that such a list at ``place`` becomes; None if it is another."""
    kind = tensor_lists.kind_here(code, value, place)
    if kind is not None:
        return tuple(recipe.name_at(place) for recipe in kind.recipes)
    return (Numbers.name_at(place),) if numbers_of(value) is not None and is_even(value) else None


def _are_documents(tx: Any, value: Any, place: str, gone_over: bool) -> bool:
    """Does a list change from batch to batch, as far as can be seen? So it does where a loop goes over it and the
    function is given nothing else: what is made of layers is made once."""
    before = _before.setdefault(tx.output.root_tx.f_code, {}).setdefault(place, len(value))
    kind, numbers = tensor_lists.kind_of(value), numbers_of(value)
    if kind is not None or numbers is None:
        differ = kind is not None and tensor_lists.differ(value, kind) and gone_over and not _are_arguments(tx, place)
        return kind is not None and (differ or before != len(value))
    tensors = _tensors(tx)
    leading = {int(next((size for size in tensor.shape if size != 1), 1)) for tensor in tensors}
    alone = gone_over and not tensors and min(numbers) >= 0 and not _are_arguments(tx, place)
    return alone or fits(numbers, leading) or are_rows(numbers, tensors) or before != len(value)


def _are_arguments(tx: Any, place: str) -> bool:
    """Is it ``*args``, what a wrapper passes on to functions of its own number of arguments each?"""
    return place == f"L[{name_of_arguments(tx.output.root_tx.f_code)!r}]"


def name_of_arguments(code: types.CodeType) -> str | None:
    """The name of ``*args``."""
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else None


def _note(value: Any, source: Any, names: tuple[str, ...]) -> None:
    frame = current_frame()
    frame.given[names[0]] = GivenList(source, len(value), _rank(value))
    frame.dynamic_sources |= set(names[1:])


def _tensors(tx: Any) -> list[Any]:
    """What the program is given, and what it has looked at of it so far."""
    looked_at = [example_of(node) for node in tx.output.root_tracer.graph.find_nodes(op="placeholder")]
    values = [*(value for _, _, value in values_of(tx.output.root_tx.f_locals)), *looked_at]
    found = [v for v in values if isinstance(v, torch.Tensor) and not isinstance(v, torch.nn.Parameter)]
    return [v for v in found if not v.is_nested and all(isinstance(size, int) for size in v.shape)]


def watch(tx: Any, value: Any) -> None:
    """A list of another length stands beside a sequence over documents: one that the program is given is traced as
    such a sequence, too."""
    source: Any = getattr(value, "source", None)
    frame = current_frame()
    if source is None or frame.mode is not Mode.SYMBOLIC or not group_is_on("list-inputs"):
        return
    value, names = _held(tx, source)
    if names is not None and names[0] not in frame.dynamic_sources:
        _note(value, source, names)
        frame.dynamic_sources |= set(names)
        raise restart(f"{names[0]} has one entry for each document")


def without_settings(tx: Any, length: Any) -> Exception | None:
    """A loop inside a loop over documents goes over so many entries. Of a list that the program is given, and that is
    none of the documents', these are constants, as of the widths of a layer: the frame is traced again with that in
    mind. None if they are another's."""
    frame, entries = current_frame(), expression(length)
    if any(expression(region.length) == entries for region in active.regions):
        return None
    for name, given in frame.given.items():
        own = tx.output.variable_tracker_cache.get(given.source)
        if own is not None and name in frame.dynamic_sources and expression(attribute(tx, own, "length")) == entries:
            frame.settings.add(source_name(given.source))
            del frame.given[name]
            return restart(f"{name} is gone over for every document")
    return None


_before: weakref.WeakKeyDictionary[types.CodeType, dict[str, int]] = weakref.WeakKeyDictionary()
"""Code -> source of a list -> how many entries it had where it was first used."""


def _rank(value: Any) -> int:
    """Is there one number for each document, or several?"""
    kind = tensor_lists.kind_of(value)
    return 1 if type(value[0]) is int or (kind is not None and kind.rows) else 2


# === What they are traced as =================================================================================


def frame_starts(tx: Any, frame: FrameState) -> None:
    """A frame is about to be traced: wherever it meets such a list, Dynamo finds a sequence over documents."""
    for name, given in frame.given.items() if frame.mode is Mode.SYMBOLIC else ():
        if name in frame.dynamic_sources:
            own = tx.output.variable_tracker_cache[given.source] = _sequence(tx, given.source)
            active.trace.callers[own] = given.source
            active.trace.lent.add(own)  # the caller would see a change


class Numbers(Made):
    """A tensor of numbers, or of rows of them."""

    module, function = "torch", "tensor"
    shape = "torch.tensor({0}).shape"


def _sequence(tx: Any, source: Any) -> Any:
    """The list as a sequence over documents, whose numbers, or slots, a tensor holds."""
    value = held(source, tx.output.root_tx.f_locals)
    kind = tensor_lists.kind_here(tx.output.root_tx.f_code, value, source_name(source))
    if kind is not None:
        return tensor_lists.sequence(tx, source, value, kind)
    columns = None if type(value[0]) is int else len(value[0])
    guard(source, functools.partial(_is_like, kind=type(value), columns=columns))
    if columns is not None:
        numbers = call(tx, plain.of_rows, made(tx, Numbers(source), value), constant(columns))
    else:
        numbers = tensor_lists.lengths_of_documents(tx, source, value, Numbers)
    return numbers if type(value) is list else call(tx, plain.listed, numbers, variable(tx, tuple))


def _is_like(value: Any, kind: Any, columns: int | None) -> bool:
    """Is it a list of numbers, or of rows of so many?"""
    if type(value) is not kind or not value or (type(value[0]) is int) != (columns is None):
        return False
    return numbers_of(value) is not None and (columns is None or all(len(row) == columns for row in value))
