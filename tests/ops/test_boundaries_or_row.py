"""``boundaries_or_row``: boundaries are used only if they can cut the row."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from packpass import ops  # noqa: F401  (registers the op)

CALL = torch.ops.packpass.boundaries_or_row.default


def reference(cu: list[int], total: int, padded: list[int] | None, want_padded: bool) -> list[int]:
    def fits(c: list[int]) -> bool:
        return c[0] >= 0 and all(a <= b for a, b in itertools.pairwise(c)) and c[-1] <= total

    good = fits(cu) if padded is None else fits(padded)
    if padded is not None:
        spans = zip(cu, cu[1:], padded, padded[1:], strict=False)
        good = good and all(0 <= b - a <= q - p for a, b, p, q in spans)
    wanted = padded if want_padded and padded is not None else cu
    return list(wanted) if good else [0] + [total] * (len(cu) - 1)


CASES = [
    ([0, 3, 3, 8], 8),
    ([0, 3, 8], 10),
    ([2, 3, 8], 10),
    ([0, 3, 9], 8),  # beyond the row
    ([0, 5, 4, 8], 8),  # decreasing
    ([-1, 4, 8], 8),
    ([0], 5),
    ([0, 0], 0),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("cu", "total"), CASES)
def test_against_the_reference(cu: list[int], total: int, dtype: torch.dtype) -> None:
    got = CALL(torch.tensor(cu, dtype=dtype), total, None, False)
    assert got.dtype == dtype
    assert got.tolist() == reference(cu, total, None, False)


@pytest.mark.parametrize("want_padded", [False, True])
@pytest.mark.parametrize(
    ("cu", "padded", "total"),
    [([0, 3, 5], [0, 4, 8], 8), ([0, 3, 5], [0, 4, 8], 7), ([0, 5, 6], [0, 4, 8], 8), ([0, 3, 9], [0, 4, 10], 12)],
)
def test_padded_documents(cu: list[int], padded: list[int], total: int, want_padded: bool) -> None:
    got = CALL(torch.tensor(cu), total, torch.tensor(padded), want_padded)
    assert got.tolist() == reference(cu, total, padded, want_padded)


def test_the_input_is_not_changed_and_not_returned() -> None:
    cu = torch.tensor([0, 9])
    out: Tensor = CALL(cu, 4, None, False)
    out.zero_()
    assert cu.tolist() == [0, 9]


@pytest.mark.parametrize("cu", [[0, 3, 8], [0, 3, 9]])
def test_opcheck(cu: list[int]) -> None:
    torch.library.opcheck(CALL, (torch.tensor(cu, dtype=torch.int32), 8, None, False))


def test_compiled_for_any_number_of_documents() -> None:
    torch._dynamo.reset()

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        return CALL(cu, x.shape[0], None, False)

    compiled = torch.compile(fn, backend="inductor", dynamic=True)
    for cu, total in (([0, 3, 8], 8), ([0, 3, 4, 9], 8), ([0, 2, 2, 2, 5], 5)):
        assert compiled(torch.empty(total), torch.tensor(cu)).tolist() == reference(cu, total, None, False)
