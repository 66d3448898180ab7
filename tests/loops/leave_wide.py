"""Loops beside those of `rewrite_wide`: numbers that do not fit into 64 bits either, or that tensors hold."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_wide import MANY


@leave("i[T] cu", tail=False, must_refuse=True, why="Python's product has more than 64 bits, and its remainder few")
def hashed(ids: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out.append(ids[s:e] + (i * 6364136223846793005 + 11) % 97)
    return torch.cat(out)


@leave("i[T] cu", tail=False, must_refuse=True, why="a product of three lengths and large numbers")
def products_of_many(ids: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        out.append(ids[s:e] + n * MANY * n * MANY * n * MANY % 97)
    return torch.cat(out)


@leave("i[T] cu", tail=False)
def listed_remainders(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.tensor([(n * 2654435761 * 40503 * 97000) % 4096 for n in (cu[1:] - cu[:-1]).tolist()])


@leave("i[T] cu", tail=False)
def a_tensor_of_32_bits(ids: Tensor, cu: Tensor) -> Tensor:
    """Tensors wrap around."""
    return torch.cat([ids[cu[i] : cu[i + 1]] + cu[i] * MANY for i in range(len(cu) - 1)])


@leave("i[T] j[N] cu", tail=False)
def lengths_of_32_bits(ids: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for n in (cu[1:] - cu[:-1]).tolist():
        out.append(ids[start : start + n] + start * MANY)
        start += n
    return torch.cat(out)


@leave("i[T] cu", tail=False)
def wrapped_before_it_is_a_number(ids: Tensor, cu: Tensor) -> Tensor:
    """A tensor of 32 bits wraps around, and is read then."""
    out = []
    for i in range(len(cu) - 1):
        out.append(ids[cu[i] : cu[i + 1]] + int((cu[i + 1] - cu[i]) * MANY))
    return torch.cat(out)


@leave("i[T] cu64", tail=False, must_refuse=True, why="a sum that fills 64 bits goes on as a number of Python")
def hashes_that_go_on(ids: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = (ids[s:e] * 6364136223846793005).sum().item()
        out.append(ids[s:e] + (total + e * 3) % 97)
    return torch.cat(out)


@leave("i[T] cu64", tail=False, must_refuse=True, why="nothing is known of the largest of numbers with 64 bits")
def behind_the_largest(ids: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        largest = (ids[s:e] * 2305843009213693952 * 3).max().item() if e > s else 0
        out.append(ids[s:e] + (largest + s + 5) % 97)
    return torch.cat(out)
