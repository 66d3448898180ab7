"""``segment_recurrence`` (internal): a first-order linear recurrence within each document; what scans' gradients are.

    out[:] = b
    for start, stop in pairwise(cu_seqlens):
        for p in range(start + 1, stop):
            out[p] = b[p] + a[p] * out[p - 1] if a[p] != 0 else b[p]
    # reverse: for p from stop - 2 down to start: out[p] = b[p] + a[p] * out[p + 1]

Where a is 0 what came before is forgotten, infinite or not. The backward is the recurrence in the other direction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define, differentiable
from packpass.ops._packed_roll import packed_roll_op
from packpass.ops._segment_geometry import HALVES, back, column, front, inside_along, reach
from packpass.ops._segment_native import FLOATS, run, shape_along


def _kernel(a: Tensor, b: Tensor, cu_seqlens: Tensor, dim: int, reverse: bool) -> Tensor:
    """Any device, no host read: stretches of doubling length, as the pairs (product of a, recurrence within)."""
    factors, rows = front(a, dim), front(b, dim)
    if b.dtype in HALVES:
        factors, rows = factors.float(), rows.float()
    total = rows.shape[0]
    distance = column(reach(cu_seqlens, total, reverse), rows)
    step = 1
    while step < total:
        late, early = slice(step, None), slice(None, -step)
        here, before = (early, late) if reverse else (late, early)
        joined = distance[here] >= step
        factor, forgotten = factors[here], factors[here] == 0
        added = torch.where(joined & ~forgotten, rows[here] + factor * rows[before], rows[here])
        product = torch.where(joined & ~forgotten, factor * factors[before], factor)
        rows, factors = (
            torch.cat([new, old[-step:]] if reverse else [old[:step], new])
            for new, old in ((added, rows), (product, factors))
        )
        step *= 2
    return back(rows.to(b.dtype), dim).clone()


def _cpu_kernel(a: Tensor, b: Tensor, cu_seqlens: Tensor, dim: int, reverse: bool) -> Tensor:
    if b.dtype is torch.float16:
        return _cpu_kernel(a.float(), b.float(), cu_seqlens, dim, reverse).half()
    if b.dtype in FLOATS:
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(b)
        if run(f"recurrence<{FLOATS[b.dtype]}>", a, b, out, cu_seqlens, shape_along(b, dim), reverse):
            return out
    return _kernel(a, b, cu_seqlens, dim, reverse)


def _fake(a: Tensor, b: Tensor, cu_seqlens: Tensor, dim: int, reverse: bool) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


segment_recurrence_op = define(
    "segment_recurrence(Tensor a, Tensor b, Tensor cu_seqlens, int dim, bool reverse) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, bool], output: Tensor) -> None:
    a, _, cu_seqlens, ctx.dim, ctx.reverse = inputs
    ctx.save_for_backward(a, output, cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    a, out, cu_seqlens = ctx.saved_tensors
    ahead = -1 if ctx.reverse else 1
    following = packed_roll_op(a, cu_seqlens, -ahead, ctx.dim, 0, None)
    grad_b = segment_recurrence_op(following, grad, cu_seqlens, ctx.dim, not ctx.reverse)
    before = packed_roll_op(out, cu_seqlens, ahead, ctx.dim, 0, None)
    grad_a = torch.where(inside_along(out, cu_seqlens, ctx.dim), grad_b * before, 0)
    return grad_a, grad_b, None, None, None


differentiable("segment_recurrence", _backward, _setup)
