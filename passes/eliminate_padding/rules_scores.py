"""What may happen to attention scores between ``q k^T`` and ``weights v``: scaled, masked, made weights, reshaped.

Nothing is computed on the way; `Scores` remembers what was asked for.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor, fx

from packpass.ops._pack_mask import HIDDEN
from packpass.semantics import argument, call_of, example, meaning_of, op_of
from packpass.semantics.names import op_name
from packpass.semantics.pointwise import COPIES
from passes.eliminate_padding.facts import Table, aligned
from passes.eliminate_padding.machine import Machine, physical
from passes.eliminate_padding.tile import Dims, holds, moved, named
from passes.eliminate_padding.values import Packed, Scores, Value
from passes.refused import Refused

CASES = (2, 2, 3)
"""Of tables with two positions: see `facts.Table`."""


def on_scores(m: Machine, node: fx.Node) -> Value:
    """An op whose first operand is attention scores."""
    name = op_of(node)
    holders = [n for n in node.all_input_nodes if m.scores(n) is not None]
    scores = m.scores(holders[0])
    assert scores is not None
    if len(holders) > 1:
        raise _refused(node, "combined with one another")
    if (dims := _reshaped(m, node, scores.dims)) is not None:
        return Value(packed=dataclasses.replace(scores, dims=dims))
    if name in COPIES or (name == "dropout" and not drops(node)):
        if name == "detach" or not example(node).is_floating_point() or node.args[0] is not holders[0]:
            raise _refused(node, f"changed by {op_name(node)}")
        return Value(packed=scores)
    if scores.softmaxed:
        if (dropped := _dropped(m, node, name, scores)) is None:
            raise _refused(node, f"changed by {op_name(node)} after the softmax")
        return Value(packed=dropped)
    if name == "softmax":
        dim = argument(node, 1, "dim")
        if type(dim) is not int or scores.dims[dim] != ("K",):
            raise _refused(node, "normalised along another dimension than that of the keys")
        return Value(packed=dataclasses.replace(scores, softmaxed=True))
    changed = _changed(m, node, name, scores)
    if changed is None:
        raise _refused(node, f"changed by {op_name(node)} in a way that is not masking or scaling")
    return Value(packed=changed)


def _reshaped(m: Machine, node: fx.Node, dims: Dims) -> Dims | None:
    """The dimensions of scores in another shape, if queries and keys stay in this order."""
    call = call_of(node)
    meaning = meaning_of(call)
    if meaning is None or meaning.family != "views":
        return None
    new = moved(m.tile, node, dims)
    return new if new is not None and (meaning.relations[0].in_order() or new[-2:] == (("S",), ("K",))) else None


def _refused(node: fx.Node, what: str) -> Refused:
    return Refused("attention-weights", f"attention scores or weights are {what}", node)


def drops(node: fx.Node) -> bool:
    """Does a call of dropout drop anything?"""
    p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", True)
    return not (training is False or (type(p) in (int, float) and p == 0))


def _dropped(m: Machine, node: fx.Node, name: str, scores: Scores) -> Scores | None:
    """Weights that are set to 0 by a mask, or multiplied by one of 0 and 1."""
    if name == "mul" and len(node.args) == 2:
        mask = next((x for x in node.args if isinstance(x, fx.Node) and m.scores(x) is None), None)
        cells = m_cells(m, mask, scores.dims)
        dropped = None if cells is None or not bool(((cells == 0) | (cells == 1)).all()) else cells == 0
    elif name == "masked_fill" and len(node.args) == 3 and m.number_of(node.args[2]) == 0:
        dropped = m_cells(m, node.args[1], scores.dims)
    elif name == "where" and len(node.args) == 3 and m.number_of(node.args[2]) == 0:
        cells = m_cells(m, node.args[0], scores.dims)
        dropped = None if cells is None else ~cells
    else:
        return None
    if dropped is None or dropped.dtype is not torch.bool:
        return None
    return dataclasses.replace(scores, dropped=dropped if scores.dropped is None else dropped | scores.dropped)


def _changed(m: Machine, node: fx.Node, name: str, scores: Scores) -> Scores | None:
    args = node.args
    if name in ("mul", "div") and len(args) == 2 and not node.kwargs and scores.bias is None:
        a, b = args
        first = isinstance(a, fx.Node) and m.scores(a) is not None
        number = m.number_of(b if first else a)
        if not number or not (first or name == "mul"):
            return None
        return dataclasses.replace(scores, scale=scores.scale * number if name == "mul" else scores.scale / number)
    if name in ("add", "sub") and len(args) == 2 and not node.kwargs:
        other = next((x for x in args if isinstance(x, fx.Node) and m.scores(x) is None), None)
        cells = m_cells(m, other, scores.dims)
        if cells is None or cells.dtype is torch.bool or (name == "sub" and other is args[0]):
            return None
        return add_bias(scores, cells if name == "add" else -cells)
    if name == "masked_fill" and len(args) == 3:
        return _replaced(m, scores, args[1], args[2], hide=True)
    if name == "where" and len(args) == 3 and isinstance(args[1], fx.Node) and m.scores(args[1]) is not None:
        return _replaced(m, scores, args[0], args[2], hide=False)
    if name == "where" and len(args) == 3:
        return _replaced(m, scores, args[0], args[1], hide=True)
    return None


def add_bias(scores: Scores, cells: Tensor) -> Scores:
    bias = torch.zeros(CASES, dtype=torch.float64) if scores.bias is None else scores.bias
    return dataclasses.replace(scores, bias=bias + cells.double())


def _replaced(m: Machine, scores: Scores, mask: Any, value: Any, hide: bool) -> Scores | None:
    """Scores where a mask is ``hide`` become a number."""
    number = m.number_of(value)
    cells = m_cells(m, mask, scores.dims)
    if cells is None or cells.dtype is not torch.bool or number is None or not number <= HIDDEN:
        return None
    bias = torch.zeros(CASES, dtype=torch.float64) if scores.bias is None else scores.bias
    return dataclasses.replace(scores, bias=torch.where(cells == hide, number, bias))


def m_cells(m: Machine, node: Any, dims: Dims) -> Tensor | None:
    """The cells of a mask for scores with ``dims`` ``[..., S, K]``; None for anything that is no such mask."""
    table = m.table(node)
    return None if table is None else cells_for(table, dims)


def cells_for(table: Table, dims: Dims) -> Tensor | None:
    """The cells of a table that is broadcast to ``[..., S, K]``."""
    if len(table.dims) > len(dims):
        return None
    for back in range(1, len(table.dims) + 1):
        mine, theirs = table.dims[-back], dims[-back]
        if not named(mine):
            continue
        if back <= 2:
            if mine != ("S",):
                return None
        elif mine != theirs:
            return None
    return aligned(table, [2, 1]).expand(CASES)


def is_scores_product(a: Dims, b: Dims) -> bool:
    """``[..., S, D] @ [..., D, S]``; keys may have fewer heads, by broadcasting."""
    return (
        len(a) == len(b)
        and len(a) >= 3
        and a[-2] == ("S",)
        and b[-1] == ("S",)
        and not named(a[-1])
        and not named(b[-2])
        and any(holds(parts, "B") for parts in a[:-2])
        and all(mine == theirs or (not theirs and not named(mine)) for mine, theirs in zip(a[:-2], b[:-2], strict=True))
    )


def broadcast(m: Machine, packed: Packed, leading: Dims) -> Packed:
    """Heads that are broadcast written out: dimensions of one slot before the last two become those of ``leading``."""
    own = (*leading, *packed.dims[-2:])
    if own == packed.dims:
        return packed
    return Packed(m.call("expand", packed.node, physical(own)), own)


def scores_dims(query: Dims) -> Dims:
    return (*query[:-1], ("K",))


def heads_of(dims: Dims) -> int:
    """Slots of the dimensions before the last two, without the batch."""
    n = 1
    for part in itertools.chain(*dims[:-2]):
        n *= 1 if isinstance(part, str) else part
    return n
