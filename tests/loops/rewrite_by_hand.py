"""Loops that must be rewritten: documents padded by hand, to a tensor that each iteration makes."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,2] cu", tail=False)
def padded_by_hand_with_zeros(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200, 2)
        row[: e - s] = x[s:e]
        rows.append(row)
    return torch.stack(rows)


@program("f[T,2] f[T] cu", tail=False)
def as_wide_as_a_tensor(x: Tensor, like: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for i in range(len(cu) - 1):
        row = x.new_full((like.shape[0], 2), -1.5)
        row[like.shape[0] - (cu[i + 1] - cu[i]) :] = x[cu[i] : cu[i + 1]]
        rows.append(row)
    return torch.stack(rows)


@program("i[T] cu", tail=False)
def tokens_and_their_mask(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows, masks = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row, mask = torch.full((200,), -100), torch.zeros(200, dtype=torch.bool)
        row[: e - s] = ids[s:e]
        mask[: e - s] = True
        rows.append(row)
        masks.append(mask)
    return torch.stack(rows), torch.stack(masks)


@program("f[2,T,3] cu", tail=False)
def stacked_and_side_by_side(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = x.new_zeros(2, 200, 3)
        row[:, : e - s] = x[:, s:e]
        rows.append(row)
    return torch.stack(rows), torch.cat(rows)


@program("i[T] cu", tail=False)
def in_another_dtype(ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200)
        rows.append(row)
        row[: e - s] = ids[s:e]
    return torch.stack(rows)


@program("f[T,2] cu", tail=False, exact=False)
def what_is_made_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.ones(200, 2)
        row[: e - s] = x[s:e]
        total = total + row.tanh().sum(0)
    return total
