"""``segment_softmax`` (internal): softmax over each document.

out[:] = x
for start, stop in pairwise(cu_seqlens):
    out[start:stop] = x[start:stop].softmax(0)    # log: log_softmax
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import HALVES, back, column, front, inside_along, slots_of, spread
from packpass.ops._segment_native import FLOATS, run, shape_along
from packpass.ops._segment_reduce import kernel as reduce_kernel
from packpass.ops._segment_reduce import segment_reduce_op
from packpass.ops._segment_spread import segment_spread_op


def _kernel(x: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    """Any device, no host read."""
    given = front(x, dim)
    rows = given.float() if x.dtype in HALVES else given
    slots = slots_of(cu_seqlens, rows.shape[0])
    shifted = rows - spread(reduce_kernel(rows, cu_seqlens, "amax", 0), slots)
    powers = shifted.exp()
    sums = spread(reduce_kernel(powers, cu_seqlens, "sum", 0), slots)
    out = shifted - sums.log() if log else powers / sums
    return back(torch.where(column(slots.inside, rows), out.to(x.dtype), given), dim)


def _cpu_kernel(x: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    if x.dtype is torch.float16:
        return _cpu_kernel(x.float(), cu_seqlens, dim, log).half()
    x = x.contiguous()
    out = _fake(x, cu_seqlens, dim, log)
    if run(f"softmax<{FLOATS[x.dtype]}>", x, None, out, cu_seqlens, shape_along(x, dim), log):
        return out
    return _kernel(x, cu_seqlens, dim, log)


def _fake(x: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"segment_softmax takes floating point numbers, got {x.dtype}")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


segment_softmax_op = define(
    "segment_softmax(Tensor x, Tensor cu_seqlens, int dim, bool log) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)


def _grad_kernel(grad: Tensor, out: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    """Any device, no host read."""
    given = front(grad, dim)
    rows, values = given, front(out, dim)
    if grad.dtype in HALVES:
        rows, values = rows.float(), values.float()
    slots = slots_of(cu_seqlens, rows.shape[0])
    if log:
        result = rows - values.exp() * spread(reduce_kernel(rows, cu_seqlens, "sum", 0), slots)
    else:
        weighted = rows * values
        result = weighted - values * spread(reduce_kernel(weighted, cu_seqlens, "sum", 0), slots)
    return back(torch.where(column(slots.inside, rows), result.to(grad.dtype), given), dim)


def _grad_cpu_kernel(grad: Tensor, out: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    if grad.dtype is torch.float16:
        return _grad_cpu_kernel(grad.float(), out.float(), cu_seqlens, dim, log).half()
    grad, out = grad.contiguous(), out.contiguous()
    result = torch.empty_like(grad)
    shape = shape_along(grad, dim)
    if run(f"softmax_backward<{FLOATS[grad.dtype]}>", grad, out, result, cu_seqlens, shape, log):
        return result
    return _grad_kernel(grad, out, cu_seqlens, dim, log)


def _grad_fake(grad: Tensor, out: Tensor, cu_seqlens: Tensor, dim: int, log: bool) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


segment_softmax_backward_op = define(
    "segment_softmax_backward(Tensor grad, Tensor out, Tensor cu_seqlens, int dim, bool log) -> Tensor",
    fake=_grad_fake,
    kernel=_grad_kernel,
    cpu_kernel=_grad_cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:
    _, cu_seqlens, ctx.dim, ctx.log = inputs
    ctx.save_for_backward(output, cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    out, cu_seqlens = ctx.saved_tensors
    return segment_softmax_backward_op(grad, out, cu_seqlens, ctx.dim, ctx.log), None, None, None


def _grad_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, bool], output: Tensor) -> None:
    grad, out, cu_seqlens, ctx.dim, ctx.log = inputs
    ctx.save_for_backward(grad, out, cu_seqlens)


def _grad_backward(ctx: Any, twice: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    """With v for ``twice``, g for grad and y for out, per document, and nothing for y in the tail:

    softmax: ``dg = y (v - sum(v y))``, ``dy = v (g - sum(g y)) - g sum(v y)``;
    log: ``dg = v - sum(v exp(y))``, ``dy = -v exp(y) sum(g)``.
    """
    grad, out, cu_seqlens = ctx.saved_tensors
    dim, total = ctx.dim, grad.shape[ctx.dim]

    def over_document(x: Tensor) -> Tensor:
        sums = segment_reduce_op(x, cu_seqlens, "sum", dim)
        return segment_spread_op(sums, cu_seqlens, total).movedim(0, dim)

    if ctx.log:
        powers = out.exp()
        grad_grad = twice - over_document(twice * powers)
        grad_out = -twice * powers * over_document(grad)
    else:
        grad_grad = segment_softmax_backward_op(twice, out, cu_seqlens, dim, False)
        grad_out = twice * (grad - over_document(grad * out)) - grad * over_document(twice * out)
    return grad_grad, torch.where(inside_along(out, cu_seqlens, dim), grad_out, 0), None, None, None


differentiable("segment_softmax", _backward, _setup)
differentiable("segment_softmax_backward", _grad_backward, _grad_setup)
