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


def changed_before_it_is_read(x: Tensor, parts: Tensor) -> Tensor:
    sums = []
    for i in range(x.shape[0]):
        length = parts[i] * x.shape[1]
        length.mul_(0.5)
        sums.append(x[i, : int(length)].sum())
    return torch.stack(sums)


def changed_half_way(x: Tensor, parts: Tensor) -> Tensor:
    """What is rounded is a view of what has changed since it was made."""
    sums = []
    for i in range(x.shape[0]):
        length = parts[i] * x.shape[1]
        length.view(1).sub_(1)
        sums.append(x[i, : int(torch.round(length).abs())].sum())
    return torch.stack(sums)


@pytest.mark.parametrize(
    ("fn", "rewritten"),
    [
        (as_whole_numbers, True),
        (as_entries_of_whole_numbers, True),
        (what_is_behind_the_point, False),
        (both_in_one_loop, True),
        (changed_before_it_is_read, False),
        (changed_half_way, False),
    ],
)
def test_numbers_keep_what_is_behind_their_point(fn: Fn, rewritten: bool) -> None:
    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    with collecting(Report()) as said:
        for rows, longest in ((3, 8), (4, 11), (2, 7)):
            x, parts = torch.randn(rows, longest), torch.rand(rows) * 0.9 + 0.1
            torch.testing.assert_close(compiled(x, parts), fn(x, parts), equal_nan=True)
    assert bool(said.rewrites) == rewritten


def test_the_end_of_a_slice_has_nothing_behind_its_point() -> None:
    def cut(x: Tensor, parts: Tensor) -> Tensor:
        return torch.stack([x[i, : parts[i] * x.shape[1]].sum() for i in range(x.shape[0])])  # type: ignore[misc]

    compiled = torch.compile(cut, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for run in (cut, compiled):
        with pytest.raises(TypeError, match="only integer tensors"):
            run(torch.randn(3, 8), torch.rand(3))
