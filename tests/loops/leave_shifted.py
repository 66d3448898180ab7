"""Slices of rows that wrap around, end behind the row, or lie upon each other."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", unfit=True)
def wraps_where_a_document_is_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.size(0) - 1, 180)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, : e - s - 1] = x[s:e].sum()
    return out


@leave("f[T] cu", min_len=1)
def two_slices_upon_each_other(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.size(0) - 1, 180)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, 1 : e - s] = x[s:e][:-1]
        out[i, : e - s - 1] = x[s:e][1:] * 2
    return out


@leave("f[T] cu", min_len=1)
def row_read_after_it_was_written(x: Tensor, cu: Tensor) -> Tensor:
    out, parts = x.new_ones(cu.size(0) - 1, 180), []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, 1 : e - s] = x[s:e][:-1]
        parts.append(out[i, : e - s] * 2)
    return out.sum(0) + sum(p.sum() for p in parts)


@leave("f[T] f[N,2] cu", unfit=True, min_len=1)
def cut_off_at_the_end_of_the_row(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        total = total + rows[i, 1 : e - s].sum() * x[s:e].sum()
    return total


@leave("f[T] cu", min_len=1)
def shorter_by_a_number_of_its_own(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.size(0) - 1, 180)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, i : e - s] = x[s:e][i:]
    return out


@leave("f[N,T] cu", tail=False)
def from_a_flat_batch_by_another_width(rows: Tensor, cu: Tensor) -> Tensor:
    flat, width = rows.reshape(-1), rows.size(1)
    parts = []
    for i, n in enumerate(cu.diff().tolist()):
        start = (width - 1) * i
        parts.append(flat[start : start + n] * 2)
    return torch.cat(parts)


@leave("f[N,T] cu", tail=False)
def squares_of_the_number(rows: Tensor, cu: Tensor) -> Tensor:
    flat = rows.reshape(-1)
    parts = []
    for i, n in enumerate(cu.diff().tolist()):
        parts.append(flat[i * i : i * i + min(n, 1)] * 2)
    return torch.cat(parts)
