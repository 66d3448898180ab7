"""Loops that must be rewritten: over the rows of a matrix of sizes (`passes.ragged_grids`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def grid_of(numbers: Tensor) -> Tensor:
    """Sizes of images: some frames, even heights and widths."""
    t, h, w = numbers.unbind(1)
    return torch.stack([t % 3 + 1, h % 3 * 2 + 2, w % 4 * 2 + 2], 1)


def _grid(numbers: Tensor) -> tuple[Tensor]:
    return (grid_of(numbers),)


def _patches(numbers: Tensor) -> tuple[Tensor, Tensor]:
    grid = grid_of(numbers)
    count = int((grid[:, 1] * grid[:, 2]).sum())
    return torch.arange(count * 6.0).reshape(count, 6) / 8, grid


def _table(numbers: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    return grid_of(numbers), table


grids: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_grid, graphs=3, lead_empty=False, min_len=1
)


@grids("i[N,3]")
def rows_and_columns(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        rows = torch.arange(h)[:, None].expand(h, w).flatten()
        columns = torch.arange(w)[None, :].expand(h, w).flatten()
        out.append(torch.stack([rows, columns], -1).repeat(t, 1))
    return torch.cat(out)


@grids("i[N,3]")
def in_merge_order(grid: Tensor) -> Tensor:
    """``rot_pos_emb`` of the vision towers of transformers, before 5.17: entries are tensors."""
    out = []
    for t, h, w in grid:
        rows = torch.arange(h).unsqueeze(1).expand(-1, w)
        rows = rows.reshape(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).flatten()
        columns = torch.arange(w).unsqueeze(0).expand(h, -1)
        columns = columns.reshape(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).flatten()
        out.append(torch.stack([rows, columns], dim=-1).repeat(t, 1))
    return torch.cat(out, dim=0)


@grids("i[N,3]")
def merge_sizes_of_each(grid: Tensor) -> Tensor:
    merge = torch.tensor([2]).expand(len(grid))
    out = []
    for (t, h, w), m in zip(grid.tolist(), merge.tolist()):
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        block = (h // m, m, w // m, m)
        rows, columns = (x.reshape(block).transpose(1, 2).flatten() for x in (rows, columns))
        frames = torch.arange(t).repeat_interleave(h * w)
        out.append(torch.stack([frames, rows.repeat(t), columns.repeat(t)], dim=-1))
    return torch.cat(out, dim=0)


@grids("i[N,3]")
def fractions_of_the_image(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        y = torch.arange(h, dtype=torch.float32) / h
        x = (torch.arange(w) + 0.5) * 2 / w - 1
        yy, xx = torch.meshgrid(y, x, indexing="ij")
        out.append((yy * 4 + xx).reshape(-1).repeat(t))
    return torch.cat(out)


@grids("i[N,3] f[64,4]", wrap=_table)
def rows_of_a_table(grid: Tensor, table: Tensor) -> Tensor:
    """Learned positions, one gather; its gradient goes back to the table."""
    out = []
    for t, h, w in grid.tolist():
        places = (torch.arange(h)[:, None] * 7 + torch.arange(w)[None, :]) % 64
        out.append((F.embedding(places.flatten(), table) + t).repeat(t, 1))
    return torch.cat(out)


@grids("i[N,3]", wrap=_patches)
def parts_of_a_row(x: Tensor, grid: Tensor) -> Tensor:
    """A split by products of sizes, laid out anew: patch mergers."""
    sizes = [h * w for _, h, w in grid.tolist()]
    out = []
    for part, (t, h, w) in zip(x.split(sizes), grid.tolist()):
        part = part.view(h // 2, 2, w // 2, 2, -1).permute(0, 2, 1, 3, 4).reshape(h * w // 4, -1)
        out.append(part.repeat(t, 1))
    return torch.cat(out)


@grids("i[N,3]")
def padded_to_windows(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w).reshape(t, h, w)
        below, beside = 4 - h % 4, 4 - w % 4
        index = F.pad(index, (0, beside, 0, below), "constant", -100)
        index = index.reshape(t, (h + below) // 4, 4, (w + beside) // 4, 4).permute(0, 1, 3, 2, 4)
        out.append(index.reshape(-1))
    return torch.cat(out)


@grids("i[N,3]")
def along_the_other_dimension(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        out.append(torch.stack([torch.arange(h * w), torch.full((h * w,), t)]))
    return torch.cat(out, dim=1)


@grids("i[N,3]")
def two_lists_of_sizes(grid: Tensor) -> tuple[Tensor, Tensor]:
    rows, frames = [], []
    for t, h, w in grid.tolist():
        rows.append(torch.arange(h).flip(0).roll(1).repeat_interleave(w))
        frames.append(torch.arange(t)[:, None].expand(t, 3))
    return torch.cat(rows), torch.cat(frames)


@grids("i[N,3]")
def a_class_token_in_front(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(h * w) + 1]))
    return torch.cat(out)


@grids("i[N,3]")
def selected_by_a_mask(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        index = torch.arange(t * h * w)
        out.append(index[index % 3 != 0] * w)
    return torch.cat(out)


@grids("i[N,3] f[64,4]", wrap=_table)
def rows_of_a_table_selected(grid: Tensor, table: Tensor) -> Tensor:
    """A condition on two dimensions, and a gradient through what is selected."""
    out = []
    for t, h, w in grid.tolist():
        places = (torch.arange(h)[:, None] * 7 + torch.arange(w)[None, :]) % 64
        rows = F.embedding(places, table) * t
        out.append(rows[places % 2 == 0])
    return torch.cat(out)


@grids("i[N,3]")
def counts_of_windows(grid: Tensor) -> Tensor:
    """Sums over dimensions that all images share."""
    out = []
    for t, h, w in grid.tolist():
        inside = torch.arange(h * w * 6).reshape(h, 2, w, 3) % (t + 2) == 0
        out.append(inside.sum([1, 3]).reshape(-1) + inside.any(3).amax(1).flatten())
    return torch.cat(out)


@grids("i[N,3]")
def a_list_that_counts_on(grid: Tensor) -> Tensor:
    """Numbers of 0 of some images: a document that adds none leaves the last as it is."""
    bounds = [5, 3]
    for t, h, w in grid.tolist():
        ends = torch.full((h * (t % 2),), w).cumsum(0) * 2 + bounds[-1]
        bounds.extend(ends.tolist())
    return torch.tensor(bounds, dtype=torch.int32)


@grids("i[N,3]")
def numbers_of_all_images(grid: Tensor) -> Tensor:
    """Nothing goes on from the last entry."""
    numbers = [-1]
    for _, h, w in grid.tolist():
        numbers.extend((torch.arange(h) * w).tolist())
    return torch.tensor(numbers)


@grids("i[N,3]")
def window_order(grid: Tensor) -> tuple[Tensor, Tensor]:
    """``get_window_index`` of Qwen2.5-VL: padding to whole windows, marked and taken out again; boundaries of the
    windows, of which those without patches go."""
    order, bounds, start = [], [0], 0
    for t, h, w in grid.tolist():
        h, w = h // 2, w // 2
        index = torch.arange(t * h * w).reshape(t, h, w)
        below, beside = 2 - h % 2, 2 - w % 2
        high, wide = (h + below) // 2, (w + beside) // 2
        index = F.pad(index, (0, beside, 0, below), "constant", -100)
        index = index.reshape(t, high, 2, wide, 2).permute(0, 1, 3, 2, 4).reshape(t, high * wide, 2, 2)
        lengths = (index != -100).sum([2, 3]).reshape(-1)
        index = index.reshape(-1)
        order.append(index[index != -100] + start)
        bounds.extend((lengths.cumsum(0) * 4 + bounds[-1]).tolist())
        start += t * h * w
    return torch.cat(order), torch.unique_consecutive(torch.tensor(bounds, device=grid.device, dtype=torch.int32))


@grids("i[N,3]")
def a_list_of_small_numbers(grid: Tensor) -> Tensor:
    """What `torch.tensor` makes of a list of numbers has 64 bits, whatever they came from."""
    bounds = [1, 1]
    for _, h, w in grid.tolist():
        bounds.extend((torch.arange(h, dtype=torch.int32) * w + bounds[-1]).tolist())
    return torch.tensor(bounds)


def _frames(numbers: Tensor) -> tuple[Tensor, Tensor]:
    grid = grid_of(numbers)
    count = int(grid.prod(-1).sum())
    return torch.arange(count * 6.0).reshape(count, 6) / 8, grid


@grids("i[N,3]", wrap=_frames)
def a_token_behind_every_row_of_all_frames(x: Tensor, grid: Tensor) -> Tensor:
    """A size that is a product stands in a view."""
    out, newline = [], torch.linspace(0, 1, 6)
    for image, (t, h, w) in zip(x.split(grid.prod(-1).tolist()), grid.tolist()):
        rows = image.view(t * h, w, 6)
        out.append(torch.cat([rows, newline.expand(t * h, 1, 6)], 1).flatten(0, 1))
    return torch.cat(out)
