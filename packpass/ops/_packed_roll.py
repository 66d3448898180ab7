"""``packed_roll``: shift every document of a packed row on its own.

    out[:] = x                                                  # the tail keeps its values
    for d in range(N):
        start, stop = begin[d], begin[d] + cu[d + 1] - cu[d]    # begin is cu_seqlens_padded, or else cu_seqlens
        for p in range(start, stop):
            q = p - shift
            out[p] = x[q] if start <= q < stop else fill        # fill=None: x[start + (q - start) % (stop - start)]
        out[stop : begin[d + 1]] = fill                         # slots that only pad; fill=None keeps them

The same along any dimension of x. The backward is the op itself by ``-shift`` (fill 0, or the wrap), never a scatter.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from packpass.ops._arguments import (
    Scalar,
    check_boundaries,
    check_dim,
    check_fill,
    check_int,
    check_same_documents,
    check_tensor,
)
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._library import define, differentiable
from packpass.ops._packed_roll_eager import cpu_kernel, fake, gather_kernel
from packpass.ops._packed_roll_inductor import decomposition

packed_roll_op = define(
    "packed_roll(Tensor x, Tensor cu_seqlens, int shift, int dim, Scalar? fill, Tensor? cu_seqlens_padded=None)"
    " -> Tensor",
    fake=fake,
    kernel=gather_kernel,
    cpu_kernel=cpu_kernel,
    decomposition=decomposition,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cu_seqlens, ctx.shift, ctx.dim, fill, cu_seqlens_padded = inputs
    ctx.fill = None if fill is None else 0
    ctx.save_for_backward(cu_seqlens, cu_seqlens_padded)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    cu_seqlens, cu_seqlens_padded = ctx.saved_tensors
    grad_x = packed_roll_op(grad, cu_seqlens, -ctx.shift, ctx.dim, ctx.fill, cu_seqlens_padded)
    return grad_x, None, None, None, None, None


differentiable("packed_roll", _backward, _setup_context)


def packed_roll(
    x: Tensor,
    cu_seqlens: Tensor,
    shift: int = -1,
    dim: int = -1,
    fill: Scalar | None = 0,
    cu_seqlens_padded: Tensor | None = None,
) -> Tensor:
    """Shift every document of a packed tensor on its own: no value crosses a boundary.

    Slot p of a document gets ``x[p - shift]`` if that lies in the same document, else ``fill``. Slots outside
    ``[cu_seqlens[0], cu_seqlens[N])`` keep their values. Differentiable in x, any number of times.

    Args:
        x: any dtype, any shape with at least 1 dimension; T slots along ``dim``.
        cu_seqlens: boundaries of the documents in slots, int32 or int64, ``[N+1]``, nondecreasing, within [0, T], on
            x's device. Documents may be empty.
        shift: slots to move by, as in :func:`torch.roll`: -1 moves every token one slot to the front. May exceed the
            documents' lengths, and T.
        dim: the packed dimension.
        fill: value of slots whose source lies outside their document; ``None`` rolls each document around.
        cu_seqlens_padded: ``[N+1]`` in the dtype of ``cu_seqlens``: document d lies in the first
            ``cu_seqlens[d+1] - cu_seqlens[d]`` of the slots ``[cu_seqlens_padded[d], cu_seqlens_padded[d+1])``. The
            remaining slots get ``fill``, or keep their values with ``fill=None``.

    Returns:
        A new contiguous tensor with the shape and dtype of x.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device, shape or range; for boundaries on
            the CPU also wrong values. On a GPU an asynchronous assertion checks the values, without a host sync.
    """
    check_tensor("x", x)
    check_int("shift", shift)
    dim = check_dim(x, dim)
    check_boundaries("cu_seqlens", cu_seqlens, device=x.device)
    if cu_seqlens_padded is not None:
        check_boundaries("cu_seqlens_padded", cu_seqlens_padded, device=x.device)
        check_same_documents(cu_seqlens, cu_seqlens_padded)
    if fill is not None:
        check_fill(fill, x.dtype)
    check_cu_seqlens_op(cu_seqlens, x.shape[dim], cu_seqlens_padded)
    out: Tensor = packed_roll_op(x, cu_seqlens, shift, dim, fill, cu_seqlens_padded)
    return out
