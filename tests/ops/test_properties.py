"""Properties of the ops for any documents, found by hypothesis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from packpass.ops import _window_mask, packed_roll, pad_cu_seqlens, position_ids, segment_ids
from packpass.ops._packed_roll_eager import gather_kernel
from packpass.ops._packed_roll_inductor import patch_form, rows_form, select_form
from tests.ops import reference

MANY = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def rows(draw: st.DrawFn, longest: int = 40) -> tuple[int, Tensor]:
    """``(total, cu_seqlens)`` with empty documents and tails more often than not."""
    total = draw(st.integers(0, longest))
    entries = sorted(draw(st.lists(st.integers(0, total), min_size=1, max_size=9)))
    return total, torch.tensor(entries, dtype=draw(st.sampled_from([torch.int32, torch.int64])))


fills = st.sampled_from([0, 3, None])
shifts = st.integers(-45, 45)


@MANY
@given(rows(), shifts, fills, st.integers(0, 1))
def test_every_kernel_is_the_loop(row: tuple[int, Tensor], shift: int, fill: int | None, dim: int) -> None:
    total, cu = row
    x = reference.sample(torch.int64, *((total, 2) if dim == 0 else (2, total)))
    expected = reference.roll(x, cu, shift, dim, fill)
    assert torch.equal(packed_roll(x, cu, shift, dim, fill), expected)
    assert torch.equal(rows_form(x, cu, shift, dim, fill, None), expected)
    assert torch.equal(gather_kernel(x, cu, shift, dim, fill), expected)


@MANY
@given(rows(longest=400), st.integers(-8, 8), fills, st.integers(0, 1))
def test_every_form_of_the_compiler_is_the_loop(
    row: tuple[int, Tensor], shift: int, fill: int | None, dim: int
) -> None:
    total, cu = row
    if total == 0 or shift == 0:
        return
    x = reference.sample(torch.int64, *((total, 2) if dim == 0 else (2, total)))
    expected = reference.roll(x, cu, shift, dim, fill)
    assert torch.equal(patch_form(x, cu, shift, dim, fill), expected)
    if fill is not None and total > abs(shift):
        assert torch.equal(select_form(x, cu, shift, dim, fill), expected)


@MANY
@given(rows(), shifts, fills, st.data())
def test_padded(row: tuple[int, Tensor], shift: int, fill: int | None, data: st.DataObject) -> None:
    total, padded = row
    lengths = [data.draw(st.integers(0, room)) for room in padded.diff().tolist()]
    cu = torch.tensor([0, *lengths], dtype=padded.dtype).cumsum(0, dtype=padded.dtype)
    x = reference.sample(torch.int64, total)
    expected = reference.roll(x, cu, shift, 0, fill, padded)
    assert torch.equal(packed_roll(x, cu, shift, 0, fill, padded), expected)
    assert torch.equal(rows_form(x, cu, shift, 0, fill, padded), expected)
    assert torch.equal(gather_kernel(x, cu, shift, 0, fill, padded), expected)


@MANY
@given(rows(), st.integers(0, 9), st.integers(0, 9))
def test_shifts_of_one_sign_add_up(row: tuple[int, Tensor], first: int, second: int) -> None:
    total, cu = row
    x = reference.sample(torch.int64, total)
    for sign in (1, -1):
        chained = packed_roll(packed_roll(x, cu, sign * first), cu, sign * second)
        assert torch.equal(chained, packed_roll(x, cu, sign * (first + second)))


@MANY
@given(rows(), shifts)
def test_around_and_back(row: tuple[int, Tensor], shift: int) -> None:
    total, cu = row
    x = reference.sample(torch.int64, total)
    assert torch.equal(packed_roll(packed_roll(x, cu, shift, fill=None), cu, -shift, fill=None), x)


@MANY
@given(rows(), shifts)
def test_backward_is_the_adjoint(row: tuple[int, Tensor], shift: int) -> None:
    """<roll(x), g> = <x, backward(g)> up to what the tail keeps; exact, because all values are small integers."""
    total, cu = row
    x = reference.sample(torch.float64, total).requires_grad_()
    g = reference.sample(torch.float64, total).flip(0)
    for fill in (0, None):
        rolled = packed_roll(x, cu, shift, fill=fill)
        (grad,) = torch.autograd.grad(rolled, x, g)
        assert torch.dot(rolled.detach(), g) == torch.dot(x.detach(), grad)


@MANY
@given(rows())
def test_ids(row: tuple[int, Tensor]) -> None:
    total, cu = row
    positions, segments = position_ids(cu, total), segment_ids(cu, total)
    assert torch.equal(positions, reference.position_ids(cu, total))
    assert torch.equal(segments, reference.segment_ids(cu, total))
    longer = pad_cu_seqlens(cu, 16)
    assert torch.equal(positions, position_ids(longer, total))


@MANY
@given(rows(longest=400), st.integers(-1, 10), st.integers(-1, 10))
def test_window_mask(row: tuple[int, Tensor], front: int, back: int) -> None:
    total, cu = row
    expected = reference.window_mask(cu, total, front, back)
    assert torch.equal(torch.ops.packpass.window_mask(cu, total, front, back), expected)
    assert torch.equal(_window_mask._kernel(cu, total, front, back), expected)
    assert torch.equal(_window_mask._decomposition(cu, total, front, back), expected)


@MANY
@given(st.lists(st.integers(-3, 14), min_size=1, max_size=6), st.integers(0, 12))
def test_check_agrees_with_the_definition(entries: list[int], total: int) -> None:
    cu = torch.tensor(entries)
    right = entries == sorted(entries) and entries[0] >= 0 and entries[-1] <= total
    if right:
        torch.ops.packpass.check_cu_seqlens(cu, total)
    else:
        with pytest.raises(ValueError, match="packpass: cu_seqlens"):
            torch.ops.packpass.check_cu_seqlens(cu, total)
