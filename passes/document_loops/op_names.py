"""Names of the calls in loop bodies, under which rules are registered: those of `packpass.semantics`."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from packpass import markers
from packpass.semantics import call_of, op_name
from packpass.semantics.binding import parameters_of


def name_of(node: fx.Node) -> str:
    """The name of the op that a node calls; "" where its arguments are not those that a rule of the name reads.

    Markers have theirs without a namespace, and those that stand for an op of torch's (`markers.SHADOWS`) that op's.
    """
    target: Any = node.target
    space = target.namespace if isinstance(target, torch._ops.OpOverload) else ""
    if space == "packpass_capture":
        return markers.SHADOWS[target].__name__ if target in markers.SHADOWS else str(target._opname)
    name = op_name(node)
    return name if space != "prims" and _places_as_documented(node, name) else ""


def is_size_check(node: fx.Node) -> bool:
    """Is this what Dynamo asserts about sizes, or the mark of a branch: nothing for those who do not ask?"""
    return name_of(node) in ("_assert_scalar", "loop_branch")


def _places_as_documented(node: fx.Node, name: str) -> bool:
    """Are positional arguments where the function in torch.nn.functional has them, if there is one? ``aten.mse_loss``
    takes its ``reduction`` where ``F.mse_loss`` takes ``size_average``."""
    function = getattr(F, name, None)
    if node.op != "call_function" or not isinstance(function, types.FunctionType) or node.target is function:
        return True
    call = call_of(node)
    given = slice(len(node.args))
    return call is not None and parameters_of(call.overload, node.target)[given] == parameters_of(None, function)[given]


@contextlib.contextmanager
def unshadowed(node: fx.Node) -> Iterator[fx.Node]:
    """The node; for a marker that stands for a function of torch's a call of that function, which is in no graph."""
    original = markers.SHADOWS.get(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    if original is None:
        yield node
        return
    call = fx.Graph().call_function(original, node.args, node.kwargs)
    call.meta = dict(node.meta)
    try:
        yield call
    finally:
        call.graph.erase_node(call)


def label(node: fx.Node) -> str:
    """An op as users write it, for refusals."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return getattr(target, "__name__", str(target))
