"""Ops that write into an argument: by name (``x.add_``), on request (``inplace=True``), into ``out=``, or by schema."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.layout.names import example, op_name, storage
from passes.eliminate_padding.op_sets import writes

INPLACE_AT = {
    "relu": 1,
    "relu6": 1,
    "silu": 1,
    "mish": 1,
    "selu": 1,
    "hardswish": 1,
    "hardsigmoid": 1,
    "elu": 2,
    "celu": 2,
    "leaky_relu": 2,
    "hardtanh": 3,
    "threshold": 3,
    "dropout": 3,
    "alpha_dropout": 3,
}
"""Functions that may be told to write into their argument -> position of that flag."""


def asked(node: fx.Node) -> bool:
    """Is a function told to write into its first argument?"""
    position = INPLACE_AT.get(op_name(node))
    if position is None:
        return False
    flag = node.args[position] if len(node.args) > position else node.kwargs.get("inplace", False)
    return flag is not False


def not_asked(node: fx.Node) -> None:
    """Let a function return a new value instead."""
    position = INPLACE_AT[op_name(node)]
    if len(node.args) > position:
        node.args = (*node.args[:position], False, *node.args[position + 1 :])
    else:
        node.kwargs = {**node.kwargs, "inplace": False}


def elsewhere(node: fx.Node) -> bool:
    """Does an op write into other arguments than its first?"""
    name = op_name(node)
    if node.kwargs.get("out") is not None or name == "higher_order::triton_kernel_wrapper_mutation":
        return True
    schema = getattr(node.target, "_schema", None)  # of an OpOverload
    return schema is not None and schema.is_mutable and not writes(name)


def unseen(node: fx.Node) -> bool:
    """Is what an op writes a new tensor that nothing looks at afterwards, other than as the result of that op?"""
    target = node.args[0] if node.args else None
    memory = storage(target)
    if memory is None or storage(node) != memory:
        return False
    for other in node.graph.nodes:
        if other is node:
            return True
        if _shares(other, memory) and (
            other.op in ("placeholder", "get_attr") or any(node < user for user in other.users)
        ):
            return False
    return False


def _shares(node: fx.Node, memory: Any) -> bool:
    """Does a value, or one of a tuple, lie in this memory?"""
    value = example(node)
    items = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == memory for x in items)


__all__ = ["asked", "elsewhere", "not_asked", "unseen"]
