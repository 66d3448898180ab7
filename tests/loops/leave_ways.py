"""Look-alikes of several branches in one body: too many ways, ways with gradients of their own, other questions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_images import _images, parts
from .rewrite_ways import _tables

tables: Any = functools.partial(leave, tail=False, wrap=_tables, min_len=1, lead_empty=False, must_refuse=True)


@tables("i[N,3] f[64,4]", why="sixteen ways through the body")
def four_questions_of_sizes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        each = table[:h] if h > 4 else table[:h] * 2
        each = each + 1 if w > 4 else each
        each = each * 3 if t > 1 else each
        each = each - 1 if h > w else each
        out.append(each)
    return torch.cat(out)


@tables("i[N,3] f[6] f[6]", wrap=_images, why="a weight has no gradient where no image goes its way")
def weights_of_each_way(x: Tensor, grid: Tensor, few: Tensor, many: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        if t == 1 and h > 2:
            part = part * few
        elif t > 1:
            part = part * many
        out.append(part)
    return torch.cat(out)


@tables("i[N,3] f[64,4]", why="one of the questions is about what the table holds")
def a_question_of_data_behind_one_of_sizes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        each = table[:h] if h > 4 else table[:h] * 2
        if each.sum() > 3:
            each = each + 1
        out.append(each)
    return torch.cat(out)


@tables("i[N,3] f[64,4]", why="what the ways leave is of other types")
def integers_one_way(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        if t == 1:
            out.append(table[:h, 0])
        elif h > w:
            out.append(torch.arange(w))
        else:
            out.append(table[:w, 1])
    return torch.cat(out)


@tables("i[N,3] f[64,4]", why="an image may change what the next one asks for")
def a_limit_that_moves(grid: Tensor, table: Tensor) -> Tensor:
    out, limit = [], 2
    for t, h, w in grid.tolist():
        if h > limit and t > 1:
            limit = 4
        out.append(table[:h] * limit)
    return torch.cat(out)


# ---------------------------------------------------------------- documents that are cut out of a row


documents: Any = functools.partial(leave, tail=False, must_refuse=True, exact=False)


@documents("f[T,3] f[3,3] cu", why="the weight has no gradient where no document is long")
def learned_layer_if_long(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e] @ weight if e - s > 3 else x[s:e])
    return torch.cat(out)


@documents("f[T,3] cu", why="what the next document does depends on this one")
def factor_of_the_last_long_list(x: Tensor, cu: Tensor) -> Tensor:
    out, factor = [], 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2 and s > 0:
            factor = 2
        out.append(x[s:e] * factor)
    return torch.cat(out)


@documents("f[T,3] cu", why="documents overlap")
def windows_of_two_kinds(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-2].tolist(), cu[2:].tolist()):
        out.append(x[s:e] * 2 if e - s > 5 else x[s:e] + 1)
    return torch.cat([x[:0], *out])


@documents("f[T,3] cu", why="the row is written to between the documents' parts and the end")
def written_before_it_is_joined(x: Tensor, cu: Tensor) -> Tensor:
    row, out = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(row[s:e] if e - s > 3 else row[s:e] * 2)
    row.mul_(3)
    return torch.cat(out) + row


@documents("f[T,3] cu", why="documents draw numbers")
def dropped_if_long(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = torch.nn.functional.dropout(x[s:e], 0.5) if e - s > 3 else x[s:e]
        out.append(part)
    return torch.cat(out)


# ---------------------------------------------------------------- tokens one by one


@documents("f[T] cu", why="a running value goes from token to token")
def advantages_from_the_end(delta: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        last, own = torch.zeros(()), torch.zeros_like(delta[s:e])
        for t in reversed(range(e - s)):
            last = delta[s:e][t] + 0.5 * last
            own[t] = last
        out.append(own)
    return torch.cat(out)
