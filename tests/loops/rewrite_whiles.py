"""Loops that must be rewritten: ``while`` that counts documents up."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")


@program("f[2,T] cu")
def while_length_of_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        i += 1
    return out


@program("f[T] cu")
def while_numbers_of_items(x: Tensor, cu: Tensor) -> Tensor:
    parts, i, n = [x[:0]], 0, cu.numel() - 1
    while i < n:
        s, e = cu[i].item(), cu[i + 1].item()
        parts.append(x[s:e].flip(0))
        i += 1
    return torch.cat(parts)


@program("f[T] cu")
def while_from_one(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 1
    while i < cu.shape[0]:
        s, e = int(cu[i - 1]), int(cu[i])
        out[s:e] = x[s:e].flip(0)
        i = i + 1
    return out


@program("f[T] cu")
def while_over_a_list(x: Tensor, cu: Tensor) -> Tensor:
    bounds, out, i = cu.tolist(), x.clone(), 0
    while i < len(bounds) - 1:
        out[bounds[i] : bounds[i + 1]] = x[bounds[i] : bounds[i + 1]].flip(0)
        i += 1
    return out


@program("f[T] cu")
def while_not_equal(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i != len(cu) - 1:
        s, e = cu[i].item(), cu[i + 1].item()
        out[s:e] = x[s:e].flip(0)
        i += 1
    return out


@program("f[T] cu")
def while_that_skips_empty_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        s, e = int(cu[i]), int(cu[i + 1])
        i += 1
        if s == e:
            continue
        out[s:e] = x[s:e] - x[s]
    return out


@program("f[T] cu")
def while_with_an_offset(x: Tensor, cu: Tensor) -> Tensor:
    out, i, total = x.clone(), 0, x.new_zeros(())
    while i < len(cu) - 1:
        total = total + x[cu[i] : cu[i + 1]].sum()
        out[cu[i] : cu[i + 1]] *= i
        i += 1
    return out + total


@program("f[T] cu")
def while_twice(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
        i += 1
    last, i = out.clone(), 0
    while i < len(cu) - 1:
        last[cu[i] : cu[i + 1]] = out[cu[i] : cu[i + 1]].roll(1, 0)
        i += 1
    return last
