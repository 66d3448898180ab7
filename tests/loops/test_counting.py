"""Loops that only count: nothing is left of them, and the model stays one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from .compiling import fresh, graphs


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)


def lengths_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    return torch.tensor([e - s for s, e in spans(cu)]) * x.sum()


def boundaries_with_a_gap(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [0]
    for s, e in spans(cu):
        bounds.append(bounds[-1] + (e - s + 1))
    return torch.tensor(bounds) * x.sum()


def longest(x: Tensor, cu: Tensor) -> Tensor:
    return x.sum() * max([e - s for s, e in spans(cu)])


def tokens(x: Tensor, cu: Tensor) -> Tensor:
    count = 0
    for s, e in spans(cu):
        count += e - s
    return x.sum() * count


@pytest.mark.parametrize("fn", [lengths_in_a_list, boundaries_with_a_gap, longest, tokens])
def test_one_graph_and_equal_to_eager(fn: Callable[..., Tensor]) -> None:
    fresh()
    made = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for lengths in ([3, 5, 2], [4, 1, 6, 2], [0, 3, 4]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        x = torch.randn(int(cu[-1]), 2)
        torch.testing.assert_close(made(x, cu), fn(x, cu))
    assert graphs() <= 2  # the second with a row of any length
