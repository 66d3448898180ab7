"""Offsets and numbers that only some documents count on: what is added is known from the branch that decides it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program

ABSENT = -1000


def absent(x: Tensor, cu: Tensor) -> Any:
    """Lengths, between which numbers stand for no document."""
    lengths = cu.diff()
    gaps = torch.full_like(lengths, ABSENT)
    gaps[::2] = 0
    return x, torch.stack([lengths, gaps], 1).flatten()[: 2 * lengths.numel() - 1 + cu.numel() % 2]


def in_rows(x: Tensor, cu: Tensor) -> Any:
    """The same, for two rows that have the documents in either order."""
    _, lengths = absent(x, cu)
    return x, torch.stack([lengths, lengths.flip(0)])


def filled_rows(x: Tensor, cu: Tensor) -> Any:
    """Lengths of documents in two rows, filled up with 0."""
    lengths = torch.nn.functional.pad(cu.diff(), (0, 2))
    return x, torch.stack([lengths, lengths])


def negative(x: Tensor, cu: Tensor) -> Any:
    """Lengths, and -1 behind each other one."""
    lengths = cu.diff()
    return x, torch.stack([lengths, torch.full_like(lengths, -1)], 1).flatten()


SHORT = {"tail": False, "graphs": 4, "min_len": 1, "lead_empty": False}


@program("f[T,3] cu64", wrap=absent, reads=2, **SHORT)
def ids_of_documents_that_are_there(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 1
    for n in lengths.tolist():
        if n <= 0:
            continue
        ids[start : start + n] = number
        start += n
        number += 1
    return ids, number, start


@program("f[T,3] cu64", wrap=absent, reads=1, **SHORT)
def counted_where_one_number_stands_for_none(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 1
    for n in lengths.tolist():
        if n == ABSENT:
            continue
        if n == 0:
            number += 1
            continue
        ids[start : start + n] = number
        start += n
        number += 1
    return ids, number


@program("f[T,3] cu64", wrap=absent, **SHORT)
def starts_go_on_where_there_is_one(x: Tensor, lengths: Tensor) -> Tensor:
    parts, start = [], 0
    for n in lengths.tolist():
        if n != ABSENT:
            parts.append(x[start : start + n].cumsum(0))
            start += n
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=absent, reads=1, **SHORT)
def lengths_read_one_by_one(x: Tensor, lengths: Tensor) -> Any:
    out, start, number = x * 0, 0, 0
    for i in range(len(lengths)):
        n = lengths[i].item()
        if n < 1:
            continue
        out[start : start + n] = x[start : start + n] * number
        start += n
        number += 2
    return out, number


@program("f[T,3] cu64", wrap=absent, rule="ragged_grids", reads=1, **SHORT)
def only_long_ones_are_counted(x: Tensor, lengths: Tensor) -> Any:
    parts, start, number = [], 0, 0
    for n in lengths.tolist():
        if n < 0:
            continue
        part = x[start : start + n]
        if n > 2:
            parts.append(part * number)
            number += 1
        else:
            parts.append(part)
        start += n
    return torch.cat(parts), number


@program("f[T,3] cu64", wrap=absent, exact=False, **SHORT)
def weighted_by_how_many_came_before(x: Tensor, lengths: Tensor) -> Any:
    total, start, number = x.sum(0), 0, 0
    for n in lengths.tolist():
        if n <= 0:
            continue
        total = total + x[start : start + n].sum(0) * number
        start += n
        number += 1
    return total


@program("f[T,3] cu64", wrap=in_rows, **SHORT)
def in_two_rows(x: Tensor, lengths: Tensor) -> Tensor:
    ids = torch.zeros(lengths.shape[0], x.shape[0], dtype=torch.long)
    for row in range(lengths.shape[0]):
        start, number = 0, 1
        for n in lengths[row].tolist():
            if n <= 0:
                continue
            ids[row, start : start + n] = number
            start += n
            number += 1
    return ids


@program("f[T,3] cu64", wrap=filled_rows, reads=2, **SHORT)
def rows_that_are_left_at_their_padding(x: Tensor, lengths: Tensor) -> Tensor:
    ids = torch.zeros(2, x.shape[0], dtype=torch.long)
    for row in range(2):
        start = 0
        for number, n in enumerate(lengths[row].tolist()):
            if n == 0:
                break
            ids[row, start : start + n] = number + 1
            start += n
    return ids


@program("f[T,3] cu64", wrap=filled_rows, reads=1, **SHORT)
def the_second_row_is_left_at_its_padding(x: Tensor, lengths: Tensor) -> Tensor:
    ids, start = torch.zeros(x.shape[0], dtype=torch.long), 0
    for number, n in enumerate(lengths[1].tolist()):
        if n == 0:
            break
        ids[start : start + n] = number + 1
        start += n
    return ids


# === What has a gradient: only whether documents have slots is asked ========================================


@program("f[T,3] cu64", wrap=negative, exact=False, depends=False, reads=1, **SHORT)
def means_of_those_with_a_length(x: Tensor, lengths: Tensor) -> Tensor:
    means, start = [], 0
    for n in lengths.tolist():
        if n <= 0:
            continue
        means.append(x[start : start + n].mean(0))
        start += n
    return torch.stack(means)


@program("f[T,3] cu64", wrap=negative, exact=False, depends=False, reads=1, **SHORT)
def sums_of_those_with_a_length_and_their_number(x: Tensor, lengths: Tensor) -> Tensor:
    total, start, number = x.new_zeros(3), 0, 0
    for n in lengths.tolist():
        if n >= 1:
            total = total + x[start : start + n].sum(0) / n
            start += n
            number += 1
    return total / number


@program("f[T] cu", tail=False, exact=False, depends=False)
def counter_read_behind_a_skip(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        total = total + x[s:e].sum() * count
        count += 1
    return total


@program("f[T] cu", unfit=True, exact=False, depends=False, reads=1)
def first_slots_of_all_and_a_counter(x: Tensor, cu: Tensor) -> Tensor:
    out, count = x.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[e - 1] = 1.0
        if e - s == 0:
            continue
        count += 1
    return out * count
