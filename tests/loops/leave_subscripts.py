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


@leave("f[T,3] cu", tail=False, why="how the first document lies in memory is asked for")
def memory_of_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [part.t() for part in _parts(x, cu)]
    if not parts[0].is_contiguous():
        x = x * 2
    return torch.cat(parts, 1), x


@leave("f[T,3] cu", tail=False, why="how each document lies in memory is asked for")
def strides_of_entries(x: Tensor, cu: Tensor) -> Tensor:
    parts, out = [part.t() for part in _parts(x, cu)], []
    for i in range(len(parts)):
        out.append(parts[i] * parts[i].stride(1))
    return torch.cat(out, 1)


@leave("f[T,3] cu", tail=False, why="how each part of a split lies in memory is asked for")
def strides_of_parts(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part * part.stride(1) for part in x.t().split(cu.diff().tolist(), 1)], 1)


@leave("f[3,T] cu", tail=False, why="what each document has become is looked at in another shape")
def views_of_entries(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, cu[i] : cu[i + 1]] + 1 for i in range(len(cu) - 1)]
    return torch.cat([parts[i].view(-1) * i for i in range(len(parts))])


@leave("f[3,T] cu", tail=False, why="the same of a list that is looped over")
def views_of_what_was_listed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:, cu[i] : cu[i + 1]].contiguous() for i in range(len(cu) - 1)]
    return torch.stack([part.view(1, -1).sum() for part in parts])


def _some_below_zero(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff() % 8 - 3


@leave("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False, unfit=True, why="some numbers are below 0")
def first_of_slices_that_count_from_the_end(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x[i, : n // 2] * n for i, n in enumerate(numbers.tolist())]
    return torch.cat(parts), parts[0].new_zeros(2)


@leave("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False, why="all dimensions of a row are summed")
def sums_of_rows_doubled(x: Tensor, numbers: Tensor) -> Tensor:
    sums = [x[i, : max(n, 1)].sum() for i, n in enumerate(numbers.tolist())]
    return torch.stack([value * 2 for value in sums])
