"""Rows of different lengths of which none is known to be the shortest, or where more is looked at than documents."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", must_refuse=True, why="the boundaries are others by the time that they cut")
def last_before_it_was_changed(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.clone()
    out = x.new_zeros(bounds[-1].item(), 3)
    bounds[1:] //= 2
    for s, e in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
        out[s:e] = x[s:e] * 2
    return out


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the last boundary may be beyond its end")
def as_long_as_the_last_but_one(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu[-2].item() + 60, 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] * 2
    return out


@leave("f[T,3] cu", mutates=True, why="the slot in front of the first is the row's last, not the last document's")
def slot_of_the_longer_row_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.new_zeros(cu[-1], 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] * 2
        x[e - 1] = 0
    return out, x


@leave("f[T,3] cu")
def last_slot_of_the_longer_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu[-1], 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] * 2 + x[-1]
    return out


@leave("f[T,3] cu")
def all_of_the_longer_row_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, y = x.new_zeros(cu[-1], 3), x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = y[s:e] * 2
        y.add_(1)
    return out, y


@leave("f[T,3] cu", why="documents behind the end of one row are cut there, and not in the other")
def cut_at_the_end_of_one_row(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    y = x[: max(x.shape[0] - 2, 1)] * 2
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] + y[s:e].sum(0)
    return out


@leave("f[T,3] cu")
def row_too_short_for_the_last(x: Tensor, cu: Tensor) -> Tensor:
    y, out = x[: max(x.shape[0] - 2, 1)], x.new_zeros(cu[-1], 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = y[s:e].sum(0)
    return out


@leave("f[T,3] cu")
def offsets_past_the_lengths(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.diff().sum(), 3)
    first = int(cu[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s - first : e - first] = x[s:e].flip(0)
    return out
