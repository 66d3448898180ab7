"""Look-alikes of a document's slots in the order of a sort: other numbers, other documents, writes."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] i[T] cu", tail=False, min_len=1)
def places_that_are_given(x: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e][places[s:e] % (e - s)])
    return torch.cat(out)


@leave("f[T,2] cu", tail=False)
def order_of_rows_of_the_document(x: Tensor, cu: Tensor) -> Tensor:
    """Of each slot's two numbers."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].gather(1, x[s:e].argsort(1)))
    return torch.cat(out)


@leave("f[T] cu", tail=False)
def order_of_the_whole_row(x: Tensor, cu: Tensor) -> Tensor:
    order, out = x.argsort(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[order[s:e]])
    return torch.cat(out)


@leave("i[T] cu", tail=False)
def an_order_that_is_written(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = x[s:e].argsort(stable=True)
        order[:1] = 0
        out.append(x[s:e][order])
    return torch.cat(out)


@leave("i[T] cu", tail=False)
def slots_written_before_they_are_ordered(x: Tensor, cu: Tensor) -> Tensor:
    row, out = x * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = row[s:e].argsort(stable=True)
        row[s:e] += 1
        row[s : s + 1] = 0
        out.append(row[s:e][order])
    return torch.cat(out)


@leave("f[T] cu", tail=False)
def slots_written_in_that_order(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e][x[s:e].argsort()] = x[s:e]
    return out
