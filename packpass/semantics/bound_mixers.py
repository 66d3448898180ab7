"""Operations that mix the slots of one axis, by what they are given: attention and convolution, bound and named."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics.call import call_of


@dataclasses.dataclass(frozen=True)
class Attention:
    """A fused attention over ``query [..., L, D]``, ``key [..., S, D]`` and ``value [..., S, Dv]``."""

    query: fx.Node
    key: fx.Node
    value: fx.Node
    mask: fx.Node | None
    causal: bool
    dropout: float
    scale: Any
    grouped: bool
    """May several heads of the query share one of the key?"""


def attention_of(node: fx.Node) -> Attention | None:
    """The parts of a fused attention; None for any other call."""
    call = call_of(node)
    if call is None or call.op != "scaled_dot_product_attention":
        return None
    parts = [call.of(name) for name in ("query", "key", "value")]
    if any(part is None for part in parts):
        return None
    query, key, value = (part.node for part in parts if part is not None)
    mask = call.get("attn_mask")
    return Attention(
        query,
        key,
        value,
        mask if isinstance(mask, fx.Node) else None,
        bool(call.get("is_causal", default=False)),
        float(call.get("dropout_p", default=0.0) or 0.0),
        call.get("scale"),
        bool(call.get("enable_gqa", default=False)),
    )


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution over one axis: ``input [N, C, T]`` (or ``[C, T]``), ``weight [C, C / groups, K]``."""

    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    padding: int
    groups: int
    stride: int = 1


def convolution_of(node: fx.Node) -> Convolution | None:
    """A convolution over one axis with dilation 1, a known stride and a known padding; None for any other call."""
    call = call_of(node)
    if call is None or call.op != "conv1d":
        return None
    given, weight, bias = call.of("input"), call.of("weight"), call.of("bias")
    padding = _one(call.get("padding", default=0))
    stride, dense = _one(call.get("stride", default=1)), _one(call.get("dilation", default=1)) == 1
    if given is None or weight is None or not isinstance(padding, int) or not isinstance(stride, int) or not dense:
        return None
    groups = call.get("groups", default=1)
    bias_node = bias.node if bias is not None else None
    return Convolution(given.node, weight.node, bias_node, padding, groups, stride) if type(groups) is int else None


def _one(value: Any) -> Any:
    """A setting of one axis, which may be given in a list of one."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


@dataclasses.dataclass(frozen=True)
class Pad:
    """``x`` with ``before`` and ``after`` slots of ``fill`` along ``dim`` (>= 0)."""

    x: fx.Node
    dim: int
    before: Any
    after: Any
    fill: float


def pad_of(node: fx.Node) -> Pad | None:
    """A pad of one axis with one number; None for any other call."""
    call = call_of(node)
    if call is None or call.op not in ("pad", "constant_pad_nd") or call.get("mode", default="constant") != "constant":
        return None
    operand, widths = call.of("input"), call.get("pad")
    if operand is None or not isinstance(widths, (tuple, list)) or len(widths) % 2:
        return None
    pairs = [(i, widths[2 * i : 2 * i + 2]) for i in range(len(widths) // 2)]
    used = [(i, pair) for i, pair in pairs if any(not isinstance(n, int) or n for n in pair)]
    if len(used) != 1:
        return None
    (place, (before, after)), fill = used[0], call.get("value", default=0)
    return Pad(operand.node, operand.rank - 1 - place, before, after, float(fill or 0))


def shape_only(node: fx.Node) -> bool:
    """Does a node give a number or a shape rather than a tensor?"""
    return not isinstance(node.meta.get("example_value"), (torch.Tensor, tuple, list))
