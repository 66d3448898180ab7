"""Look-alikes of loops over a part of a list: numbers that count from its end, or lie behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, Shape, leave

_SHAPES = tuple(Shape(n, t, "plain") for n, t in ((3, 24), (7, 61), (4, 30), (50, 173)))


def _numbers(x: Tensor, cu: Tensor) -> Args:
    """With a number of another document for each, of which some count from the end."""
    n = (len(cu) - 1) // 2
    return x, cu.diff(), torch.arange(n) - torch.tensor([0, 1]).repeat(n)[:n] * n


def _lengths(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff()


@leave("f[T,2] cu", tail=False, wrap=_numbers, shapes=_SHAPES, why="numbers that are data count from the end of a part")
def by_data_out_of_every_second(x: Tensor, lengths: Tensor, which: Tensor) -> Tensor:
    some, out = lengths.tolist()[::2], []
    for i in which.tolist():
        out.append(x[0] * some[i])
    return torch.stack(out)


@leave("f[T,2] cu", tail=False, wrap=_numbers, shapes=_SHAPES, why="numbers that are data count from the front")
def by_data_from_the_end(x: Tensor, lengths: Tensor, which: Tensor) -> Tensor:
    turned, out = lengths.tolist()[::-1], []
    for i in which.tolist():
        out.append(x[0] * turned[i])
    return torch.stack(out)


@leave("f[T,2] cu", tail=False, wrap=_numbers, shapes=_SHAPES, why="numbers that are data count from the end of a part")
def by_data_out_of_those_in_front(x: Tensor, lengths: Tensor, which: Tensor) -> Tensor:
    front, out = lengths.tolist()[:-1], []
    for i in which.tolist():
        out.append(x[0] * front[i])
    return torch.stack(out)


@leave("f[T,2] cu", tail=False, wrap=_lengths, shapes=_SHAPES, why="the last number may lie behind the part")
def one_pair_too_many(x: Tensor, lengths: Tensor) -> Tensor:
    parts, total = x.split(lengths.tolist())[:-1], x.new_zeros(2)
    for i in range(len(lengths) // 2):
        try:
            total = total + parts[2 * i + 1].sum(0)
        except IndexError:
            total = total - 1
    return total


@leave("f[T,2] cu", tail=False, wrap=_lengths, shapes=_SHAPES, why="numbers fall below 0")
def from_the_middle_backwards(x: Tensor, lengths: Tensor) -> Tensor:
    parts, total = x.split(lengths.tolist())[1:], x.new_zeros(2)
    for i in range(len(parts) // 2):
        total = total + (i + 1) * parts[-2 * i].sum(0)
    return total


@leave("f[T,2] cu", tail=False, wrap=_lengths, shapes=_SHAPES, why="entry 2 * i - 1 of the first step is the last one")
def the_one_before_every_second(x: Tensor, lengths: Tensor) -> Tensor:
    parts, total = x.split(lengths.tolist())[:-1], x.new_zeros(2)
    for i in range(len(parts) // 2):
        total = total + (i + 1) * parts[2 * i - 1].sum(0)
    return total
