"""Loops over rows of sizes that put slots together, take sizes as floats, cut by running offsets, or take two ways."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program
from .rewrite_images import _grids, _images, parts


def _flat(numbers: Tensor) -> tuple[Tensor]:
    return (numbers % 4,)


images: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_images, graphs=3, lead_empty=False, min_len=1
)
tables: Any = functools.partial(images, wrap=_grids)


# === Sums, means and extremes ================================================================================


@images("i[N,3]", exact=False)
def norm_of_each_image(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        rows = part.view(t, h, w, 6)
        out.append((rows - rows.mean(2, keepdim=True)).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3]", exact=False)
def mean_of_frames(x: Tensor, grid: Tensor) -> Tensor:
    """The patch merger of Kimi-K2.5."""
    out, start = [], 0
    for t, h, w in grid.tolist():
        rows = x[start : start + t * h * w].view(t, h // 2, 2, w // 2, 2, 6)
        rows = rows.permute(0, 1, 3, 2, 4, 5).contiguous().mean(dim=0)
        out.append(rows.view((h // 2) * (w // 2), 4, -1))
        start += t * h * w
    return torch.cat(out)


@images("i[N,3]", exact=False)
def largest_of_each_frame(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(part.view(t, h, w, 6).amax((1, 2)).mean(0))
    return torch.stack(out)


@images("i[N,3]", exact=False)
def sums_of_columns_and_least(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        rows = part.view(t, h * w, 6)
        out.append(rows.sum(1).mean(0, keepdim=True) + rows.amin(1).sum(0))
    return torch.cat(out)


@images("i[N,3]", exact=False)
def mean_of_windows(x: Tensor, grid: Tensor) -> Tensor:
    """As many in each, for all images."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(part.view(t, h // 2, 2, w // 2, 2, 6).mean((2, 4)).flatten(0, 2))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def sums_of_rows(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.arange(h * w).reshape(h, w).sum(1))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids, exact=False)
def centres_of_images(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        rows = torch.arange(h, dtype=torch.float32)
        out.append((rows - rows.mean()).repeat(w))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def sums_of_each_image(grid: Tensor) -> Tensor:
    return torch.stack([torch.arange(int(h)).sum() for _, h, _ in grid.tolist()]).cumsum(0) * len(grid)


# === Floats of sizes, operations that torch takes apart ======================================================


@images("i[N,3]", exact=False)
def scaled_by_sizes(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append((part * (h / w) + 1 / (t + 1)) * (0.5 * w))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids, exact=False)
def outer_products(grid: Tensor) -> Tensor:
    out, frequencies = [], torch.tensor([1.0, 0.1])
    for t, h, w in grid.tolist():
        places = torch.outer(torch.arange(max(h, w)), frequencies)
        out.append(places[torch.arange(h)].repeat(t, 1))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids, exact=False)
def lines(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        rows, columns = torch.linspace(0, 7, h), torch.linspace(-1, 1, steps=w)
        out.append((rows[:, None] * columns).flatten().repeat(t))
    return torch.cat(out)


@tables("i[N,3] f[1,6,4,5]", exact=False)
def resized_with_cubes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        resized = F.interpolate(table, size=(h, w), mode="bicubic")
        out.append(resized[0].permute(1, 2, 0).flatten(0, 1).repeat(t, 1))
    return torch.cat(out)


@tables("i[N,3] f[1,6,4,5]", exact=False)
def resized_smoothly_with_cubes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        resized = F.interpolate(table, size=(h, w), mode="bicubic", antialias=True)
        out.append(resized.flatten(2)[0].t())
    return torch.cat(out)


@tables("i[N,3] f[1,6,4,5]", exact=False)
def resized_to_the_corners(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        resized = F.interpolate(table, size=(h, w), mode="bilinear", align_corners=True)
        out.append(resized.flatten(2)[0].t())
    return torch.cat(out)


# === Two ways ================================================================================================


@tables("i[N,3] f[4,4,6]", exact=False)
def as_it_is_or_resized(grid: Tensor, table: Tensor) -> Tensor:
    """The positions of MoonViT."""
    out = []
    for shape in grid[:, 1:].tolist():
        if shape == [4, 4]:
            out.append(table.flatten(end_dim=1))
        else:
            resized = F.interpolate(table.permute(2, 0, 1).unsqueeze(0), size=shape, mode="bicubic")
            out.append(resized.squeeze(0).permute(1, 2, 0).flatten(end_dim=1))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def branch_on_sizes(grid: Tensor) -> Tensor:
    """Wide and narrow images are treated differently."""
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.arange(h) if h > w else torch.arange(w) * 2)
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def frames_or_none(grid: Tensor) -> Tensor:
    """The two ways are the same for one frame; fewer than that are none, and leave nothing."""
    out = []
    for t, h, w in (grid - grid.new_tensor([1, 0, 0])).tolist():
        if t > 1:
            index = (torch.arange(t)[:, None] * (h * w) + torch.arange(h * w)).flatten()
        else:
            index = torch.arange(t * h * w)
        out.append(index)
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def another_order_for_one_frame(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        if t == 1:
            index = torch.arange(h * w) + 1
        else:
            index = (torch.arange(t)[:, None] * (h * w) + torch.arange(h * w)).flatten()
        out.append(index)
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def few_frames(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w)
        if t >= 3:
            index = (torch.arange(t)[:, None] * (h * w) + torch.arange(h * w).flip(0)).flatten()
        out.append(index)
    return torch.cat(out)


@images("i[N,3]", wrap=_flat)
def broadcast_or_not(grid: Tensor) -> Tensor:
    """Two sizes that differ, but where one of them is 1."""
    out = []
    for _, h, w in grid.tolist():
        h = 1 if w > 2 else w
        out.append(torch.arange(h) + torch.arange(w))
    return torch.cat(out)


@tables("i[N,3] f[4,4,6]")
def one_of_some_sizes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        if (h, w) in ((4, 4), (2, 4)):
            out.append(table.flatten(0, 1)[: h * w])
        else:
            out.append(table[0, 0].expand(h * w, 6) - 1)
    return torch.cat(out)


@images("i[N,3]")
def in_blocks_of_every_frame(x: Tensor, grid: Tensor) -> Tensor:
    """The pixel shuffle of Muse."""
    out, start = [], 0
    for t, h, w in grid:
        t, h, w = int(t), int(h), int(w)
        order = torch.arange(h * w).view(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).reshape(-1)
        if t > 1:
            order = (order.unsqueeze(0) + (torch.arange(t) * h * w).view(t, 1)).reshape(-1)
        rows = x[start : start + t * h * w][order].view(t * (h // 2) * (w // 2), 4, 6)
        out.append(rows.permute(0, 2, 1).contiguous().view(-1, 24))
        start += t * h * w
    return torch.cat(out)
