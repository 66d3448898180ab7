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


# === By several conditions, of which all but one way add nothing ============================================


@some("f[T,5] cu i[N]", exact=False, tail=False, reads=5)
def total_behind_two_questions(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    """Labels of what is skipped are none."""
    own = (kind == 1).repeat_interleave(cu.diff(), output_size=int(cu[-1] - cu[0]))
    y = torch.zeros(x.shape[0], dtype=torch.int64)
    y[cu[0] : cu[-1]] = torch.where(own, 1000, 3)
    total, count, beside = 0.0, 0, x.sum()
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 1 or e == s:
            continue
        total = total + torch.nn.functional.cross_entropy(x[s:e], y[s:e])
        count += 1
    return total / max(count, 1) + beside


@some("f[T,3] cu i[N]", exact=False)
def total_behind_three_questions(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    total = torch.zeros(())
    for i in range(len(cu) - 1):
        s, e, k = cu[i].item(), cu[i + 1].item(), kind[i].item()
        if k == 1:
            continue
        if e - s >= 2 and i < 40:
            total = total + (x[s:e] / (e - s - 1)).sum()
    return total + x.sum()


@some("f[T,3] cu i[N]", exact=False, tail=False, reads=1, rule="vectorize_counters")
def count_of_short_ones_of_a_kind(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    count = 0
    for s, e, k in _documents(cu, kind):
        if e - s < 4 and k > 0:
            count += e - s
    return x * count


# === By what documents hold ==================================================================================


@program("f[T,3] cu m[N]", graphs=3)
def skipped_by_a_flag(x: Tensor, cu: Tensor, flags: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        if flags[i]:
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


@program("f[T,3] cu")
def skipped_by_what_they_hold(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        if x[s:e].sum() < 0:
            continue
        out[s:e] = x[s:e].pow(3).flip(0)
    return out


@program("f[T,3] m[T] cu", exact=False)
def means_of_what_a_mask_has(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if not mask[s:e].any():
            continue
        out[s:e] = (x[s:e] * mask[s:e, None]).sum(0) / mask[s:e].sum()
    return out


@program("f[T,3] f[3] m[T] cu", exact=False)
def without_what_is_no_number(x: Tensor, scale: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    """A gradient of 0 times what is no number is none."""
    y = torch.where(mask[:, None], x, float("nan"))
    out = x * scale
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if torch.isnan(y[s:e]).any():
            continue
        out[s:e] = y[s:e] * scale + y[s:e].mean(0) * scale
    return out + y.nan_to_num()


# === Numbers that tensors of floats and flags hold ===========================================================


@program("f[T,3] f[N] cu", graphs=3)
def scaled_by_an_item(x: Tensor, rewards: Tensor, cu: Tensor) -> Tensor:
    """A number that is read has no gradient."""
    out = x + rewards.sum()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * rewards[i].item()
    return out


@program("f[T,3] f[N] cu", graphs=3)
def skipped_by_an_item(x: Tensor, rewards: Tensor, cu: Tensor) -> Tensor:
    """Of numbers, one is none, which is neither more than 0 nor not."""
    rewards = torch.cat((rewards[:1].detach() * float("nan"), rewards[1:]))
    out = x * 1
    for i in range(len(cu) - 1):
        if rewards[i].item() > 0:
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


@program("f[T,3] m[N] cu", graphs=3)
def skipped_by_the_item_of_a_flag(x: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for i in range(len(cu) - 1):
        if not flags[i].item():
            continue
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


@program("f[T,3] m[T] cu")
def skipped_by_the_item_of_a_sum(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].sum().item() == 0 or not mask[s:e].any().item():
            continue
        out[s:e] = x[s:e].flip(0)
    return out
