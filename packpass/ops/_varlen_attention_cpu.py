"""``varlen_attention`` on the CPU: one call of torch's flash kernel for documents of one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

FEW_BYTES = 16_384
"""Documents with at most so many bytes of queries are copied to lie beside others of their length: a call of torch's
kernel, forward and backward, costs more than that. (Measured: 16 slots of 4 heads of 16 numbers, six times faster; 100
slots, a quarter slower.)"""


@dataclasses.dataclass(frozen=True)
class _Alike:
    """Documents with as many queries and as many keys as each other: a batch of torch's kernel.

    Every document of a batch is computed by itself, in the same steps as alone, so that nobody can tell the difference
    but by the clock.
    """

    documents: int
    queries: int
    keys: int
    causal: bool
    mask: Tensor | None
    """What torch's kernel takes as one to add, where its own causal mask is not meant."""


class _Side:
    """Where the queries, or the keys, of every batch are: side by side, or to be gathered."""

    def __init__(self, batches: list[tuple[list[int], int]], total: int) -> None:
        """For every batch where its documents begin, and how long each is."""
        self._sizes = [len(starts) * length for starts, length in batches]
        self._first = [
            starts[0] if all(b - a == length for a, b in pairwise(starts)) else None for starts, length in batches
        ]
        apart = [
            torch.tensor(starts)[:, None] + torch.arange(length)
            for (starts, length), first in zip(batches, self._first, strict=True)
            if first is None
        ]
        self._order = torch.cat([slots.flatten() for slots in apart]) if apart else None
        self._all = sum(self._sizes) == total

    def get(self, x: Tensor, dim: int = 0) -> list[Tensor]:
        """The slots of every batch."""
        gathered: Iterator[Tensor] = iter(())
        if self._order is not None:
            sizes = [size for size, first in zip(self._sizes, self._first, strict=True) if first is None]
            gathered = iter(x.index_select(dim, self._order).split(sizes, dim))
        return [
            next(gathered) if first is None else x.narrow(dim, first, size)
            for size, first in zip(self._sizes, self._first, strict=True)
        ]

    def like(self, x: Tensor) -> Tensor:
        """A contiguous tensor for what every batch gives, 0 in slots of no document."""
        return x.new_empty(x.shape) if self._all else x.new_zeros(x.shape)

    def put(self, out: Tensor, batch: int, part: Tensor, dim: int = 0) -> Tensor | None:
        """Write the slots of one batch, while they are in the cache; those to be gathered are handed back."""
        first = self._first[batch]
        if first is None:
            return part
        out.narrow(dim, first, self._sizes[batch]).copy_(part)
        return None

    def spread(self, out: Tensor, parts: Sequence[Tensor | None], dim: int = 0) -> Tensor:
        """Write what was handed back."""
        if self._order is not None:
            out.index_copy_(dim, self._order, torch.cat([part for part in parts if part is not None], dim))
        return out


def _plan(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, left: int, right: int
) -> tuple[list[_Alike], _Side, _Side]:
    """All documents with something to attend to, batch by batch, and where their queries and keys are."""
    runs: dict[tuple[int, int], list[list[tuple[int, int]]]] = {}
    before: tuple[int, int, int, int] | None = None
    for (start, stop), (first, last) in zip(
        pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True
    ):
        queries, keys = stop - start, last - first
        if right >= 0 and queries > keys + right:
            start, queries = stop - keys - right, keys + right  # the queries before see no key
        if queries > 0 and keys > 0:
            known = runs.setdefault((queries, keys), [])
            if before != (queries, keys, start, first):
                known.append([])
            known[-1].append((start, first))
            before = queries, keys, stop, last
    few = FEW_BYTES // (q.shape[1] * q.shape[2] * q.element_size() or 1)
    batches: list[_Alike] = []
    rows: list[tuple[list[int], int]] = []
    columns: list[tuple[list[int], int]] = []
    for (queries, keys), found in runs.items():
        mask = _hidden(queries, keys, left, right, q.dtype)
        for together in [[d for run in found for d in run]] if max(queries, keys) <= few else found:
            batches.append(_Alike(len(together), queries, keys, right == 0 and mask is None, mask))
            rows.append(([start for start, _ in together], queries))
            columns.append(([first for _, first in together], keys))
    return batches, _Side(rows, q.shape[0]), _Side(columns, k.shape[0])


def _hidden(queries: int, keys: int, left: int, right: int, dtype: torch.dtype) -> Tensor | None:
    """What to add to scores; None where every query sees all keys, or those that torch's causal mask shows."""
    if not (0 <= left < keys - 1 or right > 0 or (right == 0 and queries < keys)):
        return None
    ahead = torch.arange(keys) - (torch.arange(queries) + (keys - queries)).unsqueeze(1)
    hidden = (ahead > right) if right >= 0 else torch.zeros((), dtype=torch.bool)
    hidden = hidden | (-ahead > left) if left >= 0 else hidden
    return torch.zeros(queries, keys, dtype=dtype).masked_fill_(hidden, -torch.inf)


# With as many heads of keys as of queries, which is usual, these are two views each: they are made for every document.


