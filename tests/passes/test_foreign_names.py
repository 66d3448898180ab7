"""Functions of a user's own that are called like torch's, and kept out of the graph (``allow_in_graph``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

T = 12
CU = torch.tensor([0, 3, 7, 10])


@torch.compiler.allow_in_graph
def clone(x: Tensor) -> Tensor:
    return x * 2


@torch.compiler.allow_in_graph
def empty_like(x: Tensor) -> Tensor:
    return torch.full_like(x, 7)


@torch.compiler.allow_in_graph
def zeros(size: int) -> Tensor:
    return torch.full((size,), 5.0)


@torch.compiler.allow_in_graph
def roll(x: Tensor, shift: int, dim: int) -> Tensor:
    return x.roll(shift, dim).flip(dim)


@torch.compiler.allow_in_graph
def getitem(x: Tensor, index: slice) -> Tensor:
    return x[index] - 1


@torch.compiler.allow_in_graph
def sub(a: Tensor, b: Tensor) -> Tensor:
    return torch.sub(a, b).flip(0)


def written_back(x: Tensor, cu: Tensor, out: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        r = torch.roll(x[s:e], -1, 0)
        r[-1:] = 0
        out[s:e] = r
    return out


def into_clone(x: Tensor, cu: Tensor) -> Tensor:
    return written_back(x, cu, clone(x))


def into_empty(x: Tensor, cu: Tensor) -> Tensor:
    return written_back(x, cu, empty_like(x))


def filled(x: Tensor, cu: Tensor) -> Tensor:
    out, fill = x.clone(), zeros(1)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = torch.cat([x[s:e][1:], fill])
    return out


def by_copied_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    return written_back(x, clone(cu) // 2, x.clone())


def by_cut_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out, starts, ends = x.clone(), cu[:-1], getitem(cu, slice(1, None))
    for s, e in zip(starts, ends):
        out[s:e] = x[s:e].flip(0)
    return out


def by_lengths(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.flip(0) for part in x[:10].split(sub(cu[1:], cu[:-1]).tolist())])


def shift_of_a_row(x: Tensor, cu: Tensor) -> Tensor:
    y = roll(packpass.packed(x, cu), -1, -1)
    y[-1:] = 0
    return y


def row_filled(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([packpass.packed(x, cu)[1:], zeros(1)])


PROGRAMS = [
    *(into_clone, into_empty, filled, by_copied_boundaries, by_cut_boundaries, by_lengths),
    *(shift_of_a_row, row_filled),
]


@pytest.mark.parametrize("symbolic", [True, False], ids=["captured", "unrolled"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_equals_eager(fn: Callable[..., Any], symbolic: bool) -> None:
    options = {"packpass.inner_backend": "eager", "packpass.symbolic_loops": symbolic}
    torch._dynamo.reset()
    x, again = (torch.arange(float(T)).requires_grad_() for _ in range(2))
    want, got = fn(x, CU), torch.compile(fn, backend=packpass.backend, options=options)(again, CU)
    assert torch.equal(want, got)
    for result in (want, got):
        (result * torch.arange(1.0, len(result) + 1)).sum().backward()
    assert x.grad is not None
    assert again.grad is not None
    assert torch.equal(x.grad, again.grad)


@pytest.mark.parametrize("fn", [into_clone, into_empty])
def test_the_tail_is_what_the_function_made(fn: Callable[..., Any]) -> None:
    """The loop is rewritten all the same: it says nothing about slots after the last document."""
    report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(torch.arange(float(T)), CU)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]
    assert report.result[-2:].tolist() in ([20.0, 22.0], [7.0, 7.0])


@pytest.mark.parametrize("fn", [shift_of_a_row, row_filled])
def test_no_shift_is_seen(fn: Callable[..., Any]) -> None:
    report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(torch.arange(float(T)), CU)
    assert report.rewrites == []
