"""``window_mask`` (internal): which slots lie inside their document's window.

    out[:] = False
    for start, stop in pairwise(cu_seqlens):
        out[start + front : max(stop - back, start + front)] = True

Passes insert it for loops that write a part of every document, such as ``y[start:stop - 1] = x[start + 1:stop]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._blocks import per_block, row_of
from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._geometry import (
    BLOCK,
    SHORT,
    around_ends,
    ends_of,
    indices_in,
    is_between,
    long_enough_for_blocks,
    near_boundaries,
    touched_blocks,
    unguarded_blocks,
    write,
)
from packpass.ops._library import define

# Of whole documents only the ends of the row are asked for. Up to this many slots that is as fast slot by slot as by
# blocks, and half of the C++ to compile; a row of 262,144 takes 1.3 times as long.
LONG = 32_768


def _kernel(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    last = cu_seqlens.shape[0] - 1
    slots = torch.arange(total, device=cu_seqlens.device)
    inside = is_between(slots, *ends_of(cu_seqlens.long()))
    if front <= 0 and back <= 0:
        return inside
    passed = boundaries_passed(cu_seqlens, total)
    if front > 0:
        inside = inside & (slots >= cu_seqlens.index_select(0, (passed - 1).clamp(min=0)) + front)
    if back > 0:
        inside = inside & (slots < cu_seqlens.index_select(0, passed.clamp(max=last)) - back)
    return inside


def _cpu_kernel(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    out = torch.zeros(total, dtype=torch.bool)
    first, stop = int(cu_seqlens[0]), int(cu_seqlens[-1])
    out[first:stop] = True
    # A negative front or back reaches beyond the document, but a slot is only ever asked about its own document.
    front, back = max(front, 0), max(back, 0)
    if max(front, back) <= min(SHORT, total):
        if front:
            out.index_fill_(0, near_boundaries(cu_seqlens, total, front), False)
        if back:
            out.index_fill_(0, near_boundaries(cu_seqlens, total, -back), False)
        return out
    cu = cu_seqlens.long()
    starts, ends = cu[:-1], cu[1:]
    out.index_fill_(0, indices_in(starts, torch.minimum(starts + front, ends)), False)
    out.index_fill_(0, indices_in(torch.maximum(ends - back, starts), ends), False)
    return out


def _fake(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    return cu_seqlens.new_empty((total,), dtype=torch.bool)


def _decomposition(cu_seqlens: Tensor, total: int, front: int, back: int) -> Tensor:
    front, back = max(front, 0), max(back, 0)
    least = 0 if front or back else LONG
    if cu_seqlens.device.type == "cpu" and max(front, back) <= SHORT and long_enough_for_blocks(total, least):
        return _patch_form(cu_seqlens.long(), total, front, back)
    return _kernel(cu_seqlens, total, front, back)


def _patch_form(cu: Tensor, total: int, front: int, back: int) -> Tensor:
    """For generated C++: flags by blocks, corrected around both ends, then cleared near every boundary.

    The flags are int32 until the end: a vector of bool is slow to write and to read.
    """
    first, stop = ends_of(cu)
    with unguarded_blocks():
        count = (total - 2) // BLOCK  # leaves a rest of at least 2 slots, see shift_between of packed_roll
        whole = count * BLOCK
        touched = touched_blocks(count, 0, first, stop).int()
        body = row_of(per_block(touched, cu.new_empty((count, BLOCK))))
        rest = torch.arange(total - whole, device=cu.device) + whole
        flags = torch.cat([body, is_between(rest, first, stop).int()])
    slots = around_ends(first, stop).clamp(0, total - 1)
    flags = write(flags, 0, slots, is_between(slots, first, stop).int())
    cleared = torch.zeros((), dtype=torch.int32, device=cu.device)
    # Boundaries without such a slot clear the outermost slot, which is clear in any case.
    if front:
        slots = cu + torch.arange(front, device=cu.device).unsqueeze(1)
        slots = torch.where(is_between(slots, first, stop), slots, first)
        flags = write(flags, 0, slots.clamp(0, total - 1), cleared)
    if back:
        slots = cu - 1 - torch.arange(back, device=cu.device).unsqueeze(1)
        slots = torch.where(is_between(slots, first, stop), slots, stop - 1)
        flags = write(flags, 0, slots.clamp(0, total - 1), cleared)
    return flags != 0


window_mask_op = define(
    "window_mask(Tensor cu_seqlens, SymInt total, int front, int back) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
