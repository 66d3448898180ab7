"""Tokens that are looked up by computed positions, such as the last one of every row.

    x[arange(B), lengths - 1]        x.gather(1, index)        # x: [B, S, ...]

Before each call the host checks that only real tokens are looked up; where they went, the plan's slots tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.layout.names import argument, example
from passes.eliminate_padding.facts import Index
from passes.eliminate_padding.machine import Machine, rule
from passes.eliminate_padding.tile import is_whole, named, same
from passes.eliminate_padding.values import Condition, Packed, Value
from passes.refused import Refused

_INDICES = (torch.int32, torch.int64)


def looked_up(m: Machine, node: fx.Node, packed: Packed) -> Value:
    """``x[arange(B), columns]`` with columns ``[B]``, which may count from the end."""
    base, index = node.args
    if not isinstance(index, tuple) or len(index) < 2 or not all(isinstance(e, fx.Node) for e in index[:2]):
        raise Refused("cross-token", "tokens are looked up by an index that is not understood", node)
    columns: Any = index[1]
    rows = m.facts.get(index[0])  # type: ignore[arg-type]
    shape = example(base).shape
    if (
        packed.dims[:2] != (("B",), ("S",))
        or not isinstance(rows, Index)
        or (rows.rank, rows.start) != (1, 0)
        or not same(rows.size, m.tile.batch)
        or example(columns).dtype not in _INDICES
        or example(columns).dim() != 1
        or any(not isinstance(e, slice) or not is_whole(e, n) for e, n in zip(index[2:], shape[2:], strict=False))
    ):
        raise Refused("cross-token", "tokens are looked up by an index that is not understood", node)
    slots = _slots(m, node, columns, m.call("unsqueeze", _whole(m, node, columns), 1), wraps=True)
    flat = m.call("squeeze", slots, 1)
    return Value(m.graph.call_function(torch.index_select, (packed.node, 0, flat)))


@rule("gather")
def _gather(m: Machine, node: fx.Node) -> Value:
    """Along the tokens of rows ``[B, S]`` or ``[B, S, D]``, or along features."""
    x, dim, index = (argument(node, i, n) for i, n in enumerate(("input", "dim", "index")))
    packed = m.require(x, node)
    rank = len(packed.dims)
    if type(dim) is not int or packed.dims[:2] != (("B",), ("S",)) or rank > 3 or any(map(named, packed.dims[2:])):
        raise Refused("cross-token", "gather from other than rows of tokens", node)
    if dim % rank != 1:
        raise Refused("no-rule", "gather other than along the tokens of a row", node)
    shape = example(index).shape
    if not same(shape[0], m.tile.batch) or (rank == 3 and not same(shape[2], example(x).shape[2])):
        raise Refused("no-rule", "gather of some rows or features only", node)
    slots = _slots(m, node, index, m.call("flatten", _whole(m, node, index), 1), wraps=False)
    features = example(x).shape[2:]
    slots = m.call("reshape", slots, [-1, *features])
    found = m.call("gather", packed.node, 0, slots)
    return Value(m.call("reshape", found, [m.size("B"), -1, *features]))


def _whole(m: Machine, node: fx.Node, index: fx.Node) -> fx.Node:
    whole = m.whole_of(index)
    if whole is None:
        raise Refused("cross-token", "tokens are looked up by an index that is computed from packed tokens", node)
    return whole


def _slots(m: Machine, node: fx.Node, index: fx.Node, columns: Any, wraps: bool) -> fx.Node:
    """The slots of the packed row where the tokens in ``columns`` ``[B, n]`` are."""
    m.demand(Condition("picked", int(wraps), index))
    if wraps:
        columns = m.graph.call_function(torch.remainder, (m.call("long", columns), m.size("S")))
    return m.call("gather", m.plan["slots"], 1, columns)
