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
