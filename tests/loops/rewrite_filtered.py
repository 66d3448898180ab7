"""Loops that must be rewritten: only documents that are long enough append to a list, which is joined."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Shape, program

LONG = (Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(1, 9, "plain"), Shape(50, 373, "plain"))
"""Some document has at least three slots in each."""


@program("f[T,3] cu", tail=False)
def behind_a_part_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        parts.append(x[s:e].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", shapes=LONG)
def long_enough_alone(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s >= 3:
            parts.append(x[s:e].flip(0))
    return torch.cat(parts)


@program("f[T,3] cu", shapes=LONG)
def within_its_ends(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s <= 2:
            continue
        parts.append(x[s + 1 : e - 1])
    return torch.cat(parts, 0)


@program("f[T,3] cu", shapes=LONG)
def listed_and_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, out = [], torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        doubled = x[s:e] * 2
        if e - s < 3:
            continue
        parts.append(doubled)
        out[s:e] = x[s:e] + 1
    return torch.cat(parts), out


@program("f[T,3] cu", tail=False, reads=1)
def counted_as_well(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    parts, count = [x[:0]], 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        parts.append(x[s:e] * 2)
        count += 1
    return torch.cat(parts), count


@program("i[T] cu", shapes=LONG)
def numbers_of_the_long(ids: Tensor, cu: Tensor) -> Tensor:
    numbers = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        if e - s < 3:
            continue
        numbers.append(torch.full((e - s,), i))
    return torch.cat(numbers)


@program("i[T] cu", tail=False)
def with_slots_of_their_own(ids: Tensor, cu: Tensor) -> Tensor:
    rows = [ids.new_zeros(1)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 4:
            continue
        rows.append(torch.cat([ids[s:e], ids.new_ones(1)]))
    return torch.cat(rows)
