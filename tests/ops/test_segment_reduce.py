"""segment_reduce and segment_argmax against a loop over documents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from packpass.ops._monoids import REDUCTIONS
from tests.ops import reference
from tests.ops.segments import FLOATS, FORMS, INTS, OPS, SHAPES, close, op_of, row, transposed
from tests.ops.test_packed_roll import LAYOUTS, NoHostSync

CU = torch.tensor([1, 4, 4, 5, 9])


def expected(x: Tensor, cu: Tensor, reduce: str, dim: int) -> Tensor:
    if x.dtype is torch.bool:
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    return reference.segment_reduce(x, cu, reduce, dim, REDUCTIONS[reduce].identity(x.dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduce_layouts(layout: str, form: str, reduce: str) -> None:
    for dtype in (torch.int32, torch.int64):
        cu = torch.tensor(LAYOUTS[layout], dtype=dtype)
        for shape, dim in SHAPES:
            x = row(torch.float32, shape)
            got = op_of("segment_reduce", form)(x, cu, reduce, dim)
            assert got.shape[0] == len(cu)
            assert got.is_contiguous()
            close(got[:-1], expected(x, cu, reduce, dim))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, torch.bool], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reduce_dtypes(dtype: torch.dtype, form: str, reduce: str) -> None:
    cu = torch.tensor(LAYOUTS["tails at both ends"])
    for shape, dim in SHAPES[1:4]:
        x = row(dtype, shape)
        for given in (x, transposed(x)):
            got = op_of("segment_reduce", form)(given, cu, reduce, dim)
            assert got.dtype is dtype
            close(got[:-1], expected(x, cu, reduce, dim))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("largest", [True, False])
def test_argmax(layout: str, form: str, largest: bool) -> None:
    cu = torch.tensor(LAYOUTS[layout], dtype=torch.int32)
    for shape, dim in SHAPES:
        for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.float16, torch.bool):
            x = row(dtype, shape)
            got = op_of("segment_argmax", form)(transposed(x), cu, largest, dim)
            assert torch.equal(got[:-1], reference.segment_argmax(x, cu, largest, dim))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [1, 3])
def test_nan_and_infinity_stay_in_their_document(form: str, columns: int) -> None:
    cu = torch.tensor([2, 40, 80, 120])
    x = torch.randn(130, columns, generator=torch.Generator().manual_seed(0))
    x[0], x[125] = float("nan"), float("inf")  # the tails
    x[50:53] = torch.tensor([float("inf"), float("nan"), float("-inf")]).unsqueeze(1)
    for reduce in REDUCTIONS:
        got = op_of("segment_reduce", form)(x, cu, reduce, 0)[:-1]
        assert got[1].isnan().all()
        assert got[[0, 2]].isfinite().all()
        close(got, expected(x, cu, reduce, 0))
    for largest in (True, False):
        got = op_of("segment_argmax", form)(x, cu, largest, 0)[:-1]
        assert (got[1] == 11).all()
        assert torch.equal(got, reference.segment_argmax(x, cu, largest, 0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("largest", [True, False])
def test_argmax_where_every_value_is_infinite(form: str, largest: bool) -> None:
    worst = float("-inf") if largest else float("inf")
    x = torch.full((70, 2), worst)
    x[40, 1] = float("nan")
    for rows in (x, x[:, :1]):
        got = op_of("segment_argmax", form)(rows, torch.tensor([0, 3, 70]), largest, 0)
        assert got[:-1].tolist() == [[0, 0][: rows.shape[1]], [0, 37][: rows.shape[1]]]


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_sums_are_wide(form: str) -> None:
    """4096 ones: bfloat16 would stop at 256."""
    for dtype in (torch.bfloat16, torch.float16):
        for shape in ((4096,), (4096, 2)):
            got = op_of("segment_reduce", form)(torch.ones(shape, dtype=dtype), torch.tensor([0, 4096]), "sum", 0)
            assert (got[0] == 4096).all()


def test_long_rows_are_summed_accurately() -> None:
    x = torch.rand(1, 200_000, generator=torch.Generator().manual_seed(0))
    got = OPS.segment_reduce(x, torch.tensor([0, 200_000]), "sum", 1)
    assert abs(got[0].item() - x.double().sum().item()) < 1e-2


def test_complex_numbers_sum() -> None:
    x = torch.randn(9, 2, dtype=torch.complex64)
    close(torch.view_as_real(OPS.segment_reduce(x, CU, "sum", 0)[3]), torch.view_as_real(x[5:9].sum(0)))
    with pytest.raises(TypeError, match="complex"):
        OPS.segment_reduce(x.to("meta"), CU.to("meta"), "amax", 0)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients(reduce: str, dim: int) -> None:
    # All values differ: a tie has no derivative.
    x = (torch.randperm(30).double() / 10 + 0.1).view((10, 3) if dim == 0 else (3, 10)).requires_grad_()

    def call(x: Tensor) -> Tensor:
        return OPS.segment_reduce(x, CU, reduce, dim).nan_to_num(0, 0, 0)

    assert gradcheck(call, x)
    assert gradgradcheck(call, x)


def test_gradient_of_products_with_zeros() -> None:
    x = torch.randn(10, 4, dtype=torch.float64)
    x[1, 0] = x[5:7, 1] = x[4, 2] = 0
    x[0] = float("nan")  # the tail
    loop, ours = (x.clone().requires_grad_() for _ in range(2))
    sum((loop[s:e].prod(0) * (s + 1)).sum() for s, e in ((1, 4), (4, 4), (4, 5), (5, 9))).backward()
    (OPS.segment_reduce(ours, CU, "prod", 0)[:-1] * (CU[:-1] + 1).unsqueeze(1)).sum().backward()
    close(ours.grad, loop.grad)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_gradient_is_shared_between_ties(reduce: str) -> None:
    x = torch.tensor([9.0, 2, 2, 1, 1, 5, float("nan"), 3, float("nan"), 0])
    loop, ours = (x.clone().requires_grad_() for _ in range(2))
    weights = (1.0, 2.0, 3.0, 4.0)
    for weight, (start, stop) in zip(weights, ((1, 5), (5, 6), (6, 9), (9, 10)), strict=True):
        (getattr(loop[start:stop], reduce)(0) * weight).backward()
    cu = torch.tensor([1, 5, 6, 9, 10])
    (OPS.segment_reduce(ours, cu, reduce, 0)[:-1] * torch.tensor(weights)).sum().backward()
    torch.testing.assert_close(ours.grad, loop.grad, equal_nan=True)


def test_no_host_sync() -> None:
    x = torch.randn(12, 2)
    with NoHostSync():
        for reduce in REDUCTIONS:
            op_of("segment_reduce", "generic")(x, CU, reduce, 0)
            op_of("segment_reduce", "generic")(x.int(), CU, reduce, 0)
        op_of("segment_argmax", "generic")(x, CU, True, 0)
