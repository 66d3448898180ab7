"""The largest and the smallest of the documents' numbers, found one by one, and lists that a comprehension reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu64", tail=False, exact=False, graphs=3, reads=2)
def longest_beside_sums(x: Tensor, cu: Tensor) -> Any:
    longest, shortest, sums = 0, 10**6, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        longest = max(longest, e - s)
        shortest = min(e - s, shortest)
        sums.append(x[s:e].sum(0))
    return torch.stack(sums) * longest, longest, shortest


@program("f[T,3] cu64", tail=False, graphs=3, reads=1)
def padded_to_the_longest_found(x: Tensor, cu: Tensor) -> Tensor:
    longest = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        longest = max(longest, e - s)
    out = x.new_zeros(len(cu) - 1, longest, 3)
    for i in range(len(cu) - 1):
        out[i, : cu[i + 1] - cu[i]] = x[cu[i] : cu[i + 1]]
    return out


@program("f[T,3] cu64", tail=False, exact=False, graphs=3)
def listed_for_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for n in cu.diff().tolist():
        bounds.append(bounds[-1] + n)
    return torch.stack([x[bounds[i] : bounds[i + 1]].sum(0) for i in range(len(bounds) - 1)])
