"""Floating point numbers that documents add up to, or that a list keeps: read once, behind the loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


@program("f[T] cu", reads=1, depends=False)
def losses_added_up(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    loss, logged = x.new_zeros(()), 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].sum()
        loss = loss + own
        logged += own.item()
    return loss, logged


@program("f[T] cu", reads=1, tail=False, depends=False)
def losses_added_to_an_integer(x: Tensor, cu: Tensor) -> tuple[Tensor, float, Tensor]:
    logged = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        logged += x[s:e].detach().sum().item()
    return x * 2, logged, torch.tensor(logged)


@program("f[T] f[T] cu", reads=1, graphs=3)
def shares_by_length_and_less(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    total = 1.5
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + float(x[s:e].sum()) * (e - s)
        total -= y[s:e].sum().item() / 4
    return x + y, total


@program("f[T] cu", reads=3)
def floats_in_a_dict(x: Tensor, cu: Tensor) -> tuple[Tensor, dict[str, Any]]:
    found = {"sum": 0.0, "squares": 0.0, "slots": 0}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        value = x[s:e].sum().item()
        found["sum"] += value
        found["squares"] += value * value
        found["slots"] += e - s
    return x * 2, found


@program("f[T] cu", reads=1, graphs=4)
def floats_of_the_longer(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            total += x[s:e].sum().item()
    return x * 2, total


@program("f[T] cu", reads=1, min_len=1, depends=False)
def an_average_of_what_is_divided(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum().item() * 4 / (2 * (e - s) // (e - s))
    return x * 2, total


@program("f[T] cu", reads=1, depends=False)
def a_sum_that_scales(x: Tensor, cu: Tensor) -> Tensor:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].detach().sum().item()
    return x * total


@program("f[T] cu", tail=False)
def a_list_of_losses(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        losses.append(x[s:e].sum().item())
    return x * 2, torch.tensor(losses), torch.tensor(losses, dtype=torch.float64)


@program("f[T] cu", reads=3, tail=False)
def what_python_makes_of_losses(x: Tensor, cu: Tensor) -> tuple[Tensor, float, float, float, list[float]]:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        losses.append(x[s:e].sum().item())
    return x * 2, sum(losses), max(losses), min(losses), losses


@program("f[T] cu", reads=2, tail=False)
def extremes_of_numbers_of_which_some_are_none(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = x[s:e].sum()
        losses.append(torch.where(total > 0, total, float("nan")).item())
    return x * 2, torch.tensor([max(losses), min(losses)])


@program("f[T] cu", depends=False)
def weights_of_a_list(x: Tensor, cu: Tensor) -> Tensor:
    weights = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        weights.append(x[s:e].detach().sum().item() * 0.5)
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = x[s:e] * weights[i]
    return out


@program("f[T] cu", reads=1, tail=False, depends=False)
def a_list_of_a_list(x: Tensor, cu: Tensor) -> tuple[Tensor, float]:
    losses, total = [], 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        losses.append(x[s:e].sum().item())
    for loss in [loss * 2 for loss in losses]:
        total += loss
    return x * 2, total


@program("f[T] cu", tail=False, graphs=4)
def a_number_of_the_program_or_of_the_data(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(0.5 if e - s < 3 else x[s:e].sum().item())
    return x * 2, torch.tensor(found)
