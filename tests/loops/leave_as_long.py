"""Lists that are not of one length, or only by chance: the program finds out; those that are, in `rewrite_as_long`."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import SHAPES, leave

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")


def _compared(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (a * 2, b) if a.shape == b.shape else (a.sum(), b)


@leave("f[T] f[T] cu", shapes=SOME, why="each document is in one of the lists")
def lists_that_share_the_documents(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    some, others = [x[:0]], [y[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            some.append(x[s:e] * 2)
        else:
            others.append(y[s:e] * 3)
    return _compared(torch.cat(some), torch.cat(others))


@leave("f[T] f[T] cu", shapes=SOME, why="two entries in one list and one in the other")
def lists_of_two_and_of_one(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    some, others = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        some.append(x[s:e] * 2)
        some.append(x[s:e] + 1)
        others.append(y[s:e] * 3)
    return _compared(torch.cat(some), torch.cat(others))


@leave("f[T] f[T] cu", shapes=SOME, why="each list is picked from by a mask of its own")
def lists_of_slots_that_other_masks_keep(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    some, others = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        some.append(x[s:e][y[s:e] > 0] * 2)
        others.append(y[s:e][x[s:e] > 0] * 3)
    return _compared(torch.cat(some), torch.cat(others))


@leave("f[T] f[T] cu", shapes=SOME, why="the list begins with slots of the program's own")
def list_with_slots_in_front(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    some, others = [y[:2] * 1], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        some.append(x[s:e] * 2)
        others.append(y[s:e] * 3)
    return _compared(torch.cat(some), torch.cat(others))
