"""Look-alikes of loops that change what the body has made: somebody else sees the change, or the memory is not new."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _images(x: Tensor, cu: Tensor) -> Args:
    lengths = cu.diff().long()
    sizes = torch.stack((lengths, torch.full_like(lengths, 2)), 1)
    return torch.cat((x, x * 2))[: int(sizes.prod(1).sum())], sizes


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="a view that was taken before sees the change")
def view_taken_before_a_change(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w] + 1
        grid = image.view(h, w, 3)
        image.mul_(3)
        start += h * w
        out.append(grid.sum(1))
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="of one slot, what is turned is the same memory")
def turned_before_a_change(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w] + 1
        columns = image.t().reshape(-1)
        image *= 3
        start += h * w
        out.append(columns * 2)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="parts that were taken before see the change")
def parts_taken_before_a_change(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = (x[start : start + h * w] + 1).detach()
        first, rest = image.split([1, 2], 1)
        image *= 3
        start += h * w
        out.append(first + rest)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="the row itself is changed through a part of it")
def part_of_the_row_changed(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    x, out, start = x * 1, [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w]
        image *= 3
        start += h * w
        out.append(image.view(h, w, 3).sum(1))
    return torch.cat(out), x


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="one column of it is changed")
def column_of_its_own_changed(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w] + 1
        image[:, 0].mul_(3)
        start += h * w
        out.append(image.view(h, w, 3).sum(1))
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="the result of a comparison is kept in floats")
def comparison_kept_in_floats(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes.tolist():
        places = torch.arange(h * w, dtype=torch.float32)
        places.lt_(3)
        out.append(places / 2)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="sums in double precision are kept in single")
def rounded_into_what_it_was(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes.tolist():
        places = torch.arange(h * w, dtype=torch.float32)
        places *= torch.arange(h * w, dtype=torch.float64) / 3
        out.append(places)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, wrap=_images, must_refuse=True, why="what all images share is changed again and again")
def shared_by_all_images(x: Tensor, sizes: Tensor) -> Tensor:
    weight, out, start = torch.ones(3), [], 0
    for h, w in sizes.tolist():
        weight *= 2
        out.append(x[start : start + h * w] + weight)
        start += h * w
    return torch.cat(out)


@leave("f[T,2] cu", tail=False, why="what is raised is caught")
def message_that_is_caught(x: Tensor, cu: Tensor) -> Tensor:
    try:
        assert cu[-1] % 2 == 0, f"{cu[-1]} slots do not divide"
    except AssertionError:
        x = x + 1
    out = []
    for i in range(len(cu) - 1):
        out.append(x[cu[i] : cu[i + 1]].flip(0))
    return torch.cat(out)


@leave("f[T,2] cu", tail=False, why="the other way does something else than raise")
def asked_in_front_of_a_loop(x: Tensor, cu: Tensor) -> Tensor:
    if cu[-1] % 2 == 0:
        x = x + 1
    out = []
    for i in range(len(cu) - 1):
        out.append(x[cu[i] : cu[i + 1]].flip(0))
    return torch.cat(out)


@leave("f[T,2] cu", tail=False, why="the outcome of a condition on every document is asked for as a number")
def as_one_number(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    return x * (int(bool(lengths)) + int(bool(iter(lengths))))
