"""Forms of operations that ask no size when they run for a batch of samples at once (``torch.func.vmap``).

torch's own batching rules of these operations read sizes as numbers, which makes a compiled graph good for one number
of documents of one length. Each form computes the same, from operations whose rules do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from packpass.semantics.call import call_of

Form = Callable[..., Any]


def form_of(node: fx.Node) -> tuple[Form, dict[str, Any]] | None:
    """``(function, keywords)`` that computes what the node does; None where torch's own rule asks no size."""
    call = call_of(node)
    form = _FORMS.get(call.op) if call is not None else None
    if call is None or form is None or call.in_place:
        return None
    arguments = dict(call.arguments)
    if "input" in arguments:
        arguments["x"] = arguments.pop("input")
    accepted = form.__code__.co_varnames[: form.__code__.co_argcount]
    if set(arguments) - set(accepted):
        return None
    return form, arguments


def counted_form_of(node: fx.Node) -> tuple[Form, dict[str, Any]] | None:
    """The same for an operation that divides by the number of slots: the function also takes ``row``, an axis, and
    ``count``, how many slots of it are there; behind them are zeros. None for one that has no such form."""
    call = call_of(node)
    form = _COUNTED.get(call.op) if call is not None else None
    if call is None or form is None or call.in_place:
        return None
    arguments = dict(call.arguments)
    arguments["x"] = arguments.pop("input", None)
    accepted = form.__code__.co_varnames[: form.__code__.co_argcount]
    return None if set(arguments) - set(accepted) else (form, arguments)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None, row: int = 0, count: Any = 1) -> Tensor:
    """A sum that is divided by the slots that there are."""
    dims = range(x.dim()) if dim is None else [d % x.dim() for d in (dim if isinstance(dim, (tuple, list)) else [dim])]
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    total = x.sum(list(dims), keepdim=keepdim, dtype=wide)
    others = math.prod(x.shape[d] for d in dims if d != row)
    return (total / (others * count)).to(dtype or x.dtype)


def _placed(x: Tensor, size: Any, dim: int, before: Any, fill: float) -> Tensor:
    """``x`` from slot ``before`` on of an axis of that size, ``fill`` elsewhere."""
    shape = [*x.shape[:dim], size, *x.shape[dim + 1 :]]
    out = x.new_full(shape, fill)
    out.narrow(dim, before, x.shape[dim]).copy_(x)
    return out


def _pad(x: Tensor, pad: Sequence[Any], mode: str = "constant", value: Any = None) -> Tensor:
    if mode != "constant":
        return torch.nn.functional.pad(x, list(pad), mode, value)
    for i in range(len(pad) // 2):
        before, after = pad[2 * i], pad[2 * i + 1]
        dim = x.dim() - 1 - i
        cut = [-n if isinstance(n, int) and n < 0 else 0 for n in (before, after)]
        if any(cut):
            x = x.narrow(dim, cut[0], x.shape[dim] - cut[0] - cut[1])
        before, after = (0 if c else n for c, n in zip(cut, (before, after), strict=True))
        if not (isinstance(before, int) and isinstance(after, int) and before == after == 0):
            x = _placed(x, x.shape[dim] + before + after, dim, before, value or 0)
    return x


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [t for t in tensors if t.dim() != 1 or not isinstance(t.shape[0], int) or t.shape[0]]
    if len(kept) < 2:
        return kept[0].clone() if kept else tensors[0].clone()
    dtype = kept[0].dtype
    for t in kept[1:]:
        dtype = torch.promote_types(dtype, t.dtype)
    dim, total = dim % kept[0].dim(), sum(t.shape[dim] for t in kept)
    # Memory of the batch, whichever of the pieces belongs to it.
    anchor = sum((t.new_zeros((), dtype=dtype) for t in kept[1:]), kept[0].new_zeros((), dtype=dtype))
    shape = [*kept[0].shape[:dim], total, *kept[0].shape[dim + 1 :]]
    out, at = anchor.expand(shape).clone(memory_format=torch.contiguous_format), 0
    for t in kept:
        out.narrow(dim, at, t.shape[dim]).copy_(t)
        at = at + t.shape[dim]
    return out


def _convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A sum over the taps of the kernel, each a product with a shifted row."""
    stride, dilation = (s[0] if isinstance(s, (tuple, list)) else s for s in (stride, dilation))
    padding = padding[0] if isinstance(padding, (tuple, list)) else padding
    width = weight.shape[-1]
    span = dilation * (width - 1)
    if isinstance(padding, str):
        before = span // 2 if padding == "same" else 0
        after = span - before if padding == "same" else 0
    else:
        before = after = padding
    x = _pad(x, (before, after))
    steps = (x.shape[-1] - span - 1) // stride + 1
    out: Any = None
    for tap in range(width):
        piece = x.narrow(-1, tap * dilation, x.shape[-1] - span)
        piece = piece[..., ::stride] if stride != 1 else piece
        part = _tap(piece, weight[..., tap], groups)
        out = part if out is None else out + part
    assert out.shape[-1] is not None and steps is not None
    return out if bias is None else out + bias.unsqueeze(-1)


def _tap(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``x [..., C, T]`` by ``weight [O, C / groups]``."""
    channels = x.shape[-2]
    if groups == channels == weight.shape[0]:
        return x * weight
    if groups == 1:
        return weight @ x
    grouped = x.unflatten(-2, (groups, channels // groups))
    return (weight.unflatten(0, (groups, weight.shape[0] // groups)) @ grouped).flatten(-3, -2)


def _normalised(
    x: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    centred = wide - wide.mean(dims, keepdim=True)
    out = (centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)).to(x.dtype)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as its definition has it."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        i = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        scores = scores.masked_fill(torch.arange(key.shape[-2], device=query.device) > i, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype is torch.bool else scores + attn_mask
    weights = torch.softmax(scores, -1)
    return torch.dropout(weights, dropout_p, True) @ value if dropout_p else weights @ value


_COUNTED: dict[str, Form] = {"mean": _mean}
_FORMS: dict[str, Form] = {
    "pad": _pad,
    "constant_pad_nd": _pad,
    "cat": _cat,
    "conv1d": _convolved,
    "layer_norm": _normalised,
    "scaled_dot_product_attention": _attended,
}
