"""Loops that must be rewritten: a list of slices, one per document, that later loops cut their rows with."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def rows_cut_by_slices(x: Tensor, cu: Tensor) -> Tensor:
    spans = [slice(s, e) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]])


@program("f[T,3] cu")
def rows_written_by_slices(x: Tensor, cu: Tensor) -> Tensor:
    out, spans = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        spans.append(slice(s, e))
    for span in spans:
        out[span] = x[span].cumsum(0)
    return out


@program("f[2,T,3] cu", tail=False)
def slices_of_two_rows(x: Tensor, cu: Tensor) -> Tensor:
    spans = list(map(slice, cu[:-1].tolist(), cu[1:].tolist()))
    return torch.cat([x[:, :0], *[x[:, span] - x[:, span].mean(1, keepdim=True) for span in spans]], 1)


@program("f[T,3] cu", tail=False)
def shards_cut_by_slices(x: Tensor, cu: Tensor) -> Tensor:
    """A slice of the documents of a shard, that holds half of each."""
    shards = [slice(s // 2, e // 2) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[shard].roll(1, 0) for shard in shards]])


@program("f[T,3] cu", tail=False)
def ends_of_slices(x: Tensor, cu: Tensor) -> Tensor:
    spans = [slice(s, e) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span.start : span.stop].flip(0) * (span.step is None) for span in spans]])


@program("f[T,3] cu", tail=False, exact=False)
def slices_of_whole_steps(x: Tensor, cu: Tensor) -> Tensor:
    """A step of one is a number that all documents share."""
    spans = tuple(slice(int(s), int(e), 1) for s, e in zip(cu[:-1], cu[1:]))
    return torch.cat([x[:0], *[x[span].softmax(0) for span in spans]])


@program("f[T,3] cu", tail=False)
def slices_by_two_quotients(x: Tensor, cu: Tensor) -> Tensor:
    """They overlap, and are not the documents of a shard."""
    spans = [slice(s // 3, e // 2) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span].flip(0) for span in spans]])
