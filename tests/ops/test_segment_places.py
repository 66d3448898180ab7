"""``segment_places``, ``gather_places``, ``scatter_places``: against loops, as torch wants ops, and their gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass.ops  # noqa: F401  (registers the ops)

_ops = torch.ops.packpass
# Documents, where they begin in the other tensor (the last entry means nothing), the size of the row.
CASES = {
    "in order": ([0, 2, 5, 9], [1, 4, 8, 0], 9),
    "backwards": ([0, 3, 3, 7], [6, 0, 1, 0], 7),
    "tail": ([1, 4, 6], [0, 5, 7], 9),
    "overlapping": ([0, 3, 6], [2, 4, 1], 6),
    "one place": ([0, 1, 2, 3], [5, 5, 5, 5], 3),
    "no documents": ([2], [0], 5),
}
SIZE = 12


def given(name: str) -> tuple[Tensor, Tensor, int]:
    cu, begins, total = CASES[name]
    return torch.tensor(cu), torch.tensor(begins), total


def places_of(cu: Tensor, begins: Tensor, total: int) -> list[int]:
    places = [-1] * total
    for d, (start, stop) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        for p in range(start, stop):
            places[p] = int(begins[d]) + p - start
    return places


@pytest.mark.parametrize("name", CASES)
def test_places(name: str) -> None:
    assert _ops.segment_places(*given(name)).tolist() == places_of(*given(name))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather(name: str, dim: int) -> None:
    places = places_of(*given(name))
    x = torch.randn(SIZE, 3) if dim == 0 else torch.randn(4, SIZE)
    want = torch.stack([x.select(dim, p) if p >= 0 else torch.zeros_like(x.select(dim, 0)) for p in places], dim)
    assert torch.equal(_ops.gather_places(x, torch.tensor(places), dim), want)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_scatter(name: str, dtype: torch.dtype) -> None:
    places = places_of(*given(name))
    x, rows = torch.randn(SIZE, 3).to(dtype), torch.randn(len(places), 3).to(dtype)
    want = x.clone()
    for p, place in enumerate(places):
        if place >= 0:
            want[place] = rows[p]
    assert torch.equal(_ops.scatter_places(x, rows, torch.tensor(places), 0), want)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    places = torch.tensor(places_of(*given(name)))
    x = torch.randn(SIZE, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(len(places), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _ops.gather_places(x, places, 0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: _ops.gather_places(x, places, 0), (x,))
    assert torch.autograd.gradcheck(lambda x, rows: _ops.scatter_places(x, rows, places, 0), (x, rows))


def test_nan_does_not_spread() -> None:
    """What nobody reads, and what is overwritten, has a gradient of 0 and reaches nothing."""
    places = torch.tensor(places_of(*given("overlapping")))
    x = torch.full((SIZE,), float("nan"), requires_grad=True)
    rows = torch.arange(6.0, requires_grad=True)
    out = _ops.scatter_places(x, rows, places, 0)
    out.nan_to_num().sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [1, 1, 0, 1, 1, 1]
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["in order", "tail", "overlapping"])
def test_opcheck(name: str) -> None:
    cu, begins, total = given(name)
    places = torch.tensor(places_of(cu, begins, total))
    x, rows = torch.randn(SIZE, 2, requires_grad=True), torch.randn(total, 2, requires_grad=True)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (_ops.segment_places.default, (cu, begins, total)),
        (_ops.gather_places.default, (x, places, 0)),
        (_ops.sum_places.default, (rows, places, 0, SIZE)),
        (_ops.sources_of_places.default, (places, SIZE)),
        (_ops.scatter_places.default, (x, rows, places, 0)),
    ]
    for op, arguments in calls:
        torch.library.opcheck(op, arguments)


def test_inductor() -> None:
    def f(x: Tensor, rows: Tensor, cu: Tensor, begins: Tensor) -> Tensor:
        places = _ops.segment_places(cu, begins, rows.shape[0])
        return _ops.scatter_places(x, rows * 2, places, 0) + _ops.gather_places(x, places, 0).sum()

    cu, begins, total = given("in order")
    results = []
    for fn in (f, torch.compile(f)):
        x, rows = torch.ones(SIZE, 2, requires_grad=True), torch.ones(total, 2, requires_grad=True)
        fn(x, rows, cu, begins).square().sum().backward()
        results.append((x.grad, rows.grad))
    torch.testing.assert_close(results[1], results[0])


# === What rows of padded batches, and several parts of each document, need ===================================

MASKS = {
    "left": ([[0, 1, 1], [1, 1, 1], [0, 0, 1]], [0, 2, 5, 6], 6),
    "scattered": ([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], [1, 3, 3, 6], 8),
    "one for many": ([[0, 1, 0], [1, 1, 0]], [0, 3, 5], 5),
    "nothing": ([[0, 0], [0, 0]], [0, 0, 0], 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_places_of_masks(name: str) -> None:
    mask, cu, total = MASKS[name]
    want = [-1] * total
    for d, row in enumerate(mask):
        true = [d * len(row) + c for c, value in enumerate(row) if value]
        for i, p in enumerate(range(cu[d], cu[d + 1])):
            want[p] = true[min(i, len(true) - 1)]
    args = (torch.tensor(mask, dtype=torch.bool), torch.tensor(cu), total)
    assert _ops.mask_places(*args).tolist() == want
    torch.library.opcheck(_ops.mask_places.default, args)


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize(("cu", "total"), [([0, 2, 5], 5), ([1, 3, 3, 4], 6), ([0, 0], 0)])
def test_interleaved_places(cu: list[int], total: int, pieces: int) -> None:
    want = [-1] * (total * pieces)
    for start, stop in itertools.pairwise(cu):
        slots = [piece * total + p for piece in range(pieces) for p in range(start, stop)]
        want[start * pieces : stop * pieces] = slots
    args = (torch.tensor(cu), pieces, total)
    assert _ops.interleaved_places(*args).tolist() == want
    torch.library.opcheck(_ops.interleaved_places.default, args)


@pytest.mark.parametrize(("cu", "total"), [([0, 2, 5], 5), ([0, 1, 2, 3], 4), ([0, 0], 0)])
def test_not_overwritten_places(cu: list[int], total: int) -> None:
    """Two writes per document, in eager's order: the second must not undo what a later document's first one wrote."""
    size, documents = 6, len(cu) - 1
    first, second = [-1] * total, [-1] * total
    for d in range(documents):
        for i, p in enumerate(range(cu[d], cu[d + 1])):
            first[p], second[p] = (d + i) % size, (d + 1 + i) % size
    want = torch.zeros(size, dtype=torch.int64)
    for d in range(documents):
        for places, base in ((first, 10), (second, 20)):
            for p in range(cu[d], cu[d + 1]):
                want[places[p]] = base + p
    one, two, boundaries = torch.tensor(first).long(), torch.tensor(second).long(), torch.tensor(cu)
    kept = _ops.not_overwritten_places(two, one, boundaries, size)
    out = _ops.scatter_places(torch.zeros(size, dtype=torch.int64), 10 + torch.arange(total), one, 0)
    assert torch.equal(_ops.scatter_places(out, 20 + torch.arange(total), kept, 0), want)
    torch.library.opcheck(_ops.not_overwritten_places.default, (two, one, boundaries, size))
