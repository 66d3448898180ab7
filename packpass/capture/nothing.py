"""Lists that hold the same for every document: None, or handles of exchanges that are complete.

Weights of attention that nobody asked for are None.
``weights[0] is None`` is how models ask whether there are any. Every entry is None, so the answer is known as soon as
there is an entry; that there is one is asserted when the program runs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from packpass.capture import plain_messages
from packpass.capture.dynamo import (
    ConstantVariable,
    SymNodeVariable,
    TupleVariable,
    UserDefinedObjectVariable,
    call,
    constant,
)
from packpass.capture.state import active, current_frame, location_of


def is_none(value: Any) -> bool:
    return isinstance(value, ConstantVariable) and value.as_python_constant() is None


def is_done(value: Any) -> bool:
    """Is this what an exchange returns that is complete at once (`packpass.capture.plain_messages`)?"""
    return isinstance(value, UserDefinedObjectVariable) and value.python_type() is plain_messages.Done


def is_wait(value: Any) -> bool:
    """Is this ``work.wait`` of such a handle?"""
    waits = (plain_messages.Done.wait, plain_messages.Request.wait)
    return object_of(value) is not None and getattr(value, "fn", None) in waits


def object_of(method: Any) -> Any:
    """What a bound method is one of (from torch 2.15 on under Python's own name); None if it is no such method."""
    return getattr(method, "obj", getattr(method, "im_self", None))


def are_done(value: Any) -> bool:
    """Is this several of them, which nobody can change?"""
    return type(value) is TupleVariable and bool(value.items) and all(is_done(item) for item in value.items)


def says_nothing(value: Any) -> bool:
    """May every document have one of these in a list? What a handle says that it has waited is True."""
    return is_none(value) or is_done(value) or are_done(value) or _is_true(value) or is_wait(value)


def same_for_all(values: list[Any]) -> bool:
    """Are all entries of a list one and the same, and no None?"""
    several = {len(value.items) for value in values if are_done(value)}
    kinds = (is_done, _is_true, is_wait)
    return any(all(map(kind, values)) for kind in kinds) or (len(several) == 1 and all(map(are_done, values)))


def _is_true(value: Any) -> bool:
    return isinstance(value, ConstantVariable) and value.as_python_constant() is True


def entry(items: Any, index: Any) -> Any:
    """The None at an index of such a list (`packpass.capture.lists.CollectedItems`); None if it is another list."""
    values = [value for each in items.values for value in each]
    finished = items.region.closed and not active.regions and not (items.before or items.after or items.lacking)
    if type(index) is not int or not finished or not values or not all(is_none(value) for value in values):
        return None
    tx, least = items.region.tx, (index if index >= 0 else -index - 1) // items.each
    held = call(tx, operator.gt, items.region.length, constant(least))
    if isinstance(held, ConstantVariable):
        return values[0] if held.as_python_constant() else None
    if not isinstance(held, SymNodeVariable):
        return None
    ensure(tx, call(tx, torch.scalar_tensor, held), f"list index out of range at {location_of(tx)}")
    return values[0]


def ensure(tx: Any, held: Any, message: str) -> None:
    """An assertion of the program's own in the graph; ``held``: a tensor of one slot."""
    held = call(tx, torch.reshape, held, TupleVariable([]))
    tx.output.create_proxy("call_function", torch._assert_async, (held.as_proxy(), message), {})
    current_frame().user_checks = True
