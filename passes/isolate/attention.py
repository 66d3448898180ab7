"""Attention over a whole row: a call of variable-length attention does the same within every document."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.ops._varlen_attention_gpu import takes
from packpass.semantics import example
from packpass.semantics.bound_mixers import Attention, attention_of
from packpass.semantics.build import in_order, memory_order
from passes.isolate.kinds import Row
from passes.isolate.positions import order_of_mask
from passes.isolate.reading import Reading


def attentions(reading: Reading) -> dict[fx.Node, Attention]:
    """The attentions of a row to itself that variable-length attention can do."""
    found = {}
    for node in reading.mixing:
        parts = attention_of(node)
        if parts is not None and _fits(reading, parts):
            causal = parts.causal if parts.mask is None else order_of_mask(reading, parts.mask)
            if causal is not None and not (parts.causal and parts.mask is not None):
                found[node] = dataclasses.replace(parts, mask=None, causal=causal)
    return found


def _fits(reading: Reading, parts: Attention) -> bool:
    values = [example(n) for n in (parts.query, parts.key, parts.value)]
    rank = values[0].dim()
    if parts.dropout or rank not in (3, 4) or not isinstance(parts.scale, (float, type(None))):
        return False
    for n, value in zip((parts.query, parts.key, parts.value), values, strict=True):
        kind = reading.kinds[n]
        one_row = value.dim() == 3 or (isinstance(value.shape[0], int) and value.shape[0] == 1)
        if not isinstance(kind, Row) or kind.dim != rank - 2 or value.dim() != rank or not one_row:
            return False
    heads = [value.shape[-3] for value in values]
    if any(not isinstance(n, int) for n in heads) or heads[1] != heads[2]:
        return False
    if heads[0] != heads[1] and not (parts.grouped and heads[0] % heads[1] == 0):
        return False
    same_width = values[0].shape[-1] == values[2].shape[-1]
    return same_width and takes(values[0].device.type, values[0].dtype, values[0].shape[-1])


def rewrite(
    graph: fx.Graph, node: fx.Node, parts: Attention, cu_seqlens: fx.Node, moved: dict[fx.Node, fx.Node]
) -> None:
    """Put the call there, on ``[T, H, D]``. ``moved``: what stands for nodes that are gone, kept up to date."""
    batched = example(parts.query).dim() == 4
    with graph.inserting_before(node):
        rows = []
        for operand in (parts.query, parts.key, parts.value):
            x = moved.get(operand, operand)
            x = graph.call_method("to", (x, example(node).dtype))  # as autocast has it
            one = graph.call_method("squeeze", (x, 0)) if batched else x
            rows.append(graph.call_method("transpose", (one, 0, 1)))
        call: Any = torch.ops.packpass.varlen_attention.default
        out = graph.call_function(call, (*rows, cu_seqlens, cu_seqlens, parts.causal, parts.scale))
        out = graph.call_method("transpose", (out, 0, 1))
        out = graph.call_method("unsqueeze", (out, 0)) if batched else out
        order = memory_order(example(node))
        if order != ((0, 2, 1, 3) if batched else (1, 0, 2)):  # code behind it may ask for a view
            out = in_order(lambda name, *args: graph.call_method(name, args), out, order)
    out.meta = node.meta.copy()
    moved[node] = out
    node.replace_all_uses_with(out)
    graph.erase_node(node)
