"""Look-alikes of what is computed on documents that have become longer or shorter."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("f[T,3] f[1,3] cu", tail=False, why="what it has become is written")
def first_slot_of_longer_ones_written(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.cat((start, x[s:e]))
        part[0] = 7
        out.append(part * 2)
    return torch.cat(out)


@leave("f[T,3] f[1,3] cu", tail=False, why="what it has become is seen through a view that is written")
def longer_ones_written_through_a_view(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.cat((start, x[s:e]))
        view = part.detach()
        part.data.mul_(2)
        out.append(F.relu(view) + part)
    return torch.cat(out)


@leave("f[T,3] f[1,3] cu", tail=False, why="the row is written behind each document")
def row_written_behind_longer_ones(x: Tensor, start: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    row, out = x.clone(), []
    for s, e in pairwise(cu.tolist()):
        part = torch.cat((start, row[s:e]))
        row[s:e] = 0
        out.append(F.relu(part))
    return torch.cat(out), row


@leave("f[T,3] f[1,3] cu", tail=False, why="a document reads what the one before has written")
def next_row_written(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    row, out = x.clone(), []
    for s, e in pairwise(cu.tolist()):
        out.append(F.relu(torch.cat((start, row[s:e]))))
        row[e:] *= 2
    return torch.cat(out)


@leave("f[T,3] f[1,3] cu", tail=False, why="documents without slots leave nothing")
def longer_ones_of_those_with_slots(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = [start]
    for s, e in pairwise(cu.tolist()):
        if e == s:
            continue
        out.append(F.relu(torch.cat((start, x[s:e]))))
    return torch.cat(out)


@leave("f[T,3] f[1,3] cu", tail=False, why="two sets of documents")
def longer_ones_cut_and_added(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.relu(torch.cat((start, x[s:e])))[1:] + x[s:e] for s, e in pairwise(cu.tolist())])


@leave("f[T,3] f[1,3] cu", tail=False, min_len=1, why="the token is of the document before")
def token_of_the_document_before(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = F.relu(torch.cat((start, x[s:e])))
        start = part[-1:]
        out.append(part)
    return torch.cat(out)


@leave("f[T,3] f[1,3] cu", tail=False, why="which way a longer document goes depends on its length")
def long_ones_scaled(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = F.relu(torch.cat((start, x[s:e])))
        out.append(part * 2 if part.shape[0] > 3 else part)
    return torch.cat(out)


@leave("f[T,4] cu", tail=False, min_len=2, must_refuse=True, why="zeros in front are averaged, too")
def pooled_with_padding(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.avg_pool1d(x[s:e].t(), 2, 2, padding=1).t() for s, e in pairwise(cu.tolist())])


@leave("f[T,4] cu", tail=False, min_len=2, must_refuse=True, why="the last window is not full")
def pooled_beyond_the_end(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.avg_pool1d(x[s:e].t(), 2, 2, ceil_mode=True).t() for s, e in pairwise(cu.tolist())])


@leave("f[T,6] cu", tail=False, min_len=1, exact=False, why="it is the features that are averaged")
def pooled_features(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.avg_pool1d(x[s:e], 2) for s, e in pairwise(cu.tolist())]) + 1


@leave("f[T,4] cu", tail=False, min_len=2, why="a window of the row, not of the documents")
def pooled_row(x: Tensor, cu: Tensor) -> Tensor:
    row = F.avg_pool1d(x.t(), 2).t()
    return torch.cat([row[s // 2 : e // 2] for s, e in pairwise(cu.tolist())])


@leave("f[T,4] cu", tail=False, min_len=2, why="turned in place, and seen by somebody else")
def turned_in_place_and_seen(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = x[s:e].clone()
        turned = part.transpose_(0, 1)
        out.append(turned.t() + part.t())
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="what is taken is a view of what is changed")
def every_second_slot_of_what_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = x[s:e] * 2
        taken = part[::2]
        part.zero_()
        out.append(taken)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, why="every other slot is written")
def every_second_slot_written(x: Tensor, cu: Tensor) -> Tensor:
    row = x.clone()
    for s, e in pairwise(cu.tolist()):
        row[s:e][::2] = 0
    return row


@leave("f[T,3] cu", tail=False, why="slots from the row's start on, not the documents'")
def every_second_slot_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    row = x[::2]
    return torch.cat([row[s // 2 : e // 2] * 2 for s, e in pairwise(cu.tolist())])


@leave("f[T,3] cu", tail=False, why="backwards, or up to a slot")
def some_of_every_second_slot(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat((x[s:e][:5:2], x[s:e][-3::2])) for s, e in pairwise(cu.tolist())])


@leave("f[T,4] cu", tail=False, min_len=1, exact=False, why="what is turned in place is the document's own tensor")
def turned_by_another_name(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.outer(x[s:e].sum(0), torch.arange(4.0))
        turned = part.contiguous().transpose_(0, 1)
        out.append(part[0] + turned.sum())
    return torch.stack(out)


@leave("f[T,4] cu", tail=False, min_len=1, exact=False, why="what was changed in place is turned in place")
def changed_and_turned_in_place(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.outer(x[s:e].sum(0), torch.arange(4.0))
        part.add_(1).t_()
        out.append(F.dropout(part, 0.5, False).t_()[0] + part[0])
    return torch.stack(out)
