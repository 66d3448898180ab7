"""Lists of numbers that leave the graph, in a result or across a graph break: the code behind it has real lists."""

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


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)


def lengths_returned(x: Tensor, cu: Tensor) -> Any:
    lengths = cu.diff().tolist()
    return torch.cat([part.flip(0) for part in x.split(lengths)]), lengths


def numbers_appended(x: Tensor, cu: Tensor) -> Any:
    parts, halves = [], []
    for s, e in spans(cu):
        parts.append(x[s:e].flip(0))
        halves.append((e - s) // 2)
    return [torch.cat(parts), halves]


def one_list_of_two_names(x: Tensor, cu: Tensor) -> Any:
    lengths = cu.diff().tolist()
    again = lengths
    row = torch.cat([part.flip(0) for part in x.split(lengths)])
    torch._dynamo.graph_break()
    again.append(3)
    return row, lengths, again is lengths


def in_another_list(x: Tensor, cu: Tensor) -> Any:
    lengths = cu.diff().tolist()
    held: list[Any] = [lengths]
    row = torch.cat([part.flip(0) for part in x.split(lengths)])
    torch._dynamo.graph_break()
    lengths.append(7)
    return row, held


def before_the_boundaries_are_written(x: Tensor, cu: Tensor) -> Any:
    cu = cu.clone()
    bounds = cu.tolist()
    row = torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:], strict=True)])
    cu.zero_()
    return row, bounds


def as_a_tuple(x: Tensor, cu: Tensor) -> Any:
    lengths = tuple(cu.diff().tolist())
    return torch.cat([part.flip(0) for part in x.split(lengths)]), lengths


def counted_as_a_tuple(x: Tensor, cu: Tensor) -> Any:
    lengths = tuple([e - s for s, e in spans(cu)])
    return torch.cat([part.flip(0) for part in x.split(lengths)]), lengths


REWRITTEN = [
    lengths_returned, numbers_appended, one_list_of_two_names, in_another_list, before_the_boundaries_are_written,
    as_a_tuple, counted_as_a_tuple,
]  # fmt: skip


def types_of(value: Any) -> Any:
    return [types_of(v) for v in value] + [type(value)] if isinstance(value, (list, tuple)) else type(value)


@pytest.mark.parametrize("fn", REWRITTEN)
def test_equals_eager(fn: Callable[..., Any]) -> None:
    fresh()
    made, report = torch.compile(fn, backend=packpass.backend, **EAGER), Report()
    for lengths in ([3, 5, 2], [4, 1, 6, 2], [0, 3, 4], [6]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        x = torch.randn(int(cu[-1]), 2)
        with collecting(report):
            got = made(x, cu)
        assert report.rewrites
        want = fn(x, cu)
        assert types_of(got) == types_of(want)
        torch.testing.assert_close(got[0], want[0])
        assert list(got[1:]) == list(want[1:])
