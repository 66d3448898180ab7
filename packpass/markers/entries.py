"""Numbers in a captured graph that were read from tensors: by capture and by the passes alike."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics.effects import mutated_after


def read_from(node: Any) -> Any:
    """The node of the tensor of one integer that a number is read from, by ``item()`` or by ``int()``; None if it is
    made in another way."""
    while isinstance(node, fx.Node) and node.target is torch.sym_int:
        node = node.args[0]
    return node.args[0] if isinstance(node, fx.Node) and node.target == "item" else None


def place_of(read: Any, rows: bool = False) -> tuple[fx.Node, Any] | None:
    """``(vector, place)`` of an entry of a vector of integers, as it is read; with ``rows``, of any tensor."""
    while isinstance(read, fx.Node) and read.target == "clone" and not mutated_after(read.graph, read, read.next):
        read = read.args[0]
    if not isinstance(read, fx.Node) or read.target not in (torch.select, operator.getitem) or read.kwargs:
        return None
    tensor, *at = read.args
    if read.target is torch.select:
        at = at[1:] if at[0] == 0 else []
    if len(at) != 1 or not isinstance(tensor, fx.Node):
        return None
    known = isinstance(tensor.meta.get("example_value"), torch.Tensor) if rows else is_vector(tensor)
    return (tensor, at[0]) if known else None


def is_vector(tensor: fx.Node, rank: int = 1) -> bool:
    fake = tensor.meta.get("example_value")
    return isinstance(fake, torch.Tensor) and fake.dim() == rank and not fake.dtype.is_floating_point
