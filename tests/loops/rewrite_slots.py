"""Loops over sizes that must be rewritten: reference points on grids, numbers that are floats of the document."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import program
from .rewrite_grids import grid_of


def _levels(numbers: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Heights and widths of feature maps, and how much of each is valid."""
    return grid_of(numbers)[:, 1:].contiguous(), ratios.abs() + 0.5


levels: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_levels, graphs=3, lead_empty=False, min_len=1, exact=False
)


@levels("i[N,3] f[2,N,2]")
def reference_points(shapes: Tensor, valid_ratios: Tensor) -> Tensor:
    """Of Deformable DETR, whose sizes are tensors."""
    points = []
    for level, (height, width) in enumerate(shapes):
        y, x = torch.meshgrid(
            torch.linspace(0.5, height - 0.5, height, dtype=torch.float32),
            torch.linspace(0.5, width - 0.5, width, dtype=torch.float32),
            indexing="ij",
        )
        y = y.reshape(-1)[None] / (valid_ratios[:, None, level, 1] * height)
        x = x.reshape(-1)[None] / (valid_ratios[:, None, level, 0] * width)
        points.append(torch.stack((x, y), -1))
    return torch.cat(points, 1)[:, :, None] * valid_ratios[:, None]


@levels("i[N,3] f[2,N,2]")
def proposals_of_every_level(shapes: Tensor, valid_ratios: Tensor) -> Tensor:
    """What Deformable DETR starts from: larger boxes for coarser levels."""
    out = []
    for level, (height, width) in enumerate(shapes.tolist()):
        y, x = torch.meshgrid(
            torch.linspace(0, height - 1, height), torch.linspace(0, width - 1, width), indexing="ij"
        )
        grid = torch.cat([x.unsqueeze(-1), y.unsqueeze(-1)], -1) + 0.5
        box = torch.ones_like(grid) * 0.05 * (2.0**level)
        out.append(torch.cat((grid, box), -1).view(-1, 4))
    return torch.cat(out)


@program("f[T,3] cu", tail=False, rule="ragged_grids", exact=False)
def floats_of_the_document(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        count = (cu[i + 1] - cu[i]).item()
        twice = x[cu[i] : cu[i + 1]].repeat_interleave(2, 0)
        out.append(twice * 0.05 * (1.7**i) + count * 0.1 + int(count * 0.4))
    return torch.cat(out)


@program("f[T,2] f[2,N,3] cu", tail=False, rule="ragged_grids", graphs=3)
def a_row_among_new_dimensions(x: Tensor, table: Tensor, cu: Tensor) -> Tensor:
    """The document's row of a table, in a subscript with new dimensions."""
    out = []
    for i in range(len(cu) - 1):
        document = x[cu[i] : cu[i + 1]]
        out.append(document * table[0, None, i, :2] + table[..., None, i, 1][0] - table[1, i, None, 1:])
    return torch.cat(out)


@program("f[T] cu", min_len=1, tail=False, rule="ragged_grids", depends=False)
def numbers_from_the_slot_before(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(s - 1, e - 1 - (e - s) // 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def _twice(x: Tensor, image: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """Two rows with boundaries of their own."""
    return x.double(), image.double(), cu, 2 * cu


@program("f[T,2] f[2*T,2] cu", wrap=_twice, tail=False, rule="ragged_grids", exact=False)
def sums_of_two_rows(text: Tensor, image: Tensor, cu: Tensor, ends: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        outs.append(text[cu[i] : cu[i + 1]].sum(0) - image[ends[i] : ends[i + 1]].sum(0))
    return torch.stack(outs)


@program("f[T,4] cu", tail=False, min_len=1, rule="ragged_grids")
def more_places_than_slots(x: Tensor, cu: Tensor) -> Tensor:
    """The same place of all documents, several times."""
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.stack([x[s:e].index_select(0, torch.arange(17) % 1) for s, e in spans])


@program("f[T,4] cu", tail=False, min_len=1, wrap=lambda x, cu: (x.double(), cu), exact=False, demand=False)
def product_of_sums(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum(0).prod() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
