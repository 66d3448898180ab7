"""``segment_pad`` (internal): the documents one below the other, padded to the longest.

    out[:] = fill                                        # [N, L, *rest], L the longest document's length
    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        out[d, : stop - start] = x[start:stop]           # left: out[d, L - (stop - start) :]

What ``torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)`` gives. The length depends on data: on a GPU the op
waits for the device once, like `documents_only`. The backward, ``segment_unpad``, reads every slot from its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass._compat import current_shape_env
from packpass.ops._arguments import Scalar
from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import back, column, documents_of, front, slots_of
from packpass.ops._segment_native import BITS, run, shape_along


def _kernel(x: Tensor, cu_seqlens: Tensor, dim: int, fill: Scalar, left: bool = False) -> Tensor:
    rows = x.movedim(dim, 0)
    cu = cu_seqlens.long()
    starts, lengths = cu[:-1].unsqueeze(1), cu.diff().unsqueeze(1)
    longest = int(lengths.max()) if lengths.numel() else 0
    positions = torch.arange(longest, device=x.device)
    if left:
        positions = positions - (longest - lengths)
    inside = (positions >= 0) & (positions < lengths)
    if rows.shape[0] == 0:
        return rows.new_full([*inside.shape, *rows.shape[1:]], fill)
    slots = (starts + positions).clamp(0, rows.shape[0] - 1).flatten()
    out = rows.index_select(0, slots)
    out.masked_fill_(~column(inside.flatten(), out), fill)
    return out.view([*inside.shape, *rows.shape[1:]])


def _cpu_kernel(x: Tensor, cu_seqlens: Tensor, dim: int, fill: Scalar, left: bool = False) -> Tensor:
    if x.dtype.itemsize not in BITS:
        return _kernel(x, cu_seqlens, dim, fill, left)
    rows = front(x, dim)
    lengths = cu_seqlens.diff()
    longest = int(lengths.max()) if lengths.numel() else 0
    out = rows.new_full([lengths.shape[0], longest, *rows.shape[1:]], fill)
    function = f"pad<{BITS[x.dtype.itemsize]}, {str(left).lower()}, false>"
    if run(function, rows, None, out, cu_seqlens, shape_along(rows, 0), longest):
        return out
    return _kernel(x, cu_seqlens, dim, fill, left)


def _fake(x: Tensor, cu_seqlens: Tensor, dim: int, fill: Scalar, left: bool = False) -> Tensor:
    longest = current_shape_env().create_unbacked_symint()
    torch._check(longest >= 0)
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty([cu_seqlens.shape[0] - 1, longest, *shape])


segment_pad_op = define(
    "segment_pad(Tensor x, Tensor cu_seqlens, int dim, Scalar fill, bool left=False) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)


def _unpad_kernel(padded: Tensor, cu_seqlens: Tensor, dim: int, total: int, left: bool) -> Tensor:
    """``out[..., start + p, ...] = padded[d, p]``, 0 in the tail; no host read, because the lengths are known here."""
    count, longest = padded.shape[:2]
    rest = list(padded.shape[2:])
    if count * longest == 0 or total == 0:
        return back(padded.new_zeros([total, *rest]), dim)
    slots = slots_of(cu_seqlens, total)
    starts, ends = documents_of(cu_seqlens)
    offsets = (longest - ends if left else -starts) + torch.arange(starts.shape[0], device=padded.device) * longest
    source = offsets.index_select(0, slots.entry) + torch.arange(total, device=padded.device)
    rows = padded.reshape([count * longest, *rest]).index_select(0, source.clamp(0, count * longest - 1))
    return back(rows.masked_fill_(~column(slots.inside, rows), 0), dim)


def _unpad_cpu_kernel(padded: Tensor, cu_seqlens: Tensor, dim: int, total: int, left: bool) -> Tensor:
    if padded.dtype.itemsize not in BITS:
        return _unpad_kernel(padded, cu_seqlens, dim, total, left)
    padded = padded.contiguous()
    out = padded.new_zeros([total, *padded.shape[2:]])
    function = f"pad<{BITS[padded.dtype.itemsize]}, {str(left).lower()}, true>"
    if run(function, padded, None, out, cu_seqlens, shape_along(out, 0), padded.shape[1]):
        return back(out, dim)
    return _unpad_kernel(padded, cu_seqlens, dim, total, left)


def _unpad_fake(padded: Tensor, cu_seqlens: Tensor, dim: int, total: int, left: bool) -> Tensor:
    shape = list(padded.shape[2:])
    shape.insert(dim % (len(shape) + 1), total)
    return padded.new_empty(shape)


segment_unpad_op = define(
    "segment_unpad(Tensor padded, Tensor cu_seqlens, int dim, SymInt total, bool left) -> Tensor",
    fake=_unpad_fake,
    kernel=_unpad_kernel,
    cpu_kernel=_unpad_cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, Scalar, bool], output: Tensor) -> None:
    x, cu_seqlens, ctx.dim, _, ctx.left = inputs
    ctx.total = x.shape[ctx.dim]
    ctx.save_for_backward(cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return segment_unpad_op(grad, cu_seqlens, ctx.dim, ctx.total, ctx.left), None, None, None, None


def _unpad_setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, int, bool], output: Tensor) -> None:
    _, cu_seqlens, ctx.dim, _, ctx.left = inputs
    ctx.save_for_backward(cu_seqlens)


def _unpad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return segment_pad_op(grad, cu_seqlens, ctx.dim, 0, ctx.left), None, None, None, None


differentiable("segment_pad", _backward, _setup)
differentiable("segment_unpad", _unpad_backward, _unpad_setup)
