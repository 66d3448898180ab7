"""Plain names of the calls in a Dynamo graph: ``torch.add``, ``x.add``, ``x + y``, ``aten.add.Tensor`` are ``add``."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import fx

from packpass._compat import qualified_name

AUTOGRAD_FUNCTION = "higher_order::autograd_function_apply"
"""`op_name` of the call of an autograd.Function."""

_HOMES = frozenset({"torch", "_operator", "operator", "math", "builtins"})
"""Where functions come from whose names say what they do."""
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


def function_name(target: Any) -> str:
    """The name of a function of torch, ``operator`` or ``math``, of an operator or a method; "" for any other function.

    A function counts as torch's if it is what its module has under its name: one that a user keeps out of the graph
    (``allow_in_graph``) may be called ``clone`` as well, or even be wrapped to look like torch's.
    """
    if isinstance(target, str):
        return target  # a method
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    space, op = qualified_name(target)
    if space:
        return op if space in ("aten", "prims") else f"{space}::{op}"
    name, module = getattr(target, "__name__", None), getattr(target, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or module.partition(".")[0] not in _HOMES:
        return ""
    return name if getattr(sys.modules.get(module), name, None) is target else ""


def call_name(node: fx.Node) -> str:
    """`function_name` of what a node calls; "" for nodes that call nothing."""
    return function_name(node.target) if node.op in ("call_function", "call_method") else ""


def op_name(node: fx.Node) -> str:
    """Plain name of the op of ``node``; "" for anything but a call of torch's own (or packpass's) functions."""
    name = call_name(node)
    return _ALIASES.get(name, name)


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
