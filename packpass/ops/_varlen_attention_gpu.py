"""The kernels of ``varlen_attention`` on a GPU: torch's flash kernel for packed rows, or its memory-efficient one.

The flash kernel takes half precision and heads of up to 256 features; everything else but double precision goes to the
memory-efficient kernel. Both read the boundaries on the device. Nothing waits for the GPU but where documents are many
(`_bound`).

Of documents with more queries than keys the causal mask of the memory-efficient kernel makes something else than the
flash kernel's (seen with torch 2.11), so the queries that see nothing are handed to it as documents of their own,
without keys. Both leave rows of documents without a partner as they were allocated; here they become 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._boundaries_passed import search
from packpass.ops._varlen_attention_cpu import lse_like, unit_stride

FLASH_DTYPES = (torch.float16, torch.bfloat16)
DTYPES = (*FLASH_DTYPES, torch.float32)
LONGEST_FLASH_HEAD = 256
TILE = 128
BLOCKS_FOR_A_WAIT = 1 << 16
FROM_BOTTOM_RIGHT = 2
"""The memory-efficient kernel's name for a causal mask in which the last query sees all keys."""


def takes(device: str, dtype: torch.dtype, size: int | torch.SymInt, window: tuple[int, int] = (-1, -1)) -> bool:
    """Whether there is packed attention for heads of ``size`` features in ``dtype`` on a kind of device."""
    if device == "cpu":
        return True
    return device == "cuda" and dtype in DTYPES and (window == (-1, -1) or _flash(dtype, size))


def _flash(dtype: torch.dtype, size: int | torch.SymInt) -> bool:
    return dtype in FLASH_DTYPES and isinstance(size, int) and size <= LONGEST_FLASH_HEAD


def attended(cu_seqlens: Tensor, other: Tensor, total: int) -> Tensor:
    """Slots of documents that are not empty on the other side either; bool ``[total, 1, 1]``."""
    document, inside = _documents(cu_seqlens, total)
    partners = other.index_select(0, document + 1) - other.index_select(0, document)
    return (inside & (partners > 0)).view(-1, 1, 1)


