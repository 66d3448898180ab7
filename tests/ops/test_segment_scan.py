"""segment_scan and segment_recurrence against a loop over documents."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.ops import reference
from tests.ops.segments import FLOATS, FORMS, INTS, OPS, SHAPES, close, op_of, row, transposed
from tests.ops.test_packed_roll import LAYOUTS, NoHostSync

CU = torch.tensor([1, 4, 4, 5, 9])
SCANS = list(reference.SCANS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
def test_layouts(layout: str, form: str, reverse: bool) -> None:
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor(LAYOUTS[layout], dtype=dtype)
        for shape, dim in SHAPES:
            x = row(torch.float32, shape)
            for op in SCANS:
                got = op_of("segment_scan", form)(x, cu, op, dim, reverse)
                assert got.is_contiguous()
                close(got, reference.segment_scan(x, cu, op, dim, reverse))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", SCANS)
def test_dtypes(dtype: torch.dtype, form: str, op: str) -> None:
    if op == "logsumexp" and not dtype.is_floating_point:
        pytest.skip("a scan of floating point numbers")
    cu = torch.tensor(LAYOUTS["tails at both ends"])
    for shape, dim in SHAPES[1:4]:
        x = row(dtype, shape)
        for reverse in (False, True):
            got = op_of("segment_scan", form)(transposed(x), cu, op, dim, reverse)
            assert got.dtype is dtype
            close(got, reference.segment_scan(x, cu, op, dim, reverse))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("op", "as_ints"), [("max", "max"), ("min", "min"), ("sum", "max"), ("prod", "min")])
def test_bool(form: str, op: str, as_ints: str) -> None:
    x, cu = row(torch.bool, (30, 2)), torch.tensor([3, 9, 9, 28])
    got = op_of("segment_scan", form)(x, cu, op, 0)
    assert torch.equal(got, reference.segment_scan(x.int(), cu, as_ints, 0).bool())


@pytest.mark.parametrize("count", [1, 3, 5, 512])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_the_same_bits_as_the_loop(count: int, op: str) -> None:
    """Each document's values are added up in torch's own order and width, however many are worked on at once."""
    cu = reference.documents(4000, count, head=3, tail=5)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(1, 4000, generator=torch.Generator().manual_seed(count)).to(dtype)
        assert torch.equal(OPS.segment_scan(x, cu, op, 1), reference.segment_scan(x, cu, op, 1))
        wide = x.view(4000, 1).expand(-1, 3)
        assert torch.equal(OPS.segment_scan(wide, cu, op, 0), reference.segment_scan(wide, cu, op, 0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [1, 3])
def test_nan_and_infinity_stay_in_their_document(form: str, columns: int) -> None:
    cu = torch.tensor([2, 40, 80, 120])
    x = torch.randn(130, columns)
    x[0], x[125], x[50], x[60] = float("nan"), float("inf"), float("inf"), float("nan")
    x[70] = float("-inf")
    for op in SCANS:
        for reverse in (False, True):
            got = op_of("segment_scan", form)(x, cu, op, 0, reverse)
            assert got[2:40].isfinite().all()
            assert got[80:120].isfinite().all()
            torch.testing.assert_close(
                got, reference.segment_scan(x, cu, op, 0, reverse), equal_nan=True, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", SCANS)
def test_gradients(op: str, reverse: bool, dim: int) -> None:
    # All values differ: a tie has no derivative.
    x = ((torch.randperm(20).double() - 8.5) / 7).view((10, 2) if dim == 0 else (2, 10)).requires_grad_()
    assert gradcheck(lambda x: OPS.segment_scan(x, CU, op, dim, reverse), x)
    assert gradgradcheck(lambda x: OPS.segment_scan(x, CU, op, dim, reverse), x)


def gradients(x: Tensor, op: str, reverse: bool, weights: Tensor) -> tuple[Tensor, Tensor]:
    loop, ours = (x.clone().requires_grad_() for _ in range(2))
    for start, stop in ((1, 4), (4, 5), (5, 9)):
        document = loop[start:stop].flip(0) if reverse else loop[start:stop]
        scanned = reference.SCANS[op](document, 0)
        ((scanned.flip(0) if reverse else scanned) * weights[start:stop]).sum().backward()
    tail = torch.ones(10, dtype=torch.bool)
    tail[1:9] = False
    (loop[tail] * weights[tail]).sum().backward()
    (OPS.segment_scan(ours, CU, op, 0, reverse) * weights).sum().backward()
    return ours.grad, loop.grad


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", SCANS)
def test_gradients_are_those_of_the_loop_at_zeros_ties_and_infinities(op: str, reverse: bool) -> None:
    weights = torch.randn(10, dtype=torch.float64)
    x = torch.tensor([3.0, 2, 0, 2, 0, 0, 5, 0, 5, 1], dtype=torch.float64)
    close(*gradients(x, op, reverse, weights))
    if op in ("max", "min"):
        x[2], x[6] = float("nan"), float("inf")
        close(*gradients(x, op, reverse, weights))


def test_gradients_do_not_leak_between_documents() -> None:
    for op in SCANS:
        x = torch.randn(10, dtype=torch.float64)
        x[0] = x[4] = float("nan")
        x.requires_grad_()
        grad = torch.ones(10, dtype=torch.float64)
        grad[4] = grad[9] = float("inf")
        (got,) = torch.autograd.grad(OPS.segment_scan(x, CU, op, 0), x, grad)
        assert got[1:4].isfinite().all()
        assert got[5:9].isfinite().all()
        assert got[[0, 9]].tolist() == [1, float("inf")]


# === segment_recurrence ==========================================================================================


def recurrence(a: Tensor, b: Tensor, cu: Tensor, reverse: bool) -> Tensor:
    out = b.clone()
    for start, stop in pairwise(cu.tolist()):
        slots = list(range(start, stop))
        slots = slots[::-1] if reverse else slots
        for before, p in pairwise(slots):
            out[p] = torch.where(a[p] == 0, b[p], b[p] + a[p] * out[before])
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence(layout: str, form: str, reverse: bool) -> None:
    cu = torch.tensor(LAYOUTS[layout], dtype=torch.int32)
    for shape in ((30, 1), (30, 5), (30, 130)):
        a, b = row(torch.float64, shape), row(torch.float64, shape, seed=1)
        expected = recurrence(a, b, cu, reverse)
        close(op_of("segment_recurrence", form)(a, b, cu, 0, reverse), expected)
        close(op_of("segment_recurrence", form)(a.T, b.T, cu, -1, reverse), expected.T)


@pytest.mark.parametrize("form", FORMS)
def test_recurrence_forgets_at_zeros_and_documents(form: str) -> None:
    a = torch.tensor([1.0, 1, 0, 1, 1, 1])
    b = torch.tensor([1.0, float("inf"), 2, 3, float("nan"), 4])
    got = op_of("segment_recurrence", form)(a, b, torch.tensor([0, 4, 5, 6]), 0, False)
    assert got[[0, 2, 3, 5]].tolist() == [1, 2, 5, 4]


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence_gradients(reverse: bool) -> None:
    a, b = (torch.randn(10, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert gradcheck(lambda a, b: OPS.segment_recurrence(a, b, CU, 0, reverse), (a, b))
    assert gradgradcheck(lambda a, b: OPS.segment_recurrence(a, b, CU, 0, reverse), (a, b))


def test_no_host_sync() -> None:
    x = torch.randn(12, 2)
    with NoHostSync():
        for op in SCANS:
            op_of("segment_scan", "generic")(x, CU, op, 0)
        op_of("segment_recurrence", "generic")(x, x, CU, 0, True)
