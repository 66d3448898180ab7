"""``window_mask`` (internal): which slots lie inside their document's window.

    out[:] = False
    for start, stop in pairwise(cu_seqlens):
        out[start + front : max(stop - back, start + front)] = True

Passes insert it for loops that write a part of every document, such as ``y[start:stop - 1] = x[start + 1:stop]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._geometry import indices_in
from packpass.ops._library import define


def _kernel(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    passed = boundaries_passed(cu_seqlens, total)
    last = cu_seqlens.shape[0] - 1
    start = cu_seqlens.index_select(0, (passed - 1).clamp(min=0))
    stop = cu_seqlens.index_select(0, passed.clamp(max=last))
    slots = torch.arange(total, device=cu_seqlens.device)
    inside = (passed > 0) & (passed <= last)
    return inside & (slots >= start + front) & (slots < stop - back)


def _cpu_kernel(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    cu = cu_seqlens.long()
    start, stop = cu[:-1], cu[1:]
    # A negative front or back reaches beyond the document, but a slot is only ever asked about its own document.
    first = torch.minimum(start + max(front, 0), stop)
    end = torch.maximum(stop - max(back, 0), first)
    out = torch.ones(total, dtype=torch.bool)
    out[: int(cu[0])] = False
    out[int(cu[-1]) :] = False
    for lead in (indices_in(start, first), indices_in(end, stop)):
        out.index_fill_(0, lead, False)
    return out


def _fake(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    return cu_seqlens.new_empty((total,), dtype=torch.bool)


window_mask_op = define(
    "window_mask(Tensor cu_seqlens, SymInt total, int front, int back) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_kernel,
)
