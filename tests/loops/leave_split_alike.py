"""Look-alikes of ``rewrite_split_alike``: parts that are not, or need not be, of one size."""

from __future__ import annotations

import torch

from .harness import leave


def product_or_sum(a, b):
    """Which of both it is shows whether the sizes were told apart."""
    return (a * b).sum() if a.size() == b.size() else a.sum() - b.sum()


@leave("f[T] f[T] cu", min_len=1, tail=False, where=(product_or_sum,))
def alike_until_the_lengths_change(x, y, cu):
    lengths = cu.diff().clone()
    first = x.split(lengths.tolist())
    lengths.copy_(lengths.flip(0))
    second = y.split(lengths.tolist())
    return torch.stack([product_or_sum(a, b) for a, b in zip(first, second)])


@leave("f[T] f[T] cu", min_len=1, tail=False, where=(product_or_sum,))
def alike_until_a_copy_changes(x, y, cu):
    lengths = cu.diff()
    other = lengths.clone()
    if len(other) > 1:
        other[0] += other[1]
        other[1] = 0
    parts = zip(x.split(lengths.tolist()), y.split(other.tolist()))
    return torch.stack([product_or_sum(a, b) for a, b in parts])


@leave("f[T] f[T] cu", min_len=1, tail=False, where=(product_or_sum,))
def split_by_the_lengths_turned_round(x, y, cu):
    lengths = cu.diff().tolist()
    return torch.stack([product_or_sum(a, b) for a, b in zip(x.split(lengths), y.split(lengths[::-1]))])


@leave("f[T] f[T] cu", min_len=1, tail=False, where=(product_or_sum,))
def parts_with_other_numbers(x, y, cu):
    lengths = cu.diff().tolist()
    first, second = x.split(lengths), y.split(lengths)
    return torch.stack([product_or_sum(first[i], second[len(second) - 1 - i]) for i in range(len(first))])


@leave("f[T] f[T] cu", min_len=1, tail=False, where=(product_or_sum,))
def parts_in_another_order(x, y, cu):
    lengths = cu.diff()
    order = lengths.argsort().tolist()
    first, second = x.split(lengths.tolist()), y.split(lengths.tolist())
    return torch.stack([product_or_sum(first[i], part) for i, part in zip(order, second)])
