"""Look-alikes of documents that become longer or shorter: right, whatever becomes of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("f[T] cu", tail=False, must_refuse=True, why="the row is changed before the parts of it are joined")
def parts_of_a_row_that_changes(x: Tensor, cu: Tensor) -> Tensor:
    row, parts = x.clone(), []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(row[s:e][1:])
    row.zero_()
    return torch.cat(parts)


@leave("f[T] cu", tail=False, must_refuse=True, why="what every document adds is changed before the list is used")
def an_entry_of_all_that_changes(x: Tensor, cu: Tensor) -> Tensor:
    one, parts = x.new_ones(1), []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[s:e])
        parts.append(one)
    one.zero_()
    return torch.cat(parts)


@leave("f[T] cu", tail=False, must_refuse=True, why="every document changes what all of them have added")
def an_entry_that_counts(x: Tensor, cu: Tensor) -> Tensor:
    number, parts = x.detach().new_zeros(1), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        number.add_(1)
        parts.append(x[s:e])
        parts.append(number)
    return torch.cat(parts)


@leave("f[T] cu", tail=False, min_len=1, must_refuse=True, why="the lists are stacked, which asks that they are alike")
def shorter_and_stacked(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][:1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] f[3] cu", tail=False, must_refuse=True, why="the running row is carried from document to document")
def a_row_that_grows(x: Tensor, first: Tensor, cu: Tensor) -> Tensor:
    grown, parts = first, []
    for s, e in zip(cu[:-1], cu[1:]):
        grown = torch.cat((grown[:3], x[s:e]))
        parts.append(grown)
    return torch.cat(parts)


@leave("f[T] cu", tail=False, min_len=1)
def moved_by_a_pad_that_cuts(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.pad(x[s:e], (3, -1)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False)
def longer_documents_added(x: Tensor, cu: Tensor) -> Tensor:
    one = x.new_ones(2)
    return torch.cat([torch.cat((one, x[s:e])) + torch.cat((x[s:e], one)) for s, e in zip(cu[:-1], cu[1:])])


@leave("f[T,3] cu", min_len=2, tail=False, why="a copy of a part is written")
def written_copies_of_chunks(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]].chunk(2)[1].clone()
        part[0] = 0
        out.append(part)
    return torch.cat(out)


@leave("f[T,3] cu", min_len=2, tail=False, why="a part without a gradient is the row still, which is written")
def detached_chunks_of_what_is_written(x: Tensor, cu: Tensor) -> Tensor:
    out, row = [], x.clone()
    for i in range(len(cu) - 1):
        part = row[cu[i] : cu[i + 1]].chunk(2)[1].detach()
        row[cu[i] : cu[i + 1]] = 0
        out.append(part)
    return torch.cat(out)


@leave("f[T,3] cu", min_len=2, tail=False, why="copies hold what the row held then")
def copies_of_chunks_of_what_is_written(x: Tensor, cu: Tensor) -> Tensor:
    out, row = [], x.clone()
    for i in range(len(cu) - 1):
        out.append(row[cu[i] : cu[i + 1]].chunk(2)[1].clone())
        row[cu[i] : cu[i + 1]] *= 2
    return torch.cat([torch.cat(out), row])
