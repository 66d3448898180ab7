"""The segment ops through torch.compile on the CPU: opcheck, one graph for all sizes, what generated code calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache, run_and_get_code

from packpass.ops._segment_spread import WIDE
from tests.ops import reference
from tests.ops.segments import OPS, close

CU = torch.tensor([1, 4, 4, 5, 9])
POSITIONS = torch.tensor([0, 0, -1, 3, 99])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


OPCHECKS = {
    "segment_reduce": (leaf(12), CU, "sum", 0),
    "segment_reduce product": (leaf(3, 12), CU.int(), "prod", -1),
    "segment_reduce maximum": (leaf(12, 3), CU, "amax", 0),
    "segment_reduce ints": (torch.arange(12), CU, "amin", 0),
    "segment_argmax": (leaf(2, 12), CU, False, 1),
    "segment_take": (leaf(12, 3), CU, POSITIONS, 0),
    "segment_take columns": (leaf(3, 12), CU, POSITIONS.unsqueeze(1).expand(-1, 3), 1),
    "segment_put": (leaf(5, 3), CU, POSITIONS, 1, 12),
    "segment_spread": (leaf(5, 2), CU, 12),
    "segment_spread wide": (leaf(5, WIDE), CU.int(), 12),
    "host_segment_spread": (torch.randn(5), CU, 12),
    "segment_scan": (leaf(12), CU, "sum", 0, True),
    "segment_scan maximum": (leaf(12, 2), CU, "max", 0),
    "segment_scan logarithms": (leaf(2, 12).T, CU, "logsumexp", 0),
    "segment_recurrence": (leaf(12), leaf(12), CU, 0, False),
    "segment_softmax": (leaf(3, 12), CU, 1, True),
    "segment_softmax_backward": (leaf(12), leaf(12), CU, 0, False),
    "segment_unpad": (leaf(4, 4, 2), CU, 0, 12, True),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck(case: str) -> None:
    torch.library.opcheck(getattr(OPS, case.split()[0]).default, OPCHECKS[case])


def test_opcheck_of_a_length_that_depends_on_data() -> None:
    """Not with compiled gradients: a test that calls the op twice cannot know that both lengths are the same."""
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(OPS.segment_pad.default, (leaf(12, 2), CU, 0, 1.5), test_utils=utilities)


def everything(x: Tensor, h: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """Every op but segment_pad, on a row ``[1, T]`` and hidden states ``[T, 20]``."""
    total = x.shape[1]
    largest = OPS.segment_argmax(x, cu, True, 1)
    means = OPS.segment_reduce(x, cu, "sum", 1) / (1 + OPS.segment_reduce(x, cu, "amax", 1).nan_to_num(0, 0, 0).abs())
    y = x - OPS.segment_spread(means, cu, total).T + OPS.segment_softmax(x, cu, 1, False)
    for op in ("sum", "prod", "max", "min", "logsumexp"):
        y = y / 2 + OPS.segment_scan(x, cu, op, 1, op == "min")
    smallest = OPS.segment_reduce(h, cu, "amin", 0).nan_to_num(0, 0, 0)
    z = (
        OPS.segment_softmax(h, cu, 0, True)
        + OPS.segment_spread(smallest, cu, total)
        + OPS.segment_scan(h, cu, "sum", 0)
    )
    taken = OPS.segment_take(x, cu, largest, 1).sum() + OPS.segment_take(h, cu, largest[:, 0], 0).sum()
    return y, z, taken + OPS.segment_reduce(h / 4, cu, "prod", 0).sum()


def padded(x: Tensor, h: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    return OPS.segment_pad(x, cu, 1, 0.5).sum(1), OPS.segment_pad(h, cu, 0, 0, True).sum(1)


def results(call, x: Tensor, h: Tensor, cu: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
    """Values and gradients."""
    leaves = [x.clone().requires_grad_(), h.clone().requires_grad_()]
    out = call(*leaves, cu)
    weighted = [(v * torch.linspace(0, 1, v.numel(), device=v.device).view(v.shape)).sum() for v in out]
    return *(v.detach() for v in out), *torch.autograd.grad(sum(weighted), leaves)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_for_every_number_and_length(backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(everything, backend=counter, fullgraph=True, dynamic=True)
    for documents, total in ((7, 40), (1, 50), (3, 17), (60, 300), (1, 17)):
        generator = torch.Generator().manual_seed(total)
        x, h = torch.randn(1, total, generator=generator), torch.randn(total, 20, generator=generator)
        cu = reference.documents(total, documents, head=1, tail=2)
        for got, expected in zip(results(compiled, x, h, cu), results(everything, x, h, cu), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_padding_has_a_length_that_depends_on_data(backend: str) -> None:
    """[N, L]: a single document is a graph of its own, as it is for every tensor of N entries."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(padded, backend=counter, fullgraph=True, dynamic=True)
    for documents, total in ((7, 40), (1, 50), (3, 17), (60, 300)):
        x, h = torch.randn(1, total), torch.randn(total, 3)
        cu = reference.documents(total, documents, head=1, tail=2)
        for got, expected in zip(results(compiled, x, h, cu), results(padded, x, h, cu), strict=True):
            close(got, expected)
    assert counter.frame_count <= 2


def packed_calls(call, *arguments: Tensor) -> list[str]:  # type: ignore[no-untyped-def]
    with fresh_cache():
        result, (source, *_) = run_and_get_code(torch.compile(call, fullgraph=True), *arguments)
    close(result, call(*arguments))
    return re.findall(r"= torch\.ops\.packpass\.(\w+)\.default\(", source.split("def call(")[1])


def test_wide_rows_are_spread_inside_the_kernels_that_use_them() -> None:
    """In training two spreads share the document of each slot (torch merges equal calls only there); single values are
    spread by the eager kernel."""

    def call(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        return (x - OPS.segment_spread(mean, CU, 12)) * OPS.segment_spread(scale, CU, 12)

    assert packed_calls(call, *(leaf(n, WIDE) for n in (12, 5, 5))) == ["boundaries_passed"]
    narrow = packed_calls(call, *(torch.randn(n, 2) for n in (12, 5, 5)))
    assert narrow == ["host_segment_spread", "host_segment_spread"]


def test_taking_is_generated_code() -> None:
    assert packed_calls(lambda x: OPS.segment_take(x, CU, POSITIONS, 0) * 2, torch.randn(12, 3)) == []
