"""Look-alikes of sizes that stay tensors of one number."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_grids import grid_of

grids: Any = functools.partial(
    leave, tail=False, wrap=lambda numbers: (grid_of(numbers),), lead_empty=False, min_len=1
)


@grids("i[N,3]", why="what 32 bits hold is not what Python's numbers are")
def products_of_32_bits(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.int():
        out.append(torch.arange(t.item() + 2) + (h * 1_500_000_000 // (w * 700_000_000)).item())
    return torch.cat(out)


@grids("i[N,3]", why="a size is written before it is read")
def sizes_written_in_the_loop(grid: Tensor) -> Tensor:
    grid, out = grid.clone(), []
    for t, h, w in grid:
        h += 1
        out.append(torch.arange(t * h) * w.item())
    return torch.cat(out) + grid.sum()


@grids("i[N,3]", why="what is read was worked out before the size was written")
def written_behind_what_is_made(grid: Tensor) -> Tensor:
    grid, out = grid.clone(), []
    for t, h, w in grid:
        count = t * h
        h += 1
        out.append(torch.arange(count.item() + h.item()) * w.item())
    return torch.cat(out)


@grids("i[N,3]", why="a size of the document behind")
def sizes_of_the_next(grid: Tensor) -> Tensor:
    out = []
    for i in range(len(grid)):
        t, h, w = grid[i]
        out.append(torch.arange(t * grid[min(i + 1, len(grid) - 1), 1]) + h * w)
    return torch.cat(out)


@grids("i[N,3]", why="floats are cut off where they are taken for numbers")
def quotients_that_are_floats(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid:
        out.append(torch.arange(int(h / 4 * w)) + t)
    return torch.cat(out)


@grids("i[N,3]", why="the offset grows by something else than the sizes")
def offsets_that_lag_behind(grid: Tensor) -> Tensor:
    out, start, before = [], 0, 0
    for t, h, w in grid:
        out.append(torch.arange(t * h * w) + start)
        start += before
        before = (t * h * w).item()
    return torch.cat(out)


@grids("i[N,3]", why="entries are views of what is changed before they are used")
def entries_listed_then_changed(grid: Tensor) -> Tensor:
    grid, sizes = grid.clone(), []
    for t, h, _ in grid:
        sizes.append((t, h))
    grid += 2
    return torch.cat([torch.arange(t * h) for t, h in sizes])


@grids("i[N,3]", why="a product is made before what it is made of is changed")
def product_of_what_is_changed(grid: Tensor) -> Tensor:
    grid, out = grid.clone(), []
    for t, h, w in grid:
        count = h * w
        h.fill_(1)
        out.append(torch.arange(t * count).reshape(t, count).t().reshape(-1))
    return torch.cat(out)


@grids("i[N,3]", why="an offset that grows in place is one tensor, and it is in a list")
def offsets_that_grow_in_place(grid: Tensor) -> tuple[Tensor, Tensor]:
    start, out, offsets = 0, [], []
    row = torch.arange(float(grid.prod(1).sum()))
    for t, h, w in grid:
        count = t * h * w
        start += count
        out.append(row[start - count : start].cumsum(0))
        offsets.append(start)
    return torch.cat(out), torch.stack(offsets)


@grids("i[N,3]", why="a tensor of 32 bits makes no 64 bits of truth values")
def listed_sizes_of_32_bits(grid: Tensor) -> Tensor:
    sizes = []
    for t, h, _ in grid.int():
        sizes.append((t, h))
    return torch.stack([(torch.arange(4) > 1) * t for t, h in sizes])


@leave("f[T,3] j[N] cu", tail=False, why="a list holds entries of a vector that is changed before it is stacked")
def listed_entries_of_what_is_changed(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    numbers, listed, sums = numbers.clone(), [], []
    for i, n in enumerate(numbers):
        listed.append(n)
        sums.append(x.detach()[cu[i] : cu[i + 1]].sum(0) * n)
    numbers += 5
    return torch.stack(listed), torch.stack(sums)


@leave("f[T,3] j[N] cu", tail=False, why="the larger one of two is one of them")
def largest_of_what_is_changed(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, n in enumerate(numbers):
        twice = n * 2
        most = max(twice, 3)
        twice += 10
        out.append(x[cu[i] : cu[i + 1]] * most + twice)
    return torch.cat(out)


@leave("f[T] m[T] cu", tail=False, why="a number below 0 is another one in 8 bits without a sign")
def casts_that_wrap_around(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        number = (mask[s:e].any().long() * -1).to(torch.uint8).long().item()
        out.append(x[s:e].sum() + (number * 2**60) % 7)
    return torch.stack(out)
