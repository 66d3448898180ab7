"""A backward that reads a tensor from its own class: read when the backward runs, as in eager mode.

    class Scaler(torch.autograd.Function):
        scale = torch.tensor(1.0)                                   # set by the training loop, after the forward
        @staticmethod
        def backward(ctx, grad):
            return grad, torch.ones_like(...) * Scaler.scale

Stock Dynamo breaks the graph at ``apply``: right, but a model that applies such a function once per depth falls into
pieces, and the pieces see neither the loops nor the boundaries of the others. (Read from *another* class, it compiles,
and uses the value from before the forward: wrong, but stock torch's own affair.) Here the read becomes an op that looks
the attribute up at run time and depends on the incoming gradient, so it stays in the backward.

Does not handle: attributes that are no tensors, reads outside of the class's own backward, classes that cannot be
found by their module and name. All of them do what stock torch does.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from packpass.capture.dynamo import AutogradFunctionVariable, emit
from packpass.ops._class_tensor import read_class_tensor_op, resolve


def read(tx: Any, holder: Any, name: str) -> Any:
    """``Class.name`` in the backward of ``Class``; None if it is no such read."""
    if not isinstance(holder, AutogradFunctionVariable):
        return None
    value = inspect.getattr_static(holder.fn_cls, name, None)
    if isinstance(value, torch.Tensor) and _in_own_backward(holder.fn_cls, tx) and _can_be_found(holder.fn_cls):
        gradient = _incoming_gradient(tx)
        if gradient is not None and _can_be_used(value, gradient.node):
            where = (holder.fn_cls.__module__, holder.fn_cls.__qualname__, name)
            return emit(tx, read_class_tensor_op, gradient, *where, list(value.shape), value.dtype)
    return None


def _in_own_backward(cls: Any, tx: Any) -> bool:
    code = getattr(inspect.getattr_static(cls, "backward", None), "__func__", None)
    code = getattr(code, "__code__", None)
    while tx is not None:
        if tx.f_code is code:
            return True
        tx = getattr(tx, "parent", None)
    return False


def _can_be_found(cls: Any) -> bool:
    try:
        return resolve(cls.__module__, cls.__qualname__) is cls
    except (ImportError, AttributeError):
        return False


def _can_be_used(value: torch.Tensor, gradient: torch.fx.Node) -> bool:
    """Eager mode takes factors on the gradient's device, and 0-d ones on the CPU."""
    here = value.device == _device(gradient) or (value.device.type == "cpu" and value.dim() == 0)
    return here and not value.requires_grad


def _incoming_gradient(tx: Any) -> Any:
    """The first argument of the backward that is being traced, as a proxy of its graph."""
    tracer = tx.output.current_tracer
    node = next((n for n in tracer.graph.nodes if n.op == "placeholder" and _device(n) is not None), None)
    return None if node is None else torch.fx.Proxy(node, tracer)


def _device(node: torch.fx.Node) -> torch.device | None:
    example = node.meta.get("example_value")
    return example.device if isinstance(example, torch.Tensor) else None
