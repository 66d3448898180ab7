"""Look-alikes of lists of lengths that a program is given alone: widths, shapes, numbers that are negative."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import SHAPES, leave

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")
FEW = tuple(shape for shape in SOME if 1 < shape.docs < 8)


def _alone(cu: Tensor) -> tuple[list[int]]:
    return (cu.diff().tolist(),)


@leave("cu", wrap=_alone, shapes=FEW)
def weights_between_widths(widths: list[int]) -> list[Tensor]:
    return [torch.zeros(a, b) for a, b in zip(widths[:-1], widths[1:])]


@leave("cu", wrap=_alone, shapes=FEW, must_refuse=True, why="each size is a factor of the one number")
def as_many_as_a_shape_holds(shape: list[int]) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.zeros(count).view(*shape)


@leave("cu", wrap=lambda cu: ([n - 3 for n in cu.diff().tolist()],), shapes=SOME)
def shifts_that_are_negative(shifts: list[int]) -> Tensor:
    x = torch.arange(12)
    for shift in shifts:
        x = x.roll(shift)
    return x


@leave("cu", wrap=_alone, shapes=SOME, mutates=True)
def a_list_alone_that_grows(lengths: list[int]) -> Tensor:
    out = torch.cat([torch.arange(n) for n in lengths])
    lengths.append(1)
    return out


@leave("cu", wrap=_alone, shapes=SOME)
def widths_of_nested_layers(widths: list[int]) -> Tensor:
    x = torch.ones(3)
    for width in widths:
        x = torch.nn.functional.pad(x, (0, width)).cumsum(0)
    return x


@leave("cu", wrap=_alone, shapes=SOME)
def numbers_that_decide(sizes: list[int]) -> Tensor:
    out = torch.zeros(4)
    for size in sizes:
        if size > 4:
            out = out + size
        else:
            out = out * 0.5
    return out
