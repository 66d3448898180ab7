"""pack and unpack through torch.compile: equal to eager, one graph for all batches, one kernel for all fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import fresh_cache, run_and_get_code

import packpass
from packpass.ops import PackedBatch, pack, unpack
from tests.ops import packing, reference

OPS = torch.ops.packpass


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batches(*shapes: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Hidden states, ids and masks; padded left, right and anywhere."""
    generator = torch.Generator().manual_seed(1)
    for i, (rows, length) in enumerate(shapes):
        places, lengths = torch.arange(length), torch.randint(0, length + 1, (rows, 1), generator=generator)
        keep = torch.rand(rows, length, generator=generator) < 0.6
        keep = [places < lengths, places >= lengths, keep][i % 3]
        yield torch.randn(rows, length, 6, generator=generator), reference.sample(torch.int64, rows, length), keep


def with_capacity(x: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, PackedBatch]:
    total = x.shape[0] * x.shape[1] + 8
    (h, packed), batch = pack([x * 2, ids], mask, multiple_of=2, fill=[0, -100], total=total + x.shape[0])
    h = h.sin() + batch.position_ids.unsqueeze(1)
    return unpack(h, batch), packed, h, batch


def without(x: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, PackedBatch]:
    (h, packed), batch = pack((x * 2, ids), mask, fill=(0, -100))
    h = h.sin() + batch.position_ids.unsqueeze(1)
    return unpack(h, batch), packed, h, batch


