"""``varlen_attention`` on the CPU: one call of torch's flash kernel for all documents of one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class _Alike:
    """Documents with as many queries and as many keys as each other: a batch of torch's kernel.

    Every document of a batch is computed by itself, in the same steps as alone, so that nobody can tell the difference
    but by the clock: a call costs more than attention in a window of 16 patches.
    """

    documents: int
    rows: slice | Tensor
    """Slots of the queries, document by document: a slice where they lie side by side."""
    keys: slice | Tensor
    causal: bool
    mask: Tensor | None
    """What torch's kernel takes as one to add, where its own causal mask is not meant."""


def _alike(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool, dtype: torch.dtype) -> list[_Alike]:
    """All documents with something to attend to."""
    found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for (start, stop), (first, last) in zip(
        pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True
    ):
        queries, keys = stop - start, last - first
        if is_causal and queries > keys:
            start, queries = stop - keys, keys  # the queries before see no key
        if queries > 0 and keys > 0:
            starts, firsts = found.setdefault((queries, keys), ([], []))
            starts.append(start)
            firsts.append(first)
    alike = []
    for (queries, keys), (starts, firsts) in found.items():
        mask = _bottom_right(queries, keys, dtype) if is_causal and queries < keys else None
        rows, columns = _slots(starts, queries), _slots(firsts, keys)
        alike.append(_Alike(len(starts), rows, columns, is_causal and mask is None, mask))
    return alike


def _bottom_right(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu_(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _slots(starts: list[int], length: int) -> slice | Tensor:
    if all(b - a == length for a, b in pairwise(starts)):
        return slice(starts[0], starts[-1] + length)
    return (torch.tensor(starts)[:, None] + torch.arange(length)).flatten()


def _get(x: Tensor, rows: slice | Tensor, dim: int = 0) -> Tensor:
    if isinstance(rows, Tensor):
        return x.index_select(dim, rows)
    return x.narrow(dim, rows.start, rows.stop - rows.start)


def _put(x: Tensor, rows: slice | Tensor, values: Tensor, dim: int = 0) -> None:
    if isinstance(rows, Tensor):
        x.index_copy_(dim, rows, values)
    else:
        x.narrow(dim, rows.start, rows.stop - rows.start).copy_(values)


def _query_heads(x: Tensor, documents: int, key_heads: int) -> Tensor:
    """``[N * L, Hq, D]`` as ``[N * Hq / Hk, Hk, L, D]``: the queries that share a key head are a batch."""
    parts = x.unflatten(1, (key_heads, -1)).unflatten(0, (documents, -1))
    return parts.permute(0, 3, 2, 1, 4).flatten(0, 1)


def _rows_of_queries(x: Tensor, documents: int) -> Tensor:
    """`_query_heads` the other way."""
    return x.unflatten(0, (documents, -1)).permute(0, 3, 2, 1, 4).flatten(2, 3).flatten(0, 1)


def _key_heads(x: Tensor, documents: int, groups: int) -> Tensor:
    """``[N * L, Hk, D]`` as ``[N * groups, Hk, L, D]``, the same keys for every group."""
    parts = x.unflatten(0, (documents, -1)).transpose(1, 2)
    return parts if groups == 1 else parts[:, None].expand(-1, groups, -1, -1, -1).flatten(0, 1)


def _rows_of_keys(x: Tensor, documents: int) -> Tensor:
    """Sum ``[N * groups, Hk, L, D]`` to ``[N * L, Hk, D]``."""
    parts = x.unflatten(0, (documents, -1))
    parts = parts[:, 0] if parts.shape[1] == 1 else parts.sum(1)
    return parts.transpose(1, 2).flatten(0, 1)


def unit_stride(*tensors: Tensor) -> Iterator[Tensor]:
    """torch's flash kernels take any strides but that of the last dimension."""
    return (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def _zero_outside(covered: Sequence[slice | Tensor], *tensors: Tensor) -> None:
    """Rows that no document writes; most often there are none, and filling all of them would be one more pass."""
    for x in tensors:
        if sum(len(rows) if isinstance(rows, Tensor) else rows.stop - rows.start for rows in covered) < x.shape[0]:
            x.zero_()


def lse_like(q: Tensor) -> Tensor:
    return q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)


def _lse_heads(lse: Tensor, documents: int, key_heads: int) -> Tensor:
    """``[Hq, N * L]`` as ``[N * Hq / Hk, Hk, L]``."""
    return lse.unflatten(1, (documents, -1)).unflatten(0, (key_heads, -1)).permute(2, 1, 0, 3).flatten(0, 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    q, k, v = unit_stride(q, k, v)
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    out, lse = q.new_empty(q.shape), lse_like(q)
    batches = _alike(cu_seqlens_q, cu_seqlens_k, is_causal, q.dtype)
    _zero_outside([batch.rows for batch in batches], out)
    for batch in batches:
        n = batch.documents
        of_documents, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _query_heads(_get(q, batch.rows), n, heads),
            _key_heads(_get(k, batch.keys), n, groups),
            _key_heads(_get(v, batch.keys), n, groups),
            0.0,
            batch.causal,
            attn_mask=batch.mask,
            scale=scale,
        )
        _put(out, batch.rows, _rows_of_queries(of_documents, n))
        logsumexp = logsumexp.unflatten(0, (n, groups)).permute(2, 1, 0, 3)
        _put(lse, batch.rows, logsumexp.flatten(0, 1).flatten(1, 2), dim=1)
    return out, lse


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v = unit_stride(grad, q, k, v)
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    grad_q, grad_k, grad_v = (x.new_empty(x.shape) for x in (q, k, v))
    batches = _alike(cu_seqlens_q, cu_seqlens_k, is_causal, q.dtype)
    _zero_outside([batch.rows for batch in batches], grad_q)
    _zero_outside([batch.keys for batch in batches], grad_k, grad_v)
    for batch in batches:
        n = batch.documents
        of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _query_heads(_get(grad, batch.rows), n, heads),
            _query_heads(_get(q, batch.rows), n, heads),
            _key_heads(_get(k, batch.keys), n, groups),
            _key_heads(_get(v, batch.keys), n, groups),
            _query_heads(_get(out, batch.rows), n, heads),
            _lse_heads(_get(lse, batch.rows, dim=1), n, heads),
            0.0,
            batch.causal,
            attn_mask=batch.mask,
            scale=scale,
        )
        _put(grad_q, batch.rows, _rows_of_queries(of_q, n))
        _put(grad_k, batch.keys, _rows_of_keys(of_k, n))
        _put(grad_v, batch.keys, _rows_of_keys(of_v, n))
    return grad_q, grad_k, grad_v
