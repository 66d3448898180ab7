"""Documents in rows of a padded batch, without some slots in front or behind: ``out[i, 1:n] = x[s : e - 1]``."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[1,T] cu")
def one_slot_further_in(scores: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    out = torch.zeros(len(lengths), 200)
    for i, (start, n) in enumerate(zip(cu[:-1].tolist(), lengths)):
        out[i, 1:n] = -scores[0, start : start + n][:-1]
    return out


@program("f[T] cu", unfit=True, min_len=1)
def as_many_as_follow(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.size(0) - 1, 180)
    for i, n in enumerate(cu.diff().tolist()):
        out[i, : n - 1] = x[cu[i] + 1 : cu[i + 1]] - x[cu[i] : cu[i + 1] - 1]
    return out


@program("f[T] i[T] cu", min_len=1, tail=False)
def starts_that_are_told_beside_lengths(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    starts, lengths = cu[:-1].clone(), cu.diff()
    out = torch.zeros(lengths.shape[0], 190)
    for i, (s, n) in enumerate(zip(starts.tolist(), lengths.tolist())):
        out[i, 1:n] = x[s : s + n - 1] * ids[s : s + n - 1]
    return out


@program("f[T] f[N,201] cu", graphs=3)
def row_read_from_its_second_slot(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        n = cu[i + 1] - cu[i]
        out[cu[i] : cu[i + 1]] = rows[i, 1 : n + 1] * x[cu[i] : cu[i + 1]]
    return out


@program("f[T] f[N,200] cu", graphs=3)
def shifted_on_both_sides(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        n = cu[i + 1] - cu[i]
        out[cu[i] + 1 : cu[i + 1]] = rows[i, 1:n] * x[cu[i] : cu[i + 1]][:-1]
    return out


@program("f[T,3] cu")
def differences_in_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.full((len(cu) - 1, 200, 3), -1.0)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, 1 : e - s] = x[s:e][1:] - x[s:e][:-1]
    return out


@program("f[N,T] cu", graphs=3, tail=False)
def responses_in_a_flat_batch(rows: Tensor, cu: Tensor) -> Tensor:
    flat, width = rows.reshape(-1), rows.size(1)
    totals = cu.diff()
    parts = []
    for i, (total, response) in enumerate(zip(totals.tolist(), (totals // 2).tolist())):
        end = width * i + total
        parts.append(flat[end - response : end] * 2)
    return torch.cat(parts)


@program("f[T] f[N,T] cu", graphs=3, min_len=1)
def shifted_into_a_flat_batch(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    flat = torch.zeros(rows.numel())
    bounds = cu.tolist()
    for i in range(len(bounds) - 1):
        n, start = bounds[i + 1] - bounds[i], i * rows.size(1)
        flat[start : start + n - 1] = x[bounds[i] + 1 : bounds[i + 1]]
    return flat
