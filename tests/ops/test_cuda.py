"""The ops on a real GPU: values, gradients, number of kernels, the asynchronous check, no host sync, bandwidth."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from packpass.ops import packed_roll, position_ids, segment_ids
from tests.ops import reference

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

OPS = torch.ops.packpass


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shift", [-1, 3, -500])
@pytest.mark.parametrize("fill", [0, 1, None])
def test_packed_roll(compiled: bool, dtype: torch.dtype, shift: int, fill: int | None) -> None:
    torch._dynamo.reset()
    x, cu = reference.sample(dtype, 300, 4), reference.documents(300, 9, head=5, tail=6)

    def call(x: Tensor, cu: Tensor) -> Tensor:
        return packed_roll(x, cu, shift, 0, fill)

    result = (torch.compile(call, fullgraph=True) if compiled else call)(x.cuda(), cu.cuda())
    assert torch.equal(result.cpu(), reference.roll(x, cu, shift, 0, fill))


@pytest.mark.parametrize("compiled", [False, True])
def test_padded_ids_and_flip(compiled: bool) -> None:
    torch._dynamo.reset()
    cu, padded = reference.padded_documents(300, 9)
    x = reference.sample(torch.float32, 300)

    def call(x: Tensor, cu: Tensor, padded: Tensor) -> tuple[Tensor, ...]:
        return (
            packed_roll(x, cu, -1, 0, 7, padded),
            position_ids(padded, 300),
            segment_ids(padded, 300),
            OPS.window_mask(padded, 300, 1, 0),
            OPS.packed_flip(x, padded, 0),
        )

    results = (torch.compile(call, fullgraph=True) if compiled else call)(x.cuda(), cu.cuda(), padded.cuda())
    expected = (
        reference.roll(x, cu, -1, 0, 7, padded),
        reference.position_ids(padded, 300),
        reference.segment_ids(padded, 300),
        reference.window_mask(padded, 300, 1, 0),
        reference.flip(x, padded, 0),
    )
    for result, value in zip(results, expected, strict=True):
        assert torch.equal(result.cpu(), value)


@pytest.mark.parametrize("shape", [(4000,), (300, 64)], ids=["row", "hidden"])
def test_gradient(shape: tuple[int, ...]) -> None:
    cu = reference.documents(shape[0], 9, head=5, tail=6)
    x = torch.randn(shape, device="cuda", requires_grad=True)
    weights = torch.randn(shape)
    compiled = torch.compile(lambda x, cu: packed_roll(x * 2, cu, -1, 0), fullgraph=True)
    compiled(x, cu.cuda()).backward(weights.cuda())
    assert torch.allclose(x.grad.cpu(), 2 * reference.roll(weights, cu, 1, 0))


def test_kernels() -> None:
    """Forward: the check and the roll. Backward: the roll."""
    x = torch.randn(1, 16384, device="cuda", requires_grad=True)
    cu = reference.documents(16384, 64).cuda()
    compiled = torch.compile(lambda x, cu: packed_roll(x, cu) * 2, fullgraph=True)

    def step() -> None:
        compiled(x, cu).sum().backward()

    _, sources = run_and_get_code(step)
    assert [source.split("def call(")[1].count(".run(") for source in sources] == [2, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_no_host_sync(compiled: bool) -> None:
    x = torch.randn(1, 4000, device="cuda", requires_grad=True)
    cu = reference.documents(4000, 9).cuda()

    def step(x: Tensor, cu: Tensor) -> Tensor:
        return packed_roll(x, cu) + packed_roll(x, cu, 2, fill=None) + position_ids(cu, 4000)

    call = torch.compile(step, fullgraph=True) if compiled else step
    call(x, cu).sum().backward()  # compiles, and may synchronise while it does
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call(x, cu).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_boundaries_raise_asynchronously(compiled: bool) -> None:
    """In another process: a failed device assertion ends the CUDA context."""
    program = f"""
import torch
from packpass.ops import packed_roll
call = torch.compile(packed_roll, fullgraph=True) if {compiled} else packed_roll
x = torch.zeros(10, device="cuda")
call(x, torch.tensor([0, 4, 10], device="cuda"))
torch.cuda.synchronize()
print("launching")
call(x, torch.tensor([0, 9, 5], device="cuda"))
print("launched")
torch.cuda.synchronize()
print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout.split() == ["launching", "launched"]
    assert "packpass: cu_seqlens must be nondecreasing" in done.stderr


@pytest.mark.parametrize(
    ("shape", "dtype", "documents", "share"),
    [
        ((1, 1 << 24), torch.int64, 16, 0.85),
        ((1, 1 << 24), torch.int64, 512, 0.7),
        ((16384, 4096), torch.bfloat16, 512, 0.85),
    ],
)
def test_bandwidth(shape: tuple[int, ...], dtype: torch.dtype, documents: int, share: float) -> None:
    """A row of token ids searches its document per slot, which takes the longer the more documents there are."""
    from torch._inductor.runtime.benchmarking import benchmarker

    dim = 1 if shape[0] == 1 else 0
    x = torch.zeros(shape, dtype=dtype, device="cuda")
    cu = reference.documents(shape[dim], documents).cuda()
    compiled = torch.compile(lambda x, cu: OPS.packed_roll.default(x, cu, -1, dim, 0), fullgraph=True)
    compiled(x, cu)
    copy = benchmarker.benchmark_gpu(lambda: x.clone())
    roll = benchmarker.benchmark_gpu(lambda: compiled(x, cu))
    assert copy / roll >= share
