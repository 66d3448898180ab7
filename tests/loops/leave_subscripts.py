"""Look-alikes of lists whose entries are taken by their numbers: other numbers, or what only the one entry tells."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _numbers(x: Tensor, cu: Tensor) -> Args:
    return x, cu, torch.arange(len(cu) - 1).flip(0)


def _parts(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]


@leave("f[T,3] cu", tail=False, why="the next document's entry is taken")
def the_next_entry(x: Tensor, cu: Tensor) -> Tensor:
    parts, out = _parts(x, cu), []
    for i in range(len(parts) - 1):
        out.append(parts[i + 1].flip(0))
    return torch.cat([*out, parts[0]])


@leave("f[T,3] cu", tail=False, why="entries are taken from the end")
def entries_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    parts, out = _parts(x, cu), []
    for i in range(len(parts)):
        out.append(parts[-i].flip(0))
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, why="half of the entries are taken twice")
def entries_taken_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts, out = _parts(x, cu), []
    for i in range(len(parts)):
        out.append(parts[i // 2].flip(0))
    return torch.cat(out)


@leave("f[T,3] cu", wrap=_numbers, tail=False, why="entries are taken in an order that is data")
def entries_in_another_order(x: Tensor, cu: Tensor, order: Tensor) -> Tensor:
    parts, out = _parts(x, cu), []
    for i in order.tolist():
        out.append(parts[i])
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, why="entries are replaced")
def entries_set_again(x: Tensor, cu: Tensor) -> Tensor:
    parts = _parts(x, cu)
    for i in range(len(parts)):
        parts[i] = parts[i].flip(0)
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, why="the row is changed before its parts are taken")
def row_changed_in_between(x: Tensor, cu: Tensor) -> Tensor:
    x, out = x.clone(), []
    parts = _parts(x, cu)
    x.add_(1)
    for i in range(len(parts)):
        out.append(parts[i] * 3)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, why="the length of the first document is asked for")
def length_of_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = _parts(x, cu)
    return torch.cat(parts), x.new_zeros(parts[0].shape[0], 2)


@leave("f[T,3] cu", tail=False, why="the first document is read")
def sum_of_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = _parts(x, cu)
    return torch.cat(parts), parts[0].sum(0)


@leave("f[T,3] cu", tail=False, why="something is made as long as the first document")
def zeros_like_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = _parts(x, cu)
    return torch.cat(parts), torch.zeros_like(parts[0])
