"""Loops beside those of `rewrite_ordered`: numbers of documents that name none, or change."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_ordered import in_an_order


@leave("f[T,3] i[N] cu", wrap=in_an_order, tail=False)
def an_order_that_the_loop_changes(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    order, out = order.clone(), []
    for k in range(len(cu) - 1):
        order[k] = (order[k] + 1) % (len(cu) - 1)
        i = order[k].item()
        out.append(x[cu[i] : cu[i + 1]].sum(0))
    return torch.stack(out)


@leave("i[T,3] i[N] cu", wrap=in_an_order, tail=False)
def rows_that_the_loop_changes(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    totals, out = x.new_zeros(len(cu) - 1, 3), []
    for k, i in enumerate(order.tolist()):
        totals[k] = x[cu[k] : cu[k + 1]].sum(0)
        out.append(totals[i] * x[cu[i] : cu[i + 1]].sum())
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=in_an_order, tail=False)
def two_documents_at_once(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    out = []
    for k, i in enumerate(order.tolist()):
        out.append(x[cu[k] : cu[k + 1]].sum(0) - x[cu[i] : cu[i + 1]].sum(0) * 2)
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=in_an_order, tail=False, refusal=True)
def a_carried_value_in_an_order(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    before, out = x.new_zeros(3), []
    for i in order.tolist():
        before = (before + x[cu[i] : cu[i + 1]].sum(0)).relu()
        out.append(before)
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=in_an_order, tail=False)
def names_none_where_it_is_skipped(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    numbers = order * 2  # beyond the last document, for some
    for k in range(len(cu) - 1):
        if cu[k + 1] - cu[k] < 3 or numbers[k] >= len(cu) - 1:
            continue
        i = numbers[k]
        out[cu[k] : cu[k + 1]] = x[cu[k] : cu[k + 1]] * cu[i]
    return out
