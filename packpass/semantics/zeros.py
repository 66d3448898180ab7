"""Which calls certainly give zeros where an operand is zero: what becomes of a gradient that is none."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from packpass.semantics import indexing, joins, views
from packpass.semantics.binding import example
from packpass.semantics.call import Call, call_of, invoke
from packpass.semantics.collectives import ELEMENTWISE, WAIT, collective_name
from packpass.semantics.effects import effects_of, written_inputs
from packpass.semantics.memory import storage
from packpass.semantics.names import op_name
from packpass.semantics.products import MATMULS
from packpass.semantics.registry import meaning_of

_PRODUCTS = MATMULS | {"mul"}
_SUMMING = frozenset({"sum", "mean"})
_MOVING = {views.FAMILY, joins.FAMILY, indexing.FAMILY}
"""Families of calls whose results hold what their operands hold."""


def zeros_among(nodes: Collection[fx.Node], zeros: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes that hold nothing but zeros when all of them (in their order) have run, if ``zeros`` do before that
    and nothing else is infinite."""
    found = set(zeros)
    for node in nodes:
        if _keeps_zero(node, found):
            found.add(node)
            continue
        written = {storage(target) for target in written_inputs(node)}
        if written:
            found = {n for n in found if storage(n) is not None and storage(n) not in written}
    return found


def _keeps_zero(node: fx.Node, zeros: Collection[fx.Node]) -> bool:
    if collective_name(node.target) in ELEMENTWISE or collective_name(node.target) == WAIT:
        return node.args[0] in zeros
    if op_name(node) == "getitem" and not isinstance(example(node.args[0]), torch.Tensor):
        return node.args[0] in zeros
    call = call_of(node)
    if call is None or op_name(node).startswith("higher_order::"):
        return False
    given = {(o.argument, o.at): o.node in zeros for o in call.operands if o.argument not in call.unread}
    if not given:
        return False
    first = given.get(("input", None), False)
    if call.op in _PRODUCTS:
        return any(given.values()) and (first or not call.in_place)
    if call.op == "copy":
        return given.get(("src", None), False)
    if call.op == "div":
        return first
    if call.op in ("where", "masked_fill", "add", "sub", "setitem"):
        values = [name for name in ("input", "other", "value") if name in call.arguments]
        return all(_is_zero(call, name, given) for name in values)
    meaning = meaning_of(call)
    if meaning is None or not effects_of(node).repeatable:
        return False
    if meaning.family == "pointwise":
        return len(given) == 1 and first and _is_zero_at_zero(call)
    filled = call.get("value")  # of what is padded
    return all(given.values()) and not filled and (meaning.family in _MOVING or call.op in _SUMMING)


def _is_zero(call: Call, name: str, given: dict[Any, bool]) -> bool:
    value: Any = call.arguments[name]
    return given[name, None] if (name, None) in given else (type(value) in (int, float) and value == 0)


def _is_zero_at_zero(call: Call) -> bool:
    """A function of one number, asked for its value at 0."""
    node, operand = call.node, call.operands[0]
    zero = torch.zeros((), dtype=operand.value.dtype)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: zero if n is operand.node else None)
    try:
        return not bool(torch.as_tensor(invoke(node, args, kwargs)).count_nonzero())
    except (RuntimeError, TypeError, ValueError, IndexError):  # it wants a tensor of another form
        return False
