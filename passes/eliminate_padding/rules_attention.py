"""Attention: fused (``scaled_dot_product_attention``) or written out, from packed queries, keys and values.

    visible(i, j) = the mask's own value where token i is real, by: is j real, does j lie before, at or behind i

is worked out from the mask's table (`facts`). It must hide all padding from every real query and either show all real
keys or the ones that do not lie behind: that is `varlen_attention` over the documents.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, fx

from packpass.ops._varlen_attention_gpu import takes
from packpass.semantics import argument, call_of, example
from packpass.semantics.products import MATMULS
from passes.eliminate_padding.machine import Machine, feature, ops, physical, rule
from passes.eliminate_padding.rules_general import general
from passes.eliminate_padding.rules_scores import (
    CASES,
    HIDDEN,
    broadcast,
    heads_of,
    is_scores_product,
    m_cells,
    on_scores,
    scores_dims,
)
from passes.eliminate_padding.tile import Dims, at, holds, named
from passes.eliminate_padding.values import Condition, Packed, Scores, Value
from passes.refused import Refused

PADDING, REAL = 0, 1
BEHIND, HERE, BEFORE = 0, 1, 2
"""Where the key lies, as the last axis of a table has it (the query lies before, at, behind it)."""


@rule("scaled_dot_product_attention")
def _fused(m: Machine, node: fx.Node) -> Value:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = (None, None, None, None, 0.0, False)
    given = (argument(node, i, n, d) for i, (n, d) in enumerate(zip(names, defaults, strict=True)))
    q, k, v, mask, dropout, causal = given
    query, key, value = (m.require(x, node) for x in (q, k, v))
    if dropout != 0:
        raise Refused("attention-form", "attention weights are dropped out; packed attention has no dropout", node)
    if type(causal) is not bool:
        raise Refused("attention-form", "is_causal is no constant", node)
    bias = torch.zeros(CASES, dtype=torch.float64)
    if mask is not None:
        cells = m_cells(m, mask, (*query.dims[:-1], ("K",)))
        if cells is None:
            raise Refused("mask-not-padding", "the mask is not made of the padding mask and positions alone", node)
        bias = torch.where(cells, 0.0, -torch.inf).double() if cells.dtype is torch.bool else cells.double()
    if causal:
        bias = bias.clone()
        bias[:, :, BEHIND] = -torch.inf
    scale: Any = node.kwargs.get("scale")
    if not (scale is None or type(scale) in (int, float)):
        raise Refused("attention-form", "the scale of attention is no constant", node)
    return _attention(m, node, query, key, value, bias, None if scale is None else float(scale))


@rule(*MATMULS)
def _matmul(m: Machine, node: fx.Node) -> Value:
    call = call_of(node)
    if call is None or len(call.operands) != 2:
        return general(m, node)
    a, b = (operand.node for operand in call.operands)
    scores = m.scores(a)
    if scores is not None:
        if not scores.softmaxed or scores.dims[-1:] != (("K",),) or scores.dims[-2:-1] != (("S",),):
            return on_scores(m, node)
        value = m.require(b, node)
        bias = torch.zeros(CASES, dtype=torch.float64) if scores.bias is None else scores.bias
        key = dataclasses.replace(
            scores.key,
            node=m.call("transpose", scores.key.node, -1, -2),
            dims=(*scores.key.dims[:-2], scores.key.dims[-1], scores.key.dims[-2]),
        )
        if len(value.dims) == len(scores.dims):
            heads = zip(scores.dims[:-2], value.dims[:-2], strict=True)
            if all(mine == theirs or (not theirs and not named(mine)) for mine, theirs in heads):
                value = broadcast(m, value, scores.dims[:-2])
        if scores.dims[:-2] != value.dims[:-2]:
            raise Refused("not-tokens", "attention weights and values have different heads", node)
        if scores.grad != m.grad:
            raise Refused("attention-weights", "attention weights are computed with gradients on, or off, alone", node)
        if scores.dropped is not None and not bool((bias[REAL] <= HIDDEN)[scores.dropped[REAL]].all()):
            raise Refused("attention-weights", "attention weights of real tokens are set to 0 after the softmax", node)
        return _attention(m, node, scores.query, key, value, bias, scores.scale, scores.dims)
    query_like, key_like = m.packed(a), m.packed(b)
    if query_like is not None and key_like is not None and is_scores_product(query_like.dims, key_like.dims):
        key_like = broadcast(m, key_like, query_like.dims[:-2])
        return Value(packed=Scores(query_like, key_like, scores_dims(query_like.dims), 1.0, grad=m.grad))
    return general(m, node)


def causal_or_not(bias: Tensor, node: fx.Node) -> tuple[bool, bool]:
    """Is attention with this bias (cells, float64) causal, and does it need rows whose padding lies behind all tokens?

    Raises:
        Refused: it is neither of the two forms, or shows padding.
    """
    rows = bias[REAL]
    shown, hidden = rows == 0, rows <= HIDDEN
    if not bool((shown | hidden).all()):
        raise Refused("mask-not-padding", "the mask adds other than 0 or at most -1e4 to attention scores", node)
    if not bool(shown[REAL, HERE]) or not bool(shown[REAL, BEFORE]):
        raise Refused("mask-not-padding", "the mask hides real tokens that are not behind the query", node)
    causal = bool(hidden[REAL, BEHIND])
    if bool(shown[PADDING, BEHIND]):
        raise Refused("padding-visible", "real tokens attend to padding: a mask does not hide it", node)
    return causal, bool(shown[PADDING, BEFORE])


def check_dtype(out: Tensor, node: fx.Node) -> None:
    if not takes(out.device.type, out.dtype, out.shape[-1]):
        raise Refused("attention-form", f"there is no packed attention on {out.device.type} in {out.dtype}", node)


def _attention(
    m: Machine,
    node: fx.Node,
    query: Packed,
    key: Packed,
    value: Packed,
    bias: Tensor,
    scale: float | None,
    shaped: Dims | None = None,
) -> Value:
    """``shaped``: dimensions of the scores, where they were reshaped on the way."""
    for p in (query, key, value):
        if p.dims[-2:-1] != (("S",),) or named(p.dims[-1]) or not any(holds(d, "B") for d in p.dims[:-2]):
            raise Refused("attention-form", "queries, keys or values are not [batch, ..., tokens, features]", node)
    if shaped is None and not (_batch_place(query) == _batch_place(key) == _batch_place(value)):
        raise Refused("attention-form", "the batch lies in different places of queries, keys and values", node)
    causal, right_padded = causal_or_not(bias, node)
    if right_padded:
        m.demand(Condition("right-padded"))
    sizes = [p.dims[-1] for p in (query, key, value)]
    if not sizes[0] == sizes[1] == sizes[2]:
        raise Refused("attention-form", "queries, keys and values have different head sizes", node)
    heads, key_heads, value_heads = (heads_of(p.dims) for p in (query, key, value))
    if key_heads != value_heads or heads % key_heads:
        raise Refused("attention-form", f"{heads} query heads, {key_heads} key heads, {value_heads} value heads", node)
    if key_heads not in (1, heads) and not argument(node, 7, "enable_gqa", False):
        raise Refused("attention-form", f"{heads} query heads, {key_heads} key heads, and no enable_gqa", node)
    out: Tensor = example(node)
    check_dtype(out, node)
    rows = [_rows(m, p, example_dtype=out.dtype) for p in (query, key, value)]
    cu = m.plan["cu_seqlens"]
    if scale is None:
        scale = 1.0 / math.sqrt(sizes[0][0] if sizes[0] else 1)
    new = m.graph.call_function(ops.varlen_attention.default, (*rows, cu, cu, causal, scale))
    leading = query.dims[:-2] if shaped is None else shaped[:-2]
    dims: Dims = (*leading, ("S",), feature(out.shape[-1], node))
    m.attentions.append(node)
    shape = physical(dims)
    new = m.call("reshape", m.call("transpose", new, 0, 1), shape)
    return Value(packed=Packed(new, dims))


def _batch_place(packed: Packed) -> tuple[int, Any]:
    """Where the batch is, counted from the right, and what it is merged with."""
    d = at(packed.dims, "B")
    return len(packed.dims) - d, packed.dims[d]


def _rows(m: Machine, packed: Packed, example_dtype: torch.dtype) -> fx.Node:
    """``[heads, ..., T, D]`` as ``[T, heads, D]``, in the dtype in which the padded attention runs (autocast)."""
    own = physical(packed.dims)
    x = packed.node
    if len(own) != 3:
        x = m.call("reshape", x, [heads_of(packed.dims), -1, own[-1]])
    return m.call("to", m.call("transpose", x, 0, 1), example_dtype)
