"""Wrong arguments: every message says which argument, what it was, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from packpass.ops import packed_roll, pad_cu_seqlens, position_ids, segment_ids, validate_cu_seqlens

X = torch.zeros(2, 10)
CU = torch.tensor([0, 4, 10])
INT = torch.zeros(10, dtype=torch.int64)


def roll(**changes: Any) -> Callable[[], Any]:
    return lambda: packed_roll(**{"x": X, "cu_seqlens": CU, **changes})


BAD_ARGUMENTS = [
    (roll(x=[1, 2]), TypeError, r"x must be a Tensor, got list"),
    (roll(x=torch.tensor(1.0)), ValueError, r"x must have at least 1 dimension, got a 0-dimensional tensor"),
    (roll(cu_seqlens=[0, 4]), TypeError, r"cu_seqlens must be a Tensor, got list"),
    (roll(cu_seqlens=CU.float()), TypeError, r"cu_seqlens must be int32 or int64, got torch.float32"),
    (roll(cu_seqlens=CU.to(torch.int16)), TypeError, r"cu_seqlens must be int32 or int64, got torch.int16"),
    (roll(cu_seqlens=CU.view(1, 3)), ValueError, r"cu_seqlens must have 1 dimension .*got shape \(1, 3\)"),
    (roll(cu_seqlens=CU[:0]), ValueError, r"cu_seqlens must have at least 1 entry .*got 0"),
    (roll(cu_seqlens=CU.to("meta")), ValueError, r"cu_seqlens must be on the device of x \(cpu\), got meta"),
    (roll(shift=1.0), TypeError, r"shift must be an int, got float \(1.0\)"),
    (roll(shift=True), TypeError, r"shift must be an int, got bool \(True\)"),
    (roll(shift=torch.tensor(1)), TypeError, r"shift must be an int, got Tensor"),
    (roll(dim=2), ValueError, r"dim must lie in \[-2, 1\] for x of shape \(2, 10\), got 2"),
    (roll(dim=-3), ValueError, r"dim must lie in \[-2, 1\] .*got -3"),
    (roll(dim="T"), TypeError, r"dim must be an int, got str"),
    (roll(fill="0"), TypeError, r"fill must be a number or None \(wrap around\), got str"),
    (roll(fill=torch.tensor(1)), TypeError, r"fill must be a number or None .*got Tensor"),
    (roll(fill=1j), ValueError, r"fill must be a real number for x of dtype torch.float32, got 1j"),
    (roll(fill=1e39), ValueError, r"fill must fit torch.float32 \(at most 3.4.*\), got 1e\+39"),
    (roll(x=X.half(), fill=70000), ValueError, r"fill must fit torch.float16 \(at most 65504.0"),
    (roll(x=INT, fill=0.5), ValueError, r"fill must be an integer in \[-9\d+, 9\d+\] for x of .*int64, got 0.5"),
    (roll(x=INT, fill=math.nan), ValueError, r"fill must be an integer in .*got nan"),
    (roll(x=INT, fill=-math.inf), ValueError, r"fill must be an integer in .*got -inf"),
    (roll(x=INT.to(torch.uint8), fill=300), ValueError, r"fill must be an integer in \[0, 255\] .*got 300"),
    (roll(x=INT.to(torch.uint8), fill=-1), ValueError, r"fill must be an integer in \[0, 255\] .*got -1"),
    (roll(x=INT.bool(), fill=2), ValueError, r"fill must be an integer in \[0, 1\] for x of dtype torch.bool, got 2"),
    (roll(cu_seqlens_padded=3), TypeError, r"cu_seqlens_padded must be a Tensor, got int"),
    (roll(cu_seqlens_padded=CU.double()), TypeError, r"cu_seqlens_padded must be int32 or int64, got torch.float64"),
    (roll(cu_seqlens_padded=CU.int()), TypeError, r"cu_seqlens_padded must have the dtype of cu_seqlens .*int64"),
    (roll(cu_seqlens_padded=CU[:2]), ValueError, r"cu_seqlens_padded must have as many entries as .*\(3\), got 2"),
    (lambda: position_ids(CU.float(), 10), TypeError, r"cu_seqlens must be int32 or int64"),
    (lambda: position_ids(CU, 10.0), TypeError, r"total must be an int, got float"),
    (lambda: position_ids(CU, -1), ValueError, r"total must be 0 or more slots, got -1"),
    (lambda: segment_ids(CU.view(3, 1), 10), ValueError, r"cu_seqlens must have 1 dimension"),
    (lambda: segment_ids(CU, True), TypeError, r"total must be an int, got bool"),
    (lambda: pad_cu_seqlens(CU, 0), ValueError, r"multiple_of must be at least 1, got 0"),
    (lambda: pad_cu_seqlens(CU, 8.0), TypeError, r"multiple_of must be an int, got float"),
    (lambda: validate_cu_seqlens(CU.bool(), 10), TypeError, r"cu_seqlens must be int32 or int64, got torch.bool"),
    (lambda: validate_cu_seqlens(CU, -4), ValueError, r"total must be 0 or more slots, got -4"),
]  # fmt: skip

BAD_VALUES = [
    ([0, 9, 5], r"cu_seqlens\[2\] = 5 is smaller than cu_seqlens\[1\] = 9"),
    ([3, 2, 9, 1], r"cu_seqlens\[1\] = 2 is smaller than cu_seqlens\[0\] = 3"),
    ([-2, 4, 8], r"cu_seqlens\[0\] = -2 is negative"),
    ([0, 4, 11], r"cu_seqlens\[2\] = 11 is beyond the 10 slots"),
    ([12], r"cu_seqlens\[0\] = 12 is beyond the 10 slots"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("cu", "message"), BAD_VALUES)
def test_bad_values(cu: list[int], message: str, dtype: torch.dtype) -> None:
    boundaries = torch.tensor(cu, dtype=dtype)
    calls: list[Callable[[], Any]] = [
        lambda: packed_roll(X, boundaries),
        lambda: packed_roll(X, boundaries, fill=None),
        lambda: position_ids(boundaries, 10),
        lambda: segment_ids(boundaries, 10),
        lambda: validate_cu_seqlens(boundaries, 10),
        lambda: torch.ops.packpass.check_cu_seqlens(boundaries, 10),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("cu", "padded", "message"),
    [
        ([0, 3, 5], [0, 4, 3], r"cu_seqlens_padded\[2\] = 3 is smaller than cu_seqlens_padded\[1\] = 4"),
        ([0, 3, 5], [0, 4, 12], r"cu_seqlens_padded\[2\] = 12 is beyond the 10 slots"),
        ([0, 3, 5], [-1, 4, 8], r"cu_seqlens_padded\[0\] = -1 is negative"),
        ([0, 3, 8], [0, 4, 8], r"document 1 has 5 tokens .*\[1\] = 3, cu_seqlens\[2\] = 8\) but only 4 slots"),
        ([0, 3, 2], [0, 4, 8], r"cu_seqlens\[2\] = 2 is smaller"),
    ],
)  # fmt: skip
def test_bad_padded_values(cu: list[int], padded: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packed_roll(X, torch.tensor(cu), cu_seqlens_padded=torch.tensor(padded))


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (torch.int64, -100), (torch.int64, 2.0), (torch.int64, True), (torch.uint8, 255), (torch.bool, True),
        (torch.bool, 1), (torch.float32, math.nan), (torch.float32, math.inf), (torch.float16, 65504),
        (torch.bfloat16, 1e38), (torch.complex64, 1 + 2j), (torch.float32, 0.1), (torch.uint64, 2**64 - 1),
    ],
)  # fmt: skip
def test_good_fills(dtype: torch.dtype, fill: complex) -> None:
    x = torch.zeros(4, dtype=dtype)
    result = packed_roll(x, torch.tensor([0, 2, 4]), fill=fill)
    expected = torch.full((), fill, dtype=dtype)
    assert result.view(torch.uint8).view(4, -1)[1].tolist() == expected.view(1).view(torch.uint8).tolist()


def test_good_boundaries_pass() -> None:
    for cu in ([0], [10], [0, 0], [3, 3, 3], [0, 10], [2, 4, 4, 9]):
        validate_cu_seqlens(torch.tensor(cu), 10)
        torch.ops.packpass.check_cu_seqlens(torch.tensor(cu), 10)
