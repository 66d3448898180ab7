"""Loops that must be rewritten: a branch by the mask whose slots are kept, as losses of valid labels have it."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program

valid: Any = functools.partial(program, "d[T,4] i[T] cu", tail=False, exact=False)


@valid(reads=1)
def losses_of_valid_labels(logits: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        known = labels[s:e] % 3 != 0
        if known.any():
            losses.append(F.cross_entropy(logits[s:e][known], labels[s:e][known] % 4))
    return torch.stack([*losses, logits.sum() * 0]).mean()


@valid(reads=1)
def total_of_what_is_valid(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    total = x.sum() * 0
    count = 0
    for i in range(len(cu) - 1):
        mask = labels[cu[i] : cu[i + 1]] > 30
        if mask.sum() == 0:
            continue
        total = total + x[cu[i] : cu[i + 1]][mask].mean()
        count += 1
    return total / max(count, 1)


@valid()
def cut_before_it_is_asked(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    total = x.sum() * 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, kept = x[s:e], labels[s:e] > 30
        if kept.count_nonzero() < 2:
            continue
        total = total + (part[kept] - part[kept].mean(0)).square().sum()
    return total


@valid()
def counted_as_numbers(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 30
        count = kept.float().sum()
        if kept.all():
            count = count + 1
        out.append(x[s:e][kept].sum(0) / count.clamp(min=1) + kept.sum(dim=0) + kept.to(torch.float64).sum())
    return torch.stack(out)


@valid(depends=False)
def columns_of_what_is_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept, part = labels[s:e] > 30, x[s:e]
        parts.append(torch.cat((part[kept, 1:3], part[kept, 0].view(-1, 1), part[kept, ..., -1:] * part[kept, 2:3]), 1))
    return torch.cat([x[:0], *parts])


@valid()
def means_where_a_tensor_has_a_gradient_anyway(x: Tensor, labels: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Of nothing that is kept in any document eager has zeros, too: ``x`` is used by its sum."""
    hidden = x * 2
    means = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = hidden[s:e][labels[s:e] > 80]
        means.append(part.mean(0) if part.shape[0] else x.new_zeros(4))
    return torch.stack(means), x.sum()


@valid(graphs=6, demand=False)  # those behind the question among them, for any number of losses
def losses_that_are_asked_for(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 30
        if kept.any():
            losses.append(x[s:e][kept].mean())
    return torch.stack(losses).mean() if len(losses) else x.sum() * 0
