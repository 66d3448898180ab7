"""Loops that are left at the first document for which a condition on its numbers holds, as at the padding of boundaries
or lengths: the documents in front of it are those of the loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def padded(x: Tensor, cu: Tensor) -> Any:
    """Boundaries with 0 to 2 entries of -1 behind them."""
    return x, F.pad(cu, (0, cu.numel() % 3), value=-1)


def lengths(x: Tensor, cu: Tensor) -> Any:
    """Lengths with as many zeros behind them."""
    return x, F.pad(cu.diff(), (0, cu.numel() % 3))


SHORT = {"tail": False, "graphs": 3, "min_len": 1, "lead_empty": False}


@program("f[T,3] cu64", wrap=padded, reads=1, **SHORT)
def left_at_a_negative_boundary(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        if cu[i + 1] < 0:
            break
        parts.append(x[cu[i] : cu[i + 1]].flip(0))
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=padded, reads=1, **SHORT)
def left_where_boundaries_fall(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if not s <= e:
            break
        out[s:e] = x[s:e].cumsum(0)
    return out


@program("f[T,3] cu64", wrap=padded, exact=False, reads=1, **SHORT)
def left_with_a_count(x: Tensor, cu: Tensor) -> Any:
    total, documents = x.new_zeros(3), 0
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        if e == -1:
            break
        total = total + x[s:e].mean(0)
        documents += 1
    return total / documents, documents


@program("f[T,3] cu64", wrap=lengths, reads=1, **SHORT)
def left_with_an_offset(x: Tensor, lens: Tensor) -> Tensor:
    parts, start = [], 0
    for n in lens.tolist():
        if n == 0:
            break
        parts.append(x[start : start + n].roll(-1, 0))
        start += n
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=lengths, exact=False, reads=1, **SHORT)
def left_with_an_offset_as_tensor(x: Tensor, lens: Tensor) -> Tensor:
    rows, start = [], 0
    for i in range(lens.numel()):
        if lens[i] <= 0:
            break
        rows.append(x[start : start + lens[i]].sum(0))
        start = start + lens[i]
    return torch.stack(rows)


@program("f[T,3] cu64", wrap=padded, reads=1, **SHORT)
def left_for_one_of_two_reasons(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 0 or s > 9:
            break
        out[s:e] = x[s:e].flip(0)
    return out


@program("f[T,3] cu64", reads=1, **SHORT)
def left_in_the_middle(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(cu) - 1):
        if cu[i] > 5:
            break
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


@program("f[T] cu", exact=False, graphs=3, reads=1)
def left_at_the_first_empty(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            break
        total = total + x[s:e].sum()
        count += 1
    return total / max(count, 1)


@program("f[2,T] cu", graphs=3, reads=1)
def break_at_empty(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        if cu[i] == cu[i + 1]:
            break
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out
