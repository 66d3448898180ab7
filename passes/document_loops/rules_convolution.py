"""Convolutions over the slots of a document, as sums of shifted rows.

``conv1d(x[:, :, s:e], w, padding=K - 1, groups=C)[..., : e - s]``, ``conv1d(pad(x[:, :, s:e], (K - 1, 0)), w)`` and
those that reach both ways: each tap is a product with a row that is shifted within documents and 0 where they end. A
depthwise one that only reaches back is one pass over the row (`packpass.ops._document_taps`). Of one with a stride, or
with fewer slots than the document, every so many are picked (`spaced`).

Does not handle: dilation, groups of several channels, more than `_MOST` taps, results that are longer than the document
unless that is cut off again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.ops._document_taps import document_taps
from packpass.semantics import example
from packpass.semantics.bound_mixers import Convolution, convolution_of
from passes.document_loops.documents import cast
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import Machine, Padded, Segment
from passes.document_loops.op_names import label
from passes.document_loops.parts import Longer, own_length
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.spaced import spaced
from passes.document_loops.terms import Apply, Outside, Positions, Roll, Term
from passes.refused import Refused

_MOST = 16
"""Taps; every one of them is an op of its own where the convolution is not depthwise."""
_LOW = (torch.float16, torch.bfloat16)


@rule("conv1d")
def _conv1d(machine: Machine, node: fx.Node) -> Any:
    if all(isinstance(machine.value(a), Outside) for a in node.all_input_nodes):
        return outside_call(machine, node)
    parts = convolution_of(node)
    unknown = Refused("no-rule", f"this {label(node)} of the slots of a document has no rule", node)
    if parts is None:
        raise unknown
    value, left, right = machine.value(parts.input), parts.padding, parts.padding
    if isinstance(value, Padded):
        if value.fill != 0:
            raise unknown
        left, right, value = left + value.left, right + value.right, value.segment
    weight = machine.value(parts.weight)
    bias = None if parts.bias is None else machine.value(parts.bias)
    if not isinstance(value, Segment) or value.window != FULL or not value.store.exact or value.dim != -1:
        raise unknown
    if not isinstance(weight, Outside) or not isinstance(bias, (Outside, type(None))):
        raise unknown
    taps = machine.fake(weight).shape[-1]
    channels = example(parts.input).shape[-2]
    sized = all(isinstance(n, int) for n in (*machine.fake(weight).shape, channels))
    beyond = left + right - (taps - 1) if sized else 0
    if not sized or taps > _MOST or beyond > right or min(left, right) < 0 or (parts.stride > 1 and beyond > 0):
        raise unknown
    term = machine.read(value, node)
    if example(node).requires_grad:  # a gradient of 0 times the NaN of a slot that nobody asked for
        term = machine.guard(term, FULL, -1)
    made = _summed(machine, node, parts, term, weight, bias, left, channels)
    segment = machine.fresh(made, value.rank)
    if parts.stride == 1 and beyond >= 0:
        return Longer(segment, beyond) if beyond else segment
    message = "packpass: a document has fewer slots than the window of a convolution"
    machine.require(own_length(machine), "ge", Affine.of(1 - beyond), message)
    return spaced(machine, node, segment, 0, parts.stride, missing=-beyond)


def _summed(
    machine: Machine, node: fx.Node, parts: Convolution, term: Term, weight: Outside, bias: Outside | None, left: int,
    channels: int,
) -> Term:  # fmt: skip
    """[..., out channels, T]: the first tap reaches ``left`` slots back."""
    fake, dtype = machine.fake(weight), example(node).dtype
    taps = fake.shape[-1]
    depthwise = parts.groups == channels == fake.shape[0] and fake.shape[1] == 1
    if depthwise and left >= taps - 1:
        positions = machine.intern(Positions(True, 0, torch.int64, example(node).device))
        args = (term, weight, bias, positions, left, dtype)
        done: Term = machine.intern(Apply(document_taps, False, args, (), -1))
        return done
    if not depthwise and parts.groups != 1:
        raise Refused("no-rule", f"{label(node)} in groups of several channels has no rule", node)
    wide = torch.float32 if dtype in _LOW else dtype
    row = cast(machine, term, example(parts.input).dtype, wide)
    total: Any = None
    for tap in range(taps):
        moved = row if tap == left else machine.intern(Roll(row, left - tap, 0, -1))
        tapped = machine.computed(("select", True, (weight, -1, tap), ()), fake.select(-1, tap))
        own = machine.computed(("to", True, (tapped, wide), ()), fake.select(-1, tap).to(wide))
        if depthwise:
            part = machine.intern(Apply(torch.mul, False, (moved, own), (), -1))
        else:
            part = machine.intern(Apply(torch.matmul, False, (own, moved), (), -1))
        total = part if total is None else machine.intern(Apply(torch.add, False, (total, part), (), -1))
    if bias is not None:
        fake_bias = machine.fake(bias)
        column = machine.computed(("unsqueeze", True, (bias, -1), ()), fake_bias.unsqueeze(-1))
        total = machine.intern(Apply(torch.add, False, (total, column), (), -1))
    return cast(machine, total, wide, dtype)
