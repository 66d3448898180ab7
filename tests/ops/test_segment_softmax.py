"""segment_softmax and its backward against a loop over documents."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.ops import reference
from tests.ops.segments import FLOATS, FORMS, OPS, SHAPES, close, op_of, row, transposed
from tests.ops.test_packed_roll import LAYOUTS, NoHostSync

CU = torch.tensor([1, 4, 4, 5, 9])


def expected_grad(x: Tensor, grad: Tensor, cu: Tensor, dim: int, log: bool) -> tuple[Tensor, Tensor]:
    """(softmax, gradient) by autograd through the loop, in float32 or better."""
    wide = (x.float() if x.dtype.itemsize == 2 else x).clone().requires_grad_()
    rows = wide.movedim(dim, 0)
    cuts = cu.tolist()
    parts = [rows[: cuts[0]]]
    for start, stop in pairwise(cuts):
        parts.append((torch.log_softmax if log else torch.softmax)(rows[start:stop], 0))
    out = torch.cat([*parts, rows[cuts[-1] :]]).movedim(0, dim)
    (slope,) = torch.autograd.grad(out, wide, grad.to(wide.dtype))
    return out.detach().to(x.dtype), slope.to(x.dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log", [False, True])
def test_layouts(layout: str, form: str, log: bool) -> None:
    cu = torch.tensor(LAYOUTS[layout], dtype=torch.int32)
    for shape, dim in SHAPES:
        x, grad = row(torch.float32, shape), row(torch.float32, shape, seed=1)
        out, slope = expected_grad(x, grad, cu, dim, log)
        got = op_of("segment_softmax", form)(x, cu, dim, log)
        assert got.is_contiguous()
        close(got, out)
        close(got, reference.segment_softmax(x, cu, dim, log))
        close(op_of("segment_softmax_backward", form)(grad, got, cu, dim, log), slope)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log", [False, True])
def test_dtypes(dtype: torch.dtype, form: str, log: bool) -> None:
    cu = torch.tensor(LAYOUTS["tails at both ends"])
    for shape, dim in SHAPES[1:4]:
        x, grad = row(dtype, shape), row(dtype, shape, seed=1)
        out, slope = expected_grad(x, grad, cu, dim, log)
        close(op_of("segment_softmax", form)(transposed(x), cu, dim, log), out)
        got = op_of("segment_softmax_backward", form)(transposed(grad), transposed(out), cu, dim, log)
        torch.testing.assert_close(got, slope, rtol=2e-2, atol=2e-2 if dtype.itemsize == 2 else 1e-5)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1, 30, 1e4])
def test_values_of_every_size(columns: int, log: bool, scale: float) -> None:
    """The C++ exponential has its own polynomial."""
    cu = reference.documents(5000, 40, head=3, tail=5)
    x = torch.randn(5000, columns, generator=torch.Generator().manual_seed(0)) * scale
    got = OPS.segment_softmax(x, cu, 0, log)
    exact = reference.segment_softmax(x.double(), cu, 0, log)
    torch.testing.assert_close(got.double(), exact, rtol=4e-6, atol=1e-30 if not log else 2e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("log", [False, True])
def test_nan_and_infinity_stay_in_their_document(form: str, columns: int, log: bool) -> None:
    cu = torch.tensor([2, 40, 80, 120, 125])
    x = torch.randn(130, columns)
    x[0], x[50], x[60], x[129] = float("nan"), float("inf"), float("-inf"), float("inf")
    x[100], x[120:125] = float("-inf"), float("-inf")  # one masked value; a document of nothing else
    got = op_of("segment_softmax", form)(x, cu, 0, log)
    assert not got[2:40].isnan().any()
    assert not got[80:120].isnan().any()
    close(got, reference.segment_softmax(x, cu, 0, log))
    grad = torch.ones(130, columns)
    grad[55] = float("nan")
    slope = op_of("segment_softmax_backward", form)(grad, got, cu, 0, log)
    assert slope[2:40].isfinite().all()
    assert slope[80:120].isfinite().all()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("log", [False, True])
def test_gradients(dim: int, log: bool) -> None:
    x = torch.randn((10, 3) if dim == 0 else (3, 10), dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: OPS.segment_softmax(x, CU, dim, log), x)
    assert gradgradcheck(lambda x: OPS.segment_softmax(x, CU, dim, log), x)


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="floating point"):
        OPS.segment_softmax(torch.arange(10), CU, 0, False)


def test_no_host_sync() -> None:
    x = torch.randn(12, 2)
    with NoHostSync():
        out = op_of("segment_softmax", "generic")(x, CU, 0, False)
        op_of("segment_softmax_backward", "generic")(x, out, CU, 0, False)
