"""Loops that must be rewritten: sizes that stay tensors of one number, offsets that are worked out from them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program
from .rewrite_grids import grid_of


def _patches(numbers: Tensor) -> tuple[Tensor, Tensor]:
    grid = grid_of(numbers)
    count = int(grid.prod(1).sum())
    return torch.arange(count * 3.0).reshape(count, 3) / 8, grid


grids: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=lambda numbers: (grid_of(numbers),), graphs=3, lead_empty=False,
    min_len=1,
)  # fmt: skip


@grids("i[N,3]")
def orders_behind_one_another(grid: Tensor) -> Tensor:
    out, start = [], 0
    for t, h, w in grid:
        places = torch.arange(t * h * w).reshape(t, h, w)
        out.append(places.permute(0, 2, 1).reshape(-1) + start)
        start += (t * h * w).item()
    return torch.cat(out)


@grids("i[N,3]")
def windows_of_tensors(grid: Tensor) -> tuple[Tensor, Tensor]:
    """The window order of Qwen2.5-VL, as it was before sizes were taken to lists."""
    order, bounds, start = [], [0], 0
    for t, h, w in grid:
        places = torch.arange(t * h * w).reshape(t, h, w)
        more_h, more_w = 4 - h % 4, 4 - w % 4
        padded = F.pad(places, (0, more_w, 0, more_h), "constant", -100)
        padded = padded.reshape(t, (h + more_h) // 4, 4, (w + more_w) // 4, 4)
        padded = padded.permute(0, 1, 3, 2, 4).reshape(t, (h + more_h) // 4 * ((w + more_w) // 4), 4, 4)
        lengths = (padded != -100).sum([2, 3]).reshape(-1)
        padded = padded.reshape(-1)
        order.append(padded[padded != -100] + start)
        bounds.extend((lengths.cumsum(0) + bounds[-1]).tolist())
        start += (t * h * w).item()
    return torch.cat(order), torch.tensor(bounds)


@grids("i[N,3]", wrap=_patches, exact=False)
def means_of_patches(patches: Tensor, grid: Tensor) -> Tensor:
    out, start = [], 0
    for t, h, w in grid:
        count = (t * (h * w)).item()
        out.append(patches[start : start + count].sum(0, keepdim=True) / count)
        start += count
    return torch.cat(out)


@grids("i[N,3]")
def rounded_up(grid: Tensor) -> Tensor:
    """Quotients and remainders of tensors are Python's."""
    out = []
    for t, h, w in grid:
        count = int((h + 3) // 4 * 4 - h % 3 + t)
        out.append(torch.arange(count) * w.item())
    return torch.cat(out)
