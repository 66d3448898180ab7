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


@program("f[T] cu")
def ends_of_padded_documents(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """By the length of what each has become."""
    parts, bounds = [x[:0]], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = torch.nn.functional.pad(x[s:e], (0, -(e - s) % 4))
        parts.append(document)
        bounds.append(bounds[-1] + len(document))
    return torch.cat(parts), torch.tensor(bounds, dtype=torch.int32)


@program("f[T] m[T] cu", depends=False)
def ends_of_what_a_mask_keeps(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [x[:0]], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = x[s:e][mask[s:e]]
        parts.append(kept)
        bounds.append(bounds[-1] + kept.shape[0])
    return torch.cat(parts), torch.tensor(bounds)


@program("f[T,2] cu")
def ends_of_every_second_slot(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [x[:0]], [0]
    for i in range(len(cu) - 1):
        some = x[cu[i] : cu[i + 1]][::2]
        parts.append(some)
        bounds.append(bounds[-1] + some.size(0))
    return torch.cat(parts), torch.tensor(bounds)
