"""What speaks against a rewrite does so from any distance: no search gives up and calls that an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

OPTIONS = {"packpass.inner_backend": "eager"}
CU = torch.tensor([0, 3, 7, 12])


def shifted(row: Tensor) -> Tensor:
    out = torch.roll(row, -1, 0)
    out[-1:] = 0
    return out


def more(row: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        row = row + 1
    return row


def made_of_a_running_sum(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, cu: shifted(packpass.packed(more(x.cumsum(0), steps), cu))


def summed_up_later(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, cu: more(shifted(packpass.packed(x, cu)), steps).cumsum(0)


def compared_with_the_same(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Computed twice, and one of the two shifted."""

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        x = packpass.packed(x, cu)
        return shifted(more(x, steps)) - more(x, steps)

    return fn


def compared_by_keyword(steps: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The operands of the two stand in keywords and in lists."""

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        x = packpass.packed(x, cu)
        one, two = (torch.clamp(torch.stack([x, x * 2]).sum(0), max=x * steps) for _ in range(2))
        return shifted(one) - two

    return fn


CASES: list[tuple[Callable[[int], Any], str]] = [
    (made_of_a_running_sum, "running-value"),
    (summed_up_later, "running-value"),
    (compared_with_the_same, "look-ahead"),
    (compared_by_keyword, "look-ahead"),
]


@pytest.mark.parametrize("steps", [1, 12, 90])
@pytest.mark.parametrize(("make", "code"), CASES)
def test_left_alone(make: Callable[[int], Any], code: str, steps: int) -> None:
    torch._dynamo.reset()
    report = packpass.explain(make(steps), options=OPTIONS)(torch.arange(12), CU)
    assert report.rewrites == []
    assert [r.code for r in report.refusals] == [code]
    assert torch.equal(report.result, make(steps)(torch.arange(12), CU))


@pytest.mark.parametrize("steps", [1, 90])
def test_a_long_way_alone_is_no_reason(steps: int) -> None:
    torch._dynamo.reset()
    fn = lambda x, cu: more(shifted(packpass.packed(more(x, steps), cu)), steps)  # noqa: E731
    report = packpass.explain(fn, options=OPTIONS)(torch.arange(12), CU)
    assert [r.rule for r in report.rewrites] == ["pack_shifts"]
    assert report.result[CU[1:] - 1].tolist() == [steps] * 3
