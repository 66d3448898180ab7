"""Loops that must be left alone: rows, lists and totals that the body looks at while they grow, or that alias."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)


@leave("f[T] cu", must_refuse=True, why="the length of what there is so far is part of every document")
def length_of_the_row_so_far(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:0]
    for s, e in spans(cu):
        row = torch.cat([row, x[s:e] * len(row)])
    return row


@leave("f[T] cu", must_refuse=True, exact=False, why="the sum of what there is so far is part of every document")
def sum_of_the_row_so_far(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:0]
    for s, e in spans(cu):
        row = torch.cat([row, x[s:e] + row.sum()])
    return row


@leave("f[T] cu", must_refuse=True, why="the documents come in the other order")
def row_that_grows_in_front(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:0]
    for s, e in spans(cu):
        row = torch.cat([x[s:e], row])
    return row


@leave("f[T] cu", must_refuse=True, why="what is joined is written to afterwards")
def joined_and_then_written(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:0].detach()
    for s, e in spans(cu):
        doc = x[s:e].detach() * 2
        row = torch.cat((row, doc))
        doc.zero_()
    return row


@leave("f[T] cu", must_refuse=True, why="what stands in front is written to after it was joined")
def front_that_is_written(x: Tensor, cu: Tensor) -> Any:
    y = x.detach().clone()
    row = y[:1]
    for s, e in spans(cu):
        row = torch.cat((row, y[s:e] * 2))
        y[s:e] = 0
    return row, y


@leave("f[T] cu", must_refuse=True, exact=False, why="what is added is written to afterwards")
def added_and_then_written(x: Tensor, cu: Tensor) -> Any:
    total = 0.0
    for s, e in spans(cu):
        share = x[s:e].detach().sum()
        total = total + share
        share.zero_()
    return total


@leave("f[T] cu", must_refuse=True, exact=False, why="one document's share is the total itself, and is in a list")
def total_that_is_in_a_list(x: Tensor, cu: Tensor) -> Any:
    total, shares = None, []
    for s, e in spans(cu):
        share = x[s:e].sum()
        total = share if total is None else total + share
        shares.append(share)
    if total is not None:
        total /= 2
    return total, torch.stack(shares) if shares else None


@leave("f[T] cu", must_refuse=True, exact=False, why="the first document counts three times")
def first_document_counts_more(x: Tensor, cu: Tensor) -> Any:
    total = None
    for s, e in spans(cu):
        share = x[s:e].sum()
        total = share * 3 if total is None else total + share
    return total


@leave("f[T] cu", must_refuse=True, exact=False, why="all documents but the first are taken away")
def others_are_taken_away(x: Tensor, cu: Tensor) -> Any:
    total = None
    for s, e in spans(cu):
        share = x[s:e].sum()
        total = share if total is None else total - share
    return total


@leave("f[T] cu", must_refuse=True, why="the first document's part is longer than the others'")
def first_part_is_twice_as_long(x: Tensor, cu: Tensor) -> Any:
    row = None
    for s, e in spans(cu):
        doc = x[s:e] * 2
        row = doc.repeat(2) if row is None else torch.cat([row, doc])
    return row


@leave("f[T] cu", must_refuse=True, why="the old list is changed after a new one was made of it")
def list_that_is_changed_behind(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = [x[:1]]
    for s, e in spans(cu):
        old = parts
        parts = parts + [x[s:e].flip(0)]  # noqa: RUF005
        old.append(x[s:e])
    return torch.cat(parts)


@leave("f[T] cu", must_refuse=True, exact=False, why="an entry of the list so far is part of the next")
def running_sums_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x.sum() * 0]
    for s, e in spans(cu):
        sums = sums + [x[s:e].sum() + sums[-1]]  # noqa: RUF005
    return torch.stack(sums)


@leave("f[T,3] cu", must_refuse=True, why="sums go below the row, whose length every document sees")
def rows_of_another_rank(x: Tensor, cu: Tensor) -> Any:
    out, row = x.clone(), x[0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.vstack((row, x[s:e].sum(0)))
        out[s:e] = x[s:e] * row.shape[0]
    return out, row
