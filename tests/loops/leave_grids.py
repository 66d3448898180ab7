"""Look-alikes of loops over rows of sizes: shapes that values say, state, sums, sizes that need not fit."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_grids import grid_of


def _grid(numbers: Tensor) -> tuple[Tensor]:
    return (grid_of(numbers),)


def _signed(numbers: Tensor) -> tuple[Tensor]:
    return (torch.cat([grid_of(numbers)[:, :2], -(numbers[:, 2:] % 3)], 1),)


grids: Any = functools.partial(
    leave, tail=False, wrap=_grid, min_len=1, lead_empty=False, must_refuse=True, rule="ragged_grids"
)


@grids("i[N,3]", why="what is selected twice is not known by where it was")
def selected_twice(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w)
        index = index[index % 3 != 0]
        out.append(index[index % 2 != 0])
    return torch.cat(out)


@grids("i[N,3]", why="slots that were selected change places")
def selected_and_turned_around(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w)
        out.append(index[index % 3 != 0].flip(0))
    return torch.cat(out)


@grids("i[N,3]", why="what is added is no sum with the last entry")
def multiples_of_the_last(grid: Tensor) -> Tensor:
    bounds = [1]
    for _, h, w in grid.tolist():
        bounds.extend((torch.arange(h) % w + 1 + bounds[-1] * 2).tolist())
    return torch.tensor(bounds)


@grids("i[N,3]", why="the last entry is used by another list, too")
def the_last_elsewhere(grid: Tensor) -> tuple[Tensor, Tensor]:
    bounds, out = [0], []
    for _, h, w in grid.tolist():
        last = bounds[-1]
        out.append(torch.arange(w) + last)
        bounds.extend((torch.arange(h) + last).tolist())
    return torch.tensor(bounds), torch.cat(out)


@grids("i[N,3]", why="entries of the list are used beside it")
def entries_of_a_running_list(grid: Tensor) -> Tensor:
    bounds = [0]
    for _, h, w in grid.tolist():
        bounds.extend((torch.arange(h) * w + bounds[-1]).tolist())
    return torch.tensor(bounds) + bounds[1]


@grids("i[N,3]", why="what is carried is no sum of sizes")
def largest_so_far(grid: Tensor) -> Tensor:
    out, most = [], 0
    for _, h, w in grid.tolist():
        most = most * 2 + h
        out.append(torch.arange(w) + most)
    return torch.cat(out)


@grids("i[N,3]", why="random numbers")
def noise_of_each_image(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.rand(h, w).flatten())
    return torch.cat(out)


@grids("i[N,3]", why="a tensor of the image is added to in place")
def marked_corners(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        image = torch.zeros(h, w)
        image[0, 0] += 1
        out.append(image.flatten())
    return torch.cat(out)


@grids("i[N,3]", why="the list is used entry by entry")
def first_and_last(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.arange(h * w))
    return out[0] + out[-1].sum()


@leave("i[N,3]", tail=False, wrap=_signed, min_len=1, lead_empty=False, rule="ragged_grids")
def negative_offsets(grid: Tensor) -> Tensor:
    """A number of a row that is no size may be negative."""
    out = []
    for t, h, offset in grid.tolist():
        out.append(torch.arange(h).repeat(t) + offset)
    return torch.cat(out)


@leave("cu", tail=False)
def a_running_list_of_documents(cu: Tensor) -> Tensor:
    """Numbers that go on from document to document, without rows of sizes."""
    bounds = [0]
    for n in (cu[1:] - cu[:-1]).tolist():
        bounds.extend((torch.arange(n) + bounds[-1]).tolist())
    return torch.tensor(bounds)


def _numbers(grid: Tensor) -> list[Tensor]:
    return [torch.arange(h).unsqueeze(1).expand(h, w).reshape(-1) * 3 for _, h, w in grid.tolist()]


@grids("i[N,3]", why="another loop has changed the numbers since they were listed")
def changed_by_the_longest(grid: Tensor) -> tuple[Tensor, Tensor]:
    numbers, outs = _numbers(grid), []
    longest = max(len(part) for part in numbers)
    for part in numbers:
        part.add_(longest)
        outs.append(part * 2)
    return torch.cat(outs), torch.cat([part * 3 for part in numbers])


@grids("i[N,3]", why="another loop has changed the numbers since they were listed, by views of them")
def views_are_changed_by_the_largest(grid: Tensor) -> Tensor:
    numbers = _numbers(grid)
    largest = torch.cat(numbers).max()
    for view in [part[:] for part in numbers]:
        view.sub_(largest)
    return torch.cat([part * 3 for part in numbers])
