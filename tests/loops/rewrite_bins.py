"""Slots of each document added up by a number that every one of them has: histograms, voxels, kinds of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("i[T] cu")
def histograms_of_ids(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(len(cu) - 1, 90)
    for i in range(len(cu) - 1):
        out[i].scatter_add_(0, ids[cu[i] : cu[i + 1]], torch.ones(cu[i + 1] - cu[i]))
    return out


@program("f[T,3] i[T] cu", tail=False)
def sums_by_kind(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, out = kinds % 5, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(5, 3).index_add(0, kinds[s:e], x[s:e]))
    return torch.stack(out)


@program("f[T,3] i[T] cu")
def sums_by_kind_in_place(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, out = kinds % 4, x.new_ones(len(cu) - 1, 4, 3)
    for i in range(len(cu) - 1):
        out[i].index_add_(0, kinds[cu[i] : cu[i + 1]], x[cu[i] : cu[i + 1]])
    return out


@program("f[T] f[4] i[T] cu", tail=False)
def added_to_what_all_begin_with(x: Tensor, first: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds = kinds % 4
    return torch.stack([first.scatter_add(0, kinds[s:e], x[s:e]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] i[T] i[N] cu", graphs=3)
def counted_where_the_document_is_of_a_kind(x: Tensor, bins: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(kinds.shape[0], 90, dtype=torch.long)
    for i in range(kinds.shape[0]):
        if kinds[i] % 2 == 1:
            continue
        out[i].index_add_(0, bins[cu[i] : cu[i + 1]], x[cu[i] : cu[i + 1]])
    return out


@program("f[T,4] i[T] cu", exact=False, tail=False)
def means_of_bins(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bins = kinds[s:e, None].expand(-1, 4).remainder(5)
        outs.append(x.new_zeros(5, 4).scatter_reduce(0, bins, x[s:e], "mean", include_self=False))
    return torch.stack(outs)


@program("f[T,4] i[T] cu", tail=False)
def largest_of_bins(x: Tensor, kinds: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    features, numbers = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bins = kinds[s:e].remainder(3)
        features.append(torch.ones(3, 4).index_reduce(0, bins, x[s:e].detach(), "amax"))
        numbers.append(torch.full((3,), -9.0).scatter_reduce(0, bins, x[s:e, 0], reduce="amin", include_self=False))
    return torch.stack(features), torch.stack(numbers)


@program("f[T,4] i[T] cu", tail=False)
def a_bin_for_each_number(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums = torch.zeros(5, 4)
        sums.scatter_add_(0, (kinds[s:e].unsqueeze(-1) + torch.arange(4)).remainder(5), x[s:e])
        outs.append(sums)
    return torch.stack(outs)
