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


@program("f[T] cu")
def while_at_most(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 1, len(cu) - 1
    while i <= n:
        out[cu[i - 1] : cu[i]] = x[cu[i - 1] : cu[i]].roll(1, 0)
        i += 1
    return out


@program("f[T] cu64")
def while_turned_round(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 0, len(cu) - 1
    while n > i:
        s, e = int(cu[i]), int(cu[i + 1])
        out[s:e] = x[s:e].flip(0)
        i += 1
    return out


@program("f[T] cu")
def while_turned_round_at_least(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while len(cu) - 2 >= i:
        s, e = int(cu[i]), int(cu[i + 1])
        out[s:e] = x[s:e].flip(0)
        i += 1
    return out


@program("f[T] cu")
def while_true_until_the_end(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 0, len(cu) - 1
    while True:
        if i >= n:
            break
        s, e = int(cu[i]), int(cu[i + 1])
        out[s:e] = x[s:e].flip(0)
        i += 1
    return out


@program("f[T] cu", depends=False)
def while_true_that_returns(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while True:
        if i == len(cu) - 1:
            return out
        out[cu[i] : cu[i + 1]] *= 2
        i += 1


@program("f[T] cu")
def while_there_is_a_next_one(x: Tensor, cu: Tensor) -> Tensor:
    spans, out = zip(cu[:-1].tolist(), cu[1:].tolist()), x.clone()
    while (span := next(spans, None)) is not None:
        out[span[0] : span[1]] = x[span[0] : span[1]].flip(0)
    return out


@program("f[T] cu")
def while_the_next_one_is_not_none(x: Tensor, cu: Tensor) -> Tensor:
    spans, parts = iter(list(zip(cu[:-1].tolist(), cu[1:].tolist()))), [x[:0]]
    span = next(spans, None)
    while span is not None:
        s, e = span
        parts.append(x[s:e].cumsum(0))
        span = next(spans, None)
    return torch.cat(parts)


@program("f[T] cu", depends=False)
def while_true_until_none(x: Tensor, cu: Tensor) -> Tensor:
    numbers, total = iter(range(len(cu) - 1)), x.new_zeros(())
    while True:
        i = next(numbers, None)
        if i is None:
            break
        total = total + x[cu[i] : cu[i + 1]].sum()
    return total
