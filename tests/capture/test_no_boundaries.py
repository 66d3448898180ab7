"""Boundaries of which there may be none at all, not even the first: how many there are is data."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packpass import backend

BATCHES = ([0, 3, 8, 12, -1, -1], [-1, -1], [0, -1], [0, 12, -1], [0, 3, 8, 12])


def up_to_the_padding(x: Tensor, cu: Tensor) -> Tensor:
    """Without padding, the first is the least: nothing is left then."""
    cu = cu[: torch.argmin(cu)]
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].cumsum(0)
    return out


def written(x: Tensor, cu: Tensor) -> Tensor:
    cu = cu[cu >= 0]
    out = x * 2
    for i in range(cu.numel() - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


def summed(x: Tensor, cu: Tensor) -> Tensor:
    cu = cu[cu >= 0]
    total, count = x.new_zeros(3), 0
    for i in range(len(cu) - 1):
        total = total + x[cu[i] : cu[i + 1]].sum(0)
        count += 1
    return total / max(count, 1)


def joined(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:1]]
    for s, e in itertools.pairwise(cu[cu >= 0].tolist()):
        parts.append(x[s:e].cumsum(0))
    return torch.cat(parts)


def stacked(x: Tensor, cu: Tensor) -> Tensor:
    cu = cu[cu >= 0]
    sums = [x[0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.append(x[s:e].sum(0))
    return torch.stack(sums)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("fn", [up_to_the_padding, written, summed, joined, stacked])
def test_as_eager(fn: Callable[[Tensor, Tensor], Tensor], inner: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=backend, fullgraph=True, options={"packpass.inner_backend": inner})
    x = torch.arange(36.0).reshape(12, 3)
    for numbers in BATCHES:
        torch.testing.assert_close(compiled(x, torch.tensor(numbers)), fn(x, torch.tensor(numbers)))


def test_nothing_is_joined_of_nothing() -> None:
    """As in eager, which says so as well."""

    def only_documents(x: Tensor, at: Tensor) -> Tensor:
        starts = torch.cat([torch.where(at == 0)[0], torch.tensor([len(at)])])
        return torch.cat([x[starts[i] : starts[i + 1]] for i in range(len(starts) - 1)])

    torch._dynamo.reset()
    compiled = torch.compile(only_documents, backend=backend, options={"packpass.inner_backend": "eager"})
    x = torch.arange(12.0).reshape(4, 3)
    torch.testing.assert_close(compiled(x, torch.tensor([1, 0, 1, 0])), x[1:])
    with pytest.raises(RuntimeError, match="non-empty"):
        compiled(x, torch.tensor([1, 2, 3, 4]))
