"""The first or the last place of a mask in the row of a document: ``(ids[i] == pad).nonzero()[0]``.

A list of places is as long as its mask says, and a loop has one kind of such lists. Its ends are numbers of the row,
which are counted for all rows in front of the loop (`packpass.capture.row_numbers`), as those of ``argmax`` are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.capture import row_numbers
from packpass.capture.dynamo import TensorVariable, call
from packpass.capture.loop_checks import must_hold
from packpass.capture.state import active
from packpass.semantics import example, family_of, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.meaning import same_size

_FIRST = (("call_method", "int", ()), ("call_method", "argmax", (1,)))
_LAST = (("call_method", "int", ()), ("call_method", "cumsum", (1,)), ("call_method", "argmax", (1,)))
"""torch says of ``argmax`` that it gives the first of several places; sums of a mask are largest from its last on."""


def number_in(tx: Any, tensor: Any) -> Any:
    """``places[0]``, ``places[-1]``, ``places[0, 0]`` of a row's places, which are read as a number now: that number of
    the row, as a tensor without dimensions; any other value as it is."""
    node: Any = tensor.as_proxy().node if active.regions and isinstance(tensor, TensorVariable) else None
    at = [] if node is None else _taken(node)
    mask = mask_of(node.args[0]) if at else None
    if mask is None or mutated_after(node.graph, node, node):
        return tensor
    counted = row_numbers.entry(tx, mask, (("call_method", "sum", (1,)),))
    number = row_numbers.entry(tx, mask, _LAST if at[0] else _FIRST)
    if counted is None or number is None:
        return tensor
    some = call(tx, _is_some, counted).as_proxy()
    message = "packpass: a place of a mask is asked for that holds nowhere in the row of a document"
    must_hold(tx, active.regions[-1], some, message)
    return number


def _taken(node: Any) -> list[int]:
    """Which one of all places a call takes, the first or the last; nothing if it takes others."""
    if op_name(node) not in ("getitem", "select") or node.kwargs or not isinstance(node.args[0], fx.Node):
        return []
    by_number = op_name(node) == "select"
    if by_number and node.args[1] != 0:
        return []
    at = node.args[2] if by_number else node.args[1]
    entries = list(at) if isinstance(at, tuple) else [at]
    known = all(type(entry) is int and entry in (0, -1) for entry in entries)
    single = all(type(size) is int and size == 1 for size in example(node).shape)
    return entries if known and single else []


def _is_some(counted: Any) -> bool:
    return counted.item() > 0  # traced: a number that nobody knows yet


def mask_of(node: Any) -> Any:
    """The mask of which a vector, or a column, holds the places in a row of a batch; None if it is something else."""
    known, seen = active.regions[-1].rows if active.regions else {}, [node]
    while node.target is not markers.MASKED:
        if len(node.all_input_nodes) != 1 or not _is_view(node) or mutated_after(node.graph, node, node):
            return None
        (node,) = node.all_input_nodes
        seen.append(node)
    mask = known.get(("places", node))
    if mask is None or mutated_after(node.graph, mask.as_proxy().node, node) or mutated_after(node.graph, node, node):
        return None
    return mask if all(_is_column(view.meta.get("example_value"), example(node)) for view in seen) else None


def _is_column(fake: Any, places: torch.Tensor) -> bool:
    """Are these the places, in their order, with or without a dimension of size 1 behind?"""
    if not isinstance(fake, torch.Tensor) or fake.dim() not in (1, 2) or fake.dtype is not places.dtype:
        return False
    behind = [type(size) is int and size == 1 for size in fake.shape[1:]]
    return all(behind) and same_size(fake.shape[0], places.shape[0])


def _is_view(node: Any) -> bool:
    """Does a call only take away the dimension of size 1 of a column of places?"""
    index = node.args[1] if op_name(node) == "getitem" else None
    return family_of(node) == "views" or (isinstance(index, tuple) and index == (slice(None), 0))
