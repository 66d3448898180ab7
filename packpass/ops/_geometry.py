"""Where documents lie in a packed row: pieces shared by the kernels and decompositions of several ops.

Words used everywhere: ``total`` (T) is the number of slots along the packed dimension, ``N = len(cu_seqlens) - 1`` the
number of documents, document ``d`` owns slots ``[cu[d], cu[d+1])``; slots outside ``[cu[0], cu[N])`` are the tail.
"""

from __future__ import annotations

import torch
from torch import Tensor


def previous(cu_seqlens: Tensor) -> Tensor:
    """``[cu[0], cu[0], cu[1], ..., cu[N-1]]``: where the document that ends at each boundary starts, with an empty
    document in front. N + 1 entries on purpose: N of them would make dynamic shapes guard on N != 1."""
    before = (torch.arange(cu_seqlens.shape[0], device=cu_seqlens.device) - 1).clamp(min=0)
    return cu_seqlens.index_select(0, before)


def indices_in(first: Tensor, stop: Tensor) -> Tensor:
    """All indices of the half-open intervals ``[first[i], stop[i])``, int64, one interval after the other.

    Reads the intervals' lengths, so the arguments must be host memory; negative intervals count as empty.
    """
    lengths = (stop - first).clamp(min=0)
    offsets = lengths.cumsum(0)
    count = int(offsets[-1]) if offsets.numel() else 0
    shift = torch.repeat_interleave(first - (offsets - lengths), lengths, output_size=count)
    return torch.arange(count) + shift


def along(vector: Tensor, rank: int, dim: int) -> Tensor:
    """View a ``[T]`` vector so that it broadcasts along ``dim`` (>= 0) of a tensor with ``rank`` dimensions."""
    return vector.view([1] * dim + [-1] + [1] * (rank - dim - 1))
