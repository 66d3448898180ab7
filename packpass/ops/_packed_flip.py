"""``packed_flip`` (internal): every document reversed.

    out[:] = x
    for start, stop in pairwise(cu_seqlens):
        out[start:stop] = flip(x[start:stop])

Its backward is itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._bits import as_bits
from packpass.ops._boundaries_passed import boundaries_passed, stretch_edges
from packpass.ops._geometry import previous, take
from packpass.ops._library import define, differentiable


def _mirror(cu_seqlens: Tensor, passed: Tensor, total: int) -> Tensor:
    """Source of every slot, int64 ``[total]``: ``start + stop - 1 - p`` inside a document, p itself in the tail."""
    cu = cu_seqlens.long()
    last = cu.shape[0] - 1
    ends = previous(cu) + cu - 1  # entry d + 1 is start + stop - 1 of document d
    slots = torch.arange(total, device=cu.device)
    inside = (passed > 0) & (passed <= last)
    return torch.where(inside, ends.index_select(0, passed.clamp(max=last)) - slots, slots)


def _kernel(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    total = x.shape[dim]
    source = _mirror(cu_seqlens, boundaries_passed(cu_seqlens, total), total)
    return as_bits(x.contiguous()).index_select(dim, source).view(x.dtype)


def _cpu_kernel(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    """For host memory: the sources written stretch by stretch instead of searched for."""
    total = x.shape[dim]
    edges = stretch_edges(cu_seqlens, total)
    source = torch.repeat_interleave(edges[:-1] + edges[1:] - 1, edges.diff(), output_size=total)
    slots = torch.arange(total)
    source.sub_(slots)
    for tail in (slice(0, int(edges[1])), slice(int(edges[-2]), total)):
        source[tail] = slots[tail]
    return take(as_bits(x.contiguous()), dim % x.dim(), source).view(x.dtype)


def _fake(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


packed_flip_op = define(
    "packed_flip(Tensor x, Tensor cu_seqlens, int dim) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_kernel,
)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, cu_seqlens, ctx.dim = inputs
    ctx.save_for_backward(cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return packed_flip_op(grad, cu_seqlens, ctx.dim), None, None


differentiable("packed_flip", _backward, _setup_context)
