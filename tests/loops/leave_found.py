"""Extremes that somebody looks at before all documents have been seen, or that something else is done with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave

SEEN = "a document looks at the largest number up to it"


@leave("f[T,3] cu64", tail=False, must_refuse=True, why=SEEN)
def scaled_by_the_longest_so_far(x: Tensor, cu: Tensor) -> Tensor:
    longest, out = 0, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        longest = max(longest, e - s)
        out.append(x[s:e] * longest)
    return torch.cat(out)


@leave("f[T,3] cu64", tail=False, must_refuse=True, why=SEEN)
def longest_so_far_in_a_list(x: Tensor, cu: Tensor) -> Any:
    longest, found = 0, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        longest = max(longest, e - s)
        found.append(longest)
    return torch.tensor(found), torch.cat([x[s:e].flip(0) for s, e in [(0, 1)]])


@leave("f[T,3] cu64", tail=False)
def longest_and_then_one_more(x: Tensor, cu: Tensor) -> Any:
    longest = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        longest = max(longest, e - s) + 1
    return x * longest, longest
