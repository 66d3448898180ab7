"""Which values of a graph hold no tokens: positions, weights, zeros, and what is computed from those alone.

Two rows that meet one ``arange(T)`` or one table of positions are still two rows, so these values are no bridge between
rows (`packpass.layout.axes`). Zeros that tokens are written to later do hold tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass.layout.sources import belongs_to_module, source_name
from packpass.semantics import example, read_inputs, storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.inner_graphs import subgraphs


def blank_nodes(gm: Any) -> frozenset[fx.Node]:
    """The nodes of a graph and its subgraphs that hold no tokens."""
    written: set[Any] = set()
    while True:
        seen: set[fx.Node] = set()
        full: set[fx.Node] = set()
        before = len(written)
        for node, outer in _nodes(gm):
            seen.add(node)
            if storage(node) in written or _holds_tokens(node, outer, full):
                full.add(node)
                written |= {storage(n) for n in written_inputs(node) if n not in full} - {None}
        if len(written) == before:
            return frozenset(seen - full)


def _holds_tokens(node: fx.Node, outer: fx.Node | None, full: set[fx.Node]) -> bool:
    if outer is not None:
        return outer in full
    if node.op == "placeholder":
        source = source_name(node)
        return source is None or not belongs_to_module(source)
    if node.op == "get_attr":
        return False
    return any(n in full for n in read_inputs(node) if _is_data(example(n)))


def _is_data(value: Any) -> bool:
    """Anything that may hold tokens: all but sizes."""
    return not isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size))


def _nodes(gm: Any) -> Iterator[tuple[fx.Node, fx.Node | None]]:
    """Every node, the graphs of higher-order operators before what uses their results; with an input of such a graph,
    what it is called with."""
    for node in gm.graph.nodes:
        for sub, inputs, _ in subgraphs(gm, node):
            operands = {inner: outer for outer, inner in inputs}
            for inner, outer in _nodes(sub):
                yield inner, operands.get(inner, outer)
        yield node, None
