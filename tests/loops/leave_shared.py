"""Loops that must be left, or equal eager: memory tensors share, though storages of traced values do not say so."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


def with_numbers(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, cu, torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff().long(), output_size=x.shape[0])


# === What a loop that stays writes, and views that later loops write through =================================


@leave("f[T,3] cu", depends=False, tail=False)
def places_of_a_document_written_by_a_loop_that_stays(x: Tensor, cu: Tensor) -> Tensor:
    """Boundaries are made numbers of documents first."""
    ids = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff().long(), output_size=x.shape[0])
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        own = ids == i
        if own.any():
            out[own] = x[own].mode(0).values
    return out


@leave("f[T,3] i[T] cu", depends=False, tail=False, must_refuse=True, why="the most frequent slot has no form")
def most_frequent_of_a_number(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    ids, out = kinds % 3, torch.zeros_like(x)
    for i in ids.unique():
        out[ids == i] = x[ids == i].mode(0).values
    return out


@leave("f[T,3] cu", depends=False, tail=False, must_refuse=True, why="the most frequent slot has no form")
def most_frequent_by_number(x: Tensor, cu: Tensor) -> Tensor:
    ids = torch.arange(x.shape[0]) // 3
    out = torch.zeros_like(x)
    for i in range(int(ids.max()) + 1):
        own = ids == i
        out[own] = x[own].mode(0).values
    return out


@leave("f[T,3] cu", tail=False, min_len=1)
def first_slots_of_a_list_that_is_written_later(x: Tensor, cu: Tensor) -> Tensor:
    every = [x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    first = [part[:1] for part in every]
    for part in every:
        part += 1
    return torch.cat(first)


@leave("f[T,3] cu", tail=False, min_len=1)
def first_slots_beside_a_list_that_is_written_later(x: Tensor, cu: Tensor) -> Tensor:
    every, first = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e] * 2
        every.append(part)
        first.append(part[0])
    for part in every:
        part += 1
    return torch.stack(first)


@leave("i[T,3] cu", tail=False)
def all_but_the_first_of_parts_that_are_written_later(x: Tensor, cu: Tensor) -> Tensor:
    row = x * 1
    rest = [part[1:] for part in row.split(cu.diff().tolist())]
    for part in row.split(cu.diff().tolist()):
        part += 1
    return torch.cat(rest)


@leave("i[T,3] cu", tail=False, min_len=1)
def slots_of_a_row_written_through_its_parts(x: Tensor, cu: Tensor) -> Tensor:
    row = x * 1
    first = [row[cu[i]] for i in range(len(cu) - 1)]
    for part in row.split(cu.diff().tolist()):
        part += 1
    return torch.stack(first)


@leave("f[T,3] cu", tail=False)
def joined_again_from_parts_of_a_joined_row(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors with memory of their own."""
    row = torch.cat([x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
    return row, torch.cat(row.split(cu.diff().tolist()))


# === Rows that a loop made, and views of them ================================================================


@leave("f[T,3] cu", tail=False)
def a_view_of_a_joined_row_that_is_written(x: Tensor, cu: Tensor) -> Tensor:
    """The sum changes from document to document."""
    row = torch.cat([x[cu[i] : cu[i + 1]] * 2 for i in range(len(cu) - 1)])
    view = row[:]
    for i in range(len(cu) - 1):
        row[cu[i] : cu[i + 1]] *= view.sum().sign()
    return row


@leave("f[T,3] cu", tail=False)
def parts_of_a_column_of_a_joined_row(x: Tensor, cu: Tensor) -> Tensor:
    row = torch.cat([x[cu[i] : cu[i + 1]] * 2 for i in range(len(cu) - 1)])
    column = row[:, 0]
    parts = [column[cu[i] + 1 : cu[i + 1]] for i in range(len(cu) - 1)]
    row += 1
    return torch.cat(parts)


@leave("i[T,3] cu", tail=False, min_len=1)
def a_column_of_stacked_values(x: Tensor, cu: Tensor) -> Tensor:
    stacked = torch.stack([x[cu[i] : cu[i + 1]].sum(0) for i in range(len(cu) - 1)])
    column, out = stacked[:, 0], []
    for i in range(len(cu) - 1):
        stacked[i] += x[cu[i]]
        out.append(column[i] * x[cu[i] : cu[i + 1]])
    return torch.cat(out)


@leave("f[T,3] cu", tail=False)
def a_column_of_a_row_written_by_two_loops(x: Tensor, cu: Tensor) -> Tensor:
    row = x.clone()
    for i in range(len(cu) - 1):
        row[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2
    column = row[:, 0]
    parts = [column[cu[i] + 1 : cu[i + 1]] for i in range(len(cu) - 1)]
    for i in range(len(cu) - 1):
        row[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]]
    return torch.cat(parts)


# === Parts that stand for a row's own ========================================================================


@leave("i[T,3] cu", tail=False, wrap=with_numbers)
def a_row_written_through_its_parts_and_read_by_number(x: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    row, out = x * 1, []
    for i, part in enumerate(row.split(cu.diff().tolist())):
        part += 1
        out.append(row[ids == i].sum(0))
    return torch.stack(out)


@leave("i[T,3] cu", tail=False)
def a_mask_written_through_its_parts(x: Tensor, cu: Tensor) -> Tensor:
    mask, out = x[:, 0] > 40, []
    for i, part in enumerate(mask.split(cu.diff().tolist())):
        part.logical_not_()
        out.append(x[cu[i] : cu[i + 1]][mask[cu[i] : cu[i + 1]]].sum(0))
    return torch.stack(out)


@leave("i[T,3] cu", tail=False, min_len=1)
def slots_of_parts_written_as_columns(x: Tensor, cu: Tensor) -> Tensor:
    row = x * 2
    first = [row[cu[i]] for i in range(len(cu) - 1)]
    for part in row.split(cu.diff().tolist()):
        columns = part[:, :2]
        columns += 1
    return torch.stack(first)


@leave("f[T,3] cu", tail=False, min_len=1)
def slots_of_parts_written_by_a_function(x: Tensor, cu: Tensor) -> Tensor:
    row = x.detach() * 2
    first = [row[cu[i]] for i in range(len(cu) - 1)]
    for part in row.split(cu.diff().tolist()):
        F.relu(part, inplace=True)
    return torch.stack(first) * x.sum()


@leave("f[T,3] cu", tail=False, min_len=1)
def slots_of_a_list_written_through_another(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    every = [x[cu[i] : cu[i + 1]] * 2 for i in range(len(cu) - 1)]
    first = [part[0] for part in every]
    columns = [part[:, 1:] for part in every]
    for part in columns:
        part += 1
    return torch.stack(first), torch.cat(every)
