"""Lists of documents that have become longer or shorter, put into padded rows by a later loop."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


def padded(parts: list[Tensor], fill: float) -> Tensor:
    """As speech toolkits write it: the kind of the new tensor is asked of the first entry."""
    longest = max(part.size(0) for part in parts)
    rows = parts[0].new(len(parts), longest, *parts[0].size()[1:]).fill_(fill)
    for i in range(len(parts)):
        rows[i, : parts[i].size(0)] = parts[i]
    return rows


@program("f[T,3] cu", where=(padded,), min_len=1, tail=False, reads=2)
def refilled_with_a_slot_in_front(x, cu):
    lengths = cu.diff().tolist()
    parts = [torch.cat([part.new_zeros(1, 3), part]) for part in x[: cu[-1]].split(lengths)]
    return padded(parts, 0.0)


@program("i[T] cu", where=(padded,), min_len=1, tail=False, reads=1)
def refilled_numbers_with_a_slot_behind(x, cu):
    end = x.new_full((1,), 7)
    parts = [torch.cat([x[s:e], end]) for s, e in zip(cu[:-1], cu[1:])]
    return padded(parts, -1)


@program("f[T] cu", where=(padded,), min_len=2, tail=False, reads=1)
def refilled_shorter(x, cu):
    parts = []
    for i in range(len(cu) - 1):
        parts.append(x[cu[i] : cu[i + 1]][1:])
    return padded(parts, -1.0)


@program("f[T,2] cu", where=(padded,), min_len=1, tail=False, reads=2)
def refilled_twice(x, cu):
    parts = [x[s:e] for s, e in zip(cu[:-1], cu[1:])]
    front = [torch.cat([part[:1], part]) for part in parts]
    behind = [torch.cat([part, part[-1:]]) for part in parts]
    return padded(front, 0.5), padded(behind, -0.5)


@program("f[2,T] cu", min_len=1, tail=False, reads=1)
def refilled_where_slots_are_columns(x, cu):
    parts = [torch.cat([x[:, s:e], x[:, s : s + 1]], dim=1) for s, e in zip(cu[:-1], cu[1:])]
    rows = parts[0].new_zeros(len(parts), parts[0].size(0), max(part.size(1) for part in parts))
    for i, part in enumerate(parts):
        rows[i, :, : part.size(1)] = part
    return rows
