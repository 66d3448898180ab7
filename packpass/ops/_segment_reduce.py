"""``segment_reduce`` (internal): one value per document.

    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        out[d] = x[start:stop].sum(0)        # or prod, amax, amin; an empty document gives 0, 1, -inf, inf

The result is a per-document tensor, see `_segment_geometry`.

"max" and "min" are amax and amin of a document's ``x.max()``, over everything: where there is a NaN, its gradient is
shared between the NaNs, and not NaN for all slots.

Gradients are those of torch's reductions: a maximum shares its gradient evenly between ties; a product's is the product
of the others, exact with zeros among them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define, differentiable
from packpass.ops._monoids import OF_EVERYTHING, REDUCTIONS, reduction
from packpass.ops._segment_geometry import HALVES, column, front, inside_along, slots_of
from packpass.ops._segment_native import TYPES, run, shape_along

OF_BOOLS = {"sum": "amax", "prod": "amin"}


def kernel(x: Tensor, cu_seqlens: Tensor, reduce: str, dim: int) -> Tensor:
    """Any device, no host read."""
    rows = front(x, dim)
    if x.is_complex():
        return torch.view_as_complex(kernel(torch.view_as_real(rows), cu_seqlens, reduce, 0))
    if not x.is_floating_point():
        return _integers(rows, cu_seqlens, reduce)
    cu = cu_seqlens.long()
    out = torch.segment_reduce(
        rows.float() if x.dtype in HALVES else rows,
        reduction(reduce).scan,
        offsets=torch.cat([cu, cu[-1:]]),
        axis=0,
        unsafe=True,
        initial=reduction(reduce).identity(x.dtype),
    )
    return out.to(x.dtype)


def _integers(rows: Tensor, cu_seqlens: Tensor, reduce: str) -> Tensor:
    """Scattered: the order, which is not defined, does not matter to integers."""
    if rows.dtype is torch.bool:
        return _integers(rows.to(torch.uint8), cu_seqlens, OF_BOOLS.get(reduce, reduce)).bool()
    slots = slots_of(cu_seqlens, rows.shape[0])
    reduce = OF_EVERYTHING.get(reduce, reduce)
    identity = REDUCTIONS[reduce].identity(rows.dtype)
    out = torch.full([cu_seqlens.shape[0] + 1, *rows.shape[1:]], identity, dtype=rows.dtype, device=rows.device)
    # Slots of the tail land in the entry behind all others, which is cut off.
    entry = torch.where(slots.inside, slots.entry, cu_seqlens.shape[0])
    out.scatter_reduce_(0, column(entry, rows).expand_as(rows), rows, reduce)
    return out[:-1].clone()


def cpu_kernel(x: Tensor, cu_seqlens: Tensor, reduce: str, dim: int) -> Tensor:
    if x.dtype is torch.float16:
        return cpu_kernel(x.float(), cu_seqlens, reduce, dim).half()
    if x.dtype in TYPES:
        x = x.contiguous()
        out = _fake(x, cu_seqlens, reduce, dim)
        function = reduction(OF_BOOLS.get(reduce, reduce) if x.dtype is torch.bool else reduce).functor
        if run(f"reduce<{function}, {TYPES[x.dtype]}>", x, None, out, cu_seqlens, shape_along(x, dim)):
            return out
    return kernel(x, cu_seqlens, reduce, dim)


def _fake(x: Tensor, cu_seqlens: Tensor, reduce: str, dim: int) -> Tensor:
    if reduce not in (*REDUCTIONS, *OF_EVERYTHING):
        raise ValueError(f"reduce must be one of {', '.join((*REDUCTIONS, *OF_EVERYTHING))}, got {reduce!r}")
    if x.is_complex() and reduce != "sum":
        raise TypeError(f"segment_reduce of complex numbers can only sum, got {reduce!r}")
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty([cu_seqlens.shape[0], *shape])


segment_reduce_op = define(
    "segment_reduce(Tensor x, Tensor cu_seqlens, str reduce, int dim) -> Tensor",
    fake=_fake,
    kernel=kernel,
    cpu_kernel=cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, str, int], output: Tensor) -> None:
    x, cu_seqlens, ctx.reduce, ctx.dim = inputs
    ctx.total = x.shape[ctx.dim]
    ctx.save_for_backward(cu_seqlens, *(() if ctx.reduce == "sum" else (x, output)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    cu_seqlens, *saved = ctx.saved_tensors
    # Looked up by name: these ops use this one in their own backwards.
    ops = torch.ops.packpass

    def spread(values: Tensor) -> Tensor:
        return ops.segment_spread.default(values, cu_seqlens, ctx.total).movedim(0, ctx.dim)

    if ctx.reduce == "sum":
        return spread(grad), None, None, None
    x, out = saved
    if ctx.reduce == "prod":
        before, after = (
            ops.packed_roll.default(
                ops.segment_scan.default(x, cu_seqlens, "prod", ctx.dim, reverse), cu_seqlens, shift, ctx.dim, 1, None
            )
            for reverse, shift in ((False, 1), (True, -1))
        )
        inside = inside_along(x, cu_seqlens, ctx.dim)
        return torch.where(inside, spread(grad) * before * after, 0), None, None, None
    best = spread(out)
    chosen = x == best
    if ctx.reduce in OF_EVERYTHING:
        chosen = chosen | (x.isnan() & best.isnan())
    ties = segment_reduce_op(chosen.to(torch.int32), cu_seqlens, "sum", ctx.dim)
    # No tie at all: an empty document, which has no slots, or a NaN, whose gradient is NaN as with torch.amax.
    ties = torch.where(ties == 0, torch.where(out.isnan(), 0, 1), ties)
    return chosen * spread(grad / ties), None, None, None


differentiable("segment_reduce", _backward, _setup)
