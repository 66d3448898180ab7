"""Tokens that are picked: the first or the last slot of every row, or the ones at computed positions.

    x[:, 0]        x[:, -1]        x[arange(B), lengths - 1]        x.gather(1, index)        # x: [B, S, ...]

Before each call the host checks that only real tokens are picked; where they went, the plan's slots tell.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, example, meaning_of
from packpass.semantics.indexing import entries_of
from packpass.semantics.meaning import KEPT, Axis, Looked, Selected
from passes.eliminate_padding.facts import Index
from passes.eliminate_padding.machine import Machine, physical, physical_dim
from passes.eliminate_padding.tile import Across, at, named, same
from passes.eliminate_padding.values import Condition, Packed, Value
from passes.refused import Refused

_INDICES = (torch.int32, torch.int64)


def picked(m: Machine, node: fx.Node, call: Call, found: Across) -> Value | None:
    """What a call picks of the tokens of its first operand; None for anything else that it does with them."""
    packed, meaning = m.packed(call.operands[0].node), meaning_of(call)
    if packed is None or meaning is None or len(meaning.relations) != 1 or found.operand:
        return None
    (relation,) = meaning.relations
    axes = relation.operands[0] or ()
    if isinstance(found.what, Selected) and found.parts == ("S",):
        return _column(m, node, packed, axes, relation.result)
    if not isinstance(found.what, Looked) or packed.dims[:2] != (("B",), ("S",)):
        return None
    # In an index both the row and the column are looked up, by two tensors; in a gather the column alone.
    if isinstance(axes[0].how, Looked):
        return _looked_up(m, node, call, packed)
    return _gathered(m, node, call, packed) if axes[1].how == found.what else None


def _column(m: Machine, node: fx.Node, packed: Packed, axes: tuple[Axis, ...], result: Any) -> Value | None:
    """``x[:, 0]`` or ``x[:, -1]``, where that token of every row is real."""
    s, b = at(packed.dims, "S"), at(packed.dims, "B")
    how = axes[s].how
    others = [d for d in range(len(axes)) if d != s]
    if not isinstance(how, Selected) or type(how.index) is not int or how.index not in (0, -1):
        return None
    if packed.dims[b] != ("B",) or any(axes[d].how != KEPT for d in others):
        return None
    if list(result) != [axes[d].loops for d in others] or m.values[node.args[0]].whole is not None:  # type: ignore[index]
        return None
    m.demand(Condition("column", how.index))
    cu = m.plan["cu_seqlens"]
    index = m.graph.call_function(operator.getitem, (cu, slice(None, -1) if how.index == 0 else slice(1, None)))
    if how.index == -1:
        index = m.graph.call_function(operator.sub, (index, 1))
    t = physical_dim(packed.dims, s)
    new = m.graph.call_function(torch.index_select, (packed.node, t, index))
    place = sum(d < b for d in others)  # of the batch, among the dimensions that are left
    rest = [d for d in range(len(physical(packed.dims))) if d != t]
    return Value(m.permuted(new, [*rest[:place], t, *rest[place:]]))


def _looked_up(m: Machine, node: fx.Node, call: Call, packed: Packed) -> Value | None:
    """``x[arange(B), columns]`` with columns ``[B]``, which may count from the end."""
    entries = entries_of(call.arguments["index"], len(packed.dims)) if call.op == "getitem" else None
    tensors = [o for o in call.operands[1:] if o.argument == "index"]
    if entries is None or len(tensors) != 2 or [e.axis for e in entries] != [*range(len(packed.dims))]:
        return None
    rows, columns = m.facts.get(tensors[0].node), tensors[1].node
    meaning = meaning_of(call)
    axes = meaning.relations[0].operands[0] if meaning is not None else None
    if (
        [e.item for e in entries[:2]] != [o.node for o in tensors]
        or not isinstance(rows, Index)
        or (rows.rank, rows.start) != (1, 0)
        or not same(rows.size, m.tile.batch)
        or example(columns).dtype not in _INDICES
        or example(columns).dim() != 1
        or any(axis.how != KEPT for axis in (axes or ())[2:])
    ):
        return None
    slots = _slots(m, columns, m.call("unsqueeze", _whole(m, node, columns), 1), wraps=True)
    flat = m.call("squeeze", slots, 1)
    return Value(m.graph.call_function(torch.index_select, (packed.node, 0, flat)))


def _gathered(m: Machine, node: fx.Node, call: Call, packed: Packed) -> Value | None:
    """``x.gather(1, index)`` of rows ``[B, S]`` or ``[B, S, D]``, all of them and all features."""
    index = call.of("index")
    if call.op != "gather" or index is None or len(packed.dims) > 3 or any(map(named, packed.dims[2:])):
        return None
    shape, features = index.value.shape, call.operands[0].value.shape[2:]
    if not same(shape[0], m.tile.batch) or (features and not same(shape[2], features[0])):
        raise Refused("no-rule", "gather of some rows or features only", node)
    slots = _slots(m, index.node, m.call("flatten", _whole(m, node, index.node), 1), wraps=False)
    slots = m.call("reshape", slots, [-1, *features])
    found = m.call("gather", packed.node, 0, slots)
    return Value(m.call("reshape", found, [m.size("B"), -1, *features]))


def _whole(m: Machine, node: fx.Node, index: fx.Node) -> fx.Node:
    whole = m.whole_of(index)
    if whole is None:
        raise Refused("cross-token", "tokens are looked up by an index that is computed from packed tokens", node)
    return whole


def _slots(m: Machine, index: fx.Node, columns: Any, wraps: bool) -> fx.Node:
    """The slots of the packed row where the tokens in ``columns`` ``[B, n]`` are."""
    m.demand(Condition("picked", int(wraps), index))
    if wraps:
        columns = m.graph.call_function(torch.remainder, (m.call("long", columns), m.size("S")))
    return m.call("gather", m.plan["slots"], 1, columns)
