"""Sizes in words that are the same where the sizes must be.

A slice of a row by numbers of the data has a size that torch has no expression for. Some releases give two slices of
one row by the same numbers one size, others give each a size of its own: what such a size is called says nothing, which
numbers it was cut by does.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import free_unbacked_symbols


def size_in_words(node: fx.Node, dim: int) -> str:
    """The size of a dimension of a tensor, by what it was cut by wherever slices have cut it."""
    size = node.meta["example_value"].shape[dim]
    symbols = free_unbacked_symbols(size)
    if not symbols:
        return str(size)
    words = {symbol: cut for other in node.graph.nodes for symbol, cut in _cuts(other, symbols).items()}
    return str(size.node.expr.xreplace({symbol: sympy.Symbol(cut, integer=True) for symbol, cut in words.items()}))


def _cuts(node: fx.Node, symbols: Any) -> dict[Any, str]:
    """What was cut and by what, for those of the sizes that this node, a slice, has made up."""
    made = symbols & (node.meta.get("unbacked_bindings") or {}).keys()
    if node.target is not operator.getitem or not made:
        return {}
    source, index = node.args
    entries = index if isinstance(index, tuple) else (index,)
    if not isinstance(source, fx.Node) or not all(isinstance(entry, slice) for entry in entries):
        return {}
    sizes = node.meta["example_value"].shape
    return {
        size.node.expr: f"{size_in_words(source, dim)}[{entry.start}:{entry.stop}:{entry.step}]"
        for dim, (entry, size) in enumerate(zip(entries, sizes, strict=False))
        if isinstance(size, torch.SymInt) and size.node.expr in made
    }
