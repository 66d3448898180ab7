"""What a value of the traced program is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx

INDEX_DTYPES = (torch.int32, torch.int64)
"""Of boundaries, lengths and sizes."""


def needed_for(nodes: Iterable[fx.Node], goes_on: Callable[[fx.Node], bool] | None = None) -> set[fx.Node]:
    """These nodes, and everything that they are made of (of what ``goes_on`` lets pass only, if given)."""
    needed, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in needed and (goes_on is None or goes_on(node)):
            needed.add(node)
            stack += node.all_input_nodes
    return needed


def made_from(node: Any, rank: int = 1, dtypes: tuple[torch.dtype, ...] = INDEX_DTYPES) -> Any:
    """The one input that a value is made from, if that is a vector of integers (``rank=2``: a matrix)."""
    places = (here for here in needed_for([node]) if here.op == "placeholder")
    inputs = [here for here in places if isinstance(here.meta.get("example_value"), torch.Tensor)]
    if len(inputs) != 1:
        return None
    value = inputs[0].meta["example_value"]
    return inputs[0] if value.dim() == rank and value.dtype in dtypes else None
