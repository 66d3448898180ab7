"""Loops that must be rewritten: over the numbers of documents that slots carry, wherever these lie in the row."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import program


def numbers(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """A row, and the number of every slot's document."""
    lengths = cu.diff().long()
    return x, torch.repeat_interleave(torch.arange(len(lengths), dtype=cu.dtype), lengths)


def scattered(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Documents that lie in one another."""
    return x, torch.arange(x.shape[0], dtype=cu.dtype) * 7 % max(len(cu) - 1, 1)


def _padded(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers from 1 on; some slots, with 0 and -1, belong to no document."""
    ids = numbers(x, cu)[1] + 1
    ids[::5], ids[1::11] = 0, -1
    ids[-1] = len(cu) - 1
    return x, ids


numbered: Any = functools.partial(program, tail=False, exact=False, min_len=1)


@numbered("d[T] cu", wrap=numbers, reads=1)
def up_to_the_largest_number(x: Tensor, doc: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(int(doc.max()) + 1):
        here = doc == i
        out[here] = x[here] - x[here].mean()
    return out


@numbered("d[T] cu64", wrap=scattered, depends=False)
def numbers_that_are_there(x: Tensor, doc: Tensor) -> Tensor:
    return torch.stack([x[doc == i].mean() for i in doc.unique()])


@numbered("d[T,3] cu", wrap=scattered, depends=False)
def rows_of_features_and_their_count(x: Tensor, doc: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in torch.unique(doc):
        here = i == doc
        out[here] = (x[here].cumsum(0) - x[here].mean(0)) / here.sum()
    return out


@numbered("d[T] cu", wrap=_padded, reads=1, depends=False)
def numbers_from_one(x: Tensor, doc: Tensor) -> tuple[Tensor, Tensor]:
    out, total = torch.zeros_like(x), x.new_zeros(())
    for i in range(1, int(doc.max().item()) + 1):
        here = doc == i
        out[here] = x[here].flip(0)
        total = total + x[here].sum() / (here.sum() + 1)
    return out, total


@numbered("d[T] cu64", wrap=_padded, depends=False)
def every_number_with_the_padding(x: Tensor, doc: Tensor) -> Tensor:
    return torch.cat([x[doc == i].softmax(0) for i in doc.unique().tolist()])


@numbered("d[T] cu", wrap=scattered, depends=False)
def one_value_for_each(x: Tensor, doc: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in doc.unique():
        here = doc == i
        out[here] = x[here].std(unbiased=False)
    return out + x


@numbered("d[T] d[T] cu", wrap=lambda x, y, cu: (*numbers(x, cu), y))
def advantages_of_groups(score: Tensor, group: Tensor, y: Tensor) -> Tensor:
    advantages = score.clone()
    for g in torch.unique(group, sorted=True):
        of_group = group == g
        mine = advantages[of_group]
        advantages[of_group] = (mine - mine.mean()) / (mine.var(unbiased=False) + 1.0).sqrt() * y[of_group]
    return advantages
