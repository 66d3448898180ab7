"""What a loop carries on in a variable that a closure, a comprehension or a nested function shares."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False, depends=False)
def offset_in_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for n in torch.diff(cu).tolist():
        out.append(torch.cat([x[start : start + n] * k for k in (1, 2, 3)], -1))
        start += n
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def offset_in_a_lambda(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for n in torch.diff(cu).tolist():
        times = lambda k: x[start : start + n] * k  # noqa: B023, E731
        out.append(times(2) - x[start : start + n].mean(0))
        start += n
    return torch.cat(out)


@program("f[T,3] cu", tail=False, reads=1, depends=False)
def offset_read_after_the_loop(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, start = [], 0
    for n in torch.diff(cu).tolist():
        out.append(torch.cat([x[start : start + n] * k for k in (1, 2)], -1))
        start += n
    rest = lambda: x[:start].sum(0)  # noqa: E731
    return torch.cat(out), rest()


@program("f[T,3] cu", exact=False, depends=False)
def total_of_a_nested_function(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(3)

    def add(document: Tensor) -> None:
        nonlocal total
        total = total + document.pow(2).sum(0)

    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        add(x[s:e])
    return total


@program("f[T,3] cu")
def counted_by_a_nested_function(x: Tensor, cu: Tensor) -> Tensor:
    number, out = 0, torch.zeros(x.shape[0])

    def fill(s: int, e: int) -> None:
        nonlocal number
        out[s:e] = number
        number += 1

    for i in range(len(cu) - 1):
        fill(cu[i], cu[i + 1])
    return out + x[:, 0]
