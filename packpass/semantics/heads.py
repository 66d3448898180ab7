"""``F.multi_head_attention_forward`` as the products and the attention that it is made of.

`torch.nn.MultiheadAttention` and the layers of transformers that are built of it call one function of Python for all of
it, which looks at sizes and modes. What it computes of the row is a projection, an attention and another projection;
written as these, the attention is one like any other.

Left as it is: weights that somebody reads, dropout, masks of padding, keys that are added, widths of their own for keys
and values, anything that is not ``[T, N, E]``, and calls under autocast, which chooses the types of the parts.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from packpass.semantics.binding import example
from packpass.semantics.call import call_of, invoke
from packpass.semantics.effects import open_autocasts

_UNSUPPORTED = ("bias_k", "bias_v", "key_padding_mask", "use_separate_proj_weight", "static_k", "static_v")


def spell_out_heads(graph: fx.Graph) -> None:
    """Write every such call of a graph as its parts; others stay."""
    for node in list(graph.nodes):
        call = call_of(node) if node.op == "call_function" else None
        if call is not None and call.op == "multi_head_attention_forward" and _plain(node, call.arguments):
            with graph.inserting_before(node), torch.no_grad():
                out = _spelled(graph, call.arguments, node.meta.get("stack_trace", ""))
            for user in list(node.users):
                if user.args[1] == 0:
                    user.replace_all_uses_with(out)
                graph.erase_node(user)
            graph.erase_node(node)


def _plain(node: fx.Node, given: Any) -> bool:
    """Is the call nothing but projections and attention, and does nobody read its weights?"""
    if any(given.get(name) is not None and given.get(name) is not False for name in _UNSUPPORTED):
        return False
    if given.get("add_zero_attn") or (given.get("dropout_p") and given.get("training", True)):
        return False
    if open_autocasts(node.graph, node):
        return False
    values = [example(given.get(name)) for name in ("query", "key", "value")]
    if any(not isinstance(value, Tensor) or value.dim() != 3 for value in values):
        return False
    read = [user for user in node.users if not (user.target is operator.getitem and user.args[1] in (0, 1))]
    return not read and not any(user.users for user in node.users if user.args[1] == 1)


def _spelled(graph: fx.Graph, given: Any, line: str) -> fx.Node:
    """The parts, on ``[T, N, E]``."""

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        new = graph.call_method(target, args) if isinstance(target, str) else graph.call_function(target, args, kwargs)
        fakes = fx.map_arg((new.args, dict(new.kwargs)), example)
        new.meta = {"example_value": invoke(new, *fakes), "stack_trace": line}
        return new

    linear = torch.nn.functional.linear
    heads, width = given["num_heads"], example(given["in_proj_weight"]).shape[0] // 3
    rows = []
    for k, name in enumerate(("query", "key", "value")):
        weight, bias = (given[part] for part in ("in_proj_weight", "in_proj_bias"))
        weight = call("narrow", weight, 0, k * width, width)
        bias = None if bias is None else call("narrow", bias, 0, k * width, width)
        row = call(linear, given[name], weight, bias)
        rows.append(call("permute", call("unflatten", row, -1, (heads, -1)), 1, 2, 0, 3))
    mask, causal = given.get("attn_mask"), bool(given.get("is_causal")) and not given.get("need_weights", True)
    if mask is not None and not causal and example(mask).dim() == 3:
        mask = call("unflatten", mask, 0, (-1, heads))
    attend = torch.nn.functional.scaled_dot_product_attention
    out = call(attend, *rows, attn_mask=None if causal else mask, is_causal=causal)
    out = call("flatten", call("permute", out, 2, 0, 1, 3), -2)
    return call(linear, out, given["out_proj_weight"], given["out_proj_bias"])
