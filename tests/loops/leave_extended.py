"""Lists of numbers that documents extend and that stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", must_refuse=True, why="of a list without numbers torch makes floating point numbers")
def places_of_a_kind_of_their_own(x: Tensor, cu: Tensor) -> Tensor:
    places = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places.extend(torch.arange(e - s).flip(0).tolist())
    return torch.tensor(places) * 2


@leave("f[T,3] cu", must_refuse=True, why="the numbers themselves are the result")
def returned_numbers(x: Tensor, cu: Tensor) -> Any:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.extend(x[s:e].sum(1).tolist())
    return sums


@leave("f[T,3] cu", must_refuse=True, why="numbers of the program's own stand between those of documents")
def numbers_between_documents(x: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.append(0.5)
        sums.extend(x[s:e].sum(1).tolist())
    return torch.tensor(sums, dtype=x.dtype)


@leave("f[T] cu", why="by its length a document counts on, or by a number")
def ends_by_lengths_or_numbers(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = x[s:e]
        if len(document) > 2:
            bounds.append(bounds[-1] + len(document))
        else:
            bounds.append(bounds[-1] + 1)
    return torch.tensor(bounds)


@leave("f[T] cu", why="what is left of a long document is shorter, by a branch")
def ends_of_documents_that_are_cut(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = x[s:e]
        if len(document) > 2:
            document = document[:2]
        bounds.append(bounds[-1] + len(document))
    return torch.tensor(bounds)


@leave("f[T] cu", why="documents count down")
def ends_that_count_down(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bounds.append(bounds[-1] - len(x[s:e][:3]))
    return torch.tensor(bounds)


@leave("f[T] cu", why="half of a length is no integer")
def ends_of_halves(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bounds.append(bounds[-1] + len(x[s:e]) / 2)
    return torch.tensor(bounds)


@leave("f[T] cu", why="the list goes on by numbers that are no integers")
def sums_of_documents_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bounds.append(bounds[-1] + x[s:e].sum().item())
    return torch.tensor(bounds)
