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


@program("f[T,2] cu", tail=False)
def at_most_nine_slots_by_hand(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row, count = torch.zeros(9, 2), min(e - s, 9)
        row[:count] = x[s : s + count]
        rows.append(row)
    return torch.stack(rows)


@program("f[T] cu", tail=False, depends=False)
def squares_by_hand(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    masks, causal = [], []
    for count in (cu[1:] - cu[:-1]).tolist():
        mask = torch.full((64, 64), float("-inf"))
        mask[:count, :count] = 0
        masks.append(mask.unsqueeze(0))
        seen = torch.ones(64, 64).tril().bool()
        seen[:, count:] = False
        causal.append(seen)
    return torch.cat(masks), torch.stack(causal)


@program("f[T] cu", tail=False, depends=False)
def triangles_in_padded_squares(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lengths = (cu[1:] - cu[:-1]).tolist()
    causal = torch.zeros(len(lengths), 1, 64, 64, dtype=torch.bool)
    hidden = torch.full((len(lengths), 64, 64), float("-inf"))
    ahead = torch.ones(len(lengths), 64, 64, 2)
    for i, count in enumerate(lengths):
        causal[i, 0, :count, :count] = torch.tril(torch.ones(count, count))
        hidden[i, :count, :count] = torch.triu(torch.full((count, count), float("-inf")), diagonal=1)
        ahead[i, :count, 1 : count + 1, 0] = torch.ones(count, count).tril(-1) - torch.ones(count, count).triu(2)
    return causal, hidden, ahead


@program("f[9] cu", tail=False, exact=False)
def a_weight_for_the_first_slots(weight: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for count in (cu[1:] - cu[:-1]).tolist():
        row = weight * 2
        row[count:] = 0
        rows.append(row)
    return torch.stack(rows)


@program("f[T,4] cu", tail=False, exact=False, min_len=1)
def a_mean_without_its_first_numbers(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = x[s:e].mean(0)
        row[: e - s] = 0
        rows.append(row)
    return torch.stack(rows)
