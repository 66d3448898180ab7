"""Lengths that are worked out from parts of the longest, document by document."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

Fn = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def as_whole_numbers(x: Tensor, parts: Tensor) -> Tensor:
    lengths = parts * x.shape[1]
    return torch.stack([x[i, : int(lengths[i])].sum() for i in range(x.shape[0])])


def as_entries_of_whole_numbers(x: Tensor, parts: Tensor) -> Tensor:
    lengths = (parts * x.shape[1]).long()
    return torch.stack([x[i, : lengths[i].item()].sum() for i in range(x.shape[0])])


def what_is_behind_the_point(x: Tensor, parts: Tensor) -> Tensor:
    sums = []
    lengths = parts * x.shape[1]
    for i in range(x.shape[0]):
        length = lengths[i].item()
        sums.append((x[i, : int(length)] * length).sum())
    return torch.stack(sums)


def both_in_one_loop(x: Tensor, parts: Tensor) -> Tensor:
    means = []
    for i in range(x.shape[0]):
        length = parts[i] * x.shape[1]
        means.append(x[i, : int(length)].sum() / length.item())
    return torch.stack(means)


@pytest.mark.parametrize(
    ("fn", "rewritten"),
    [
        (as_whole_numbers, True),
        (as_entries_of_whole_numbers, True),
        (what_is_behind_the_point, False),
        (both_in_one_loop, False),
    ],
)
def test_numbers_keep_what_is_behind_their_point(fn: Fn, rewritten: bool) -> None:
    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    with collecting(Report()) as said:
        for rows, longest in ((3, 8), (4, 11), (2, 7)):
            x, parts = torch.randn(rows, longest), torch.rand(rows) * 0.9 + 0.1
            torch.testing.assert_close(compiled(x, parts), fn(x, parts), equal_nan=True)
    assert bool(said.rewrites) == rewritten