def _query_heads(x: Tensor, documents: int, key_heads: int) -> Tensor:
    """``[N * L, Hq, D]`` as ``[N * Hq / Hk, Hk, L, D]``: the queries that share a key head are a batch."""
    if x.shape[1] == key_heads:
        return x.view(documents, -1, key_heads, x.shape[2]).transpose(1, 2)
    parts = x.view(documents, -1, key_heads, x.shape[1] // key_heads, x.shape[2])
    return parts.permute(0, 3, 2, 1, 4).flatten(0, 1)


def _rows_of_queries(x: Tensor, documents: int) -> Tensor:
    """`_query_heads` the other way."""
    if x.shape[0] == documents:
        return x.transpose(1, 2).flatten(0, 1)
    return x.unflatten(0, (documents, -1)).permute(0, 3, 2, 1, 4).flatten(2, 3).flatten(0, 1)


def _key_heads(x: Tensor, documents: int, groups: int) -> Tensor:
    """``[N * L, Hk, D]`` as ``[N * groups, Hk, L, D]``, the same keys for every group."""
    parts = x.view(documents, -1, *x.shape[1:]).transpose(1, 2)
    return parts if groups == 1 else parts[:, None].expand(-1, groups, -1, -1, -1).flatten(0, 1)


def _rows_of_keys(x: Tensor, documents: int) -> Tensor:
    """Sum ``[N * groups, Hk, L, D]`` to ``[N * L, Hk, D]``."""
    parts = x if x.shape[0] == documents else x.unflatten(0, (documents, -1)).sum(1)
    return parts.transpose(1, 2).flatten(0, 1)


def _lse_heads(lse: Tensor, documents: int, key_heads: int) -> Tensor:
    """``[Hq, N * L]`` as ``[N * Hq / Hk, Hk, L]``."""
    if lse.shape[0] == key_heads:
        return lse.view(key_heads, documents, -1).transpose(0, 1)
    return lse.view(key_heads, -1, documents, lse.shape[1] // documents).permute(2, 1, 0, 3).flatten(0, 1)


def _rows_of_lse(x: Tensor, documents: int) -> Tensor:
    """`_lse_heads` the other way."""
    if x.shape[0] == documents:
        return x.transpose(0, 1).flatten(1)
    return x.unflatten(0, (documents, -1)).permute(2, 1, 0, 3).flatten(0, 1).flatten(1)


def unit_stride(*tensors: Tensor) -> Iterator[Tensor]:
    """torch's flash kernels take any strides but that of the last dimension."""
    return (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def lse_like(q: Tensor) -> Tensor:
    return q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float64 if q.dtype is torch.float64 else torch.float32)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    is_causal: bool,
    scale: float | None,
    left: int = -1,
    right: int = -1,
) -> tuple[Tensor, Tensor]:
    q, k, v = unit_stride(q, k, v)
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    batches, rows, columns = _plan(q, k, cu_seqlens_q, cu_seqlens_k, left, 0 if is_causal else right)
    out, lse = rows.like(q), rows.like(lse_like(q))
    apart: list[tuple[Tensor | None, ...]] = []
    parts = zip(batches, rows.get(q), columns.get(k), columns.get(v), strict=True)
    for i, (batch, of_q, of_k, of_v) in enumerate(parts):
        n = batch.documents
        of_documents, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _query_heads(of_q, n, heads),
            _key_heads(of_k, n, groups),
            _key_heads(of_v, n, groups),
            0.0,
            batch.causal,
            attn_mask=batch.mask,
            scale=scale,
        )
        made = _rows_of_queries(of_documents, n), _rows_of_lse(logsumexp, n)
        apart.append((rows.put(out, i, made[0]), rows.put(lse, i, made[1], dim=1)))
    return rows.spread(out, [kept for kept, _ in apart]), rows.spread(lse, [kept for _, kept in apart], dim=1)


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
    left: int = -1,
    right: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    grad, q, k, v = unit_stride(grad, q, k, v)
    heads, groups = k.shape[1], q.shape[1] // k.shape[1]
    batches, rows, columns = _plan(q, k, cu_seqlens_q, cu_seqlens_k, left, 0 if is_causal else right)
    grads = rows.like(q), columns.like(k), columns.like(v)
    apart: list[tuple[Tensor | None, ...]] = []
    parts = (*(rows.get(x) for x in (grad, q, out)), *(columns.get(x) for x in (k, v)), rows.get(lse, dim=1))
    for i, (batch, of_grad, of_q, of_out, of_k, of_v, of_lse) in enumerate(zip(batches, *parts, strict=True)):
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
        made = _rows_of_queries(grad_q, n), _rows_of_keys(grad_k, n), _rows_of_keys(grad_v, n)
        sides = rows, columns, columns
        apart.append(tuple(side.put(x, i, part) for side, x, part in zip(sides, grads, made, strict=True)))
    first, second, third = (
        side.spread(x, [kept[j] for kept in apart])
        for j, (side, x) in enumerate(zip((rows, columns, columns), grads, strict=True))
    )
    return first, second, third
