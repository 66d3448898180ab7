"""What is said of documents by more than one condition, and lists of the numbers of some."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program
from .rewrite_stopped import SHORT, lengths


@program("f[T,3] cu64", tail=False, graphs=3, reads=1)
def all_within_limits(x: Tensor, cu: Tensor) -> Any:
    bounds = list(zip(cu[:-1].tolist(), cu[1:].tolist()))
    assert all(0 <= s and s <= e <= 10**6 for s, e in bounds)
    return torch.cat([x[s:e].flip(0) for s, e in bounds])


@program("f[T,3] cu64", tail=False, graphs=3, reads=1)
def truth_values_as_a_tensor(x: Tensor, cu: Tensor) -> Any:
    sizes = cu.diff().tolist()
    middle = [n > 1 and n < 4 for n in sizes]
    out = torch.cat([part.flip(0) for part in x.split(sizes)])
    return out, torch.tensor(middle), torch.tensor(middle, dtype=torch.float32), sum(middle)


@program("f[T,3] cu64", wrap=lengths, exact=False, reads=2, **SHORT)
def split_by_those_that_are_not_0(x: Tensor, numbers: Tensor) -> Any:
    kept = [n for n in numbers.tolist() if n > 0]
    return torch.cat([part - part.mean(0) for part in x.split(kept)]), len(kept), max(kept)


@program("f[T,3] cu64", wrap=lengths, exact=False, **SHORT)
def gone_over_without_the_empty(x: Tensor, numbers: Tensor) -> Any:
    out, start = [], 0
    for n in [n for n in numbers.tolist() if n != 0]:
        out.append(x[start : start + n].sum(0))
        start += n
    return torch.stack(out)


@program("f[T,3] cu64", wrap=lengths, exact=False, **SHORT, depends=False, reads=1)
def mean_over_those_with_slots(x: Tensor, numbers: Tensor) -> Any:
    total, start = x.sum(0), 0
    for n in numbers.tolist():
        total = total + x[start : start + n].sum(0)
        start += n
    return total / sum(1 for n in numbers.tolist() if n > 0)


@program("f[T,3] cu64", tail=False, exact=False, graphs=3, rule="ragged_grids")
def pairs_of_slots_by_their_order(x: Tensor, cu: Tensor) -> Any:
    total = x.sum()
    for part in x[:, 0].split(cu.diff().tolist()):
        total = total - torch.nn.functional.logsigmoid(part[:, None] - part[None, :]).triu(1).sum()
    return total


@program("f[T,3] cu64", wrap=lengths, exact=False, **SHORT)
def divided_by_numbers_of_the_same_kind(x: Tensor, numbers: Tensor) -> Any:
    kept = [n for n in numbers.tolist() if n > 0]
    sums = torch.stack([part.sum(0) for part in x.split(kept)])
    return sums / x.new_tensor(kept)[:, None], numbers.new_tensor(kept)
