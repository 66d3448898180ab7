"""Boundaries with padding behind them, and a number beside them that says how many documents there are: a tensor of one
integer, as collators pass it on, or one of Python's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def padded(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entries that are no boundaries, 1 to 3 of them, behind those that are; how many documents there are, 0-d."""
    documents = cu.numel() - 1
    return x, F.pad(cu, (0, 1 + documents % 3), value=-7), torch.tensor(documents)


def padded_row(x: Tensor, cu: Tensor) -> Any:
    """The same with a dimension for the batch, as collators make it: ``[1, L]`` and ``[1]``."""
    x, cu, n = padded(x, cu)
    return x, cu[None], n[None]


def told(x: Tensor, cu: Tensor) -> Any:
    """A number of Python's."""
    x, cu, n = padded(x, cu)
    return x, cu, int(n)


def lengths(x: Tensor, cu: Tensor) -> Any:
    x, cu, n = padded(x, cu.diff().cumsum(0))
    return x, torch.cat([cu[:1], cu[: n + 1].diff(), cu[n + 1 :]]), n + 1


GIVEN = {"tail": False, "graphs": 3}


@program("f[T,3] cu64", wrap=padded, **GIVEN)
def up_to_a_given_number(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    parts = []
    for i in range(int(n)):
        parts.append(x[cu[i] : cu[i + 1]].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=padded, **GIVEN)
def up_to_a_tensor(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(n):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


@program("f[T,3] cu64", wrap=padded, **GIVEN)
def cut_off_by_a_tensor(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    starts, ends = cu[:n], cu[1 : n + 1]
    return torch.cat([x[s:e].roll(1, 0) for s, e in zip(starts.tolist(), ends.tolist())])


@program("f[T,3] cu64", wrap=padded, **GIVEN)
def cut_off_lists(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    ends = cu.tolist()
    return torch.cat([x[s:e].roll(1, 0) for s, e in zip(ends[:n], ends[1 : n + 1])])


@program("f[T,3] cu64", wrap=padded_row, **GIVEN)
def of_a_batch_of_one(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    cu = cu.squeeze(0)[: n.item() + 1]
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = torch.roll(x[cu[i] : cu[i + 1]], -1, 0)
    return out


@program("f[T,3] cu64", wrap=padded_row, exact=False, **GIVEN, depends=False)
def means_of_as_many(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    total, documents, cu = x.new_zeros(()), n.item(), cu[0]
    for i in range(documents):
        total = total + x[cu[i] : cu[i + 1]].sum()
    return total / documents


@program("f[T,3] cu64", wrap=told, **GIVEN)
def up_to_a_number_of_python(x: Tensor, cu: Tensor, n: int) -> Tensor:
    parts = []
    for i in range(n):
        parts.append(x[cu[i] : cu[i + 1]].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=told, **GIVEN)
def cut_off_by_a_number_of_python(x: Tensor, cu: Tensor, n: int) -> Tensor:
    cu = cu[: n + 1]
    return torch.cat([x[s:e].roll(-1, 0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,3] cu64", wrap=told, **GIVEN)
def entries_of_a_list(x: Tensor, cu: Tensor, n: int) -> Tensor:
    out, ends = torch.zeros_like(x), cu.tolist()
    for i in range(n):
        out[ends[i] : ends[i + 1]] = x[ends[i] : ends[i + 1]].flip(0)
    return out


@program("f[T,3] cu64", wrap=told, **GIVEN)
def padded_to_a_number(x: Tensor, cu: Tensor, n: int) -> Tensor:
    out = x.new_zeros(n, x.shape[0], 3)
    for i in range(n):
        out[i, : cu[i + 1] - cu[i]] = x[cu[i] : cu[i + 1]]
    return out


@program("f[T,3] cu64", wrap=lengths, **GIVEN)
def offsets_up_to_a_number(x: Tensor, lens: Tensor, n: Tensor) -> Tensor:
    out, start = torch.zeros_like(x), 0
    for i in range(n.item() - 1):
        length = lens[i]
        out[start : start + length] = x[start : start + length].cumsum(0)
        start = start + length
    return out


@program("f[T,3] cu64", wrap=padded, **GIVEN)
def cut_off_in_the_body(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(int(n)):
        own = cu[: n + 1]
        out[own[i] : own[i + 1]] = x[own[i] : own[i + 1]].flip(0)
    return out


@program("f[T,3] cu64", tail=False)
def all_but_the_last(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(cu) - 2):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out
