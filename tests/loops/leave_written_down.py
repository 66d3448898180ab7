"""Loops that must keep eager's results: places that are written or listed, masks of what a mask has kept."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", tail=False, why="the places are changed before they are looked up by")
def places_that_are_written(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places = torch.tensor([1, 0])
        places += 1
        parts.append(x[s:e][:, places])
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, why="a view of the places is written")
def places_with_a_view(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places = torch.tensor([1, 0])
        first = places[:1]
        first += 1
        parts.append(x[s:e][:, places])
    return torch.cat(parts)


@leave("i[T,3] cu", tail=False, why="each document has a tensor of its own, of which one is written later")
def places_in_a_list(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, listed = [ids[:0, :2]], [torch.tensor([0, 0])]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places = torch.tensor([2, 0])
        parts.append(ids[s:e][:, places])
        listed.append(places)
    listed[0].add_(1)
    listed[-1].add_(1)
    return torch.cat(parts), torch.stack(listed)


@leave("f[T,3] cu", tail=False, why="two lists are looked up in pairs")
def pairs_of_places(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x.new_zeros(2)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e > s:
            parts.append(x[s:e][[0, -1], [1, 2]])
    return torch.stack(parts)


@leave("d[T] cu", tail=False, why="a mask of what a mask has kept")
def kept_of_what_is_kept(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x.sum()]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = x[s:e][x[s:e] > 0]
        sums.append(kept[kept < 1].sum())
    return torch.stack(sums)


@leave("f[T,4] cu", tail=False, lead_empty=True, why="the graph ends where the list is asked")
def nothing_where_no_expert_has_tokens(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for part in x.split(cu.diff().tolist()):
        if part.numel() == 0:
            continue
        outs.append(part * 2)
    if not outs:
        return x.new_zeros(x.shape)
    return torch.cat(outs)


@leave("f[T,4] cu f[N,3,4]", tail=False, why="which experts have gradients is known to the data")
def experts_with_many_tokens(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    outs = [x.new_zeros(0, 3)]
    for i, part in enumerate(x.split(cu.diff().tolist())):
        if part.numel() < 12:
            continue
        outs.append(part @ weights[i].T)
    return torch.cat(outs)


@leave("i[T] cu", tail=False, why="the list of lengths grows between two sums of it")
def sums_of_a_list_that_grows(ids: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    before = sum(lengths)
    lengths.append(2)
    return torch.zeros(before, sum(lengths)) + torch.cat([ids[s:e].cumsum(0) for s, e in zip(cu[:-1], cu[1:])])[:, None]


@leave("f[T] cu", tail=False, why="a list of the program that is looked at while it grows")
def bounds_that_are_counted(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    bounds, parts = [[0]], [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bounds[0].append(bounds[0][-1] + (e - s))
        parts.append(x[s:e] * len(bounds[0]))
    return torch.cat(parts), torch.tensor(bounds[0])


@leave("f[T] cu", tail=False, why="the list has another name, by which it is looked at")
def bounds_by_two_names(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    bounds = {"own": [0]}
    same, parts = bounds["own"], [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bounds["own"].append(bounds["own"][-1] + (e - s))
        parts.append(x[s:e] * same[0])
    return torch.cat(parts), torch.tensor(same)


@leave("i[T] cu", tail=False, why="numbers that are counted up by parts of lengths")
def counted_by_parts_of_lengths(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    ends, count, parts = [], 0, [ids[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        count += int((e - s) * 0.25) + 1
        ends.append(count)
        parts.append(ids[s:e].cumsum(0))
    return torch.cat(parts), torch.tensor(ends, dtype=torch.int64)


@leave("f[T] cu", tail=False, why="the largest number is less than that of a slot of no document")
def more_than_the_last_says(x: Tensor, cu: Tensor) -> Tensor:
    batch = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff()).flip(0)
    sums = [x.sum()]
    for i in range(batch[-1] + 1):
        sums.append(x[batch == i].sum())
    return torch.stack(sums)


@leave("f[T] cu", tail=False, why="a tensor of one number that is changed after it was asked")
def numbers_of_a_tensor_that_changes(x: Tensor, cu: Tensor) -> Tensor:
    numbers: list[int] = []
    lengths = cu.diff()
    for i in range(len(cu) - 1):
        n = lengths[i]
        numbers.extend([i] * n)
        n -= 1
        numbers.extend([i] * (n + 1))
    return torch.tensor(numbers)[: x.shape[0]] + x


@leave("f[T] cu", tail=False, why="twice the last number")
def counted_on_twice(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [x[:0]], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e] * 2)
        bounds.append(bounds[-1] + bounds[-1] + e - s)
    return torch.cat(parts), torch.tensor(bounds)


@leave("f[T] cu", tail=False, why="the last number is taken away")
def counted_on_from_the_other_side(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [x[:0]], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e] * 2)
        bounds.append(e - s - bounds[-1])
    return torch.cat(parts), torch.tensor(bounds)


@leave("f[T] cu", tail=False, why="what lies between two steps is looked at")
def counted_on_and_looked_at(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [x[:0]], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        end = bounds[-1] + e
        parts.append(x[s:e] * end)
        bounds.append(end - s)
    return torch.cat(parts), torch.tensor(bounds)


def _numbers_of(cu: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff()).flip(0)


@leave("d[T,3] cu", tail=False, min_len=1, why="each document changes the mask of the next one")
def mask_that_documents_change(x: Tensor, cu: Tensor) -> Tensor:
    ids, mask, sums = _numbers_of(cu), x[:, 0] > 0, [x.sum(0)]
    for i in torch.unique(ids):
        sums.append(x[(ids == i) & mask].sum(0))
        mask[-1] = False
    return torch.stack(sums)


@leave("d[T,3] cu", tail=False, min_len=1, why="the mask is made of the document's number")
def mask_by_the_number(x: Tensor, cu: Tensor) -> Tensor:
    ids, sums = _numbers_of(cu), [x.sum(0)]
    for i in torch.unique(ids):
        sums.append(x[(ids == i) & (x[:, 0] > i)].sum(0))
    return torch.stack(sums)


@leave("d[T,3] cu", tail=False, min_len=1, why="slots of two documents")
def masks_of_two_documents(x: Tensor, cu: Tensor) -> Tensor:
    ids, sums = _numbers_of(cu), [x.sum(0)]
    for i in torch.unique(ids):
        sums.append(x[(ids == i) & (ids == i)].sum(0))
    return torch.stack(sums)


@leave("d[T,3] cu", tail=False, min_len=1, why="the mask is looked at whole")
def mask_that_is_used_twice(x: Tensor, cu: Tensor) -> Tensor:
    ids, mask, sums = _numbers_of(cu), x[:, 0] > 0, [x.sum(0)]
    for i in torch.unique(ids):
        own = (ids == i) & mask
        sums.append(x[own].sum(0) + own.float().argmax())
    return torch.stack(sums)


@leave("d[T,3] cu", tail=False, min_len=1, why="slots are written where both hold")
def written_where_both_hold(x: Tensor, cu: Tensor) -> Tensor:
    ids, mask, out = _numbers_of(cu), x[:, 0] > 0, torch.zeros_like(x)
    for i in torch.unique(ids):
        own = (ids == i) & mask
        out[own] = x[own] * 2
    return out


@leave("d[T,3] cu", tail=False, min_len=1, why="the body writes the mask that it has made")
def mask_that_the_body_writes(x: Tensor, cu: Tensor) -> Tensor:
    ids, sums = _numbers_of(cu), [x.sum(0)]
    for i in torch.unique(ids):
        other = x[:, 0] > 0
        other[-2:] = False
        sums.append(x[(ids == i) & other].sum(0))
    return torch.stack(sums)


@leave("d[T,3] cu", tail=False, min_len=1, why="the body writes the mask of the document")
def mask_of_the_document_that_is_written(x: Tensor, cu: Tensor) -> Tensor:
    ids, sums = _numbers_of(cu), [x.sum(0)]
    for i in torch.unique(ids):
        own = ids == i
        own[-2:] = False
        sums.append(x[own].sum(0))
    return torch.stack(sums)
