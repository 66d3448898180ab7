"""The eager kernels of ``packed_roll``, and its shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._arguments import Scalar
from packpass.ops._bits import PLAIN, as_bits, fill_bits
from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._geometry import SHORT, along, indices_in, near_boundaries, take


def gather_kernel(
    x: Tensor, cu_seqlens: Tensor, shift: int, dim: int, fill: Scalar | None, cu_seqlens_padded: Tensor | None = None
) -> Tensor:
    """Device-independent form: one binary search and one gather per slot, no host read."""
    source, filled = sources(cu_seqlens, x.shape[dim], shift, fill is None, cu_seqlens_padded)
    rolled = as_bits(x.contiguous()).index_select(dim, source)
    if filled is None or fill is None:
        return rolled.view(x.dtype)
    return torch.where(along(filled, x.dim(), dim % x.dim()), fill_bits(fill, x.dtype, x.device), rolled).view(x.dtype)


def sources(
    cu_seqlens: Tensor, total: int, shift: int, around: bool, cu_seqlens_padded: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Where every slot has its value from (int64 [total], within the row), and whether it gets the fill instead.

    Args:
        around: documents are turned around, so that nothing is filled.
    """
    begin = cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded
    passed = boundaries_passed(begin, total)
    last = begin.shape[0] - 1
    in_document = (passed > 0) & (passed <= last)
    document, following = (passed - 1).clamp(min=0), passed.clamp(max=last)
    start = begin.index_select(0, document)
    stop = start + cu_seqlens.index_select(0, following) - cu_seqlens.index_select(0, document)
    slots = torch.arange(total, device=begin.device)  # int64: int32 would overflow by a huge shift
    wanted = slots - shift
    if around:
        wrapped = start + (wanted - start) % (stop - start).clamp(min=1)
        source = torch.where(in_document & (slots < stop), wrapped, slots)
        return source.clamp(0, max(total - 1, 0)), None
    missing = (wanted < start) | (wanted >= stop) | (slots >= stop)
    source = torch.where(in_document, wanted.clamp(0, max(total - 1, 0)), slots)
    return source, in_document & missing


def cpu_kernel(
    x: Tensor, cu_seqlens: Tensor, shift: int, dim: int, fill: Scalar | None, cu_seqlens_padded: Tensor | None = None
) -> Tensor:
    """For host memory: one contiguous copy of the whole row, then a patch of the slots that cross a boundary."""
    if x.dtype not in PLAIN:
        bits = None if fill is None else fill_bits(fill, x.dtype, x.device).item()
        return cpu_kernel(as_bits(x), cu_seqlens, shift, dim, bits, cu_seqlens_padded).view(x.dtype)
    dim = dim % x.dim()
    total = x.shape[dim]
    x = x.contiguous()
    reach = min(abs(shift), total)
    # What this moves around the end of the row lands within reach of the row's other end: in the patch, or in the tail.
    out = torch.roll(x, -reach if shift < 0 else reach, dim)
    begin = cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded
    if fill is not None and cu_seqlens_padded is None and 0 < reach <= SHORT:
        out.index_fill_(dim, near_boundaries(cu_seqlens, total, -reach if shift < 0 else reach), fill)
    else:
        _patch(out, x, cu_seqlens.long(), shift, dim, fill, None if cu_seqlens_padded is None else begin.long())
    first, stop = int(begin[0]), int(begin[-1])
    if first > 0:
        out.narrow(dim, 0, first).copy_(x.narrow(dim, 0, first))
    if stop < total:
        out.narrow(dim, stop, total - stop).copy_(x.narrow(dim, stop, total - stop))
    return out


def _patch(
    out: Tensor, x: Tensor, cu: Tensor, shift: int, dim: int, fill: Scalar | None, cu_padded: Tensor | None
) -> None:
    """Write every slot of a document whose source lies outside of it, and every slot that only pads."""
    begin = cu if cu_padded is None else cu_padded
    start, slot_end = begin[:-1], begin[1:]
    stop = slot_end if cu_padded is None else start + cu.diff()
    reach = min(abs(shift), x.shape[dim])
    if shift < 0:
        crossing = indices_in(torch.maximum(stop - reach, start), stop)
    else:
        crossing = indices_in(start, torch.minimum(start + reach, stop))
    if fill is None:
        document = torch.bucketize(crossing, begin, right=True) - 1
        first = start.index_select(0, document)
        length = (stop - start).index_select(0, document)
        source = first + (crossing - shift - first) % length
        out.index_copy_(dim, crossing, take(x, dim, source))
    else:
        out.index_fill_(dim, crossing, fill)
    if cu_padded is not None:
        padding = indices_in(stop, slot_end)
        if fill is None:
            out.index_copy_(dim, padding, take(x, dim, padding))
        else:
            out.index_fill_(dim, padding, fill)


def fake(
    x: Tensor, cu_seqlens: Tensor, shift: int, dim: int, fill: Scalar | None, cu_seqlens_padded: Tensor | None = None
) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
