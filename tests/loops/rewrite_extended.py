"""Lists of numbers that each document extends by those of a tensor of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def sides(x: Tensor, cu: Tensor) -> Any:
    """Sizes of images, and a table of their corners."""
    lengths = cu.diff().long()
    return x, torch.stack([lengths % 4 + 1, lengths % 3 + 2], 1)


@program("f[9,3] cu64", wrap=sides, tail=False, exact=False, depends=False, graphs=3, rule="ragged_grids")
def listed_corners_of_each_image(table: Tensor, sizes: Tensor) -> Tensor:
    places, weights = [[] for _ in range(4)], [[] for _ in range(4)]
    for h, w in sizes.tolist():
        rows, columns = torch.linspace(0, 2, h), torch.linspace(0, 2, w)
        top, left = rows.int(), columns.int()
        low, right = (top + 1).clip(max=2), (left + 1).clip(max=2)
        down, over = rows - top, columns - left
        at = [(a[None].T * 3 + b[None]).flatten() for a in (top, low) for b in (left, right)]
        by = [(a[None].T * b[None]).flatten() for a in (1 - down, down) for b in (1 - over, over)]
        for i in range(4):
            places[i].extend(at[i].tolist())
            weights[i].extend(by[i].tolist())
    found = table[torch.tensor(places, dtype=torch.long)] * torch.tensor(weights, dtype=table.dtype)[:, :, None]
    return found[0] + found[1] + found[2] + found[3]


@program("f[T,3] cu", tail=False, exact=False, depends=False)
def listed_weights_without_a_gradient(x: Tensor, cu: Tensor) -> Tensor:
    weights = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        weights.extend(x[s:e].softmax(0)[:, 0].tolist())
    return x * torch.tensor(weights, dtype=x.dtype)[:, None]


@program("f[T,3] cu", tail=False, depends=False)
def places_in_long_documents(x: Tensor, cu: Tensor) -> Any:
    places = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        places.extend(torch.arange(s, e).flip(0).tolist())
    return x[torch.tensor(places, dtype=torch.long)] * 2
