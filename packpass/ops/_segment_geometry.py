"""Where documents begin and end, per document and per slot, for the kernels of the segment ops.

A *per-document tensor* has N + 1 entries along dim 0: entry d belongs to document d, the last one to an empty document
behind all others that nobody reads. N entries would make dynamic shapes guard on N == 1. Slots of the tail are given to
the last entry where an index is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._window_mask import window_mask_op

HALVES = (torch.bfloat16, torch.float16)


class Documents(NamedTuple):
    """Per-document tensors, int64 ``[N+1]``: document d owns slots ``[starts[d], ends[d])``; the last one is empty."""

    starts: Tensor
    ends: Tensor

    @property
    def lengths(self) -> Tensor:
        return self.ends - self.starts


class Slots(NamedTuple):
    """Per slot, ``[T]``: the entry of its document in a per-document tensor (int64), whether it has one (bool)."""

    entry: Tensor
    inside: Tensor


def documents_of(cu_seqlens: Tensor) -> Documents:
    cu = cu_seqlens.long()
    last = cu.shape[0] - 1
    following = (torch.arange(last + 1, device=cu.device) + 1).clamp(max=last)
    return Documents(cu, cu.index_select(0, following))


def slots_of(cu_seqlens: Tensor, total: int) -> Slots:
    passed = boundaries_passed(cu_seqlens, total)
    last = cu_seqlens.shape[0] - 1
    inside = (passed > 0) & (passed <= last)
    return Slots(torch.where(inside, passed - 1, last), inside)


def front(x: Tensor, dim: int) -> Tensor:
    """``x`` with the packed dimension first and contiguous."""
    return x.movedim(dim, 0).contiguous()


def back(x: Tensor, dim: int) -> Tensor:
    """The inverse of `front`, contiguous."""
    return x.movedim(0, dim).contiguous()


def column(vector: Tensor, like: Tensor) -> Tensor:
    """View a vector so that it broadcasts along dim 0 of ``like``."""
    return along(vector, like, 0)


def along(vector: Tensor, like: Tensor, dim: int) -> Tensor:
    """View a vector so that it broadcasts along ``dim`` of ``like``."""
    dim = dim % like.dim()
    return vector.view([1] * dim + [-1] + [1] * (like.dim() - dim - 1))


def spread(values: Tensor, slots: Slots) -> Tensor:
    """Every slot's document's entry of ``values``: ``[T, *rest]``; unspecified in the tail."""
    return values.index_select(0, slots.entry)


def reach(cu_seqlens: Tensor, total: int, reverse: bool) -> Tensor:
    """How many slots of its document lie before (after, if reverse) each slot, int64 ``[T]``; 0 in the tail."""
    slots = slots_of(cu_seqlens, total)
    starts, ends = documents_of(cu_seqlens)
    here = torch.arange(total, device=cu_seqlens.device)
    distance = spread(ends, slots) - 1 - here if reverse else here - spread(starts, slots)
    return torch.where(slots.inside, distance, 0)


def inside_along(x: Tensor, cu_seqlens: Tensor, dim: int) -> Tensor:
    """Which slots belong to documents, bool, broadcasting along ``dim`` of ``x``."""
    inside: Tensor = window_mask_op(cu_seqlens, x.shape[dim], 0, 0)
    return along(inside, x, dim)


def lowest(dtype: torch.dtype) -> float | int | bool:
    """The identity of a maximum."""
    if dtype is torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float | int | bool:
    """The identity of a minimum."""
    if dtype is torch.bool:
        return True
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max
