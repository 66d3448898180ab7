"""Look-alikes of masks of squares: other rectangles, other values, squares that are read."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="what is written depends on the document")
def squares_with_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e, s:e] = i * 2
    return out


@leave("f[T] cu", must_refuse=True, why="squares of sums")
def squares_with_sums(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = x[s:e].sum()
    return out


@leave("f[T] cu", must_refuse=True, why="everything before the document as well")
def columns_from_the_beginning(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, :e] = 1
    return out


@leave("f[T] cu", min_len=1, must_refuse=True, why="without the last column")
def squares_without_a_column(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s : e - 1] = 1
    return out


@leave("f[T] cu", must_refuse=True, why="a square is read after it was written")
def squares_that_are_read(x: Tensor, cu: Tensor) -> Tensor:
    pairs, out = x[:, None] * x[None, :], x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pairs[s:e, s:e] = 1
        out[s:e] = pairs[s:e].sum(1)
    return out


@leave("f[T] cu")
def squares_of_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        out[s:e, s:e] = 1
    return out


@leave("f[T] cu")
def tensor_with_other_columns(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(x.shape[0], 400) * x[:, None]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = 1
    return out


@leave("f[T] cu", must_refuse=True, why="two kinds of squares of one tensor, of which one lies across the other")
def squares_across_squares(x: Tensor, cu: Tensor) -> Tensor:
    out = (x[:, None, None] * x[None, :, None]).repeat(1, 1, x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = 1
        out[:, s:e, s:e] = 2
    return out
