"""Loops over lists of slices that must keep eager's results; what is rewritten is in `rewrite_slices`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", must_refuse=True, why="slices are handed back, one object for each document")
def slices_handed_back(x: Tensor, cu: Tensor) -> tuple[Tensor, list[slice]]:
    spans = [slice(s, e) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]]), spans


@leave("f[T,3] cu", must_refuse=True, why="the list lacks the slices of empty documents")
def slices_of_some_documents(x: Tensor, cu: Tensor) -> Tensor:
    spans = [slice(s, e) for s, e in pairwise(cu.tolist()) if e > s]
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]])


@leave("f[T,3] cu", must_refuse=True, why="entries of two types, of which only one cuts a row")
def slices_or_pairs(x: Tensor, cu: Tensor) -> Tensor:
    spans: list[Any] = []
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        spans.append(slice(s, e) if i else (s, e))
    return torch.cat([x[:0], *[x[span].flip(0) if isinstance(span, slice) else x[: span[1]] for span in spans]])


@leave("f[T,3] cu", must_refuse=True, why="two slices for each document, of which a row gets one after the other")
def two_slices_each(x: Tensor, cu: Tensor) -> Tensor:
    spans = []
    for s, e in pairwise(cu.tolist()):
        spans.append(slice(s, (s + e) // 2))
        spans.append(slice((s + e) // 2, e))
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]])


@leave("f[T,3] cu", must_refuse=True, why="how many slices there are is counted")
def slices_counted(x: Tensor, cu: Tensor) -> Tensor:
    spans = [slice(s, e) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span].flip(0) + len(spans) for span in spans]])


@leave("f[T,3] cu")
def slices_that_reach_back(x: Tensor, cu: Tensor) -> Tensor:
    """Each is one longer in front than its document."""
    spans = [slice(max(s - 1, 0), e) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]])
