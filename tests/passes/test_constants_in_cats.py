"""``cat`` of a part of a document and constants: what the constant's dtype does to its value, and to the result's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import packpass

OPTIONS = {"packpass.inner_backend": "eager"}
CU = torch.tensor([0, 3, 7, 12])
Body = Callable[[Tensor], Tensor]

PROMOTED: dict[str, Body] = {
    "zeros_like of floats": lambda s: torch.cat([s[1:], torch.zeros_like(s[:1], dtype=torch.float32)]),
    "ones_like of floats": lambda s: torch.cat([torch.ones_like(s[:1], dtype=torch.float64), s[:-1]]),
    "full_like of floats": lambda s: torch.cat([s[1:], torch.full_like(s[:1], 2.5, dtype=torch.float32)]),
    "longer integers": lambda s: torch.cat([s.int()[1:], torch.zeros_like(s[:1])]),
    "by another name": lambda s: torch.concat([s[1:], torch.zeros_like(s[:1], dtype=torch.float32)]),
    "new_zeros of floats": lambda s: torch.cat([s[1:], s.new_zeros(1, dtype=torch.float32)]),
    "zeros of floats": lambda s: torch.cat([s[1:], torch.zeros(1)]),
}
"""The constant's dtype is the result's."""

ANOTHER_PART: Body = lambda s: torch.cat([s[1:], s[:1].float()])  # noqa: E731
HELD: dict[str, Body] = {
    "a fraction in integers": lambda s: torch.cat([s[1:], torch.full_like(s[:1], 2.5)]),
    "a number in bools": lambda s: torch.cat([s[1:], torch.full_like(s[:1], 3, dtype=torch.bool)]),
    "half precision": lambda s: torch.cat([s.float()[1:], torch.full_like(s[:1], 0.1, dtype=torch.float16)]),
    "integers in a row of floats": lambda s: torch.cat([s.float()[1:], torch.full_like(s[:1], 2.5)]),
    "a block of integers": lambda s: torch.cat([s.float()[1:], torch.full((1,), 2.5, dtype=torch.int64)]),
    "a block of half precision": lambda s: torch.cat([s.float()[1:], torch.full((1,), 0.1, dtype=torch.float16)]),
    "a block of bools": lambda s: torch.cat([s[1:], torch.full((1,), 3, dtype=torch.bool)]),
    "new_full of the row's dtype": lambda s: torch.cat([s.float()[1:], s.new_full((1,), 2.5)]),
    "two slots": lambda s: torch.cat([torch.full((2,), 2.5, dtype=torch.int32), s.double()[:-2]]),
    "tensors by keyword": lambda s: torch.cat(tensors=[s[1:], torch.zeros_like(s[:1])], dim=0),
}
"""The row's dtype is the result's: the fill is what the constant holds, which is not always what it was given."""


def written(body: Body) -> Callable[[Tensor, Tensor], Tensor]:
    def fn(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone().double()
        for i in range(len(cu) - 1):
            out[cu[i] : cu[i + 1]] = body(x[cu[i] : cu[i + 1]])
        return out

    return fn


def joined(body: Body) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, cu: torch.cat([body(x[cu[i] : cu[i + 1]]) for i in range(len(cu) - 1)])


@pytest.mark.parametrize("form", [written, joined])
@pytest.mark.parametrize("body", [*PROMOTED.values(), *HELD.values()], ids=[*PROMOTED, *HELD])
def test_equals_eager(body: Body, form: Callable[[Body], Callable[[Tensor, Tensor], Tensor]]) -> None:
    torch._dynamo.reset()
    fn, x = form(body), torch.arange(1, 13)
    want, got = fn(x, CU), torch.compile(fn, backend=packpass.backend, options=OPTIONS)(x, CU)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@pytest.mark.parametrize("body", HELD.values(), ids=HELD.keys())
def test_rewritten(body: Body) -> None:
    report = packpass.explain(written(body), options=OPTIONS)(torch.arange(1, 13), CU)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]


@pytest.mark.parametrize("form", [written, joined])
@pytest.mark.parametrize("body", PROMOTED.values(), ids=PROMOTED.keys())
def test_promoted_and_rewritten(body: Body, form: Callable[[Body], Callable[[Tensor, Tensor], Tensor]]) -> None:
    report = packpass.explain(form(body), options=OPTIONS)(torch.arange(1, 13), CU)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"], report.refusals


def test_the_first_slot_of_another_row_behind() -> None:
    """It is as long as the document, which is seen slot by slot alone where it is written."""
    x = torch.arange(1, 13)
    report = packpass.explain(written(ANOTHER_PART), options=OPTIONS)(x, CU)
    assert [r.rule for r in report.rewrites] == ["ragged_grids"], report.refusals
    torch.testing.assert_close(report.result, written(ANOTHER_PART)(x, CU))
    report = packpass.explain(joined(ANOTHER_PART), options=OPTIONS)(x, CU)
    assert len(report.rewrites) == 1
    torch.testing.assert_close(report.result, joined(ANOTHER_PART)(x, CU))
