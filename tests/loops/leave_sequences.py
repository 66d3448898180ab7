"""Loops that must be left alone: places of a list that are filled in another order, or looked at while others are."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="documents are put into the list from its end")
def places_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    parts: list[Any] = [None] * n
    for i in range(n):
        parts[n - 1 - i] = x[cu[i] : cu[i + 1]] * 2
    return torch.cat([x[:1], *parts])


@leave("f[T] cu", must_refuse=True, exact=False, why="the place before is part of the next")
def places_that_add_up(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    sums: list[Any] = [0.0] * n
    for i in range(n):
        sums[i] = x[cu[i] : cu[i + 1]].sum() + sums[i - 1]
    return torch.stack([x.sum() * 0, *sums])


@leave("f[T] cu", must_refuse=True, exact=False, why="a place is filled twice")
def places_filled_twice(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    sums: list[Any] = [None] * n
    for i in range(n):
        sums[i] = x[cu[i] : cu[i + 1]].sum()
        sums[i] = x[cu[i] : cu[i + 1]].sum() * 2
    return torch.stack([x.sum() * 0, *sums])


@leave("f[T] cu", must_refuse=True, exact=False, why="documents without tokens leave their place empty")
def places_left_empty(x: Tensor, cu: Tensor) -> Tensor:
    n = len(cu) - 1
    sums: list[Any] = [None] * n
    for i in range(n):
        if cu[i + 1] > cu[i]:
            sums[i] = x[cu[i] : cu[i + 1]].sum()
    return torch.stack([x.sum() * 0, *[s for s in sums if s is not None]])


@leave("f[T] cu", must_refuse=True, exact=False, why="the entry of one document is taken from the list")
def one_place_of_all(x: Tensor, cu: Tensor) -> Any:
    n = len(cu) - 1
    sums: list[Any] = [None] * n
    for i in range(n):
        sums[i] = x[cu[i] : cu[i + 1]].sum()
    return sums[n // 2 :]


@leave("f[T] cu", must_refuse=True, why="the rows of the matrix come from its end")
def rows_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    spans = torch.stack([cu[:-1], cu[1:]], 1).flip(0).tolist()
    return torch.cat([x[:1], *[x[s:e].flip(0) for s, e in spans]])


@leave("f[T] cu", must_refuse=True, tail=False, why="the list is counted from 1")
def boundaries_counted_from_one(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [1]
    for n in cu.diff().tolist():
        bounds.append(bounds[-1] + n)
    return torch.cat([x[:1], *[x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]])


@leave("f[T] cu", must_refuse=True, why="the list holds the longest so far")
def longest_so_far(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for n in cu.diff().tolist():
        bounds.append(max(bounds[-1], n))
    return torch.cat([x[:1], *[x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]])


@leave("f[T] cu", must_refuse=True, why="the last number is part of what else the document gives")
def last_number_is_used(x: Tensor, cu: Tensor) -> Tensor:
    bounds, parts = [0], [x[:1]]
    for n in cu.diff().tolist():
        parts.append(x[bounds[-1] : bounds[-1] + n] * bounds[-1])
        bounds.append(bounds[-1] + n)
    return torch.cat(parts)


@leave("f[T] cu", must_refuse=True, why="the longest so far, by accumulate")
def accumulated_by_max(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0, *itertools.accumulate(cu.diff().tolist(), max)]
    return torch.cat([x[:1], *[x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]])


@leave("f[T,3] cu", tail=False, why="numbers of 32 bits stay such in what numpy makes of them")
def entries_of_an_array_of_32_bits(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.numpy()
    return torch.cat([x[bounds[i] : bounds[i + 1]].flip(0) for i in range(len(bounds) - 1)])


@leave("f[T,3] cu64", tail=False, why="the array has the memory of a tensor that the loop changes")
def array_that_the_loop_changes(x: Tensor, cu: Tensor) -> Tensor:
    own = cu.clone()
    bounds, out = own.numpy(), x.clone()
    for i in range(len(bounds) - 1):
        s, e = bounds[i], bounds[i + 1]
        out[s:e] = x[s:e].flip(0)
        own[i + 1] -= 0
    return out


@leave("f[T,3] cu", tail=False)
def jagged_along_its_last_dimension(x: Tensor, cu: Tensor) -> list[Tensor]:
    nested = torch.nested.nested_tensor_from_jagged(x, cu.long()).transpose(1, 2)
    return [part * 2 for part in nested.unbind()]


@leave("f[T,3] cu", tail=False)
def jagged_that_leaves_slots_out(x: Tensor, cu: Tensor) -> list[Tensor]:
    """Each of its tensors ends before the next one begins."""
    cu = cu.long()
    nested = torch.nested.nested_tensor_from_jagged(x, cu, lengths=cu.diff() // 2)
    return [part * 2 for part in nested.unbind()]
