"""Places that go by the number of the document: columns, and every second entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu64", tail=False)
def members(x: Tensor, cu: Tensor) -> Any:
    member = torch.zeros(x.shape[0], cu.numel() - 1)
    for i in range(cu.numel() - 1):
        member[cu[i] : cu[i + 1], i] = 1
    return member.T @ x, member


@program("f[T,3] cu64", tail=False)
def column_of_values(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], cu.numel() - 1)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e, i] = x[s:e, 0]
    return out


@program("f[T,3] cu64", tail=False, exact=False)
def two_rows_for_each(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2 * (cu.numel() - 1), 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[2 * i] = x[s:e].sum(0)
        out[2 * i + 1] = x[s:e].sum(0) * 0.5
    return out


@program("f[T,3] cu64", tail=False)
def boundaries_of_padded_documents(x: Tensor, cu: Tensor) -> Any:
    lengths, longest = cu.diff(), x.shape[0]
    bounds = torch.zeros(2 * lengths.numel() + 1, dtype=torch.int32)
    for i in range(lengths.numel()):
        bounds[2 * i + 1] = i * longest + lengths[i]
        bounds[2 * i + 2] = (i + 1) * longest
    return bounds, x * 2


def spans(x: Tensor, cu: Tensor) -> Any:
    """Where parts of the row begin, and how long they are, in rows."""
    return x, torch.stack([cu[:-1], cu.diff() // 2], 1)


@program("f[T,3] cu64", wrap=spans, tail=False, graphs=3)
def written_by_starts_and_lengths(x: Tensor, parts: Tensor) -> Tensor:
    inside = torch.zeros(x.shape[0], dtype=torch.bool)
    for start, n in parts.tolist():
        inside[start : start + n] = True
    return inside


@program("f[T,3] cu64", wrap=spans, tail=False)
def rows_put_where_parts_begin(x: Tensor, parts: Tensor) -> Tensor:
    out, padded = x * 2, x[: parts.shape[0], :1].expand(-1, x.shape[0]).clone()
    for i, (start, n) in enumerate(parts.tolist()):
        out[start : start + n, 0] = padded[i, :n]
    return out


@program("f[T,3] cu64", wrap=spans, tail=False, graphs=3)
def read_from_pairs(x: Tensor, parts: Tensor) -> Tensor:
    out = x * 1
    for i in range(parts.shape[0]):
        start, n = parts[i]
        out[start : start + n] = x[start : start + n].flip(0)
    return out
