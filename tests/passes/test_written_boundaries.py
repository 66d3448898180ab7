"""Boundaries that are copied and written: every rewrite cuts by those of the place where the code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import packpass

CU = torch.tensor([0, 3, 5, 9])
Results = Sequence[Tensor]


def flipped(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
    return out


def before_the_loop(x: Tensor, cu: Tensor) -> Results:
    cu = cu.clone()
    cu[1] += 1
    return [flipped(x, cu)]


def between_loops(x: Tensor, cu: Tensor) -> Results:
    cu = cu.clone()
    first = flipped(x, cu)
    cu[1:-1] += 1
    return [first, flipped(x, cu)]


def after_a_cast(x: Tensor, cu: Tensor) -> Results:
    cu = cu.int().long()
    cu[2] += 1
    return [flipped(x, cu)]


def written_lengths(x: Tensor, cu: Tensor) -> Results:
    lengths = cu[1:] - cu[:-1]
    lengths[0] = 1
    return [torch.stack([x[cu[i] : cu[i + 1]].sum(0) / lengths[i] for i in range(len(cu) - 1)])]


def between_rolls(x: Tensor, cu: Tensor) -> Results:
    cu = cu * 1
    first = packpass.ops.packed_roll(x, cu, -1)
    cu[1] += 1
    return [first, packpass.ops.packed_roll(first, cu, -1)]


@pytest.mark.parametrize(
    "program", [before_the_loop, between_loops, after_a_cast, written_lengths, between_rolls], ids=lambda p: p.__name__
)
def test_same_as_eager(program: Callable[[Tensor, Tensor], Results]) -> None:
    torch._dynamo.reset()
    compiled = packpass.compile(program, fullgraph=True, options={"packpass.inner_backend": "eager"})
    x = torch.arange(9.0)
    for a, b in zip(compiled(x, CU), program(x, CU), strict=True):
        assert torch.equal(a, b)


def labels_of(ids: Tensor) -> Tensor:
    out = torch.roll(ids, -1, -1)
    out[..., -1] = -100
    return out


def declared_after(ids: Tensor, cu: Tensor) -> Tensor:
    cu = cu.clone()
    cu[1] += 1
    return labels_of(packpass.packed(ids, cu))


def declared_before(ids: Tensor, cu: Tensor) -> Tensor:
    cu = cu.clone()
    ids = packpass.packed(ids, cu)
    cu[1] += 1
    return labels_of(ids)


def test_a_declaration_means_the_boundaries_as_they_are_there() -> None:
    torch._dynamo.reset()
    options = {"packpass.inner_backend": "eager"}
    report = packpass.explain(declared_after, fullgraph=True, options=options)(torch.arange(9), CU)
    assert report.result.tolist() == [1, 2, 3, -100, -100, 6, 7, 8, -100]
    assert [r.rule for r in report.rewrites] == ["pack_shifts"]


def test_boundaries_that_change_after_the_declaration_are_not_used() -> None:
    torch._dynamo.reset()
    options = {"packpass.inner_backend": "eager"}
    report = packpass.explain(declared_before, fullgraph=True, options=options)(torch.arange(9), CU)
    assert torch.equal(report.result, labels_of(torch.arange(9)))
    assert [r.code for r in report.refusals] == ["boundaries-written"]
