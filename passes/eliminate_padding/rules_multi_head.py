"""``multi_head_attention_forward``, which Dynamo keeps as one call: what ``torch.nn.MultiheadAttention`` runs.

q, k, v = linear(x, in_proj_weight, in_proj_bias).chunk(3, -1)        # x: [S, B, E], packed [T, E]
return linear(varlen_attention(q, k, v), out_proj_weight, out_proj_bias)
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics import argument, example
from passes.eliminate_padding.facts import Table
from passes.eliminate_padding.machine import Machine, ops, rule
from passes.eliminate_padding.rules_attention import causal_or_not, check_dtype
from passes.eliminate_padding.rules_scores import CASES, cells_for
from passes.eliminate_padding.tile import Dims
from passes.eliminate_padding.values import Packed, Value
from passes.refused import Refused

_SCORES: Dims = (("B",), (), ("S",), ("K",))
_UNSUPPORTED = ((7, "bias_k"), (8, "bias_v"), (21, "static_k"), (22, "static_v"))


@rule("multi_head_attention_forward")
def _multi_head(m: Machine, node: fx.Node) -> Value:
    inputs = [argument(node, i, n) for i, n in enumerate(("query", "key", "value"))]
    packed = [m.require(x, node) for x in inputs]
    heads = argument(node, 4, "num_heads")
    in_weight, in_bias, out_weight, out_bias = (
        m.plain(argument(node, i, n), node)
        for i, n in ((5, "in_proj_weight"), (6, "in_proj_bias"), (11, "out_proj_weight"), (12, "out_proj_bias"))
    )
    given = any(argument(node, i, n) is not None for i, n in _UNSUPPORTED)
    flags = argument(node, 9, "add_zero_attn", False) or argument(node, 17, "use_separate_proj_weight", False)
    if given or flags or type(heads) is not int:
        raise Refused("attention-form", "multi-head attention with other than one projection of queries and keys", node)
    if argument(node, 13, "training", True) and argument(node, 10, "dropout_p", 0.0) != 0:
        raise Refused("attention-form", "attention weights are dropped out; packed attention has no dropout", node)
    for p in packed:
        if p.dims[:2] != (("S",), ("B",)) or len(p.dims) != 3:
            raise Refused("attention-form", "multi-head attention of other than [tokens, batch, features]", node)
    causal = _causal(m, node)
    (size,) = packed[0].dims[2] or (1,)
    check_dtype(example(node)[0], node)
    rows = [_heads(m, x, heads, size // heads) for x in _projected(m, packed, in_weight, in_bias)]
    cu = m.plan["cu_seqlens"]
    scale = (size // heads) ** -0.5
    attended = m.graph.call_function(ops.varlen_attention.default, (*rows, cu, cu, causal, scale))
    out = m.graph.call_function(F.linear, (m.call("reshape", attended, [-1, size]), out_weight, out_bias))
    m.attentions.append(node)
    return Value(items=(Value(packed=Packed(out, packed[0].dims)), Value()))


def _causal(m: Machine, node: fx.Node) -> bool:
    bias = torch.zeros(CASES, dtype=torch.float64)
    for position, name in ((14, "key_padding_mask"), (16, "attn_mask")):
        mask = argument(node, position, name)
        if mask is None:
            continue
        table = m.table(mask)
        if table is not None and name == "key_padding_mask" and len(table.dims) == 2:
            table = Table((table.dims[0], (), (), table.dims[1]), table.cells)
        cells = None if table is None or len(table.dims) == 3 else cells_for(table, _SCORES)
        if cells is None:
            raise Refused("mask-not-padding", f"{name} is not made of the padding mask and positions alone", node)
        bias = bias + (torch.where(cells, -torch.inf, 0.0) if cells.dtype is torch.bool else cells).double()
    if argument(node, 24, "is_causal", False) and argument(node, 16, "attn_mask") is None:
        raise Refused("attention-form", "is_causal without an attn_mask", node)
    causal, right_padded = causal_or_not(bias, node)
    if right_padded:
        raise Refused("padding-visible", "real tokens attend to padding", node)
    return causal


def _projected(m: Machine, packed: list[Packed], weight: Any, bias: Any) -> list[fx.Node]:
    """Queries, keys and values, ``[T, E]``; one product where they are of the same values."""

    def thirds(x: fx.Node, dim: int) -> list[fx.Node]:
        parts = m.call("chunk", x, 3, dim)
        return [m.graph.call_function(operator.getitem, (parts, i)) for i in range(3)]

    nodes = [p.node for p in packed]
    if nodes[0] is nodes[1] is nodes[2]:
        return thirds(m.graph.call_function(F.linear, (nodes[0], weight, bias)), -1)
    weights = thirds(weight, 0)
    biases = [None] * 3 if bias is None else thirds(bias, 0)
    return [m.graph.call_function(F.linear, (x, w, b)) for x, w, b in zip(nodes, weights, biases, strict=True)]


def _heads(m: Machine, x: fx.Node, heads: int, size: int) -> fx.Node:
    return m.call("reshape", x, [-1, heads, size])
