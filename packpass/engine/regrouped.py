"""Reshapes that regroup slots of a row, for Inductor.

``[2 * n, 2] -> [n, 4]`` is neither dimensions that are merged nor one that is divided. Inductor's index arithmetic for
a reshape that is no view of memory takes it for the latter, and where n is only known when the graph runs it goes on
with what would follow, ``4 * n == 4``: the graph is compiled for one slot. By way of one dimension, ``[4 * n]``, both
steps are of the kinds that it knows. A torch that knows better loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, statically_known_true

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default)


def could_matter(gm: fx.GraphModule) -> bool:
    """Are there sizes that only the data says? A cheap look at a graph before autograd."""
    return any(free_unbacked_symbols(node.meta.get("example_value")) for node in gm.graph.nodes)


def by_way_of_one(graph: fx.Graph) -> None:
    """Every such reshape as two, the first to one dimension."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _VIEWS:
            continue
        source, shape = node.args
        before, after = source.meta["val"], node.meta["val"]
        if not free_unbacked_symbols([*before.shape, *after.shape]) or not regroups(before.shape, after.shape):
            continue
        with graph.inserting_before(node):
            flat = graph.call_function(torch.ops.aten.reshape.default, (source, [-1]))
        flat.meta["val"] = before.new_empty((before.numel(),))
        node.target, node.args = torch.ops.aten.reshape.default, (flat, shape)


def regroups(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Is a reshape more than dimensions that are merged, and others that are divided, as far as sizes are known?"""
    if any(_same(size, 0) for size in (*before, *after)):
        return False
    left, right = ([size for size in sizes if not _same(size, 1)] for sizes in (before, after))
    while left and right:
        have, want = left.pop(), right.pop()
        if _same(have, want):
            continue
        grows, other, rest = (have, want, left) if _divides(have, want) else (want, have, right)
        while rest and not _same(grows, other):
            if not _divides(grows, other):
                return True
            grows = grows * rest.pop()
        if not _same(grows, other):
            return True
    return bool(left or right)


def _same(a: Any, b: Any) -> bool:
    return statically_known_true(a == b)


def _divides(a: Any, b: Any) -> bool:
    """Is ``b`` a multiple of ``a``, whatever they are?"""
    return statically_known_true(b % a == 0)
