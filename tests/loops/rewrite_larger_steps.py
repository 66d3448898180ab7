"""Offsets that go on by the larger or the smaller of a document's numbers, or by how long what it makes is."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program
from .rewrite_grids import grids


def _lengths(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.long().diff()


@grids("i[N,3]")
def positions_behind_the_longest_side(grid: Tensor) -> Tensor:
    outs, start = [], 0
    for t, h, w in grid.tolist():
        rows = torch.arange(h)[:, None].expand(h, w).flatten()
        columns = torch.arange(w)[None].expand(h, w).flatten()
        outs.append((torch.stack([rows, columns]) + start).repeat(1, t))
        start += max(t, h, w)
    return torch.cat(outs, 1)


@grids("i[N,3]")
def positions_behind_as_many_as_made(grid: Tensor) -> Tensor:
    outs, start = [], 0
    for _, h, w in grid.tolist():
        own = torch.arange(h * w) + start
        outs.append(own)
        start += own.shape[0]
    return torch.cat(outs)


@program("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False, graphs=3)
def counted_on_by_at_least_the_width(x: Tensor, lens: Tensor) -> Tensor:
    outs, start, width = [x[:0, 0].long()], 0, x.shape[1]
    for n in lens.tolist():
        outs.append(torch.arange(n) + start)
        start += max(n, width)
    return torch.cat(outs)


@program("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False, graphs=3)
def counted_on_by_at_most_three(x: Tensor, lens: Tensor) -> Tensor:
    outs, start = [x[:0, 0].long()], 0
    for n in lens.tolist():
        start += min(n, 3)
        outs.append(torch.arange(n) + start)
    return torch.cat(outs)
