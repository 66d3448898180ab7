"""``segment_take`` (internal): one slot of every document, given by its position.

    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        p = positions[d] if positions[d] >= 0 else stop - start + positions[d]
        out[d] = x[start + p] if 0 <= p < stop - start else 0

``positions`` is a per-document tensor, see `_segment_geometry`: ``[N+1]``, or ``[N+1, *rest]`` with one position for
every column of ``x`` (rest: the dimensions of ``x`` without ``dim``). The backward, ``segment_put``, writes every slot
at most once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import back, column, documents_of


def _slots(cu_seqlens: Tensor, positions: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The slot of every position (int64) and whether it lies in its document, of rank 1 or ``rank``."""
    starts, ends = documents_of(cu_seqlens)
    if positions.dim() == rank:
        starts, ends = column(starts, positions), column(ends, positions)
    slots = torch.where(positions < 0, ends, starts) + positions
    return slots, (slots >= starts) & (slots < ends)


def _kernel(x: Tensor, cu_seqlens: Tensor, positions: Tensor, dim: int) -> Tensor:
    rows = x.movedim(dim, 0)
    if guard_or_false(rows.shape[0] == 0):
        return rows.new_zeros([cu_seqlens.shape[0], *rows.shape[1:]])
    slots, inside = _slots(cu_seqlens, positions, rows.dim())
    slots = slots.clamp(0, rows.shape[0] - 1)
    if positions.dim() == 1:
        taken, inside = rows.index_select(0, slots), column(inside, rows)
    else:
        taken = rows.gather(0, slots)
    return torch.where(inside, taken, torch.zeros((), dtype=x.dtype, device=x.device))


def _fake(x: Tensor, cu_seqlens: Tensor, positions: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty([cu_seqlens.shape[0], *shape])


segment_take_op = define(
    "segment_take(Tensor x, Tensor cu_seqlens, Tensor positions, int dim) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)


def _put_kernel(values: Tensor, cu_seqlens: Tensor, positions: Tensor, dim: int, total: int) -> Tensor:
    """``out[..., slot of positions[d], ...] = values[d]``, 0 elsewhere."""
    slots, inside = _slots(cu_seqlens, positions, values.dim())
    # What lies in no document goes to a slot behind the row, which is cut off.
    slots = torch.where(inside, slots, total).clamp(max=total)
    rows = values.new_zeros([total + 1, *values.shape[1:]])
    if positions.dim() == 1:
        rows.index_copy_(0, slots, values)
    else:
        rows.scatter_(0, slots, values)
    return back(rows[:-1], dim)


def _put_fake(values: Tensor, cu_seqlens: Tensor, positions: Tensor, dim: int, total: int) -> Tensor:
    shape = list(values.shape[1:])
    shape.insert(dim % values.dim(), total)
    return values.new_empty(shape)


segment_put_op = define(
    "segment_put(Tensor values, Tensor cu_seqlens, Tensor positions, int dim, SymInt total) -> Tensor",
    fake=_put_fake,
    kernel=_put_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    x, cu_seqlens, positions, ctx.dim = inputs
    ctx.total = x.shape[ctx.dim]
    ctx.save_for_backward(cu_seqlens, positions)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    cu_seqlens, positions = ctx.saved_tensors
    return segment_put_op(grad, cu_seqlens, positions, ctx.dim, ctx.total), None, None, None


def _put_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor) -> None:
    _, cu_seqlens, positions, ctx.dim, _ = inputs
    ctx.save_for_backward(cu_seqlens, positions)


def _put_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    cu_seqlens, positions = ctx.saved_tensors
    return segment_take_op(grad, cu_seqlens, positions, ctx.dim), None, None, None, None


differentiable("segment_take", _backward, _setup)
differentiable("segment_put", _put_backward, _put_setup)
