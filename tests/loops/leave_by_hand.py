"""Tensors that an iteration makes and fills in another way than a document is padded."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,2] cu", tail=False)
def looked_at_before(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.ones(200, 2)
        count = row.sum()
        row[: e - s] = x[s:e]
        rows.append(row * count)
    return torch.stack(rows)


@leave("f[T,2] cu", tail=False)
def a_view_from_before(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200, 2)
        rest = row[1:]
        row[: e - s] = x[s:e]
        rows.append(rest)
    return torch.stack(rows)


@leave("f[T,2] cu", tail=False, must_refuse=True, why="what a longer document has left stays for a shorter one")
def one_tensor_for_all(x: Tensor, cu: Tensor) -> Tensor:
    rows, row = [], torch.zeros(200, 2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row[: e - s] = x[s:e]
        rows.append(row.clone())
    return torch.stack(rows)


@leave("f[T,2] cu", tail=False)
def slots_written_twice(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200, 2)
        row[: e - s] = x[s:e]
        row[: e - s] = x[s:e] * 2
        rows.append(row)
    return torch.stack(rows)


@leave("i[T] cu", tail=False)
def behind_a_token(ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200, dtype=torch.int64)
        row[0] = 5
        row[1 : e - s + 1] = ids[s:e]
        rows.append(row)
    return torch.stack(rows)


@leave("f[T] cu", tail=False)
def one_number_for_each_row(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.zeros(200, 2)
        row[: e - s] = x[s:e, None]
        rows.append(row)
    return torch.stack(rows)


@leave("i[T] cu", tail=False)
def a_mask_shorter_than_documents(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, masks = ids.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = torch.zeros(3, dtype=torch.bool)
        mask[: e - s] = True
        out[s:e] = ids[s:e].flip(0)
        masks.append(mask)
    return out, torch.stack(masks)


@leave("i[T] cu", tail=False)
def a_mask_from_the_right(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, masks = ids.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = torch.zeros(3, dtype=torch.bool)
        mask[3 - (e - s) :] = True
        out[s:e] = ids[s:e].flip(0)
        masks.append(mask)
    return out, torch.stack(masks)


@leave("f[T] cu", tail=False, unfit=True, why="some squares are larger than the rows that they are written to")
def triangles_in_squares_too_small(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(len(cu) - 1, 4, 4)
    for i, count in enumerate((cu[1:] - cu[:-1]).tolist()):
        if count > 4:
            continue
        out[i, :count, :count] = torch.ones(count, count).tril()
    return out


@leave("f[9] cu", tail=False)
def perhaps_the_weight_itself(weight: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    weight, rows = weight.clone(), []
    for count in (cu[1:] - cu[:-1]).tolist():
        row = weight.contiguous()
        row[count:] = 0
        rows.append(row)
    return torch.stack(rows), weight


@leave("f[9,9] cu", tail=False)
def a_turned_view_of_what_is_written(weight: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for count in (cu[1:] - cu[:-1]).tolist():
        row = weight * 1
        turned = row.t()
        row[count:] = 0
        rows.append(turned)
    return torch.stack(rows)


@leave("f[T,4] cu", tail=False, min_len=1)
def a_view_of_a_mean_that_is_written(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = x[s:e].mean(0)
        view = row.view(2, 2)
        row[: e - s] = 0
        rows.append(view)
    return torch.stack(rows)
