"""What a branch adds to a number, where that is not known from the documents' numbers, or changes what they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import COUNTED, leave
from .rewrite_by_way import SHORT, absent

FEW = COUNTED[:3]
"""Numbers of documents after which three to their power is no overflow."""


@leave("f[T,3] cu64", wrap=absent, must_refuse=True, why="what documents hold decides how many are counted", **SHORT)
def counted_by_what_they_hold(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 1
    for n in lengths.tolist():
        if n <= 0:
            continue
        if x[start, 0] > 0:
            number += 1
        ids[start : start + n] = number
        start += n
    return ids, number


@leave("f[T,3] cu64", wrap=absent, must_refuse=True, why="each number is a multiple", shapes=FEW, **SHORT)
def counted_on_by_a_product(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 1
    for n in lengths.tolist():
        if n <= 0:
            continue
        ids[start : start + n] = number
        start += n
        number *= 3
    return ids, number % 1000


@leave("f[T,3] cu64", wrap=absent, must_refuse=True, why="a number is what some document has set it to", **SHORT)
def set_back_by_some(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 1
    for n in lengths.tolist():
        if n <= 0:
            number = 1
            continue
        ids[start : start + n] = number
        start += n
        number += 1
    return ids, number


@leave("f[T,3] cu64", wrap=absent, **SHORT)
def asked_again_after_it_was_added(x: Tensor, lengths: Tensor) -> Any:
    ids, start, number = torch.zeros(x.shape[0], dtype=torch.long), 0, 0
    for n in lengths.tolist():
        if number % 2 == 1 and n > 0:
            ids[start : start + n] = number
        if n > 0:
            start += n
        number += 1
    return ids, number


@leave("f[T,3] cu64", wrap=absent, **SHORT)
def the_number_itself_is_used_where_nothing_is_added(x: Tensor, lengths: Tensor) -> Any:
    found, start = [], 0
    for n in lengths.tolist():
        if n > 0:
            start += n
        found.append(n + start)
    return torch.tensor(found)
