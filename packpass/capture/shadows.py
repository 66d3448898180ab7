"""Ops whose own fakes ask whether a size of unknown value is 0: another stands in for them while a loop is traced."""

from __future__ import annotations

import types
from typing import Any

import torch

from packpass import markers
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, constant, emit, example, variable
from packpass.capture.dynamo import call as traced
from packpass.capture.watch import is_unknown

_OPS = {torch.logsumexp: markers.LOGSUMEXP, torch.cummax: markers.CUMMAX, torch.cummin: markers.CUMMIN}
_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_MULTI_HEAD = torch.nn.functional.multi_head_attention_forward
_INSIDE = types.FunctionType(
    _MULTI_HEAD.__code__, _MULTI_HEAD.__globals__, _MULTI_HEAD.__name__, _MULTI_HEAD.__defaults__
)
"""The same code as a function of its own: Dynamo makes one node of torch's, and traces this one."""


def _line(start: Any, end: Any, steps: Any, dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    """`torch.linspace`, from both ends as torch's own: it asks whether there are any steps."""
    places = torch.arange(steps, device=device)
    step = (end - start) / max(steps - 1, 1)
    behind = (steps - 1 - places).to(dtype)
    return torch.where(places * 2 < steps, start + places.to(dtype) * step, end - behind * step)


SHADOWED = frozenset({*_OPS, _ATTENTION, _MULTI_HEAD, torch.linspace})
METHODS = {function.__name__: function for function in _OPS}
"""Methods of tensors that are the function of their name."""


def call(tx: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
    """The call with the op that stands in for ``fn``; None if it can be traced as it is."""
    if fn is _MULTI_HEAD:
        return _inside(tx, *args, **kwargs)
    if fn is torch.linspace:
        return _linspace(tx, *args, **kwargs)
    return _attention(tx, *args, **kwargs) if fn is _ATTENTION else _along_dim(tx, fn, *args, **kwargs)


def _inside(tx: Any, *args: Any, **kwargs: Any) -> Any:
    """What a function of torch is written with, where it is about documents: torch asks for their sizes there."""
    tensors = [value for value in map(_realized, (*args, *kwargs.values())) if isinstance(value, TensorVariable)]
    if not any(is_unknown(size) for value in tensors for size in example(value).shape):
        return None
    return variable(tx, _INSIDE).call_function(tx, list(args), kwargs)


def _linspace(
    tx: Any,
    start: Any = None,
    end: Any = None,
    steps: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    **rest: Any,
) -> Any:
    steps = _counted(tx, steps)
    if rest or not isinstance(steps, SymNodeVariable) or not is_unknown(steps.sym_num):
        return None
    ends = [_realized(value) for value in (start, end)]
    if not all(map(_is_number, ends)):
        return None
    dtype = None if dtype is None else _realized(dtype).as_python_constant()
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        return None
    device = constant(None) if device is None else device
    return variable(tx, _line).call_function(tx, [*ends, steps, variable(tx, dtype), device], {})


def _counted(tx: Any, steps: Any) -> Any:
    """How many steps; of a tensor, the number that it holds."""
    steps = _realized(steps)
    number = isinstance(steps, TensorVariable) and not example(steps).dim() and not example(steps).is_floating_point()
    return steps.call_method(tx, "item", [], {}) if number else steps


def _is_number(value: Any) -> bool:
    if isinstance(value, TensorVariable):
        return not example(value).dim() and not example(value).requires_grad
    if isinstance(value, SymNodeVariable):
        return not isinstance(value.sym_num, torch.SymBool)
    return value is not None and value.is_python_constant() and isinstance(value.as_python_constant(), (int, float))


def _realized(value: Any) -> Any:
    return None if value is None else value.realize()


def _attention(
    tx: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = None,
    is_causal: Any = None,
    *,
    scale: Any = None,
    enable_gqa: Any = None,
) -> Any:
    tensors = [t.realize() for t in (query, key, value)]
    if not all(isinstance(t, TensorVariable) for t in tensors):
        return None
    if not any(is_unknown(s) for t in tensors for s in example(t).shape):
        return None
    rest = [v.realize() if v is not None else None for v in (attn_mask, dropout_p, is_causal, scale, enable_gqa)]
    if not all(v is None or v.is_python_constant() for v in rest):
        return None  # a mask
    mask, dropout, causal, factor, grouped = (None if v is None else v.as_python_constant() for v in rest)
    if mask is not None:
        return None
    tensors = [_as_autocast_has_it(tx, t) for t in tensors]
    args = (*(t.as_proxy() for t in tensors), None, dropout or 0.0, bool(causal), factor, bool(grouped))
    return emit(tx, markers.ATTENTION, *args)


def _as_autocast_has_it(tx: Any, tensor: Any) -> Any:
    """Under autocast attention runs in its dtype; the op that stands in for it is nothing that autocast knows."""
    fake = example(tensor)
    if not torch.is_autocast_enabled(fake.device.type) or not fake.is_floating_point() or fake.dtype is torch.float64:
        return tensor
    wanted = torch.get_autocast_dtype(fake.device.type)
    return tensor if fake.dtype is wanted else emit(tx, "to", tensor.as_proxy(), wanted, method=True)


def _along_dim(tx: Any, fn: Any, input: Any = None, dim: Any = None, keepdim: Any = None, **kwargs: Any) -> Any:
    value = example(input.realize()) if input is not None and isinstance(input.realize(), TensorVariable) else None
    if value is None or dim is None or kwargs or not any(is_unknown(s) for s in value.shape):
        return None
    try:
        dims = dim.realize().as_python_constant()
        kept = keepdim is not None and keepdim.realize().as_python_constant()
    except NotImplementedError:
        return None
    x = input.realize().as_proxy()
    if fn is torch.logsumexp:
        args = (x, [dims] if isinstance(dims, int) else list(dims), kept)
        return emit(tx, _OPS[fn], *args)
    if not isinstance(dims, int):
        return None
    # A named tuple, as torch's own returns.
    return traced(tx, getattr(torch.return_types, fn.__name__), emit(tx, _OPS[fn], x, dims))
