"""Jagged tensors of integers: their rows have several lengths, so that they are no matrices of sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packpass import backend


def gone_over(ids: Tensor, x: Tensor) -> Tensor:
    total = torch.zeros(())
    for part in ids.unbind():
        total = total + part.sum()
    return x + total


def beside_a_loop(ids: Tensor, x: Tensor) -> Tensor:
    for k in range(3):
        x = x * 2 + k
    return x + ids.values().sum()


def row_by_row(ids: Tensor, x: Tensor) -> Tensor:
    parts = [part * 2 for part in ids.unbind()]
    return torch.cat(parts), x + len(parts)


@pytest.mark.parametrize("fn", [gone_over, beside_a_loop, row_by_row])
def test_as_eager(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=backend, options={"packpass.inner_backend": "eager"})
    for lengths in ([3, 5, 2], [4, 1, 1, 6], [7, 7]):
        ids = torch.nested.nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged)
        torch.testing.assert_close(compiled(ids, torch.ones(2)), fn(ids, torch.ones(2)))
