"""Look-alikes of ``rewrite_refilled``: one entry of the list is read for more than its kind."""

from __future__ import annotations

import torch

from .harness import leave


@leave("f[T,3] cu", must_refuse=True, min_len=1, tail=False, why="the first document's own slots are read")
def refilled_beside_the_first(x, cu):
    parts = [torch.cat([x[s:e], x[s : s + 1]]) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat(parts) - parts[0][0]


@leave("f[T,3] cu", must_refuse=True, min_len=1, tail=False, why="the length of the first document is asked for")
def refilled_as_long_as_the_first(x, cu):
    parts = [torch.cat([x[s:e], x[s : s + 1]]) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat(parts), x.new_zeros(parts[0].size(0))


@leave("f[2,T] cu", must_refuse=True, min_len=1, tail=False, why="the first document is as wide as its slots")
def refilled_as_wide_as_the_first(x, cu):
    parts = [torch.cat([x[:, s:e], x[:, s : s + 1]], dim=1) for s, e in zip(cu[:-1], cu[1:])]
    rows = parts[0].new_zeros(len(parts), parts[0].size(-1))
    return torch.cat(parts, 1), rows


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="the first document is changed through the list")
def refilled_after_the_first_is_changed(x, cu):
    parts = [torch.cat([x[s:e], x[s : s + 1]]) for s, e in zip(cu[:-1], cu[1:])]
    parts[0].zero_()
    return torch.cat(parts)


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="a tensor like the first document is as long as that")
def refilled_like_the_first(x, cu):
    parts = [torch.cat([x[s:e], x[s : s + 1]]) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat(parts), torch.zeros_like(parts[0])
