"""Tensors that every document makes for itself and fills: statistics, accumulators, parts by number or slice."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def statistics_by_number(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found = torch.zeros(4)
        found[0] = e - s
        found[1] = x[s:e].sum()
        found[2] = x[s:e, 0].pow(2).sum()
        found[-1] = 7.0
        out.append(found)
    return torch.stack(out)


@program("f[T,3] cu", tail=False)
def parts_by_slices(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        made = torch.ones(4, 3)
        made[-2:] = x[cu[i] : cu[i + 1]].sum(0)
        made[0:2, 1] = x[cu[i] : cu[i + 1]].sum()
        made[::2, 0] = 5
        out.append(made)
    return torch.stack(out)


@program("f[T,3] cu", tail=False)
def accumulated_in_place(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = torch.zeros(3)
        for power in range(3):
            total += (x[s:e] ** power).sum(0)
        out.append(total)
    return torch.stack(out)


@program("f[T,3] cu")
def copied_into_new_memory(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = x.new_empty(3)
        total.copy_(x[s:e].sum(0))
        out[s:e] = x[s:e] - total
    return out


@program("f[T,3] cu", tail=False)
def through_a_view(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = x.new_zeros(2, 3)
        made[0] += x[s:e].sum(0)
        made[1, 1:] -= x[s:e, 0].sum()
        out.append(made)
    return torch.stack(out)


@program("f[T,3] cu", tail=False)
def by_a_mask(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = torch.ones(3)
        made *= x[s:e].sum(0)
        made[made > 2] = 0
        out.append(made)
    return torch.stack(out)


@program("f[T,3] cu", tail=False, demand=False)
def own_memory_one_way_or_the_other(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = torch.zeros(3)
        if e - s > 4:
            made[:2] = x[s:e].sum(0)[:2]
        else:
            made[1] = x[s:e].sum()
        out.append(made)
    return torch.stack(out)


@program("f[T,3] cu")
def rows_set_in_parts(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(len(cu) - 1, 4)
    for i in range(len(cu) - 1):
        out[i][0] = cu[i + 1] - cu[i]
        out[i][1:] = x[cu[i] : cu[i + 1]].sum(0)
    return out


@program("f[T,3] cu", tail=False)
def in_other_dtypes(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        wide, counts = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
        wide[:] = x[s:e].sum(0)
        wide[0] = e
        counts[0] = (x[s:e, 0] > 0).sum()
        counts[1] = 3
        out.append(wide + counts.sum())
    return torch.stack(out)


@program("f[T,3] cu", tail=False)
def numbers_in_a_tensor(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum(0) * torch.tensor([1.0, e - s, 2 * (s + e)]) + torch.tensor(e - s))
    return torch.stack(out)


@program("f[T,3] cu", tail=False)
def copies_of_a_table(x: Tensor, cu: Tensor) -> Tensor:
    out, table = [], torch.arange(6.0).view(2, 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mine = table.clone()
        mine[1] -= x[s:e].sum(0)
        mine[:, 0] = 4
        doubled = table * 2
        doubled += mine
        out.append(doubled)
    return torch.stack(out)
