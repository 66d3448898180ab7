"""Sums by numbers of slots that are no bins of the document's own, or of something else than slots."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] i[T] cu", must_refuse=True, why="all documents add to one tensor, which each then shows")
def one_histogram_for_all(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, total, seen = kinds % 4, torch.zeros(4, 3), x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total.index_add_(0, kinds[s:e], x[s:e])
        seen = seen * 0.5 + total.sum()
    return seen


@leave("f[T,3] i[T] cu", tail=False)
def added_with_a_factor(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, out = kinds % 4, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(4, 3).index_add(0, kinds[s:e], x[s:e], alpha=2))
    return torch.stack(out)


@leave("f[T] i[T] cu", tail=False)
def columns_by_kind(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, out = kinds % 4, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(2, 4).index_add(1, kinds[s:e], x[s:e].expand(2, -1)))
    return torch.stack(out)


@leave("f[T] i[T] cu", min_len=3, tail=False)
def parts_by_kind(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    kinds, out = kinds % 4, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.zeros(4).index_add(0, kinds[s + 1 : e], x[s : e - 1]))
    return torch.stack(out)


@leave("f[T] i[T] cu", must_refuse=True, why="the gradient of a product divides by what others' slots hold", tail=False)
def products_of_bins(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(torch.ones(3).scatter_reduce(0, kinds[s:e].remainder(3), x[s:e], "prod"))
    return torch.stack(outs)


@leave("f[T,4] i[T] cu", must_refuse=True, why="bins have more numbers than slots", tail=False)
def bins_that_are_wider_than_slots(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bins = kinds[s:e, None].expand(-1, 4).remainder(5)
        outs.append(torch.zeros(5, 6).scatter_reduce(0, bins, x[s:e], "sum"))
    return torch.stack(outs)
