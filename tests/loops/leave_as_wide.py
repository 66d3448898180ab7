"""Look-alikes of documents that a branch fills up to a width, and leaves if they fit: they may not all be as wide."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import SHAPES, Shape, leave

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")
ALIKE = (Shape(5, 5, "ones"), Shape(1, 9, "plain"), Shape(1, 4, "plain"), Shape(1, 2, "plain"))
"""Sizes at which documents are all as long as each other."""
ONES = (ALIKE[0], Shape(2, 2, "ones"), Shape(3, 3, "ones"))


@leave("f[T,4] cu", shapes=ALIKE, must_refuse=True, wrap=lambda x, cu: (x, cu, 3), why="all of one length, and longer")
def longer_than_the_width(x: Tensor, cu: Tensor, width: int) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        if e - s < width:
            part = F.pad(part, (0, 0, 0, width - (e - s)))
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=ALIKE, must_refuse=True, why="the width is that of half of the longest document")
def padded_to_half_of_the_longest(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()) // 2, []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=ONES, must_refuse=True, why="the longest of all documents but the last")
def longest_but_for_the_last(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1])[:-1].max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=ALIKE, must_refuse=True, why="a document that lacks one slot is left")
def left_if_only_one_lacks(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width - 1:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
    return torch.stack(rows)


@leave("d[T,4] cu", shapes=ALIKE, must_refuse=True, mutates=True, why="what is left shows what is written later")
def written_before_it_is_stacked(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
    x.mul_(2)
    return torch.stack(rows)


@leave("d[T,4] cu", shapes=SOME, must_refuse=True, mutates=True, why="only what is left is written through")
def added_to_what_is_left(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        part.add_(1)
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] f[1,4] cu", shapes=SOME, must_refuse=True, why="no document gives the parameter a gradient if all fit")
def filled_up_with_a_parameter(x: Tensor, empty: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        if e - s < width:
            part = torch.cat([part, empty.expand(width - (e - s), -1)])
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=SOME, why="the first entry is written after the loop")
def first_row_is_written(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e] * 1
        if e - s < width:
            part = F.pad(part, (0, 0, 0, width - (e - s)))
        rows.append(part)
    rows[0].add_(1)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=ALIKE, must_refuse=True, why="each document is padded to the longest so far")
def up_to_the_longest_so_far(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = 0, []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        width = max(width, part.size(0))
        if width > part.size(0):
            part = F.pad(part, (0, 0, 0, width - part.size(0)))
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=SOME, why="the longest is looked for again behind the loop")
def found_again_behind_the_loop(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    width, rows = 0, []
    for i in range(len(cu) - 1):
        width = max(width, int(cu[i + 1] - cu[i]))
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        rows.append(part.sum(0) / width)
        width = max(width, part.size(0) * 2)
    return torch.stack(rows), width


@leave("f[T,4] cu", shapes=SOME, why="two entries of each document")
def two_entries_filled_up(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
        rows.append(part * 2)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=SOME, why="two entries of each document, in one row")
def two_entries_filled_up_and_joined(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = torch.cat((part, part.new_zeros(width - len(part), 4)))
        rows.append(part[None])
        rows.append(part[None] * 2)
    return torch.cat(rows)


@leave("f[T,4] cu", shapes=SOME, why="a document that is filled up leaves two entries, others leave one")
def another_entry_where_it_is_filled_up(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
            rows.append(part - 1)
        rows.append(part)
    return torch.stack(rows)


@leave("f[T,4] cu", shapes=SOME, why="an entry of the program's own stands in front")
def an_entry_in_front_of_those_filled_up(x: Tensor, cu: Tensor) -> Tensor:
    width = int((cu[1:] - cu[:-1]).max())
    rows = [torch.ones(width, 4)]
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part, (0, 0, 0, width - len(part)))
        rows.append(part)
    return torch.stack(rows)
