"""``segment_argmax`` (internal): where each document's largest (smallest) value is, counted from its start.

    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        out[d] = x[start:stop].argmax(0) if start < stop else 0

The first of several equal ones, and the first NaN if there is any, as torch has it on the CPU. The result is a
per-document tensor, see `_segment_geometry`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._library import define
from packpass.ops._segment_geometry import column, documents_of, front, slots_of, spread
from packpass.ops._segment_native import TYPES, run, shape_along
from packpass.ops._segment_reduce import kernel as reduce_kernel


def _kernel(x: Tensor, cu_seqlens: Tensor, largest: bool, dim: int) -> Tensor:
    rows = front(x, dim)
    total = rows.shape[0]
    slots = slots_of(cu_seqlens, total)
    best = spread(reduce_kernel(rows, cu_seqlens, "amax" if largest else "amin", 0), slots)
    found = rows == best
    if rows.is_floating_point():
        found |= rows.isnan() & best.isnan()
    # The smallest slot among those found; `total` elsewhere.
    at = torch.where(found, column(torch.arange(total, device=x.device), rows), total)
    first = reduce_kernel(at, cu_seqlens, "amin", 0)
    starts, ends = documents_of(cu_seqlens)
    empty = column(ends <= starts, first)
    return torch.where(empty, 0, first - column(starts, first))


def _cpu_kernel(x: Tensor, cu_seqlens: Tensor, largest: bool, dim: int) -> Tensor:
    if x.dtype is torch.float16:
        return _cpu_kernel(x.float(), cu_seqlens, largest, dim)
    if x.dtype in TYPES:
        x = x.contiguous()
        out = _fake(x, cu_seqlens, largest, dim)
        function = f"argreduce<{'Max' if largest else 'Min'}, {TYPES[x.dtype]}>"
        if run(function, x, None, out, cu_seqlens, shape_along(x, dim)):
            return out
    return _kernel(x, cu_seqlens, largest, dim)


def _fake(x: Tensor, cu_seqlens: Tensor, largest: bool, dim: int) -> Tensor:
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty([cu_seqlens.shape[0], *shape], dtype=torch.int64)


segment_argmax_op = define(
    "segment_argmax(Tensor x, Tensor cu_seqlens, bool largest, int dim) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)
