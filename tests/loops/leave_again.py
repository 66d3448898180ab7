"""Look-alikes of loops that run several times: what one time leaves is what the next begins with, in ways of which
nothing is known; lists that several loops fill, and that are used in other ways than joined."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_again import lengths


@leave("f[T,3] cu64", wrap=lengths, tail=False, min_len=1, must_refuse=True, why="a row is carried from time to time")
def last_document_goes_on(x: Tensor, n: Tensor) -> Tensor:
    """The first time begins with zeros, the others with the last document's sum."""
    before, outs = x.new_zeros(3), []
    for _ in range(2):
        for part in x.split(n.tolist()):
            outs.append(part + before)
            before = part.sum(0)
    return torch.cat(outs)


@leave("f[T,3] cu64", wrap=lambda x, cu: (x, cu - cu[0]), min_len=1, tail=False, lead_empty=False)
def ends_that_go_on(x: Tensor, cu: Tensor) -> Any:
    """``start`` is not set back, so that the second time's first document ends before it starts."""
    start, outs = 0, []
    for _ in range(2):
        for end in cu[1:].tolist():
            outs.append(x[start:end].sum(0))
            start = end
    return torch.stack(outs)


@leave("f[T,3] cu64", wrap=lengths, tail=False)
def offset_that_is_doubled_between(x: Tensor, n: Tensor) -> Any:
    start, outs = 0, []
    for _ in range(2):
        for length in n.tolist():
            outs.append(x[start : start + length].sum(0))
            start += length
        start = start // 2
    return torch.stack([*outs, x[0]])


@leave("f[T,3] cu64", wrap=lengths, tail=False)
def lengths_that_change_between(x: Tensor, n: Tensor) -> Any:
    n, outs = n.clone(), []
    for _ in range(2):
        start = 0
        for length in n.tolist():
            outs.append(x[start : start + length].sum(0))
            start += length
        n[0] = 1
    return torch.stack([*outs, x[0]])


@leave("f[T,3] cu64", wrap=lengths, tail=False)
def step_that_changes_between(x: Tensor, n: Tensor) -> Any:
    """The counter goes in steps of its own each time."""
    outs, count = [], 0
    for step in (1, 2):
        parts = []
        for part in x.split(n.tolist()):
            parts.append(part * count)
            count += step
        outs.append(torch.cat(parts))
    return torch.stack(outs)


@leave("f[T,3] f[T,3] cu64", tail=False, min_len=1)
def a_filled_list_is_looked_into(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    parts = []
    for part in x.split(cu.diff().tolist()):
        parts.append(part * 2)
    for part in y.split(cu.diff().tolist()):
        parts.append(part * 3)
    return parts[0] + 1


@leave("f[T,3] f[T,3] cu64", tail=False, min_len=1)
def a_filled_list_is_gone_over(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    parts = []
    for part in x.split(cu.diff().tolist()):
        parts.append(part * 2)
    for part in y.split(cu.diff().tolist()):
        parts.append(part * 3)
    return torch.stack([part.sum(0) for part in parts])


@leave("f[T,3] f[T,3] cu64", tail=False, min_len=1)
def a_filled_list_is_written_to(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    """The list holds parts of a row that the program changes before the other loop."""
    row, parts = x * 1, []
    for i in range(len(cu) - 1):
        parts.append(row[cu[i] : cu[i + 1]])
    row.mul_(2)
    for part in y.split(cu.diff().tolist()):
        parts.append(part)
    return torch.cat(parts)


@leave("f[T,3] f[T,3] cu64", tail=False, min_len=1)
def a_list_is_used_between(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    parts = []
    for part in x.split(cu.diff().tolist()):
        parts.append(part * 2)
    first = torch.cat(parts)
    for part in y.split(cu.diff().tolist()):
        parts.append(part + first.sum())
    return first, torch.cat(parts)


@leave("f[T,3] cu64", wrap=lengths, tail=False)
def numbers_of_two_loops(x: Tensor, n: Tensor) -> Any:
    numbers = []
    for length in n.tolist():
        numbers.append(length * 2)
    for length in n.tolist():
        numbers.append(length + 1)
    return torch.tensor(numbers), x.sum()
