"""Loops that must be rewritten: totals, counters, offsets and lists behind a branch on a document's length."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import SHAPES, program

LONG = tuple(shape for shape in SHAPES if shape.kind not in ("ones", "no_documents"))
"""Where every document is skipped, eager's total has no gradient, and one from the graph has one of zeros."""


@program("f[T] cu", exact=False, depends=False, reads=1)
def mean_over_documents_with_tokens(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        if e - s == 0:
            continue
        seg = x[s:e]
        total = total + seg.pow(2).mean()
        count += 1
    return total / max(count, 1)


@program("f[T,2] cu", exact=False, depends=False)
def added_where_there_are_tokens(x: Tensor, cu: Tensor) -> Tensor:
    """The mean of nothing is no number, and its gradient neither."""
    total = x.new_zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e > s:
            total += (x[s:e] / x[s:e].abs().amax(0).clamp(min=1)).mean(0)
        else:
            total += -0.5
    return total


@program("f[T] cu", exact=False, depends=False)
def ternary_in_a_sum(x: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        total = total + (x[s:e].mean() if n else 0.0)
    return total / cu.shape[0]


@program("f[T] cu", tail=False, exact=False, depends=False, reads=3)
def pieces_with_tokens(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    total, some, none = x.new_zeros(()), 0, 1
    for seg in x.split(cu.diff().tolist()):
        if seg.numel() == 0:
            none += 2
            continue
        total = total + seg.softmax(0)[-1]
        some += 1
    return total, some - none


@program("f[T] cu", tail=False, exact=False, depends=False, reads=1)
def offset_behind_the_branch(x: Tensor, cu: Tensor) -> Tensor:
    total, start, count = x.new_zeros(()), 0, 0
    for n in cu.diff().tolist():
        if not n:
            continue
        total = total + x[start : start + n].mean()
        start += n
        count += 1
    return total / max(count, 1)


@program("f[T] cu", exact=False, depends=False, reads=2)
def entries_of_the_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    total, tokens, documents = x.new_zeros(()), 0, 0
    for s, e in zip(cu[:-1], cu[1:]):
        if e - s < 1:
            continue
        total = total + x[s:e].mean()
        tokens += e.item() - s.item()
        documents += 1
    return total * tokens / max(documents, 1)


@program("f[T,3] i[T] cu", exact=False, depends=False, reads=1, shapes=LONG)
def next_token_loss_of_documents_of_two(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    total, count, labels = x.new_zeros(()), 0, ids % 3
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        total = total + F.cross_entropy(x[s : e - 1], labels[s + 1 : e])
        count += 1
    return total / max(count, 1)


@program("f[T] cu", exact=False)
def rows_and_a_total_of_documents_of_three(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, total = x.clone(), x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        if n >= 3:
            out[s:e] = x[s:e].flip(0)
            total = total + x[s:e].sum() / (n - 2)
    return out, total


@program("f[T] cu", exact=False, tail=False, reads=1)
def two_branches_that_ask_the_same(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_ones(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        if n == 0:
            continue
        if n > 0:
            total = total + x[s:e].mean()
        count += 1
    return total / max(count, 1)


@program("f[T] cu", depends=False, reads=1)
def last_slots_and_a_counter(x: Tensor, cu: Tensor) -> Tensor:
    mask, count = torch.ones_like(x), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        mask[e - 1] = 0.0
        count += 1
    return x * mask * count


# ---------------------------------------------------------------- lists that lack documents


SOME: dict[str, Any] = dict(tail=False, exact=False, reads=1)


@program("f[T,2] cu", **SOME)
def stacked_without_the_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        out.append(x[s:e].mean(0))
    return torch.stack(out, 1)


@program("f[T,2] cu", **SOME)
def joined_without_the_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        if cu[i + 1] > cu[i]:
            out.append(x[cu[i] : cu[i + 1]].amax(0, keepdim=True))
    return torch.cat(out)


@program("f[T] cu", **SOME)
def padded_without_the_empty(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        parts.append(x[s:e] * 2)
    return pad_sequence(parts, batch_first=True, padding_value=1.0)


@program("f[T] cu", **{**SOME, "shapes": LONG})
def stacked_without_short_documents(x: Tensor, cu: Tensor) -> Tensor:
    losses: list[Any] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 1:
            losses.append((x[s + 1 : e] - x[s : e - 1]).pow(2).mean())
    return torch.stack(losses)


@program("f[T] cu", tail=False, depends=False)
def rows_and_a_total_in_one_list(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, total = [], x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        parts.append(x[s:e].flip(0))
        total = total + x[s:e].sum()
    return torch.cat(parts), total


# ---------------------------------------------------------------- the last document's end, read by int()


@program("f[T,3] cu", tail=False, exact=False)
def last_end_read_by_int(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for i in range(cu.shape[0] - 1):
        end = int(cu[i + 1])
        parts.append(x[start:end].softmax(0))
        start = end
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def last_end_read_by_int_from_one_on(x: Tensor, cu: Tensor) -> Tensor:
    out, start = torch.zeros_like(x), int(cu[0])
    for i in range(1, len(cu)):
        out[start : int(cu[i])] = x[start : int(cu[i])].flip(0)
        start = int(cu[i])
    return out
