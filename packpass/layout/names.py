"""Plain names of the calls in a Dynamo graph: ``torch.add``, ``x.add``, ``x + y``, ``aten.add.Tensor`` are ``add``."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import fx

AUTOGRAD_FUNCTION = "higher_order::autograd_function_apply"
"""`op_name` of the call of an autograd.Function."""

_TORCH = ("torch", "_operator", "operator", "math", "builtins")
_ALIASES = {
    "__getitem__": "getitem",
    "__setitem__": "setitem",
    "iadd": "add_",
    "isub": "sub_",
    "imul": "mul_",
    "itruediv": "div_",
    "truediv": "div",
    "divide": "div",
    "true_divide": "div",
    "subtract": "sub",
    "multiply": "mul",
    "negative": "neg",
    "absolute": "abs",
    "concat": "cat",
    "concatenate": "cat",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "moveaxis": "movedim",
    "_view": "view",
    "_assert_async": "assert_async",
    "constant_pad_nd": "pad",
}


def op_name(node: fx.Node) -> str:
    """Plain name of the op of ``node``; "" for anything but a call of torch's own (or packpass's) functions."""
    target: Any = node.target
    if node.op == "call_method":
        return _ALIASES.get(str(target), str(target))
    if node.op != "call_function":
        return ""
    if isinstance(target, torch._ops.OpOverload):
        space, _, name = target._schema.name.partition("::")
        if space not in ("aten", "prims"):
            return f"{space}::{name}"
        return _ALIASES.get(name, name)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", None) or ""
    if module.startswith(_TORCH) or isinstance(target, types.BuiltinFunctionType):
        return _ALIASES.get(name, name)
    return ""  # a user's function that stays a call: its name says nothing


def example(node: Any) -> Any:
    """The fake value Dynamo recorded for a node; anything else is itself."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else node


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """A positional-or-keyword argument."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def storage(node: Any) -> Any:
    """Identity of the storage behind a tensor node (None for anything else)."""
    value = example(node)
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
