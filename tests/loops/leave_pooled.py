"""Look-alikes of loops over rows of sizes that put slots together or take two ways."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave
from .rewrite_images import _grids, _images, parts

images: Any = functools.partial(leave, tail=False, wrap=_images, min_len=1, lead_empty=False, must_refuse=True)

@images("i[N,3]", why="the middle one of an image")
def middle_of_each_image(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(part.view(t, h * w, 6).median(1).values)
    return torch.cat(out)


@images("i[N,3]", why="the spread of an image")
def spread_of_each_image(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(part.view(t, h * w, 6).std(1))
    return torch.cat(out)


@images("i[N,3]", why="running sums along rows")
def sums_along_rows(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(part.view(t * h, w, 6).cumsum(1).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3]", why="the ways leave numbers of different kinds", wrap=_grids)
def whole_numbers_or_not(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        if h * w == 8:
            out.append(torch.arange(h * w))
        else:
            out.append(torch.arange(h * w) / 2)
    return torch.cat(out)


@images("i[N,3]", why="the branch asks what the patches hold")
def by_what_is_there(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        if part.view(t, h, w, 6).sum() > 0:
            out.append(part * 2)
        else:
            out.append(part.flip(0))
    return torch.cat(out)


@images("i[N,3]", why="a size is divided by a float", wrap=_grids)
def divided_by_floats(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.arange(h) * (w / (h * 0.5)))
    return torch.cat(out)


@images("i[N,3]", why="averages of windows, by an operation that has no pieces")
def averages_of_windows(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        rows = F.avg_pool2d(part.view(t * h, w, 6).permute(2, 0, 1)[None], 2)
        out.append(rows[0].flatten(1).t())
    return torch.cat(out)
