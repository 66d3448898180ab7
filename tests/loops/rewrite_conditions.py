"""Loops that do other things for some documents, by any numbers of theirs: what is skipped, and two ways."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import program


def _kinds(*args: Tensor) -> tuple[Tensor, ...]:
    """What kind of document each is: 0, 1 or 2."""
    *others, kind = args
    return *others, kind % 3


some: Any = functools.partial(program, wrap=_kinds, graphs=3)


def _documents(cu: Tensor, kind: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), kind.tolist())


@some("f[T,3] cu i[N]")
def skipped_by_kind(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x + 1
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 1:
            continue
        out[s:e] = x[s:e] * 2
    return out + x


@some("f[T,3] cu i[N]", exact=False)
def skipped_by_kind_or_length(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if e - s < 3 or k == 1:
            continue
        out[s:e] = x[s:e] * 2 - x[s:e].mean(0)
    return out


@some("f[T,3] cu i[N]", exact=False)
def padded_by_two_kinds(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x.new_ones(cu.shape[0] - 1, x.shape[0], 3)
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k > 1 or k == 0:
            continue
        out[i, : e - s] = x[s:e]
    return out + x.sum()


@some("f[T,3] cu i[N]", exact=False)
def numbers_of_some_rows(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x.new_zeros(kind.shape[0])
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k > 1:
            continue
        out[i] = x[s:e].sum() * k
    return out + x.sum()


@some("f[T,3] cu i[N]", exact=False, reads=5)
def infinite_where_skipped(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    """Logarithms and quotients of zeros in documents that eager leaves out: none may reach a gradient."""
    own = (kind == 0).repeat_interleave(cu.diff(), output_size=int(cu[-1] - cu[0]))
    z = torch.zeros_like(x)
    z[cu[0] : cu[-1]] = x[cu[0] : cu[-1]].abs() * own[:, None] + own[:, None]
    out = z * 0
    for s, e, k in _documents(cu, kind):
        if k != 0:
            continue
        out[s:e] = z[s:e].log() / z[s:e].sum(0)
    return out


@some("f[T,3] cu i[N]")
def divided_by_kind(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 0:
            continue
        out[s:e] = x[s:e] * (10 // k) + 7 % k
    return out


@some("f[T,3] cu i[N]")
def one_way_or_the_other(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 1:
            out[s:e] = x[s:e].flip(0)
        else:
            out[s:e] = x[s:e] * 2
    return out


@program("f[T,3] cu")
def short_ones_are_scaled(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            out[s + 1 : e] = x[s : e - 1]
        else:
            out[s:e] = x[s:e] * 2
    return out


@program("f[T,3] cu", exact=False, tail=False)
def lists_of_both_ways(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            out.append(x[s:e] - x[s:e].mean(0))
        else:
            out.append(x[s:e] * 2)
    return torch.cat(out)


@some("f[T,3] cu i[N]", exact=False, tail=False)
def stacked_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = []
    for s, e, k in _documents(cu, kind):
        if k > 0:
            out.append(x[s:e].sum(0))
        else:
            out.append(x[s:e].sum(0) * 2)
    return torch.stack(out)


@some("f[T,3] cu i[N]", exact=False, reads=1)
def total_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e, k in _documents(cu, kind):
        if k == 0:
            continue
        total = total + x[s:e].pow(2).sum()
        count += 1
    return total / max(count, 1) + x.mean()


@some("f[T,3] cu i[N]")
def joined_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    out = [x.new_zeros(1, 3)]
    for s, e, k in _documents(cu, kind):
        if k == 0:
            continue
        out.append(x[s:e])
    return torch.cat(out), x * 2


@program("f[T,3] cu i[N]", graphs=3)
def more_than_twice_another(x: Tensor, cu: Tensor, most: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e, n = cu[i].item(), cu[i + 1].item(), most[i].item()
        if 20 * (e - s) > n:
            continue
        out[s:e] = x[s:e] * 2
    return out + x


@program("f[T,3] cu")
def every_one_but_the_first(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        if i == 0:
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2
    return out
