"""``varlen_attention``: attention inside every document of packed rows.

    out[:] = 0                                                    # the tail, and queries that see no key
    for d in range(N):
        rows, keys = slice(cu_q[d], cu_q[d + 1]), slice(cu_k[d], cu_k[d + 1])
        scores = q[rows] @ k[keys].T * scale                      # per head; scale defaults to 1 / sqrt(D)
        ahead = j - (i + len(keys) - len(rows))                   # query i, key j of the document
        visible = (not is_causal or ahead <= 0) and (left < 0 or -ahead <= left) and (right < 0 or ahead <= right)
        out[rows] = softmax(where(visible, scores, -inf)) @ v[keys]

With as many queries as keys that is the usual causal mask; otherwise the last query sees all keys (bottom right), as
the flash kernels have it.

On the CPU boundaries are host memory, so the kernel calls torch's flash kernel once per document (small ones of one
length share a call): six times faster, forward and backward, than one call on padded rows or with a block-diagonal
mask. On a GPU it is one call of torch's kernels for packed rows. For Inductor it is an op of its own.

``varlen_attention`` is what graphs from Dynamo contain; below autograd it is ``varlen_attention_forward``, which also
returns what the backward needs. Forward and backward must be of one kernel family (they share the log-sum-exp), which
is why they call the pair of aten ops and not ``torch.nn.attention.varlen``, whose own choice of family is private.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from packpass.ops import _varlen_attention_cpu, _varlen_attention_gpu
from packpass.ops._arguments import check_boundaries, check_tensor
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._library import LIBRARY, Op, define, differentiable
from packpass.ops._varlen_attention_cpu import lse_like
from packpass.ops._varlen_attention_gpu import DTYPES, LONGEST_FLASH_HEAD, takes

_SETTINGS = "bool is_causal, float? scale, int left=-1, int right=-1"
_ARGUMENTS = f"Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, {_SETTINGS}"


# === The ops ====================================================================================================


def _contiguous_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in tensors)


forward_op = define(
    f"varlen_attention_forward({_ARGUMENTS}) -> (Tensor, Tensor)",
    fake=lambda q, *_: (q.new_empty(q.shape), lse_like(q)),
    kernel=_varlen_attention_gpu.forward,
    cpu_kernel=_varlen_attention_cpu.forward,
)
backward_op = define(
    "varlen_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor cu_seqlens_q, "
    f"Tensor cu_seqlens_k, {_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    fake=lambda grad, q, k, v, *_: _contiguous_like(q, k, v),
    kernel=_varlen_attention_gpu.backward,
    cpu_kernel=_varlen_attention_cpu.backward,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.settings = inputs[:5], inputs[5:]
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, out, lse)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse = ctx.saved_tensors
    grads = backward_op(grad, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *ctx.settings)
    return *grads, *[None] * (2 + len(ctx.settings))


def _no_second_backward(ctx: Any, *_: Tensor) -> NoReturn:
    raise NotImplementedError(
        "packpass: varlen_attention can be differentiated once; torch's flash kernels have no second derivative"
    )


differentiable("varlen_attention_forward", _backward, _setup_context)
differentiable("varlen_attention_backward", _no_second_backward, lambda ctx, inputs, output: None)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float | None, left: int = -1, right: int = -1,
) -> Tensor:  # fmt: skip
    out: Tensor = forward_op(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, scale, left, right)[0]
    return out


LIBRARY.define(f"varlen_attention({_ARGUMENTS}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
LIBRARY.impl("varlen_attention", _attention, "CompositeImplicitAutograd")
varlen_attention_op: Op = torch.ops.packpass.varlen_attention.default


def _check_rows(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, x)
        if x.dim() != 3:
            raise ValueError(f"{name} must have 3 dimensions [slots, heads, head size], got shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must have a floating dtype, got {x.dtype}")
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q ({q.dtype}), got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {x.device}")
        if statically_known_true(x.shape[2] != q.shape[2]):
            raise ValueError(f"{name} must have the head size of q ({q.shape[2]}), got {x.shape[2]}")
    if q.device.type != "cpu" and q.dtype not in DTYPES:
        raise TypeError(f"q must be float16, bfloat16 or float32 on {q.device.type}, got {q.dtype}")
    if statically_known_true(k.shape[0] != v.shape[0]) or statically_known_true(k.shape[1] != v.shape[1]):
        raise ValueError(f"k and v must have the same shape, got {tuple(k.shape)} and {tuple(v.shape)}")
    if statically_known_true(k.shape[1] == 0) or statically_known_true(q.shape[1] % k.shape[1] != 0):
        raise ValueError(f"the heads of k ({k.shape[1]}) must divide those of q ({q.shape[1]})")


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Attention inside every document of packed rows: no query sees a key of another document.

    Differentiable once, in q, k and v. No host sync on a GPU, unless documents times heads times tiles of 128 slots of
    the row are more than 65,536: then the longest document's length is read, once forward and once backward, because a
    launch that is bounded by the row would take longer.

    Args:
        q: queries ``[T, Hq, D]``; any floating dtype on the CPU; float16, bfloat16 or float32 on a GPU.
        k, v: keys and values ``[Tk, Hk, D]`` in the dtype of q; Hk divides Hq (grouped queries: query head h reads key
            head ``h // (Hq / Hk)``).
        cu_seqlens_q: boundaries of the documents in slots of q, int32 or int64, ``[N+1]``, nondecreasing, within
            [0, T]. Documents may be empty.
        cu_seqlens_k: the same in slots of k and v; by default those of q.
        is_causal: a query sees no later key. Where a document has other numbers of queries and keys, its last query
            sees all of its keys.
        scale: factor of the scores; by default ``1 / sqrt(D)``.
        window: how many slots before its own, and behind it, a query sees; -1 for no limit. On a GPU in half precision
            only.

    Returns:
        A new contiguous tensor like q. Queries that see no key are 0, and so is the tail (slots of no document).

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device or shape; for boundaries on the CPU
            also wrong values. On a GPU an asynchronous assertion checks the values.
    """
    _check_rows(q, k, v)
    if not takes(q.device.type, q.dtype, q.shape[2], window):
        raise TypeError(
            f"a window takes float16 or bfloat16 on {q.device.type}, in heads of up to {LONGEST_FLASH_HEAD} features, "
            f"got {q.dtype} and {q.shape[2]}"
        )
    check_boundaries("cu_seqlens_q", cu_seqlens_q, device=q.device)
    if cu_seqlens_k is None:
        cu_seqlens_k = cu_seqlens_q
    check_boundaries("cu_seqlens_k", cu_seqlens_k, device=q.device)
    if statically_known_true(cu_seqlens_k.shape[0] != cu_seqlens_q.shape[0]):
        raise ValueError(
            f"cu_seqlens_k must have as many entries as cu_seqlens_q ({cu_seqlens_q.shape[0]}), "
            f"got {cu_seqlens_k.shape[0]}"
        )
    check_cu_seqlens_op(cu_seqlens_q, q.shape[0])
    if cu_seqlens_k is not cu_seqlens_q or not statically_known_true(k.shape[0] == q.shape[0]):
        check_cu_seqlens_op(cu_seqlens_k, k.shape[0])
    out: Tensor = varlen_attention_op(q, k, v, cu_seqlens_q, cu_seqlens_k, bool(is_causal), scale, *window)
    return out
