"""Names of the calls in loop bodies, under which rules are registered: those of `packpass.semantics`."""

from __future__ import annotations

import types
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


def _places_as_documented(node: fx.Node, name: str) -> bool:
    """Are positional arguments where the function in torch.nn.functional has them, if there is one? ``aten.mse_loss``
    takes its ``reduction`` where ``F.mse_loss`` takes ``size_average``."""
    function = getattr(F, name, None)
    if node.op != "call_function" or not isinstance(function, types.FunctionType) or node.target is function:
        return True
    call = call_of(node)
    given = slice(len(node.args))
    return call is not None and parameters_of(call.overload, node.target)[given] == parameters_of(None, function)[given]


def label(node: fx.Node) -> str:
    """An op as users write it, for refusals."""
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    target: Any = node.target
    return getattr(target, "__name__", str(target))
