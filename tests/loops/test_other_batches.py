"""Batches that a loop was not compiled for and that Python takes: none in front of a break, negative lengths, divisors
that a branch leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .test_left_and_empty import hold


def batches(*numbers: Any) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    return [(x, torch.tensor(each)) for each in numbers]


def ends_in_front_of_padding(x: Tensor, lengths: Tensor) -> Tensor:
    bounds, end = [0], 0
    for n in lengths.tolist():
        if n <= 0:
            break
        end += n
        bounds.append(end)
    return x.sum() * torch.tensor(bounds)


def documents_in_front_of_padding(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    bounds, end = [0], 0
    for n in lengths.tolist():
        if n <= 0:
            break
        end += n
        bounds.append(end)
    parts = [x[s:e].softmax(0) for s, e in zip(bounds[:-1], bounds[1:])]
    return torch.cat(parts), x * len(bounds)


def lengths_in_front_of_padding(x: Tensor, lengths: Tensor) -> Tensor:
    kept = []
    for n in lengths.tolist():
        if n < 0:
            break
        kept.append(n)
    return x.sum() * torch.tensor(kept)


@pytest.mark.parametrize("fn", [ends_in_front_of_padding, documents_in_front_of_padding])
@pytest.mark.parametrize("first", [[3, 2, 4], [3, 2, 0, 4]], ids=["whole", "padded"])
def test_ends_of_those_in_front_of_a_break(fn: Callable[..., Any], first: list[int]) -> None:
    assert hold(fn, batches(first, [3, 1, 0, 2, 1], [2, 2])).rewrites


def test_a_list_without_numbers_is_of_floating_point() -> None:
    hold(lengths_in_front_of_padding, batches([3, 2], [-1, 1]))


def by_quotients(x: Tensor, spans: Tensor) -> Tensor:
    ids, start = torch.zeros(x.shape[0], dtype=torch.long), 0
    for n, m in spans.tolist():
        if m == 0:
            continue
        ids[start : start + n // m] = m
        start += n // m
    return x.sum() * ids


def flags_of_quotients(x: Tensor, spans: Tensor) -> Tensor:
    return x.sum() * torch.tensor([m > 1 and n // m > 1 for n, m in spans.tolist()])


def left_by_a_quotient(x: Tensor, spans: Tensor) -> Tensor:
    out, start = [x[:1].sum(0)], 0
    for n, m in spans.tolist():
        if m == 0:
            break
        if n // m > 2:
            break
        out.append(x[start : start + n].sum(0))
        start += n
    return torch.stack(out)


@pytest.mark.parametrize("fn", [by_quotients, flags_of_quotients, left_by_a_quotient])
def test_divisors_that_a_branch_leaves_out(fn: Callable[..., Any]) -> None:
    hold(fn, batches([[4, 2], [3, 3], [5, 2]], [[4, 0], [3, 3], [5, 2]], [[4, 4], [2, 0]]))


def sums_behind_a_skip(x: Tensor, lengths: Tensor) -> Tensor:
    out, start = [], 0
    for n in lengths.tolist():
        if n == 0:
            continue
        out.append(x[start : start + n].detach().sum(0))
        start += n
    return torch.stack(out)


def weighed_sums(x: Tensor, lengths: Tensor) -> Tensor:
    out, start = [], 0
    for n in lengths.tolist():
        out.append(x[start : start + n].sum(0) * (2 if n > 2 else 1))
        start += n
    return torch.stack(out)


@pytest.mark.parametrize("fn", [sums_behind_a_skip, weighed_sums])
def test_negative_lengths_under_a_branch(fn: Callable[..., Any]) -> None:
    assert hold(fn, batches([3, 2, 1], [2, 3, -2], [4, -1, 2], [-2, 5], [4, 4, 4])).rewrites


def some_or_none(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        if cu[i + 1] < 0:
            break
        out.append(x[cu[i] : cu[i + 1]].cumsum(0))
    if not out:
        return x * 5
    return torch.cat(out)


@pytest.mark.parametrize("first", [[0, 3, 5, 12], [0, -1]], ids=["some", "none"])
def test_a_list_that_leaves_the_graph_without_entries(first: list[int]) -> None:
    assert hold(some_or_none, batches(first, [0, 3, -1, -1], [0, -1, -1], [0, 12])).rewrites


def places_in_long_ones(x: Tensor, cu: Tensor) -> Tensor:
    places: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        places.extend(torch.arange(s, e).flip(0).tolist())
    return x[torch.tensor(places, dtype=torch.long)]


@pytest.mark.parametrize("first", [[0, 3, 5, 12], [0, 1, 2]], ids=["some", "none"])
def test_a_list_of_numbers_that_no_document_extends(first: list[int]) -> None:
    assert hold(places_in_long_ones, batches(first, [0, 1, 2, 3], [0, 4, 5, 12])).rewrites


def parts_that_some_add(x: Tensor, sizes: Tensor) -> Tensor:
    out = [x[:0]]
    for h, w in sizes.tolist():
        if h > 2 and w > 2:
            out.append(x[:h] * w)
    return torch.cat(out)


def test_negative_sizes_of_those_that_add_nothing() -> None:
    assert hold(parts_that_some_add, batches([[3, 4], [2, 5], [4, 3]], [[-3, 3], [3, 3]], [[1, 1]], [[4, -1]])).rewrites


def sums_where_the_opposite_is_negative(x: Tensor, lengths: Tensor) -> Tensor:
    total, start = x.new_zeros(4), 0
    for n in lengths.tolist():
        if -n >= 0:
            continue
        total = total + x[start : start + n].sum(0)
        start += n
    return total * start


def sums_where_twice_is_positive(x: Tensor, lengths: Tensor) -> Tensor:
    total, start = x.detach().new_zeros(4), 0
    for n in lengths.tolist():
        if n * 2 <= 0:
            continue
        total = total + x.detach()[start : start + n].sum(0)
        start += n
    return total * start


@pytest.mark.parametrize("fn", [sums_where_the_opposite_is_negative, sums_where_twice_is_positive])
def test_what_is_left_out_is_no_length(fn: Callable[..., Any]) -> None:
    hold(fn, batches([3, 2, 4], [3, -1, 2], [3, -2, 5, 1], [2, 0, 3]))
