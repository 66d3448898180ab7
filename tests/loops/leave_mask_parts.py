"""Look-alikes of parts of a mask beside the squares of documents: other corners, other numbers, masks that are read."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("i[T] cu", must_refuse=True, why="the document that comes last decides")
def corners_with_numbers(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for i, e in enumerate(cu[1:].tolist()):
        mask[e:, :e] = i
    return mask


@leave("i[T] cu", must_refuse=True, why="two numbers for corners that overlap")
def corners_with_two_numbers(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[e:, :e] = 1
        mask[e:, :s] = 2
    return mask


@leave("i[T] cu", must_refuse=True, why="the corner behind both")
def corners_behind(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:, e:] = 1
    return mask


@leave("i[T] cu", must_refuse=True, why="strips of another tensor")
def strips_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    mask, numbers = torch.zeros(x.shape[0], x.shape[0], dtype=torch.int64), x[:, None] + x[None]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = numbers[s:e, :e]
    return mask


@leave("i[T] cu", must_refuse=True, why="strips with the number of the document")
def strips_with_numbers(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0], dtype=torch.int64)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        mask[s:e, :e] = i
    return mask


@leave("i[T] cu", must_refuse=True, why="a strip is read after it was written")
def strips_that_are_read(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    mask, out = torch.zeros(x.shape[0], x.shape[0]), torch.zeros(x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = 1
        out[s:e] = mask[:, s:e].sum(0)
    return mask, out


@leave("i[T] cu", must_refuse=True, why="a corner is read, which other documents have set")
def corners_that_are_read(x: Tensor, cu: Tensor) -> tuple[Tensor, list[Tensor]]:
    mask, sums = torch.ones(x.shape[0], x.shape[0]), []
    for e in cu[1:].tolist():
        mask[e:, :e] = 0
        sums.append(mask.sum())
    return mask, sums


@leave("i[T] cu", must_refuse=True, why="every second column")
def columns_with_a_step(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e:2] = 1
    return mask


@leave("i[T] cu", must_refuse=True, why="rows of two documents")
def rows_of_two_documents(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for i in range(len(cu) - 2):
        mask[cu[i] : cu[i + 2], : cu[i + 1]] = 1
    return mask


@leave("i[T] cu", must_refuse=True, why="added, not set")
def strips_that_are_added_to(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] += 1
    return mask
