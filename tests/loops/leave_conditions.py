"""Loops that do other things for some documents, in ways that have no form, or look as if they had one."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_conditions import _documents, _kinds

some: Any = functools.partial(leave, wrap=_kinds)


@some("f[T,5] cu i[N]", must_refuse=True, why="what is no number in documents that are skipped would reach a gradient")
def softmax_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 2:
            continue
        out[s:e] = x[s:e].softmax(0)
    return out


@leave("f[N,3] cu f[T,3]", tail=False, must_refuse=True, why="the list holds views of a row that is changed")
def rows_changed_before_they_are_stacked(rows: Tensor, cu: Tensor, x: Tensor) -> Tensor:
    row, out = rows.clone(), []
    for i in range(len(cu) - 1):
        if cu[i + 1] > cu[i]:
            out.append(row[i])
        else:
            out.append(torch.zeros(3))
    row.mul_(3)
    return torch.stack(out) + row + x.sum()


@some("f[T,3] cu i[N]", tail=False)
def views_of_some_written_later(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    row, out = x.clone(), []
    for s, e, k in _documents(cu, kind):
        out.append(row[s:e] if k == 0 else row[s:e] * 2)
    for part in out:
        part.add_(1)
    return torch.cat(out) + row[cu[0] : cu[-1]]


@some("f[T,2] cu i[N]", must_refuse=True, why="documents leave the loop at two places, and are written to before")
def skipped_at_two_places(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        out[s:e] = x[s:e]
        if k == 0:
            continue
        out[s:e] *= 2
        if e - s < 2:
            continue
        out[s + 1 : e] = out[s : e - 1] + 1
    return out


@some("f[T,2] cu i[N]")
def three_ways(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 0:
            out[s:e] = x[s:e]
        elif k == 1:
            out[s:e] = x[s:e] * 2
        else:
            out[s:e] = x[s:e].cumsum(0)
    return out


@some("f[T,2] cu i[N]")
def skipped_by_kind_and_length(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e, k in _documents(cu, kind):
        if k == 0 and e - s > 2:
            out[s:e] = x[s:e] * 2
        elif e - s > 2:
            out[s:e] = x[s:e] * 3
    return out


@some("f[T,2] cu i[N]")
def another_kind_than_the_one_before(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if i > 0 and k == kind[i - 1].item():
            continue
        out[s:e] = x[s:e] * 2
    return out


@some("f[T,3] cu i[N]")
def worked_out_before_it_is_skipped(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    """The logarithm is taken of all documents, and is no number in those that are skipped."""
    own = (kind == 0).repeat_interleave(cu.diff(), output_size=int(cu[-1] - cu[0]))
    z = torch.zeros_like(x)
    z[cu[0] : cu[-1]] = (x[cu[0] : cu[-1]].abs() + 1) * own[:, None]
    out = torch.zeros_like(x)
    for s, e, k in _documents(cu, kind):
        made = z[s:e].log()
        if k != 0:
            continue
        out[s:e] = made
    return out


@leave("f[T,3] cu", must_refuse=True, why="the condition reads what documents before have written")
def skipped_by_what_others_wrote(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        if out.sum() < 0:
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2
    return out


@leave("f[T,3] cu m[N]", must_refuse=True, why="documents before say which are skipped")
def skipped_if_the_one_before_was_not(x: Tensor, cu: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
    out, flags = x * 1, torch.cat((flags, flags[:1]))
    for i in range(len(cu) - 1):
        if flags[i]:
            continue
        flags[i + 1] = True
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out, flags


@some("f[T,3] cu i[N]", tail=False)
def zeros_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    """Where no document goes that way, eager gives x no gradient."""
    out = []
    for s, e, k in _documents(cu, kind):
        if k > 0:
            out.append(x[s:e].sum(0))
        else:
            out.append(torch.zeros(3))
    return torch.stack(out)


@some("f[T,3] cu i[N]")
def skipped_without_another_use(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    """Where all documents are skipped, eager gives x no gradient."""
    out = torch.zeros_like(x)
    for s, e, k in _documents(cu, kind):
        if k == 1:
            continue
        out[s:e] = x[s:e] * 2
    return out


@leave("f[T,3] f[N] cu", must_refuse=True, why="the larger of a number and what is none is that which comes first")
def the_larger_of_an_item(x: Tensor, rewards: Tensor, cu: Tensor) -> Tensor:
    rewards = torch.cat((rewards[:1] * float("nan"), rewards[1:]))
    out = x * 1
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * max(0.5, rewards[i].item())
    return out


@leave("f[T,3] f[N] cu")
def weights_detached_in_the_loop(x: Tensor, weights: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * weights.detach()[i]
    return out


@leave("f[T,3] b[N] cu")
def weights_converted_in_the_loop(x: Tensor, weights: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * weights.float()[i]
    return out


@leave("f[T,3] f[N] cu", refusal=True)
def filled_with_an_item(x: Tensor, rewards: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i + 1]] = part.masked_fill(part > rewards[i].item(), rewards[i].item())
    return out
