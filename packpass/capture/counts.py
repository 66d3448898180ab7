"""Sizes given as integer tensors of no dimensions: ``torch.full((n,), i)`` with ``n`` an entry of a tensor of lengths.

Eager torch reads such a tensor as the number that it holds. Torch's fakes do not know that number and fail, so in a
loop over documents it is read first, which makes it a size like any other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.capture import row_entries, sized
from packpass.capture.dynamo import ListVariable, SymNodeVariable, TensorVariable, TupleVariable, variable
from packpass.capture.state import active
from packpass.capture.watch import is_scalar
from packpass.semantics.sizes import OF_SIZES_ALONE, TAKING_SIZES

_SIZES_ALONE = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)
"""Functions whose positional arguments are sizes, alone or as one tuple."""
FUNCTIONS: dict[Any, int | None] = {**dict.fromkeys(_SIZES_ALONE), torch.full: 1}
"""Function -> how many of its first arguments hold sizes; None: all of them."""
METHODS: dict[str, int | None] = {**dict.fromkeys(OF_SIZES_ALONE), "new_full": 1}


def call(tx: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that makes a tensor; None if none of its sizes is a tensor."""
    _note_widths(args, FUNCTIONS[function])
    given = _read(tx, args, FUNCTIONS[function])
    return None if given is None else variable(tx, function).call_function(tx, given, kwargs)


def call_method(tx: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that takes sizes; None if none of them is a tensor."""
    _note_widths(args, METHODS[name])
    given = _read(tx, args, METHODS[name])
    return None if given is None else tensor.call_method(tx, name, given, kwargs)


def watch(tx: Any, name: str, args: Any) -> None:
    """The arguments of what may take sizes, while a loop is looked for: tensors among them are read as numbers, as
    ``torch.zeros(cu[-1])`` does. Torch's fakes fail there as soon as lengths are dynamic."""

    def read(tensor: Any) -> Any:
        row_entries.watch_item(tx, tensor)
        return tensor

    for arg in args if name in TAKING_SIZES else ():
        numbered(arg.realize(), read)


def _note_widths(args: Any, count: int | None) -> None:
    """``torch.zeros(width - n)``: a width from in front of the loop is no less than a document's length, or this fails.
    Torch has to know that it is a size, for what has that width after the loop."""
    if not active.regions:
        return
    begin = active.regions[-1].indices[0]
    for size in _numbers(args if count is None else args[:count]):
        node = size.as_proxy().node
        width, length = node.args if node.target is operator.sub and len(node.args) == 2 else (None, None)
        if not isinstance(width, fx.Node) or not isinstance(length, fx.Node) or not width < begin:
            continue
        known, own = width.meta.get("example_value"), length.meta.get("example_value")
        if isinstance(known, torch.SymInt) and isinstance(own, torch.SymInt) and statically_known_true(own >= 0):
            torch._check(known >= 0)


def _numbers(args: Any) -> list[Any]:
    """The numbers of the program among arguments, in sequences as well."""
    given = [arg.realize() for arg in args]
    inner = [
        e
        for arg in given
        if isinstance(arg, (ListVariable, TupleVariable)) and type(arg.items) is list
        for e in arg.items
    ]
    return [value for value in (*given, *(entry.realize() for entry in inner)) if isinstance(value, SymNodeVariable)]


def _read(tx: Any, args: Any, count: int | None) -> list[Any] | None:
    """The arguments with numbers in place of tensors that stand for sizes."""
    given = [arg.realize() for arg in args]
    sizes = given if count is None else given[:count]
    made = [numbered(size, lambda tensor: _item(tx, tensor)) for size in sizes]
    if all(a is b for a, b in zip(made, sizes, strict=True)):
        return None
    return [*made, *given[len(sizes) :]]


def _item(tx: Any, tensor: Any) -> Any:
    made = sized.number(tx, tensor)
    return tensor.call_method(tx, "item", [], {}) if made is None else made


def numbered(arg: Any, read: Callable[[Any], Any]) -> Any:
    """A realized argument with what ``read`` makes of tensors of one integer, in sequences as well; itself if there are
    none."""
    if isinstance(arg, (ListVariable, TupleVariable)) and type(arg.items) is list:
        given = [item.realize() for item in arg.items]
        items = [numbered(item, read) for item in given]
        return TupleVariable(items) if any(a is not b for a, b in zip(items, given, strict=True)) else arg
    return read(arg) if isinstance(arg, TensorVariable) and is_scalar(arg) else arg
