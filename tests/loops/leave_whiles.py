"""Loops that must keep eager's results: ``while`` that does not count documents up by one, and recursion."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


def _flip(x: Tensor, out: Tensor, s: int, e: int) -> None:
    out[s:e] = x[s:e].flip(0)


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_by_twos(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        _flip(x, out, int(cu[i]), int(cu[i + 1]))
        i += 2
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_counted_by_some_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, i, again = x.clone(), 0, 0
    while i < len(cu) - 1:
        s, e = int(cu[i]), int(cu[i + 1])
        _flip(x, out, s, e)
        if e - s > 3 and again == 0:
            again = 1
            continue
        i += 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_with_a_bound_that_shrinks(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 0, len(cu) - 1
    while i < n:
        _flip(x, out, int(cu[i]), int(cu[i + 1]))
        i += 1
        n -= 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_that_breaks(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        s, e = int(cu[i]), int(cu[i + 1])
        if e - s > 5:
            break
        _flip(x, out, s, e)
        i += 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_with_its_counter_after_it(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1:
        _flip(x, out, int(cu[i]), int(cu[i + 1]))
        i += 1
    return out * i


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_counting_down(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), len(cu) - 1
    while i > 0:
        _flip(x, out, int(cu[i - 1]), int(cu[i]))
        i -= 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_with_two_conditions(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while i < len(cu) - 1 and int(cu[i + 1]) < 20:
        if i == 100:
            continue
        _flip(x, out, int(cu[i]), int(cu[i + 1]))
        i += 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_that_changes_its_documents_order(x: Tensor, cu: Tensor) -> Tensor:
    out, i, before = x.clone(), 0, 0
    while i < len(cu) - 1:
        out[int(cu[before]) : int(cu[before + 1])] += x[int(cu[i]) : int(cu[i + 1])].sum()
        before = i
        i += 1
    return out


def _from(i: int, x: Tensor, cu: Tensor) -> list[Tensor]:
    if i == len(cu) - 1:
        return []
    return [x[int(cu[i]) : int(cu[i + 1])].flip(0), *_from(i + 1, x, cu)]


@leave("f[T] cu", must_refuse=True, why="it is no range over documents", where=(_from,))
def recursion(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:0], *_from(0, x, cu)])


@leave("f[T] cu")
def while_that_reads_the_last_boundary(x: Tensor, cu: Tensor) -> Tensor:
    step = 0
    while step < 2:
        x = x[: int(cu[-1])] * 2
        step += 1
    return x


@leave("f[T] cu", tail=False, must_refuse=True, why="it is no range over documents")
def while_a_position_is_in_the_row(x: Tensor, cu: Tensor) -> Tensor:
    lengths, out, s, i = (cu[1:] - cu[:-1]).tolist(), [x[:0]], 0, 0
    while s < x.shape[0]:
        out.append(x[s : s + lengths[i]].flip(0))
        s += lengths[i]
        i += 1
    return torch.cat(out)


@leave("f[T] cu", tail=False, must_refuse=True, why="it is no range over documents")
def while_tokens_are_left(x: Tensor, cu: Tensor) -> Tensor:
    lengths, out, i, left = (cu[1:] - cu[:-1]).tolist(), [x[:0]], 0, x.shape[0]
    while left > 0:
        s = x.shape[0] - left
        out.append(x[s : s + lengths[i]].flip(0))
        left -= lengths[i]
        i += 1
    return torch.cat(out)


@leave("f[T] cu", must_refuse=True, why="no documents go another way than the last one")
def nothing_to_take(x: Tensor, cu: Tensor) -> Tensor:
    spans, out = iter(list(zip(cu[:-1].tolist(), cu[1:].tolist()))), x.clone()
    span = next(spans, None)
    if span is None:
        return out - 1
    while span is not None:
        _flip(x, out, *span)
        span = next(spans, None)
    return out


@leave("f[T] cu", must_refuse=True, why="documents are taken two by two")
def two_are_taken(x: Tensor, cu: Tensor) -> Tensor:
    spans, out = iter(list(zip(cu[:-1].tolist(), cu[1:].tolist()))), x.clone()
    while (span := next(spans, None)) is not None:
        _flip(x, out, *span)
        more = next(spans, None)
        if more is not None:
            out[more[0] : more[1]] *= 2
    return out


@leave("f[T] cu", must_refuse=True, why="it ends before the last document")
def taken_until_a_long_one(x: Tensor, cu: Tensor) -> Tensor:
    spans, out = iter(list(zip(cu[:-1].tolist(), cu[1:].tolist()))), x.clone()
    while (span := next(spans, None)) is not None:
        if span[1] - span[0] > 5:
            break
        _flip(x, out, *span)
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_true_with_two_ends(x: Tensor, cu: Tensor) -> Tensor:
    out, i = x.clone(), 0
    while True:
        if i >= len(cu) - 1:
            break
        if int(cu[i + 1]) > 20:
            break
        _flip(x, out, int(cu[i]), int(cu[i + 1]))
        i += 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_turned_round_counting_down(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 0, len(cu) - 1
    while n > i:
        _flip(x, out, int(cu[n - 1]), int(cu[n]))
        n -= 1
    return out


@leave("f[T] cu", must_refuse=True, why="it is no range over documents")
def while_at_most_by_twos(x: Tensor, cu: Tensor) -> Tensor:
    out, i, n = x.clone(), 1, len(cu) - 1
    while i <= n:
        _flip(x, out, int(cu[i - 1]), int(cu[i]))
        i += 2
    return out
