"""Loops that must be rewritten: rows of matrices of boundaries, arrays of numpy, lists with a place for each
document."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")


def flipped(x: Tensor, spans: Any) -> Tensor:
    return torch.cat([x[s:e].flip(0) for s, e in spans])


@program("f[T] cu", where=(flipped,), shapes=SOME)
def rows_of_a_stack(x: Tensor, cu: Tensor) -> Tensor:
    return flipped(x, torch.stack([cu[:-1], cu[1:]], 1).tolist())


@program("f[T] cu", where=(flipped,), graphs=3, shapes=SOME)
def rows_of_a_transposed_stack(x: Tensor, cu: Tensor) -> Tensor:
    return flipped(x, torch.stack((cu[:-1], cu[1:])).T.contiguous().cpu().int().tolist())


@program("f[T] cu", where=(flipped,), shapes=SOME)
def windows_of_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return flipped(x, cu.unfold(0, 2, 1).tolist())


@program("f[T] cu", where=(flipped,), shapes=SOME)
def columns_joined(x: Tensor, cu: Tensor) -> Tensor:
    return flipped(x, torch.cat([cu[:-1, None], cu[1:].unsqueeze(1)], dim=1).tolist())


@program("f[T] cu", where=(flipped,), shapes=SOME)
def rows_as_tensors(x: Tensor, cu: Tensor) -> Tensor:
    return flipped(x, torch.column_stack((cu[:-1], cu[1:])))


@program("f[T] cu", shapes=SOME)
def starts_and_lengths(x: Tensor, cu: Tensor) -> Tensor:
    spans = torch.stack((cu[:-1], cu.diff()), -1).tolist()
    return torch.cat([x[s : s + n].flip(0) * i for i, (s, n) in enumerate(spans)])


@program("f[T] cu", tail=False, shapes=SOME)
def lengths_in_an_array(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for n in np.diff(cu.long().numpy()):
        parts.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(parts)


@program("f[T] cu", shapes=SOME)
def a_place_for_each(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Any] = [None] * (len(cu) - 1)
    for i in range(len(cu) - 1):
        parts[i] = x[cu[i] : cu[i + 1]].flip(0)
    return torch.cat(parts)


@program("f[T,2] cu", exact=False, shapes=SOME, depends=False)
def two_places_for_each(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    n = cu.shape[0] - 1
    sums, first = n * [0], [None] * n
    for i in range(n):
        doc = x[cu[i] : cu[i + 1]]
        sums[i], first[i] = doc.sum(0), doc * 2
    return torch.cat([doc + 1 for doc in first]), sum(sums)


@program("f[T] cu", where=(flipped,), tail=False, shapes=SOME)
def boundaries_counted_in_a_list(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, int]:
    bounds = [0]
    for n in cu.diff().tolist():
        bounds.append(bounds[-1] + n)
    return flipped(x, zip(bounds[:-1], bounds[1:])), torch.tensor(bounds), len(bounds)


@program("f[T] cu", where=(flipped,), tail=False, shapes=SOME)
def boundaries_of_accumulate(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0, *itertools.accumulate(cu.diff().tolist())]
    return flipped(x, itertools.pairwise(bounds))


@program("f[T] cu", where=(flipped,), tail=False, shapes=SOME)
def boundaries_of_accumulate_from_zero(x: Tensor, cu: Tensor) -> Tensor:
    bounds = list(itertools.accumulate((cu[1:] - cu[:-1]).tolist(), initial=0))
    return flipped(x, zip(bounds[:-1], bounds[1:]))


@program("f[T] cu", where=(flipped,), shapes=SOME)
def zero_in_front_of_ends(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0] + cu[1:].tolist()  # noqa: RUF005
    return flipped(x, zip(bounds[:-1], bounds[1:]))


@program("f[T,3] cu64", tail=False)
def entries_of_an_array(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.cpu().numpy()
    return torch.cat([x[bounds[i] : bounds[i + 1]].flip(0) for i in range(len(bounds) - 1)])


@program("f[T,3] cu64", tail=False)
def entries_of_an_array_read_by_int(x: Tensor, cu: Tensor) -> Tensor:
    bounds, out = cu.numpy(), x.clone()
    for i in range(len(bounds) - 1):
        s, e = int(bounds[i]), bounds[i + 1]
        out[s:e] = x[s:e] * (e - s) + torch.arange(e - s)[:, None]
    return out


# === Jagged tensors ==========================================================================================


@program("f[T,3] cu", tail=False)
def jagged_unbound(x: Tensor, cu: Tensor) -> Tensor:
    nested = torch.nested.nested_tensor_from_jagged(x, cu.long())
    return torch.cat([part.cumsum(0) for part in nested.unbind()])


@program("f[T,3] cu", tail=False)
def jagged_gone_through(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i, part in enumerate(torch.nested.nested_tensor_from_jagged(x, cu.long())):
        parts.append(part * i)
    return torch.cat(parts)
