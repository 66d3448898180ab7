"""Loops that must keep eager's results: modes in the body, and columns of a document that overlap."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", tail=False, must_refuse=True, why="a row is written while no gradients are recorded")
def written_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            out[s:e] = x[s:e].cumsum(0)
    return out + x


@leave("f[T] cu", tail=False, must_refuse=True, why="gradients are recorded for a part of a loop without")
def with_gradients_in_a_loop_without(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    with torch.no_grad():
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            with torch.enable_grad():
                part = x[s:e].cumsum(0)
            parts.append(part)
    return torch.cat(parts)


@leave("f[T] cu", tail=False)
def changed_after_it_was_made_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    row, parts = x * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            part = row[s:e].clone()
        part[-1:] = 0
        parts.append(part + row[s:e])
    return torch.cat(parts)


@leave("f[T] cu", tail=False, why="a view that was made without gradients is written later on")
def a_view_without_gradients_is_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    row, parts = x.detach() * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            part = row[s:e]
        part.mul_(2)
        parts.append(part + x[s:e])
    return torch.cat(parts), row


@leave("f[T] cu", tail=False)
def without_gradients_and_random(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            noise = torch.rand_like(x[s:e])
        parts.append(x[s:e] * noise)
    return torch.cat(parts)


@leave("f[T] cu", tail=False)
def carried_without_gradients(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    last, parts = x.new_zeros(()), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            parts.append(x[s:e] + last)
            last = x[s:e].sum()
    return torch.cat(parts), x * 2


# === Columns =================================================================================================


@leave("f[2,T,3] cu", tail=False, must_refuse=True, why="nobody proves that the two parts do not overlap")
def columns_of_all_rows_and_of_one(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e, 1:] = x[:, s:e, :2].flip(1)
        out[0, s:e, 0] = x[1, s:e, 0].cumsum(0)
    return out


@leave("f[T,3] cu", tail=False, must_refuse=True, why="a column and all columns are written")
def a_column_and_all(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, 0] = x[s:e, 0].cumsum(0)
        out[s:e] = out[s:e] * 2
    return out


@leave("f[T,3] cu", tail=False, must_refuse=True, why="one column has two numbers")
def a_column_from_both_sides(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, read = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, 2] = x[s:e, 0].cumsum(0)
        read.append(out[s:e, -1] * 2)
    return out, torch.cat(read)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="columns that are written overlap")
def columns_that_overlap(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, :2] = x[s:e, 1:].cumsum(0)
        out[s:e, 1] = x[s:e, 1].flip(0)
    return out


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the row is read while one of its columns is written")
def a_column_written_and_the_row_read(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, 1] = x[s:e, 0].cumsum(0)
        sums.append(out[s:e].sum(0))
    return out, torch.stack(sums)
