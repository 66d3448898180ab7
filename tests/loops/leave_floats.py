"""Look-alikes of floating point numbers that documents add up to: what is added, or kept, differs from it somewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="every document reads the sum of those before")
def sum_that_is_read(x: Tensor, cu: Tensor) -> Tensor:
    out, total = [x[:0]], 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum().item()
        out.append(x[s:e] * total)
    return torch.cat(out)


@leave("f[T] cu", must_refuse=True, why="the sum decays")
def sum_that_decays(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total * 0.5 + x[s:e].sum().item()
    return x * 2, total


@leave("f[T] cu", must_refuse=True, why="the tensor is changed between the read and the sum")
def changed_behind_the_read(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].detach().sum()
        value = own.item()
        own.add_(1)
        total += value
    return x * 2, total


@leave("f[T] cu", must_refuse=True, why="an integer where no document adds anything")
def integer_or_sum(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            total += x[s:e].sum().item()
    return x * 2, total


@leave("f[T] cu", must_refuse=True, why="the list holds every sum on the way")
def sums_on_the_way(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total, history = 0.0, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum().item()
        history.append(total)
    return x * 2, torch.tensor(history)


@leave("f[T] cu", must_refuse=True, why="a number is cut to an integer")
def cut_to_integers(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += int(x[s:e].sum().item())
    return x * 2, total


@leave("f[T] cu", tail=False)
def integers_in_front_of_floats(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, list[Any]]:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(x[s:e].sum().item())
    found = [0, *found]
    return x * 2, torch.tensor(found), found


@leave("f[T] cu", tail=False)
def integers_of_a_list_of_floats(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(x[s:e].sum().item())
    return x * 2, torch.tensor([int(number) for number in found])


@leave("f[T] cu", tail=False)
def floats_in_order(x: Tensor, cu: Tensor) -> tuple[Tensor, list[float]]:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(x[s:e].sum().item())
    return x * 2, sorted(found)


@leave("f[T] cu", tail=False)
def floats_and_integers(x: Tensor, cu: Tensor) -> tuple[Tensor, list[Any]]:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(0 if e - s < 3 else x[s:e].sum().item())
    return x * 2, found


@leave("f[T] cu", must_refuse=True, why="an integer, where all documents add integers")
def integers_or_floats_added_up(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            total += x[s:e].sum().item()
        else:
            total += e - s
    return x * 2, total


@leave("f[T] cu", must_refuse=True, why="one sum adds up what another one was on the way")
def floats_on_the_way_added_up(x: Tensor, cu: Tensor) -> tuple[Tensor, float, float]:
    one, other = 0.0, 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        one += x[s:e].sum().item()
        other += one
    return x * 2, one, other
