"""Loops that must be rewritten: what is made of lists of documents and of numbers, and numbers that are worked out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def jagged(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    made = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return made.values(), made.offsets()


# ---------------------------------------------------------------- jagged tensors of documents


@program("f[T,3] cu", tail=False, demand=True)
def jagged_of_rolled(x: Tensor, cu: Tensor) -> Any:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].roll(1, 0))
    return jagged(parts)


@program("f[T] cu", tail=False, demand=True)
def jagged_of_a_comprehension(x: Tensor, cu: Tensor) -> Any:
    return jagged([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)])


@program("f[T,2] cu64", tail=False, demand=True)
def jagged_between_two_loops(x: Tensor, cu: Tensor) -> Any:
    """What is made of a list may be looked at again, and its offsets are boundaries."""
    row, offsets = jagged([x[s:e] - x[s:e].mean(0) for s, e in zip(cu[:-1], cu[1:])])
    return torch.cat([row[s:e].flip(0) for s, e in zip(offsets[:-1], offsets[1:])]), offsets


# ---------------------------------------------------------------- lengths as parts of the longest


def parts_of_the_longest(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.diff() / x.shape[1]


LENGTHS = dict(wrap=parts_of_the_longest, tail=False, demand=True, exact=False, min_len=1, reads=0)


@program("f[N,T,3] cu", **LENGTHS)
def mean_of_rounded_parts(x: Tensor, parts: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        n = int(torch.round(parts[i] * x.shape[1]))
        out.append(x[i, 0:n].mean(0))
    return torch.stack(out)


@program("f[N,T] cu", **LENGTHS)
def parts_read_with_item(x: Tensor, parts: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(x)):
        n = (parts[i] * x.size(1)).add(0.5).floor().long().item()
        out[i, :n] = x[i, :n].flip(0)
    return out


@program("f[N,T,2] cu", **LENGTHS)
def parts_cut_and_joined(x: Tensor, parts: Tensor) -> Tensor:
    """The same numbers in a comprehension, where what is cut is joined."""
    return torch.cat([x[i, : int(torch.round(parts[i] * x.shape[1]))] * 2 for i in range(x.size(0))])


@program("f[N,T] cu", **LENGTHS)
def parts_as_a_bound(x: Tensor, parts: Tensor) -> Tensor:
    """A tensor stands for the number in a slice."""
    out = []
    for i in range(x.shape[0]):
        n = (parts[i] * x.shape[1]).round().long()
        out.append(x[i, :n].sum())
    return torch.stack(out)
