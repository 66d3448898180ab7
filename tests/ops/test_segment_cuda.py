"""The segment ops on a real GPU: the values of the CPU, without a host sync."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops import reference
from tests.ops.segments import OPS, close, row
from tests.ops.test_segment_compiled import everything, results
from tests.ops.test_segment_native import calls

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def on_cuda(arguments: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(value.cuda() if isinstance(value, Tensor) else value for value in arguments)


@pytest.mark.parametrize(("shape", "dim"), [((300,), 0), ((1, 300), 1), ((300, 40), 0), ((2, 300, 3), 1)])
def test_values_without_a_host_sync(shape: tuple[int, ...], dim: int) -> None:
    cu = reference.documents(300, 9, head=5, tail=6)
    for case, arguments in calls(row(torch.float32, shape), cu, dim).items():
        op = getattr(OPS, case.split()[0]).default
        given = on_cuda(arguments)
        torch.cuda.set_sync_debug_mode("default" if case == "segment_pad" else "error")
        try:
            got = op(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.testing.assert_close(got.cpu(), op(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_reductions_of_integers(dtype: torch.dtype) -> None:
    x, cu = row(dtype, (300, 3)), reference.documents(300, 9, head=5, tail=6)
    for reduce in ("sum", "prod", "amax", "amin"):
        got = OPS.segment_reduce(x.cuda(), cu.cuda(), reduce, 0)
        close(got.cpu(), OPS.segment_reduce(x, cu, reduce, 0))


def test_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, dynamic=True)
    for documents, total in ((7, 40), (1, 50), (60, 300)):
        x, h = torch.randn(1, total), torch.randn(total, 20)
        cu = reference.documents(total, documents, head=1, tail=2)
        expected = results(everything, x, h, cu)
        for got, want in zip(results(compiled, x.cuda(), h.cuda(), cu.cuda()), expected, strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=1e-3)