def run(function: Callable[..., Any], x: Tensor, *rest: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    back, packed, h, batch = function(x, *rest)
    weights = torch.linspace(-1, 1, back.numel()).view(back.shape)
    (grad,) = torch.autograd.grad((back * weights).sum() + h.sum(), x)
    fields = [batch.cu_seqlens, batch.cu_seqlens_padded, batch.position_ids, batch.padding_mask, batch.slots]
    assert isinstance(batch, PackedBatch)
    return [back.detach(), packed, h.detach(), grad, *fields, batch.max_seqlen, batch.batch_size, batch.seq_len]


def same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        else:
            assert a == b


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_for_all_batches(backend: str) -> None:
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(with_capacity, backend=counter, fullgraph=True, dynamic=True)
    for batch in batches((4, 9), (3, 12), (7, 5), (2, 9), (4, 9)):
        same(run(compiled, *batch), run(with_capacity, *batch))
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_lengths_that_depend_on_data(backend: str) -> None:
    """With scalar capture the one sync is part of the graph, and T is a symbol of it."""
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(without, backend=counter, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for batch in batches((4, 9), (3, 12), (7, 5)):
            same(run(compiled, *batch), run(without, *batch))
        x, ids, _ = next(batches((4, 9)))
        same(run(compiled, x, ids, torch.zeros(4, 9).bool()), run(without, x, ids, torch.zeros(4, 9).bool()))
        one = torch.zeros(4, 9).bool()
        one[2, 3] = True
        same(run(compiled, x, ids, one), run(without, x, ids, one))
    assert counter.frame_count == 1


def test_our_backend_captures_the_sync() -> None:
    compiled = torch.compile(without, backend=packpass.backend, fullgraph=True)
    for batch in batches((4, 9), (4, 9)):
        same(run(compiled, *batch), run(without, *batch))


def test_stock_backends_break_the_graph_once() -> None:
    compiled = torch.compile(without, backend="eager")
    for batch in batches((4, 9), (4, 9)):
        same(run(compiled, *batch), run(without, *batch))


def test_batches_go_in_and_out() -> None:
    """Packed in one compiled function, used in another one."""

    def attend(packed: Tensor, batch: PackedBatch) -> Tensor:
        return unpack(packed + batch.position_ids.unsqueeze(1), batch)

    first = torch.compile(with_capacity, backend="aot_eager", fullgraph=True, dynamic=True)
    second = torch.compile(attend, backend=CompileCounterWithBackend("aot_eager"), fullgraph=True, dynamic=True)
    for batch in batches((4, 9), (5, 8), (3, 11)):
        _, _, h, plan = first(*batch)
        assert torch.equal(second(h, plan), attend(h, plan))


@pytest.mark.parametrize("four", [False, True])
def test_errors_of_compiled_code(four: bool) -> None:
    """They are values of the mask, so they come when it runs; and name the row, because this is the CPU."""
    x, keep = torch.zeros(3, 5), packing.mask_of("right")
    mask = packing.attention(keep, True) if four else keep
    compiled = torch.compile(lambda x, mask: pack(x, mask, total=9)[0], fullgraph=True)
    assert torch.equal(compiled(x, mask), x.flatten()[:9])
    full = torch.ones(3, 5).long()
    with pytest.raises(ValueError, match="row 1 with 5 real tokens needs 5 slots behind the 5"):
        compiled(x, packing.attention(full, True) if four else full)
    if four:
        with pytest.raises(ValueError, match="row 2 of the attention mask"):
            mask[2, 0, 3, 1] = False
            compiled(x, mask)


def calls(source: str) -> list[str]:
    """What one run of the generated code calls: kernels of Inductor and ops of ours."""
    body = source.split("def call(")[1]
    return re.findall(r"^\s+(?:buf\d+ = )?(cpp_fused\w*|torch\.ops\.packpass\.\w+)\S*\(", body, re.MULTILINE)


def test_one_kernel_for_all_fields() -> None:
    def program(ids: Tensor, labels: Tensor, weights: Tensor, mask: Tensor) -> Any:
        return pack([ids, labels, weights], mask, fill=[0, -100, 0.0], total=64)

    ids, labels, weights = (reference.sample(t, 4, 16) for t in (torch.int64, torch.int32, torch.float32))
    keep = torch.rand(4, 16) < 0.5
    with fresh_cache():
        (fields, _), (source,) = run_and_get_code(torch.compile(program, fullgraph=True), ids, labels, weights, keep)
    assert calls(source) == ["torch.ops.packpass.host_pack_plan", "torch.ops.packpass.host_pack"]
    assert ".item()" not in source
    for got, want in zip(fields, program(ids, labels, weights, keep)[0], strict=True):
        assert torch.equal(got, want)


# === CUDA, without one ==========================================================================================


def plan_and_fields(keep: Tensor, ids: Tensor, labels: Tensor, weights: Tensor) -> Any:
    plan = OPS.pack_plan.default(keep, 8, 4096)
    fields = OPS.pack.default([ids, labels, weights], plan[2], plan[3], plan[0], plan[1], [0, -100, 0.0])
    return *plan, *fields


IDS, PLAN = ((16, 512), torch.int64), (((4096,), torch.int64), ((16, 512), torch.int64), *[((17,), torch.int32)] * 2)


def test_triton_kernels() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: no code generation for CUDA here")
    from tests.ops.fake_cuda import extern_calls, kernels, launches, to_ptx, triton_source

    source = triton_source(
        lambda mask, *fields: plan_and_fields(mask != 0, *fields), IDS, IDS, IDS, ((16, 512), torch.float32)
    )
    assert extern_calls(source) == []
    assert ".item()" not in source
    # The last kernel searches, makes source, position_ids and padding_mask, and moves all three fields.
    last = kernels(source)[-1]
    assert len(re.findall(r"tl\.store\(", last.source)) == 6
    assert sum("bucketize_binary_search" in kernel.source for kernel in kernels(source)) == 1
    # The lengths and running counts of the rows, the boundaries, their check, the slots, and that one.
    assert launches(source) <= 5
    assert "atom." not in to_ptx(last)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, *plan: OPS.unpack.default([x], *plan, [0])[0], (((4096, 1024), torch.bfloat16), *PLAN)),
        (
            lambda ids, table, *plan: OPS.pack.default([torch.nn.functional.embedding(ids, table)], *plan, [0])[0] * 2,
            (IDS, ((1000, 1024), torch.bfloat16), *PLAN),
        ),
        (lambda a, b, *plan: OPS.unpack.default([a, b], *plan, [0, 1]), (*[((4096,), torch.float32)] * 2, *PLAN)),
    ],
)
def test_one_triton_kernel(function: Callable[..., Any], arguments: Any) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: no code generation for CUDA here")
    from tests.ops.fake_cuda import extern_calls, kernels, launches, to_ptx, triton_source

    source = triton_source(function, *arguments)
    assert launches(source) == 1
    assert extern_calls(source) == []
    assert "atom." not in to_ptx(kernels(source)[0])
