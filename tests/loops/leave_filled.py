"""Loops that must keep eager's results: documents that are filled up, or joined, in ways that no row stands for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


def _twice(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, y, cu, cu * 2


@leave("f[T] cu", tail=False, why="a negative number of slots is cut off", unfit=True)
def filled_up_with_less_than_nothing(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.pad(x[s:e], (0, (e - s) // 2 * -1)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T,2] f[2*T,2] cu", wrap=_twice, tail=False, must_refuse=True, why="the other row is written by the loop")
def joined_to_a_row_that_is_written(text: Tensor, image: Tensor, cu: Tensor, ends: Tensor) -> Tensor:
    outs, image = [], image.detach().clone()
    for i in range(len(cu) - 1):
        outs.append(torch.cat([text[cu[i] : cu[i + 1]], image[ends[i] : ends[i + 1]]]))
        image[:1] += 1
    return torch.cat(outs)


@leave("f[T,2] cu", tail=False, must_refuse=True, why="the numbers of slots are changed behind the list")
def filled_up_by_numbers_that_change(x: Tensor, cu: Tensor) -> Any:
    missing = (cu.diff() + 3) // 4 * 4 - cu.diff()
    out = []
    for i in range(len(cu) - 1):
        out.append(torch.cat([x[cu[i] : cu[i + 1]], x.new_zeros(int(missing[i]), 2)]))
        missing[i] += 1
    return torch.cat(out), missing


@leave("f[T,2] cu", tail=False)
def filled_up_by_the_next_number(x: Tensor, cu: Tensor) -> Tensor:
    missing = F.pad(-cu.diff() % 4, (0, 1))
    parts = [torch.cat([x[cu[i] : cu[i + 1]], x.new_zeros(int(missing[i + 1]), 2)]) for i in range(len(cu) - 1)]
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, refusal=True)
def a_part_of_a_padded_document_is_written(x: Tensor, cu: Tensor) -> Tensor:
    """Another part, or the same taken again, shows it."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(x[s:e], (0, 0, 2, 0))
        middle = padded[1:-1]
        middle.mul_(2)
        out[s:e] = middle + padded[:-2]
    return out


@leave("f[T,3] cu", tail=False, refusal=True)
def the_same_part_of_a_padded_document_is_written(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(x[s:e], (0, 0, 1, 0))
        one, other = padded[:-1], padded[:-1]
        one.add_(2)
        out[s:e] = other
    return out


@leave("f[T,3] cu", tail=False)
def a_document_changes_after_it_was_padded(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e] * 2
        padded = F.pad(own, (0, 0, 1, 0))
        own.add_(1)
        out[s:e] = padded[:-1] + own
    return out


@leave("f[T,3] cu", tail=False)
def longer_than_the_document(x: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        padded = F.pad(x[s:e], (0, 0, 2, 1), value=1.0)
        sums.append(padded[1:-1].sum(0))
    return torch.stack(sums)
