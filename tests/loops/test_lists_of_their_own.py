"""Lists that share what a loop over documents has made, and nothing else: one gets more, the other does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

from .compiling import EAGER, fresh


def parts_of(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[s:e].flip(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)]


def extended(x: Tensor, cu: Tensor) -> Any:
    first, other = parts_of(x, cu), []
    other.extend(first)
    other.append(x[:1])
    return torch.cat(first), torch.cat(other)


def unpacked(x: Tensor, cu: Tensor) -> Any:
    first = parts_of(x, cu)
    other = [*first]
    other.append(x[:1])
    return torch.cat(first), torch.cat(other)


def listed(x: Tensor, cu: Tensor) -> Any:
    first = parts_of(x, cu)
    other = list(first)
    other += [x[:1]]
    return torch.cat(first), torch.cat(other)


def as_a_tuple(x: Tensor, cu: Tensor) -> Any:
    first = parts_of(x, cu)
    other = tuple(first)
    first.append(x[:1])
    return torch.cat(first), torch.cat(other)


def added(x: Tensor, cu: Tensor) -> Any:
    first = parts_of(x, cu)
    first.append(x[:3])
    other = [x[:1]] + first  # noqa: RUF005
    other.append(x[:1])
    first.append(x[:2])
    return torch.cat(first), torch.cat(other)


def the_same_list(x: Tensor, cu: Tensor) -> Any:
    first = parts_of(x, cu)
    other = first
    first.append(x[:1])
    other += [x[:2]]
    return torch.cat(first), torch.cat(other)


def of_places(x: Tensor, cu: Tensor) -> Any:
    first: list[Any] = [None] * (len(cu) - 1)
    for i in range(len(cu) - 1):
        first[i] = x[cu[i] : cu[i + 1]] * 2
    other = list(first)
    other.append(x[:1])
    return torch.cat(first), torch.cat(other)


def of_other_generators(x: Tensor, cu: Tensor) -> Any:
    """A generator can be gone through once, also where it turns out to have nothing to do with documents."""
    row, first = torch.cat(parts_of(x, cu)), [x[:1]]
    first.extend(x[:2] * k for k in range(3))
    other = [x[:1], *(x[:2] * k for k in range(2))]
    other += (x[:1] * k for k in range(2))
    return row, torch.cat(first), torch.cat(other)


PROGRAMS = [
    extended, unpacked, listed, as_a_tuple, added, the_same_list, of_places, of_other_generators,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS)
def test_equals_eager_and_is_rewritten(fn: Callable[..., Any]) -> None:
    fresh()
    made, report = torch.compile(fn, backend=packpass.backend, **EAGER), Report()
    for lengths in ([3, 5, 2], [4, 1, 6, 2], [0, 3, 4], [6]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        x = torch.randn(int(cu[-1]), 2)
        with collecting(report):
            gots = made(x, cu)
        assert report.rewrites
        for got, want in zip(gots, fn(x, cu), strict=True):
            torch.testing.assert_close(got, want)
