"""``documents_only(x, cu_seqlens, dim)``: the part of a row that belongs to documents, ``x[cu[0]:cu[N]]``, as a copy.

Reference::

    out = x.narrow(dim, cu[0], cu[N] - cu[0]).clone()

This is what ``torch.cat`` of the documents gives. Its length depends on data, so somebody has to know two boundaries:
on the CPU they are host memory; on a GPU this op waits for the device once, as eager does for every document. Nothing
else in packpass does. `covered_length` is the same for results that have no row to cut.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from packpass._compat import current_shape_env
from packpass.ops._geometry import along, read
from packpass.ops._library import define, differentiable


def fresh_size() -> torch.SymInt:
    """A size that depends on data, for a fake."""
    size = current_shape_env().create_unbacked_symint()
    torch._check(size >= 0)
    return size


def _ends(cu_seqlens: Tensor) -> tuple[int, int]:
    return int(cu_seqlens[0]), int(cu_seqlens[-1])


def _kernel(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    first, stop = _ends(cu_seqlens)
    return x.narrow(dim, first, stop - first).clone(memory_format=torch.contiguous_format)


def _fake(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    shape: list[Any] = list(x.shape)
    shape[dim] = fresh_size()
    return x.new_empty(shape)


WIDE = 64
"""Elements behind the packed dimension from which on generated code copies slot by slot as fast as in one piece."""


def _is_wide(x: Tensor, dim: int) -> bool:
    inner = x.shape[dim + 1 :]
    return all(isinstance(size, int) for size in inner) and math.prod(inner) >= WIDE


def _decomposition(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    """Wide slots by a computed index: a copy that takes part in the kernel that makes the row, or reads the result."""
    dim %= x.dim()
    if not _is_wide(x, dim):
        out: Tensor = documents_copy_op(x, cu_seqlens, dim)
        return out
    slots = torch.arange(covered_length_op(cu_seqlens), device=x.device) + cu_seqlens[:1]
    return read(x, dim, slots.clamp(0, x.shape[dim] - 1))


documents_only_op = define(
    "documents_only(Tensor x, Tensor cu_seqlens, int dim) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_decomposition,
)
# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
documents_copy_op = define("documents_copy(Tensor x, Tensor cu_seqlens, int dim) -> Tensor", fake=_fake, kernel=_kernel)


def _put_back_kernel(x: Tensor, cu_seqlens: Tensor, dim: int, total: int) -> Tensor:
    """``out[cu[0]:cu[N]] = x``, 0 elsewhere; a gather, because the length is known here."""
    dim = dim % x.dim()
    if x.shape[dim] == total:  # the documents fill the row
        return x.clone(memory_format=torch.contiguous_format)
    slots = torch.arange(total, device=x.device) - cu_seqlens[:1]
    inside = (slots >= 0) & (slots < x.shape[dim])
    if x.shape[dim] == 0:
        return x.new_zeros([*x.shape[:dim], total, *x.shape[dim + 1 :]])
    rows = x.index_select(dim, slots.clamp(0, x.shape[dim] - 1))
    return rows.masked_fill_(~along(inside, x.dim(), dim), 0)


def _put_back_fake(x: Tensor, cu_seqlens: Tensor, dim: int, total: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = total
    return x.new_empty(shape)


def _put_back_decomposition(x: Tensor, cu_seqlens: Tensor, dim: int, total: int) -> Tensor:
    """On the CPU wide slots are padded, which takes part in the kernel that reads the row; a GPU would have to wait for
    the number of slots in front."""
    dim %= x.dim()
    if x.device.type != "cpu" or not _is_wide(x, dim):
        out: Tensor = put_back_copy_op(x, cu_seqlens, dim, total)
        return out
    first = covered_start_op(cu_seqlens)
    behind = total - first - x.shape[dim]
    torch._check(behind >= 0)
    return torch.constant_pad_nd(x, [*[0, 0] * (x.dim() - 1 - dim), first, behind], 0)


put_back_op = define(
    "put_back(Tensor x, Tensor cu_seqlens, int dim, SymInt total) -> Tensor",
    fake=_put_back_fake,
    kernel=_put_back_kernel,
    decomposition=_put_back_decomposition,
)
put_back_copy_op = define(
    "put_back_copy(Tensor x, Tensor cu_seqlens, int dim, SymInt total) -> Tensor",
    fake=_put_back_fake,
    kernel=_put_back_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, cu_seqlens, ctx.dim = inputs
    ctx.total = x.shape[ctx.dim]
    ctx.save_for_backward(cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return put_back_op(grad, cu_seqlens, ctx.dim, ctx.total), None, None


def _put_back_setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    _, cu_seqlens, ctx.dim, _ = inputs
    ctx.save_for_backward(cu_seqlens)


def _put_back_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return documents_only_op(grad, cu_seqlens, ctx.dim), None, None, None


differentiable("documents_only", _backward, _setup)
differentiable("put_back", _put_back_backward, _put_back_setup)


def _length(cu_seqlens: Tensor) -> int:
    first, stop = _ends(cu_seqlens)
    return stop - first


covered_length_op = define(
    "covered_length(Tensor cu_seqlens) -> SymInt", fake=lambda cu_seqlens: fresh_size(), kernel=_length
)
covered_start_op = define(
    "covered_start(Tensor cu_seqlens) -> SymInt",
    fake=lambda cu_seqlens: fresh_size(),
    kernel=lambda cu_seqlens: _ends(cu_seqlens)[0],
)
