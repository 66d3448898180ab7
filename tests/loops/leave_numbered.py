"""Loops that must keep eager's results: over numbers of documents, in ways that no order of slots stands for."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_numbered import numbers, scattered

numbered: Any = functools.partial(leave, tail=False, exact=False, min_len=1)


@numbered("d[T] cu64", wrap=scattered, must_refuse=True, why="a document reads what others have left")
def numbers_that_read_what_others_wrote(x: Tensor, doc: Tensor) -> Tensor:
    out = x.clone()
    for i in doc.unique():
        out[doc == i] = out[doc == i] * out.sum()
    return out


@numbered("d[T] cu64", wrap=scattered, must_refuse=True, why="the mask is not that of one number")
def up_to_a_number(x: Tensor, doc: Tensor) -> Tensor:
    return torch.stack([x[doc <= i].mean() for i in doc.unique()])


@numbered("d[T] cu64", wrap=scattered, must_refuse=True, why="numbers are those of neighbours, and may come again")
def numbers_that_come_again(x: Tensor, doc: Tensor) -> Tensor:
    return torch.cat([x[doc == i].flip(0) for i in torch.unique_consecutive(doc)])


@numbered("d[T] cu64", wrap=numbers, must_refuse=True, why="the numbers are changed")
def numbers_that_change(x: Tensor, doc: Tensor) -> Tensor:
    out, doc = torch.zeros_like(x), doc.clone()
    for i in doc.unique():
        out[doc == i] = x[doc == i].flip(0)
        doc[:3] = 0
    return out


@numbered("d[T] cu64", wrap=numbers, mutates=True, must_refuse=True, why="arguments may share memory")
def an_argument_is_written(x: Tensor, doc: Tensor) -> None:
    for i in doc.unique():
        x[doc == i] = x[doc == i].flip(0)


@numbered("d[T] cu64", wrap=scattered, must_refuse=True, why="a view of the written row is read")
def a_view_is_read(x: Tensor, doc: Tensor) -> Tensor:
    out = torch.cat([x, x])
    view, other = out[: x.shape[0]], out[-x.shape[0] :]
    for i in doc.unique():
        view[doc == i] = other[doc == i] + out[0]
    return out


@numbered("d[T] cu64", wrap=lambda x, cu: (x, numbers(x, cu)[1] - len(cu)))
def no_number_is_reached(x: Tensor, doc: Tensor) -> Tensor:
    out = x.clone()
    for i in range(int(doc.max()) + 1):
        out[doc == i] = x[doc == i].flip(0)
    return out
