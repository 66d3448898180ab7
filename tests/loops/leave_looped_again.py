"""Look-alikes of lists that are gone through again: parts that change, neighbours, random numbers, parts left out."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave
from .rewrite_looped_again import _crops, as_row, cut

crops: Any = functools.partial(leave, tail=False, wrap=_crops, lead_empty=False, min_len=1)


def _constants(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    x, sizes = _crops(x, numbers)
    return x.detach(), sizes


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the images change between both loops", wrap=_constants)
def images_change_between(x: Tensor, sizes: Tensor) -> Tensor:
    x = x.clone()
    parts = cut(x, sizes)
    x *= 2
    return torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the parts change the images", wrap=_constants)
def parts_change_the_images(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    parts = cut(x, sizes)
    for part in parts:
        part += 1
    return torch.cat([as_row(part) for part in parts]), x


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the part of a neighbour")
def size_of_the_neighbour(x: Tensor, sizes: Tensor) -> Tensor:
    parts = cut(x, sizes)
    rows = [as_row(parts[i]) + parts[i - 1].shape[1] for i in range(1, len(parts))]
    return torch.cat([x.new_zeros(0, 3), *rows])


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="parts are left out")
def only_high_parts(x: Tensor, sizes: Tensor) -> Tensor:
    rows = [as_row(x[0])]
    for part in cut(x, sizes):
        if part.shape[1] == 1:
            continue
        rows.append(as_row(part))
    return torch.cat(rows)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="random numbers")
def random_scales(x: Tensor, sizes: Tensor) -> Tensor:
    torch.manual_seed(3)
    parts = [part * torch.rand(1) for part in cut(x, sizes)]
    return torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]", why="the order is turned around")
def parts_in_reverse(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([as_row(part) for part in reversed(cut(x, sizes))])


@crops("f[N,3,4,4] i[N,2]", why="another part is in front")
def behind_another_part(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([as_row(part) for part in [x[0], *cut(x, sizes)]])


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="values say how long what a part leaves is")
def values_above_a_limit(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [part[part > 0] for part in cut(x, sizes)]
    return torch.cat([part.flip(0).cumsum(0) for part in parts])


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="parts of another number of images")
def half_of_the_parts(x: Tensor, sizes: Tensor) -> Tensor:
    parts = cut(x, sizes)
    rows = [as_row(a) + as_row(a).sum() for a, _ in zip(parts, x[1:])]
    return torch.cat([x.new_zeros(0, 3), *rows])


@crops("f[N,3,4,4] i[N,2]", why="it is changed when some are padded", wrap=_constants)
def images_change_before_the_padding(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    parts = [as_row(part) for part in cut(x, sizes)]
    most = max(part.shape[0] for part in parts)
    rows = torch.cat(parts)
    x.zero_()
    return rows, torch.stack([F.pad(part * 2, (0, 0, 0, most - part.shape[0])) for part in parts])


@crops("f[N,3,4,4] i[N,2]", why="random numbers are drawn once")
def random_parts_padded(x: Tensor, sizes: Tensor) -> Tensor:
    torch.manual_seed(3)
    parts = [as_row(part) * torch.rand(1) for part in cut(x, sizes)]
    most = max(part.shape[0] for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, most - part.shape[0])) for part in parts])


@crops("f[N,3,4,4] i[N,2]", why="state is carried from part to part")
def each_part_plus_the_last(x: Tensor, sizes: Tensor) -> Tensor:
    rows, last = [], torch.zeros(3, dtype=torch.float64)
    for part in cut(x, sizes):
        last = last * 0.5 + part[:, 0, 0]
        rows.append(as_row(part) + last)
    return torch.cat(rows)
