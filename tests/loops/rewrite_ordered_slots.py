"""Loops that must be rewritten: a document's slots in the order that a sort of them, or of others, gives them."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T] cu", tail=False)
def in_order_of_itself(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        out.append(part[part.argsort()])
    return torch.cat(out)


@program("d[T,3] i[T] cu", tail=False, exact=False)
def sums_in_order_of_ranks(x: Tensor, ranks: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = ranks[s:e].argsort(descending=True, stable=True)
        out.append(x[s:e][order].cumsum(0))
    return torch.cat(out)


@program("f[T,3] i[T] cu")
def written_in_order(x: Tensor, ranks: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        values, order = torch.sort(ranks[s:e], stable=True)
        out[s:e] = x[s:e].index_select(0, order) * values[:, None]
    return out


@program("d[T] cu", tail=False, exact=False)
def back_from_that_order(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = x[s:e].argsort()
        out.append(x[s:e][order].cumsum(0)[order.argsort()])
    return torch.cat(out)
