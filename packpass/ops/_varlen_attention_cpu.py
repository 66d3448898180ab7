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
    queries: int
    keys: int
    causal: bool
    mask: Tensor | None
    """What torch's kernel takes as one to add, where its own causal mask is not meant."""


class _Sorted:
    """Slots of one side of the documents, those of one batch side by side."""

    def __init__(self, starts: list[tuple[int, int]], total: int) -> None:
        """``starts``: where each document begins, and how long it is, batch by batch."""
        self.total = total
        self.covered = sum(length for _, length in starts)
        at = starts[0][0] if starts else 0
        in_order = True
        for start, length in starts:
            in_order, at = in_order and start == at, start + length
        self._first = starts[0][0] if starts else 0
        self._order = None if in_order else torch.cat([torch.arange(s, s + n) for s, n in starts])

    def get(self, x: Tensor, dim: int = 0) -> Tensor:
        """Those slots, sorted; a view if they are."""
        if self._order is not None:
            return x.index_select(dim, self._order)
        return x.narrow(dim, self._first, self.covered)

    def put(self, parts: Sequence[Tensor], like: Tensor, dim: int = 0) -> Tensor:
        """The sorted parts where they belong, 0 in slots of no document."""
        if self.covered == self.total and self._order is None:
            return _joined(parts, dim)
        out = like.new_empty(like.shape) if self.covered == self.total else like.new_zeros(like.shape)
        if self._order is None:
            out.narrow(dim, self._first, self.covered).copy_(_joined(parts, dim))
        elif self.covered == self.total:
            back = torch.empty_like(self._order)
            back[self._order] = torch.arange(self.total)
            torch.index_select(_joined(parts, dim), dim, back, out=out)
        elif self.covered:
            out.index_copy_(dim, self._order, _joined(parts, dim))
        return out


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts), dim)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """All documents with something to attend to, batch by batch."""

    batches: list[_Alike]
    rows: _Sorted
    columns: _Sorted

    def queries(self, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """The slots of every batch."""
        return self.rows.get(x, dim).split([b.documents * b.queries for b in self.batches], dim)

    def keys(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.columns.get(x).split([b.documents * b.keys for b in self.batches])


def _plan(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, is_causal: bool) -> _Plan:
    found: dict[tuple[int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for (start, stop), (first, last) in zip(
        pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True
    ):
        queries, keys = stop - start, last - first
        if is_causal and queries > keys:
            start, queries = stop - keys, keys  # the queries before see no key
        if queries > 0 and keys > 0:
            rows, columns = found.setdefault((queries, keys), ([], []))
            rows.append((start, queries))
            columns.append((first, keys))
    batches = []
    for (queries, keys), (rows, _) in found.items():
        mask = _bottom_right(queries, keys, q.dtype) if is_causal and queries < keys else None
        batches.append(_Alike(len(rows), queries, keys, is_causal and mask is None, mask))
    all_rows = [document for rows, _ in found.values() for document in rows]
    all_columns = [document for _, columns in found.values() for document in columns]
    return _Plan(batches, _Sorted(all_rows, q.shape[0]), _Sorted(all_columns, k.shape[0]))


def _bottom_right(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu_(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=dtype).masked_fill_(hidden, -torch.inf)


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
    plan = _plan(q, k, cu_seqlens_q, cu_seqlens_k, is_causal)
    out, lse = [], []
    if not plan.batches:
        return q.new_zeros(q.shape), lse_like(q)
    for batch, rows, keys, values in zip(plan.batches, plan.queries(q), plan.keys(k), plan.keys(v), strict=True):
        n = batch.documents
        of_documents, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _query_heads(rows, n, heads),
            _key_heads(keys, n, groups),
            _key_heads(values, n, groups),
            0.0,
            batch.causal,
            attn_mask=batch.mask,
            scale=scale,
        )
        out.append(_rows_of_queries(of_documents, n))
        lse.append(logsumexp.unflatten(0, (n, groups)).permute(2, 1, 0, 3).flatten(0, 1).flatten(1, 2))
    return plan.rows.put(out, q), plan.rows.put(lse, lse_like(q), dim=1)


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
    plan = _plan(q, k, cu_seqlens_q, cu_seqlens_k, is_causal)
    if not plan.batches:
        return q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
    grads: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []
    rows = (plan.queries(x) for x in (grad, q, out))
    keys = (plan.keys(x) for x in (k, v))
    for batch, of_grad, of_q, of_out, of_k, of_v, of_lse in zip(
        plan.batches, *rows, *keys, plan.queries(lse, dim=1), strict=True
    ):
        n = batch.documents
        grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _query_heads(of_grad, n, heads),
            _query_heads(of_q, n, heads),
            _key_heads(of_k, n, groups),
            _key_heads(of_v, n, groups),
            _query_heads(of_out, n, heads),
            _lse_heads(of_lse, n, heads),
            0.0,
            batch.causal,
            attn_mask=batch.mask,
            scale=scale,
        )
        grads[0].append(_rows_of_queries(grad_q, n))
        grads[1].append(_rows_of_keys(grad_k, n))
        grads[2].append(_rows_of_keys(grad_v, n))
    return plan.rows.put(grads[0], q), plan.columns.put(grads[1], k), plan.columns.put(grads[2], v)
