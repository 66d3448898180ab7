"""Loops that must be rewritten: numbers of documents that do not fit into the 32 bits of their boundaries."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program

MANY = 1_000_000_000


@program("i[T] cu", tail=False)
def added_to_slots(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([ids[s:e] + s * MANY for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] cu", tail=False)
def a_large_constant(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([ids[s:e] + (s + 3 * MANY) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("d[T] cu", tail=False)
def scaled_by_a_large_number(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e] * ((e - s) * MANY) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] cu", tail=False)
def products_of_lengths(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([ids[s:e] + (e - s) * (e - s) * 4096 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] cu", tail=False, depends=False)
def held_by_rows(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.full((e - s,), s * MANY) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] cu", tail=False, demand=False, depends=False)
def work_in_all(ids: Tensor, cu: Tensor) -> Tensor:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += (e - s) * 12 * 4096 * 4096
    return ids + total


@program("i[T] cu", tail=False, demand=False, depends=False)
def work_of_each(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.tensor([12 * n * 4096 * 4096 for n in (cu[1:] - cu[:-1]).tolist()])
