"""segment_take, segment_put, segment_spread, segment_pad and segment_unpad against loops over documents."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from packpass.ops._segment_spread import WIDE, _decomposition
from tests.ops import reference
from tests.ops.segments import FLOATS, FORMS, INTS, OPS, SHAPES, op_of, row, transposed
from tests.ops.test_packed_roll import LAYOUTS, NoHostSync

CU = torch.tensor([1, 4, 4, 5, 9])
POSITIONS = torch.tensor([0, 0, -1, 3, 99])
DTYPES = [*FLOATS, *INTS, torch.bool, torch.complex128]


def positions_of(count: int, rest: tuple[int, ...] = ()) -> Tensor:
    return torch.randint(-6, 6, (count, *rest), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_take_and_put(layout: str, form: str) -> None:
    cu = torch.tensor(LAYOUTS[layout], dtype=torch.int32)
    for shape, dim in SHAPES:
        x = row(torch.int64, shape) + 100
        rest = tuple(x.movedim(dim, 0).shape[1:])
        for positions in (positions_of(len(cu)), positions_of(len(cu), rest)):
            got = op_of("segment_take", form)(transposed(x), cu, positions, dim)
            assert torch.equal(got[:-1], reference.segment_take(x, cu, positions, dim))
            assert not got[-1].any()
            put = op_of("segment_put", form)(got, cu, positions, dim, 30)
            assert put.shape == x.shape
            assert put.is_contiguous()
            assert torch.equal(put, torch.where(put == 0, 0, x))
            assert torch.equal(op_of("segment_take", form)(put, cu, positions, dim), got)
            assert (put != 0).sum() == (got != 0).sum()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_take_dtypes(dtype: torch.dtype, form: str) -> None:
    x = row(dtype, (30, 2))
    cu = torch.tensor([2, 7, 7, 30])
    positions = torch.tensor([-1, 0, 22, 0])
    got = op_of("segment_take", form)(x, cu, positions, 0)
    assert torch.equal(got, torch.stack([x[6], torch.zeros_like(x[0]), x[29], torch.zeros_like(x[0])]))


@pytest.mark.parametrize("form", FORMS)
def test_take_reads_no_other_document(form: str) -> None:
    x = torch.full((9,), float("nan"))
    x[3:5] = torch.tensor([1.0, 2.0])
    cu = torch.tensor([0, 3, 5, 9])
    for position, value in ((0, 1), (1, 2), (2, 0), (-1, 2), (-2, 1), (-3, 0)):
        got = op_of("segment_take", form)(x, cu, torch.tensor([9, position, -9, 0]), 0)
        assert got.tolist() == [0, value, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", [*FORMS, "compiled"])
def test_spread(layout: str, form: str) -> None:
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor(LAYOUTS[layout], dtype=dtype)
        for rest in ((), (1,), (3,), (2, WIDE)):
            values = torch.randn(len(cu), *rest)
            values[-1] = float("nan")  # nobody may read it
            call = _decomposition if form == "compiled" else op_of("segment_spread", form)
            assert torch.equal(call(values, cu, 30), reference.segment_spread(values, cu, 30))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_spread_dtypes(dtype: torch.dtype, form: str) -> None:
    values, cu = row(dtype, (4, 3)), torch.tensor([1, 45, 45, 90])
    for given in (values, transposed(values), values[:, 0]):
        assert torch.equal(op_of("segment_spread", form)(given, cu, 100), reference.segment_spread(given, cu, 100))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "no document"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("left", [False, True])
def test_pad(layout: str, form: str, left: bool) -> None:
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor(LAYOUTS[layout], dtype=dtype)
        for shape, dim in SHAPES:
            x = row(torch.float32, shape)
            got = op_of("segment_pad", form)(transposed(x), cu, dim, -100, left)
            assert torch.equal(got, reference.segment_pad(x, cu, dim, -100, left))
            back = op_of("segment_unpad", form)(got, cu, dim, 30, left)
            inside = torch.zeros(30, dtype=torch.bool)
            inside[cu[0] : cu[-1]] = True
            assert back.is_contiguous()
            assert torch.equal(back.movedim(dim, -1), torch.where(inside, x.movedim(dim, -1), 0))


@pytest.mark.parametrize("form", FORMS)
def test_pad_without_documents(form: str) -> None:
    got = op_of("segment_pad", form)(torch.ones(5, 2), torch.tensor([3]), 0, 0, False)
    assert got.shape == (0, 0, 2)
    assert not op_of("segment_unpad", form)(got, torch.tensor([3]), 0, 5, False).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_pad_dtypes(dtype: torch.dtype, form: str) -> None:
    x, cu = row(dtype, (30, 2)), torch.tensor([3, 4, 4, 20])
    assert torch.equal(op_of("segment_pad", form)(x, cu, 0, 1), reference.segment_pad(x, cu, 0, 1))


# === Gradients ===================================================================================================


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients(dim: int) -> None:
    x = torch.randn((10, 3) if dim == 0 else (3, 10), dtype=torch.float64, requires_grad=True)
    values = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    per_column = positions_of(5, (3,))
    for call, given in (
        (lambda x: OPS.segment_take(x, CU, POSITIONS, dim), x),
        (lambda x: OPS.segment_take(x, CU, per_column, dim), x),
        (lambda x: OPS.segment_spread(x, CU, 12), values),
        (lambda x: OPS.segment_pad(x, CU, dim, 2.5), x),
        (lambda x: OPS.segment_pad(x, CU, dim, 2.5, True), x),
    ):
        assert gradcheck(call, given)
        assert gradgradcheck(call, given)


def test_gradients_do_not_leak_between_documents() -> None:
    grad = torch.ones(12)
    grad[0], grad[4], grad[11] = float("inf"), float("nan"), float("nan")
    values = torch.ones(5, requires_grad=True)
    (got,) = torch.autograd.grad(OPS.segment_spread(values, CU, 12), values, grad)
    assert got[:-1].isnan().tolist() == [False, False, True, False]
    assert got[[0, 1, 3]].tolist() == [3, 0, 4]


def test_no_host_sync() -> None:
    x, values = torch.randn(12, 2), torch.randn(5, 2)
    with NoHostSync():
        taken = op_of("segment_take", "generic")(x, CU, POSITIONS, 0)
        op_of("segment_put", "generic")(taken, CU, POSITIONS, 0, 12)
        op_of("segment_spread", "generic")(values, CU, 12)
        op_of("segment_unpad", "generic")(torch.randn(4, 4, 2), CU, 0, 12, False)


@pytest.mark.parametrize("cu", [[0, 9, 5], [-3, 4], [0, 500], [7, 3, 900, 2], [40]])
def test_wrong_boundaries_never_write_outside(cu: list[int]) -> None:
    """The internal ops are called without a check: wrong boundaries may raise or give wrong values, nothing worse."""
    boundaries, x = torch.tensor(cu), torch.arange(12.0)
    entries = torch.zeros(len(cu))
    calls = [
        lambda: OPS.segment_reduce(x, boundaries, "sum", 0),
        lambda: OPS.segment_argmax(x, boundaries, True, 0),
        lambda: OPS.segment_take(x, boundaries, entries.long(), 0),
        lambda: OPS.segment_put(entries, boundaries, entries.long(), 0, 12),
        lambda: OPS.segment_spread(entries, boundaries, 12),
        lambda: OPS.segment_scan(x, boundaries, "sum", 0),
        lambda: OPS.segment_recurrence(x, x, boundaries, 0, True),
        lambda: OPS.segment_softmax(x, boundaries, 0, False),
        lambda: OPS.segment_pad(x, boundaries, 0, 0),
        lambda: OPS.segment_unpad(torch.zeros(len(cu) - 1, 4), boundaries, 0, 12, False),
    ]
    for call in calls:
        try:
            assert call().shape[0] <= 12
        except (RuntimeError, IndexError):
            continue


def test_pad_is_what_pad_sequence_gives() -> None:
    documents = [torch.randn(length, 3) for length in (4, 1, 6)]
    x = torch.cat(documents)
    cu = torch.tensor([0, 4, 5, 11])
    assert all(len(d) == stop - start for d, (start, stop) in zip(documents, pairwise(cu.tolist()), strict=True))
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=7)
    assert torch.equal(OPS.segment_pad(x, cu, 0, 7), padded)
