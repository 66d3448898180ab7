"""Sums of the first entries of a vector that say nothing of where documents begin; parts of other lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", must_refuse=True, why="an entry is changed between the documents", tail=False)
def lengths_changed_on_the_way(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff()
    parts = []
    for i in range(len(lengths)):
        start = lengths[:i].sum()
        parts.append(x[start : start + lengths[i]])
        lengths[i] = 0
    return torch.cat(parts)


@leave("f[T,3] cu", must_refuse=True, why="the sum goes over what is behind the document", tail=False)
def sum_behind_the_document(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff()
    parts = []
    for i in range(len(lengths)):
        start = lengths[i:].sum()
        parts.append(x[start : start + 1])
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def sum_of_shares(x: Tensor, cu: Tensor) -> Tensor:
    shares = cu.diff() / 2
    total = []
    for i in range(len(shares)):
        total.append(x[cu[i] : cu[i + 1]].sum(0) * shares[:i].sum())
    return torch.stack(total)


@leave("f[T,3] cu", min_len=1, tail=False)
def largest_of_the_list_in_front(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    starts = cu.tolist()
    return torch.stack([x[starts[i] :][: lengths[i]].sum(0) * max(lengths[: i + 1]) for i in range(len(lengths))])


@leave("f[T,3] cu", must_refuse=True, why="every second length is added up", tail=False)
def every_second_length(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    return torch.stack([x[sum(lengths[:i:2]) :].sum(0) for i in range(len(lengths))])


@leave("f[T,3] cu", must_refuse=True, why="the vector is shorter than the loop", tail=False)
def fewer_lengths_than_documents(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff()[:1]
    parts = []
    for i in range(len(cu) - 1):
        start = lengths[:i].sum()
        parts.append(x[start : start + 1])
    return torch.cat(parts)


@leave("f[T] f[T] cu", min_len=1, tail=False)
def two_slots_put_behind(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        later = torch.cat([x[s:e][2:], torch.zeros(2)])
        parts.append((later[: e - s] + y[s:e]).flip(0))
    return torch.cat(parts)


@leave("f[T] cu", tail=False)
def longer_where_there_is_nothing(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        later = torch.cat([x[s:e][1:], torch.ones(1)])
        parts.append((later * 2).flip(0))
    return torch.cat(parts)


@leave("f[2,T,3] cu", min_len=1)
def packed_batch_of_two(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2, len(cu) - 1, 90, 3)
    for i in range(len(cu) - 1):
        out[0, i, : cu[i + 1] - cu[i], :] = x[:1, cu[i] : cu[i + 1], :]
        out[1, i, : cu[i + 1] - cu[i], :] = x[1:, cu[i] : cu[i + 1], :]
    return out
