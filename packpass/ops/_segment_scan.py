"""``segment_scan`` (internal): running values within each document.

    out[:] = x
    for start, stop in pairwise(cu_seqlens):
        out[start:stop] = x[start:stop].cumsum(0)    # or cumprod, cummax, cummin, logcumsumexp
    # reverse: from the document's end, that is x[start:stop].flip(0).cumsum(0).flip(0)

A maximum's gradient goes to the last of equal ones, as with torch's cummax. All gradients are recurrences within the
document, so none overflows where the scan did not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define, differentiable
from packpass.ops._monoids import SCANS
from packpass.ops._packed_roll import packed_roll_op
from packpass.ops._segment_geometry import HALVES, back, column, front, inside_along, reach
from packpass.ops._segment_native import FLOATS, TYPES, run, shape_along
from packpass.ops._segment_recurrence import segment_recurrence_op

OF_BOOLS = {"sum": "max", "prod": "min"}


def _kernel(x: Tensor, cu_seqlens: Tensor, op: str, dim: int, reverse: bool = False) -> Tensor:
    """Any device, no host read: every slot takes in twice as many neighbours in each of log2(T) steps."""
    rows = front(x, dim)
    rows = rows.float() if x.dtype in HALVES else rows
    total = rows.shape[0]
    distance = column(reach(cu_seqlens, total, reverse), rows)
    step, combine = 1, SCANS[op].combine
    while step < total:
        early, late = rows[:-step], rows[step:]
        if reverse:
            new = torch.where(distance[:-step] >= step, combine(late, early), early)
            rows = torch.cat([new, rows[-step:]])
        else:
            new = torch.where(distance[step:] >= step, combine(early, late), late)
            rows = torch.cat([rows[:step], new])
        step *= 2
    return back(rows.to(x.dtype), dim).clone()


def _cpu_kernel(x: Tensor, cu_seqlens: Tensor, op: str, dim: int, reverse: bool = False) -> Tensor:
    if x.dtype is torch.float16:
        return _cpu_kernel(x.float(), cu_seqlens, op, dim, reverse).half()
    if x.dtype in (FLOATS if op == "logsumexp" else TYPES):
        x = x.contiguous()
        out = torch.empty_like(x)
        function = SCANS[OF_BOOLS.get(op, op) if x.dtype is torch.bool else op].functor
        if run(f"scan<{function}, {TYPES[x.dtype]}>", x, None, out, cu_seqlens, shape_along(x, dim), reverse):
            return out
    return _kernel(x, cu_seqlens, op, dim, reverse)


def _fake(x: Tensor, cu_seqlens: Tensor, op: str, dim: int, reverse: bool = False) -> Tensor:
    if op not in SCANS:
        raise ValueError(f"op must be one of {', '.join(SCANS)}, got {op!r}")
    if x.is_complex() and op != "sum":
        raise TypeError(f"segment_scan of complex numbers can only sum, got {op!r}")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


segment_scan_op = define(
    "segment_scan(Tensor x, Tensor cu_seqlens, str op, int dim, bool reverse=False) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, str, int, bool], output: Tensor) -> None:
    x, cu_seqlens, ctx.op, ctx.dim, ctx.reverse = inputs
    ctx.save_for_backward(cu_seqlens, *(() if ctx.op == "sum" else (x, output)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    cu_seqlens, *saved = ctx.saved_tensors
    if ctx.op == "sum":
        result = segment_scan_op(grad, cu_seqlens, "sum", ctx.dim, not ctx.reverse)
    else:
        x, out = saved
        result = _gradient(grad, x, out, cu_seqlens, ctx.op, ctx.dim, ctx.reverse)
    return result, None, None, None, None


def _gradient(grad: Tensor, x: Tensor, out: Tensor, cu_seqlens: Tensor, op: str, dim: int, reverse: bool) -> Tensor:
    """``share[k] * later[k]`` with ``later[k] = grad[k] + keep[k] * later[k + 1]``: what came of slot k's own value."""

    def before(values: Tensor, fill: float) -> Tensor:
        rolled: Tensor = packed_roll_op(values, cu_seqlens, -1 if reverse else 1, dim, fill, None)
        return rolled

    def after(values: Tensor, fill: float) -> Tensor:
        rolled: Tensor = packed_roll_op(values, cu_seqlens, 1 if reverse else -1, dim, fill, None)
        return rolled

    def later(keep: Tensor) -> Tensor:
        summed: Tensor = segment_recurrence_op(keep, grad, cu_seqlens, dim, not reverse)
        return summed

    if op in ("max", "min"):
        # A slot that sets a new maximum gets the gradients of all slots up to the next one.
        best = before(out, float("-inf") if op == "max" else float("inf"))
        record = x.isnan() | ((x >= best) if op == "max" else (x <= best))
        return torch.where(record, later(after((~record).to(grad.dtype), 0)), 0)
    inside = inside_along(x, cu_seqlens, dim)
    if op == "prod":
        # out[p] / x[k] without dividing: the product of what came before k, times what came between k and p.
        return torch.where(inside, before(out, 1) * later(after(x, 0)), grad)
    shrunk = torch.where(out == after(out, 0), 1, (out - after(out, 0)).exp())  # also where both are infinite
    share = torch.where(out == float("-inf"), 0, (x - out).exp())
    return torch.where(inside, share * later(shrunk), grad)


differentiable("segment_scan", _backward, _setup)