def _documents(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Number of the document at every slot (of any one, where there is none), and whether there is one; ``[total]``."""
    passed = search(cu_seqlens, total)
    last = cu_seqlens.shape[0] - 1
    return (passed - 1).clamp(0, max(last - 1, 0)), (passed > 0) & (passed <= last)


def forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float | None, left: int = -1, right: int = -1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if cu_seqlens_q.shape[0] < 2 or q.shape[0] == 0 or k.shape[0] == 0:
        return torch.zeros_like(q, memory_format=torch.contiguous_format), lse_like(q)
    size = q.shape[2]
    scale = size**-0.5 if scale is None else scale
    q, k, v = _aligned(q, k, v)
    if _flash(q.dtype, size):
        out, lse = _flash_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, scale, left, right)
    else:
        out, lse = _efficient_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal, scale)
    return out[..., :size].contiguous(), lse


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float | None, left: int = -1, right: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if cu_seqlens_q.shape[0] < 2 or q.shape[0] == 0 or k.shape[0] == 0:
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    size = q.shape[2]
    scale = size**-0.5 if scale is None else scale
    grad, q, k, v, out = _aligned(grad, q, k, v, out)
    cu = cu_seqlens_q, cu_seqlens_k
    if _flash(q.dtype, size):
        grads = _flash_backward(grad, q, k, v, out, lse, *cu, is_causal, scale, left, right)
    else:
        grads = _efficient_backward(grad, q, k, v, out, lse, *cu, is_causal, scale)
    queries = attended(cu_seqlens_q, cu_seqlens_k, q.shape[0])
    keys = attended(cu_seqlens_k, cu_seqlens_q, k.shape[0])
    grad_q, grad_k, grad_v = (
        torch.where(seen, x[..., :size], 0) for seen, x in zip((queries, keys, keys), grads, strict=True)
    )
    return grad_q, grad_k, grad_v


def _aligned(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Heads of a multiple of 8 features, as the kernels load them; zeros change no score and no sum of values."""
    lacking = -tensors[0].shape[-1] % 8
    padded = (torch.nn.functional.pad(x, (0, lacking)) for x in tensors) if lacking else tensors
    return tuple(unit_stride(*padded))


def _window(is_causal: bool, left: int, right: int) -> tuple[bool, dict[str, int]]:
    """``is_causal`` and the window as torch's kernels take them: with a window, causal is one of no slot behind."""
    if left < 0 and (right < 0 or is_causal):
        return is_causal, {}
    return False, {"window_size_left": left, "window_size_right": 0 if is_causal else right}


# === How long a document may be =================================================================================


def _bound(cu_seqlens: Tensor, total: int, heads: int) -> int:
    """A bound on the slots of a document. T is one; but a launch has a block for every document, head and tile of the
    bound, and those behind a document's end cost a nanosecond each to begin, and seven with the backward ones (the
    memory-efficient kernel also keeps a number for each of their slots): where they are many, waiting for the longest
    length costs less. While a CUDA graph is captured nothing can be read."""
    blocks = (cu_seqlens.shape[0] - 1) * heads * -(-total // TILE)
    if blocks <= BLOCKS_FOR_A_WAIT or torch.cuda.is_current_stream_capturing():
        return total
    return max(int(cu_seqlens.diff().max()), 1)


def _launch(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """What every kernel is told of the documents: boundaries in int32, and bounds on their queries and keys."""
    queries = _bound(cu_seqlens_q, q.shape[0], q.shape[1])
    one_row = _alike(cu_seqlens_q, cu_seqlens_k) and q.shape[0] == k.shape[0]
    keys = queries if one_row else _bound(cu_seqlens_k, k.shape[0], q.shape[1])
    return cu_seqlens_q.int(), cu_seqlens_k.int(), queries, keys


def _alike(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> bool:
    """Are the boundaries of queries and keys the same memory, read alike? No value is read."""
    one, other = ((cu.data_ptr(), cu.shape, cu.stride(), cu.dtype) for cu in (cu_seqlens_q, cu_seqlens_k))
    return one == other


# === The flash kernel ===========================================================================================


def _flash_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float, left: int, right: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    causal, window = _window(is_causal, left, right)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        *_launch(cu_seqlens_q, cu_seqlens_k, q, k),
        0.0,
        causal,
        False,
        scale=scale,
        **window,
    )
    inside = attended(cu_seqlens_q, cu_seqlens_k, q.shape[0])
    return torch.where(inside, out, 0), lse.contiguous()


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float, left: int, right: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    causal, window = _window(is_causal, left, right)
    grad_q, grad_k, grad_v = torch.ops.aten._flash_attention_backward(
        grad,
        q,
        k,
        v,
        out,
        lse,
        *_launch(cu_seqlens_q, cu_seqlens_k, q, k),
        0.0,
        causal,
        torch.zeros(2, dtype=torch.uint64, device=q.device),
        torch.empty(0, device=q.device),
        scale=scale,
        **window,
    )
    return grad_q, grad_k, grad_v


# === The memory-efficient kernel ================================================================================


def _blind_apart(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Boundaries in which no query of a document with keys sees none of them: every document is two, the
    queries that are too far from its end to see a key, and the others with all keys."""
    if not is_causal or _alike(cu_seqlens_q, cu_seqlens_k):
        return cu_seqlens_q, cu_seqlens_k
    blind = (cu_seqlens_q.diff() - cu_seqlens_k.diff()).clamp(min=0)
    queries = torch.stack([cu_seqlens_q[:-1], cu_seqlens_q[:-1] + blind], 1).flatten()
    keys = cu_seqlens_k[:-1].repeat_interleave(2)
    return torch.cat([queries, cu_seqlens_q[-1:]]), torch.cat([keys, cu_seqlens_k[-1:]])


def _places(cu_seqlens: Tensor, total: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Document and place in it of every slot, for a table of ``longest`` slots each, and whether it has one."""
    document, inside = _documents(cu_seqlens, total)
    place = torch.arange(total, device=cu_seqlens.device) - cu_seqlens.index_select(0, document)
    return document, place.clamp(0, longest - 1), inside


def _heads_alike(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One row ``[1, T, H, D]`` each, with a key head for every query head."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    return q[None], k[None], v[None]


def _efficient_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    total = q.shape[0]
    cu_seqlens_q, cu_seqlens_k = _blind_apart(cu_seqlens_q, cu_seqlens_k, is_causal)
    out, table, *_ = torch.ops.aten._efficient_attention_forward(
        *_heads_alike(q, k, v),
        None,
        *_launch(cu_seqlens_q, cu_seqlens_k, q, k),
        0.0,
        FROM_BOTTOM_RIGHT if is_causal else 0,
        True,
        scale=scale,
    )
    seen = attended(cu_seqlens_q, cu_seqlens_k, total)
    document, place, _ = _places(cu_seqlens_q, total, table.shape[2])
    # The exponential of a score less infinity is 0: such a query hands nothing on.
    lse = torch.where(seen.flatten(1), table[document, :, place], torch.inf).t().contiguous()
    return torch.where(seen, out[0], 0), lse


def _efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    is_causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    total, heads = k.shape[0], k.shape[1]
    cu_seqlens_q, cu_seqlens_k = _blind_apart(cu_seqlens_q, cu_seqlens_k, is_causal)
    launch = _launch(cu_seqlens_q, cu_seqlens_k, q, k)
    aligned = -(-launch[2] // 32) * 32  # as the forward kernel lays its log-sum-exp out
    documents = cu_seqlens_q.shape[0] - 1
    # Slots of no document write into one more, which the kernel does not get to see.
    table = lse.new_full((documents + 1, q.shape[1], aligned), torch.inf)
    document, place, inside = _places(cu_seqlens_q, q.shape[0], aligned)
    table[document.where(inside, documents), :, place] = lse.t()
    state = torch.zeros((), dtype=torch.int64, device=q.device)
    grad_q, grad_k, grad_v, _ = torch.ops.aten._efficient_attention_backward(
        grad[None],
        *_heads_alike(q, k, v),
        None,
        out[None],
        *launch,
        table[:documents],
        0.0,
        state,
        state,
        FROM_BOTTOM_RIGHT if is_causal else 0,
        False,
        scale=scale,
    )
    if q.shape[1] != heads:
        grad_k, grad_v = (x.view(1, total, heads, -1, x.shape[-1]).sum(3) for x in (grad_k, grad_v))
    seen = attended(cu_seqlens_q, cu_seqlens_k, q.shape[0])
    return torch.where(seen, grad_q[0], 0), grad_k[0], grad_v[0]
