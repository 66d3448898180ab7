"""Sizes given as integer tensors of no dimensions: ``torch.full((n,), i)`` with ``n`` an entry of a tensor of lengths.

Eager torch reads such a tensor as the number that it holds. Torch's fakes do not know that number and fail, so in a
loop over documents it is read first, which makes it a size like any other.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass.capture.dynamo import ListVariable, TensorVariable, TupleVariable, variable
from packpass.capture.watch import is_scalar
from packpass.semantics.sizes import OF_SIZES_ALONE

_SIZES_ALONE = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)
"""Functions whose positional arguments are sizes, alone or as one tuple."""
FUNCTIONS: dict[Any, int | None] = {**dict.fromkeys(_SIZES_ALONE), torch.full: 1}
"""Function -> how many of its first arguments hold sizes; None: all of them."""
METHODS: dict[str, int | None] = {**dict.fromkeys(OF_SIZES_ALONE), "new_full": 1}


def call(tx: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that makes a tensor; None if none of its sizes is a tensor."""
    given = _read(tx, args, FUNCTIONS[function])
    return None if given is None else variable(tx, function).call_function(tx, given, kwargs)


def call_method(tx: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that takes sizes; None if none of them is a tensor."""
    given = _read(tx, args, METHODS[name])
    return None if given is None else tensor.call_method(tx, name, given, kwargs)


def _read(tx: Any, args: Any, count: int | None) -> list[Any] | None:
    """The arguments with numbers in place of tensors that stand for sizes."""
    given = [arg.realize() for arg in args]
    sizes = given if count is None else given[:count]
    flat = [entry.realize() for size in sizes for entry in (size.items if _is_sequence(size) else [size])]
    if not any(_is_count(entry) for entry in flat):
        return None
    made = [_numbers(tx, size) if _is_sequence(size) else _number(tx, size) for size in sizes]
    return [*made, *given[len(sizes) :]]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (ListVariable, TupleVariable))


def _is_count(value: Any) -> bool:
    return isinstance(value, TensorVariable) and is_scalar(value)


def _numbers(tx: Any, sizes: Any) -> Any:
    return TupleVariable([_number(tx, entry) for entry in sizes.items])


def _number(tx: Any, value: Any) -> Any:
    value = value.realize()
    return value.call_method(tx, "item", [], {}) if _is_count(value) else value
