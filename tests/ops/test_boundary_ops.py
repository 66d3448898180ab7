"""position_ids, segment_ids, window_mask, packed_flip, pad_cu_seqlens: eager, all forms, against the loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from packpass.ops import _boundaries_passed as passed
from packpass.ops import _packed_flip as flip
from packpass.ops import _position_ids as positions
from packpass.ops import _segment_ids as segments
from packpass.ops import _window_mask as window
from packpass.ops import pad_cu_seqlens, position_ids, segment_ids
from tests.ops import reference
from tests.ops.test_packed_roll import DTYPES, LAYOUTS, NoHostSync

OPS = torch.ops.packpass


@pytest.fixture(params=LAYOUTS)
def cu(request: pytest.FixtureRequest) -> Tensor:
    return torch.tensor(LAYOUTS[request.param], dtype=torch.int32)


@pytest.mark.parametrize("total", [30, 33])
def test_position_ids(cu: Tensor, total: int) -> None:
    expected = reference.position_ids(cu, total)
    for result in (position_ids(cu, total), position_ids(cu.long(), total), positions._kernel(cu, total)):
        assert result.dtype is torch.int64
        assert torch.equal(result, expected)


@pytest.mark.parametrize("total", [30, 33])
def test_segment_ids(cu: Tensor, total: int) -> None:
    expected = reference.segment_ids(cu, total)
    assert torch.equal(segment_ids(cu, total), expected)
    assert torch.equal(passed.search(cu, total) - 1, expected)


@pytest.mark.parametrize(("front", "back"), [(0, 0), (1, 0), (0, 1), (2, 3), (-1, -2), (50, 0)])
def test_window_mask(cu: Tensor, front: int, back: int) -> None:
    expected = reference.window_mask(cu, 30, front, back)
    for result in (OPS.window_mask(cu, 30, front, back), window._kernel(cu, 30, front, back)):
        assert result.dtype is torch.bool
        assert torch.equal(result, expected)


@pytest.mark.parametrize(("front", "back"), [(0, 0), (1, 0), (0, 1), (8, 3), (9, 0), (0, 40)])
@pytest.mark.parametrize("total", [130, 131, 192, 193, 257])
@pytest.mark.parametrize("count", [1, 4, 60])
def test_window_mask_of_long_rows(total: int, count: int, front: int, back: int) -> None:
    """Long enough for the blocks of the form that the C++ code takes, in both of its cases."""
    for cu in (
        reference.documents(total, count, head=9, tail=7),
        reference.documents(total, count),
        torch.tensor([70]),
    ):
        expected = reference.window_mask(cu, total, front, back)
        assert torch.equal(OPS.window_mask(cu, total, front, back), expected)
        assert torch.equal(window._decomposition(cu, total, front, back), expected)


@pytest.mark.parametrize("dim", [0, -1, 1])
def test_packed_flip(cu: Tensor, dim: int) -> None:
    x = reference.sample(torch.float32, *((30, 2) if dim == 0 else (2, 30)))
    expected = reference.flip(x, cu, dim)
    result = OPS.packed_flip(x, cu, dim)
    assert result.is_contiguous()
    assert torch.equal(result, expected)
    assert torch.equal(OPS.packed_flip(result, cu, dim), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_flip_dtypes(dtype: torch.dtype) -> None:
    x = reference.sample(dtype, 8)
    order = torch.tensor([0, 3, 2, 1, 4, 6, 5, 7])
    bits = x.view(torch.uint8).view(8, dtype.itemsize)
    result = OPS.packed_flip(x, torch.tensor([1, 4, 5, 7]), 0)
    assert reference.same(result, bits[order].view(-1).view(dtype))


def test_no_host_sync() -> None:
    """The device-independent kernels; on CPU tensors ``boundaries_passed`` is an op, whose kernel may read the host."""
    cu = torch.tensor([2, 5, 5, 7])
    with NoHostSync():
        results = (
            passed.search(cu, 9),
            positions._kernel(cu, 9),
            segments._kernel(cu, 9),
            window._kernel(cu, 9, 1, 0),
            flip._kernel(torch.arange(9), cu, 0),
            pad_cu_seqlens(cu),
        )
    assert results[1].tolist() == [0, 1, 0, 1, 2, 0, 1, 0, 1]
    assert results[2].tolist() == [-1, -1, 0, 0, 0, 2, 2, 3, 3]
    assert results[4].tolist() == [0, 1, 4, 3, 2, 6, 5, 7, 8]


@pytest.mark.parametrize("cu", [[0, 9, 5], [-3, 4], [0, 500], [7, 3, 900, 2], [40]])
def test_wrong_boundaries_never_write_outside(cu: list[int]) -> None:
    """The internal ops are called without a check: wrong boundaries may raise or give wrong values, nothing worse."""
    boundaries = torch.tensor(cu)
    x = torch.arange(12.0)
    calls = [
        lambda: OPS.position_ids(boundaries, 12),
        lambda: OPS.segment_ids(boundaries, 12),
        lambda: OPS.boundaries_passed(boundaries, 12),
        lambda: OPS.window_mask(boundaries, 12, 1, 1),
        lambda: OPS.packed_flip(x, boundaries, 0),
        lambda: OPS.packed_roll(x, boundaries, -1, 0, 0),
        lambda: OPS.packed_roll(x, boundaries, 3, 0, None),
    ]
    for call in calls:
        try:
            assert call().shape == (12,)
        except (RuntimeError, IndexError):
            continue


@pytest.mark.parametrize(("entries", "multiple_of", "expected"), [(3, 64, 64), (64, 64, 64), (65, 64, 128), (3, 1, 3)])
def test_pad_cu_seqlens(entries: int, multiple_of: int, expected: int) -> None:
    cu = torch.arange(entries, dtype=torch.int32) * 2
    result = pad_cu_seqlens(cu, multiple_of)
    assert result.dtype is torch.int32
    assert result.tolist() == cu.tolist() + [2 * (entries - 1)] * (expected - entries)
    result[0] = 99
    assert cu[0] == 0


def test_padded_boundaries_give_the_same_result() -> None:
    cu = reference.documents(50, 6, head=2, tail=3)
    x = reference.sample(torch.int64, 50)
    longer = pad_cu_seqlens(cu, 16)
    assert torch.equal(OPS.packed_roll(x, cu, -1, 0, 0), OPS.packed_roll(x, longer, -1, 0, 0))
    assert torch.equal(OPS.packed_flip(x, cu, 0), OPS.packed_flip(x, longer, 0))
    assert torch.equal(position_ids(cu, 50), position_ids(longer, 50))
