"""What new tensors hold: a number, or nothing yet."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.layout.mutation import mutated_after
from packpass.layout.names import argument, example
from passes.fuse_boundary_exchange.values import Constant, Unset
from passes.refused import Refused
from passes.vectorize_segments.emit import stored
from passes.vectorize_segments.op_names import name_of

_NUMBERS = {"zeros": 0, "ones": 1, "empty": None, "full": None}


def _kind(node: fx.Node) -> str:
    name = str(name_of(node))
    return name.removeprefix("new_").removesuffix("_like")


def made(node: fx.Node) -> Constant | Unset:
    """The content of ``torch.zeros``, ``full_like``, ``x.new_empty`` and their kin."""
    kind, fill = _kind(node), _NUMBERS[_kind(node)]
    if kind == "empty":
        return Unset()
    if kind == "full":
        fill = argument(node, 2 if str(name_of(node)).startswith("new_") else 1, "fill_value")
    if not isinstance(fill, (bool, int, float, complex)):
        raise Refused("no-rule", "a fill that is not a constant", node)
    return constant(fill, example(node).dtype)


def constant(value: Any, dtype: torch.dtype) -> Constant:
    held = stored(value, dtype)
    return Constant(held, repr(held))


def known(node: fx.Node, since: fx.Node) -> Constant | Unset | None:
    """The content of an outer tensor when a loop begins, if it was made with one."""
    if _kind(node) not in _NUMBERS or mutated_after(node.graph, node, node.next, since):
        return None
    try:
        return made(node)
    except Refused:
        return None
