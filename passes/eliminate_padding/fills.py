"""What a padded result is at padding, where that is known: then the padded form can be had from the packed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call
from packpass.semantics.pointwise import COPIES
from passes.eliminate_padding.machine import Machine
from passes.eliminate_padding.tile import Dims, named
from passes.eliminate_padding.values import ZERO, Fill, Packed


def fill_of(m: Machine, node: fx.Node, call: Call, found: Mapping[fx.Node, Packed], dims: Dims) -> Fill | None:
    """The one number that a result of ``dims`` holds at all padding."""
    name, values = call.op, list(node.args)
    own = found[values[0]].fill if values and isinstance(values[0], fx.Node) and values[0] in found else None
    out = call.results[0].dtype
    if name in COPIES or name in ("neg", "dropout"):
        if own is None or len(found) != 1 or (name == "dropout" and own.value):
            return None
        value = -own.value if name == "neg" else own.value
        return Fill(value, own.given) if call.operands[0].value.dtype is out or own.value == 0 else None
    if name in ("mul", "div") and len(values) == 2:
        numbers = all(not isinstance(x, fx.Node) or x in found for x in values)
        second = found.get(values[1]) if isinstance(values[1], fx.Node) else None
        holder = second.fill if own is None and name == "mul" and second is not None else own
        if holder is not None and not holder.value and numbers and len(found) == 1:
            return holder
        return ZERO if name == "mul" and any(_hides(m, x, dims, False) for x in values) else None
    if name in ("logical_and", "bitwise_and") and len(values) == 2:
        return ZERO if any(_hides(m, x, dims, False) for x in values) else None
    if name == "masked_fill" and len(values) == 3:
        return _number(m, values[2], out) if _hides(m, values[1], dims, True) else None
    if name == "where" and len(values) == 3:
        if _hides(m, values[0], dims, False):
            return _number(m, values[2], out)
        return _number(m, values[1], out) if _hides(m, values[0], dims, True) else None
    return None


def _number(m: Machine, x: Any, dtype: torch.dtype) -> Fill | None:
    """A constant as a value of a dtype."""
    number = m.number_of(x)
    if number is None:
        return None
    value = torch.tensor(number, dtype=torch.float64).to(dtype).item()
    return Fill(value) if dtype.is_floating_point or value == number else None


def _hides(m: Machine, node: Any, dims: Dims, value: bool) -> bool:
    """Is a mask, aligned with a result of ``dims``, known to be ``value`` (as bool) at all padding?"""
    table = m.table(node)
    if table is None or table.tokens != 1:
        return False
    for back in range(1, len(table.dims) + 1):
        if named(table.dims[-back]) and table.dims[-back] != dims[-back]:
            return False
    return bool(table.cells[0] == (1 if value else 0))
