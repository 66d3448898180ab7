"""Loops that must keep eager's results: slots that a mask keeps, in ways that no row of kept slots stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,2] m[T] cu", tail=False, must_refuse=True, why="all slots of a document are looked at as well")
def kept_beside_all(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][mask[s:e]].sum(0) - x[s:e].sum(0) for s, e in zip(cu[:-1], cu[1:])])


@leave("f[T,2] m[T] i[T] cu", tail=False, must_refuse=True, why="two masks keep other slots")
def kept_by_two_masks(x: Tensor, mask: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][mask[s:e]].sum(0) + x[s:e][labels[s:e] > 3].sum(0) for s, e in zip(cu[:-1], cu[1:])])


@leave("f[T,2] m[T] cu", tail=False, must_refuse=True, why="the row is written by the loop")
def kept_of_a_row_that_changes(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, x = [], x.detach().clone()
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[s:e][mask[s:e]].sum(0))
        x[s:e] = 1
        x[:1] += 1
    return torch.stack(sums), x


@leave("i[T] m[T] cu", tail=False, must_refuse=True, why="the mask is written by the loop")
def kept_by_a_mask_that_changes(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, mask = [], mask.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[s:e][mask[s:e]].sum(0))
        mask[-2:] = False
    return torch.stack(sums), mask


@leave("f[T,2] m[T] cu", tail=False, must_refuse=True, why="what the mask keeps is not of its document")
def kept_of_the_document_before(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    n = x.shape[0] // 2
    return torch.stack([x[:n][mask[:n]].sum(0) * (e - s) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("i[T,2] m[T] cu", tail=False, why="half of a number is set in a row of integers")
def filled_with_a_fraction(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e][mask[s:e]] = 2.5
    return out


@leave("f[T,3] m[T] cu", tail=False, why="a mask of one feature selects from rows of three")
def selected_by_a_wider_mask(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.masked_select(x[s:e], mask[s:e, None]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
