"""Remove what a rewrite left unused, and nothing else: only nodes that are known to have no effect."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

_PURE_FUNCTIONS = frozenset(
    {
        operator.getitem,
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        torch.select,
        torch.sym_sum,
    }
    | {
        operator.ge,
        operator.gt,
        operator.le,
        operator.lt,
        operator.eq,
        operator.ne,
        operator.and_,
        operator.or_,
        torch.diff,
        torch.clone,
    }
    | {
        torch.zeros,
        torch.zeros_like,
        torch.empty,
        torch.empty_like,
        torch.full,
        torch.full_like,
        torch.ones,
        torch.ones_like,
    }
    | {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_storage_offset.default,
        torch.ops.aten.sym_stride.int,
        torch.sub,
        torch.narrow,
        torch.cumsum,
        torch.nn.functional.pad,
    }
)
_PURE_METHODS = frozenset(
    {
        "item",
        "clone",
        "diff",
        "select",
        "narrow",
        "size",
        "long",
        "to",
        "int",
        "cpu",
        "contiguous",
        "detach",
        "new_zeros",
        "new_ones",
    }
    | {"new_full", "new_empty", "sub", "unbind"}
)
_PURE_OPS = frozenset(
    {
        "packpass::packed_roll",
        "packpass::packed_flip",
        "packpass::position_ids",
        "packpass::segment_ids",
        "packpass::window_mask",
        "packpass::snapshot",
    }
)


def prune(graph: fx.Graph, candidates: Iterable[fx.Node]) -> int:
    """Erase the candidates, and what only they used, as long as nobody uses them. Returns how many went."""
    stack, erased = list(dict.fromkeys(candidates)), set()
    while stack:
        node = stack.pop()
        if node in erased or node.users:
            continue
        pure = isinstance(node.target, torch._ops.OpOverload) and node.target.name() in _PURE_OPS
        pure = (
            pure
            or (node.op == "call_function" and node.target in _PURE_FUNCTIONS)
            or (node.op == "call_method" and node.target in _PURE_METHODS)
        )
        if not pure:
            continue
        inputs = node.all_input_nodes
        graph.erase_node(node)
        erased.add(node)
        stack.extend(inputs)
    return len(erased)
