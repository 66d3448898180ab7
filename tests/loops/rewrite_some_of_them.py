"""Loops over a part of a list with one entry per document, of which a step takes entries by numbers of its own: two
of the first ones, and never the last, which holds the padding of the row."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, Shape, program

_SHAPES = tuple(Shape(n, t, "plain") for n, t in ((3, 24), (7, 61), (1, 9), (50, 173), (2, 17), (6, 33)))


def _lengths(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff()


# How many pairs there are goes by whether the number of documents is odd: a graph each, and those of 0 and 1 pairs.
@program("f[1,T] cu", tail=False, wrap=_lengths, shapes=_SHAPES, min_len=1, depends=False, graphs=5)
def pairs_in_front_of_the_padding(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    better, worse = [x[:, :1].sum(1)], [x[:, :1].sum(1)]
    parts = torch.split(x, lengths.tolist(), dim=1)[:-1]
    for i in range(len(parts) // 2):
        better.append(parts[2 * i].sum(1))
        worse.append(parts[2 * i + 1].sum(1))
    return torch.stack(better), torch.stack(worse)


@program("f[T,2] cu", tail=False, shapes=(*_SHAPES[:2], *_SHAPES[3:4], *_SHAPES[5:]), graphs=3)
def sums_of_pairs_behind_the_first(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu.tolist()[1:]
    out = []
    for i in range((len(ends) - 1) // 2):
        out.append(x[ends[2 * i] : ends[2 * i + 1]].sum(0))
    return torch.stack(out)


@program("f[T,2] cu", tail=False, wrap=_lengths, shapes=_SHAPES, min_len=1, depends=False)
def thirds_of_those_in_between(x: Tensor, lengths: Tensor) -> Tensor:
    parts, total = x.split(lengths.tolist())[1:][:-1], x.new_zeros(2)
    for i in range((len(parts) + 2) // 3):
        total = total + parts[3 * i].sum(0)
    return total


@program("f[T,2] cu", tail=False, wrap=_lengths, shapes=_SHAPES, min_len=1, depends=False)
def every_second_of_the_others(x: Tensor, lengths: Tensor) -> Tensor:
    total = x.new_zeros(2)
    for part in x.split(lengths.tolist())[1:][::2]:
        total = total + part.sum(0)
    return total
