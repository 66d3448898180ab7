"""What a value of the traced program is made of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import free_unbacked_symbols
from packpass.semantics import op_name, op_of
from packpass.semantics.pointwise import COPIES

INDEX_DTYPES = (torch.int32, torch.int64)
"""Of boundaries, lengths and sizes."""


def has_integers(value: Any, rank: int) -> bool:
    """Is it a tensor of integers of so many dimensions, in rows of one length?"""
    return is_integers(value) and value.dim() == rank and value.layout is torch.strided


def is_integers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in INDEX_DTYPES


def expression_of(size: Any) -> Any:
    """A size, or a number that is made of sizes, as an expression."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


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


def is_made_from_numbers(node: Any) -> bool:
    """Is a value made from one input alone, a vector or a matrix of integers?"""
    return made_from(node) is not None or made_from(node, rank=2) is not None


def is_largest_number(tx: Any, expr: Any) -> bool:
    """Is ``expr`` made from the largest entry of a vector of integers, or its last one, as the number of documents is
    where every slot carries the number of its own?"""
    largest: set[Any] = set()
    for node in tx.output.root_tracer.graph.nodes:
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if source is not None and isinstance(node.meta.get("example_value"), torch.SymInt) and _is_largest(source):
            largest |= free_unbacked_symbols(node.meta["example_value"]) if is_made_from_numbers(node) else set()
    wanted = set(free_unbacked_symbols(expr))
    return bool(wanted) and wanted <= largest


def _is_largest(node: Any) -> bool:
    """``ids.max() + 1``, ``ids[-1]``; also of a column, ``coords[:, 0].max().int()``"""
    while (node.target in (operator.add, operator.sub) or op_of(node) in COPIES) and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    of = node.all_input_nodes[0].meta.get("example_value") if node.all_input_nodes else None
    if not isinstance(of, torch.Tensor) or of.dim() != 1 or of.dtype not in INDEX_DTYPES:
        return False
    if node.target in (operator.getitem, torch.select):
        return node.args[1] == -1 if len(node.args) == 2 else node.args[1:] == (0, -1)
    return op_name(node) in ("max", "amax")


def is_size_of_a_vector(tx: Any, expr: Any) -> bool:
    """Is ``expr`` made from the length of a vector of integers that is data?"""
    wanted = set(free_unbacked_symbols(expr))
    for node in tx.output.root_tracer.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in INDEX_DTYPES:
            if wanted & getattr(getattr(value.shape[0], "node", None), "expr", sympy.S.Zero).free_symbols:
                return True
    return False
