"""cp_partition in one process: the layout by its definition, gradients, errors; real groups are in tests/dist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from packpass.ops import cp_partition, cp_unpartition, pack, unpack
from tests.dist import naive
from tests.ops import packing, reference
from tests.ops.test_packed_roll import DTYPES, NoHostSync

OPS = torch.ops.packpass
LAYOUTS = {
    "documents": ([3, 0, 1, 2], 0, 0),
    "tails": ([2, 1], 2, 3),
    "one": ([5], 0, 0),
    "none": ([], 1, 2),
    "nothing": ([0], 0, 0),
}


def row(layout: str, cp: int) -> tuple[Tensor, int]:
    lengths, head, tail = LAYOUTS[layout]
    cu = torch.tensor([head * cp, *(2 * cp * n for n in lengths)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return cu, int(cu[-1]) + tail * cp


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_definition(layout: str, cp: int) -> None:
    cu, total = row(layout, cp)
    for shape, dim in (((total,), 0), ((total, 3), 0), ((2, total, 3), 1), ((1, total), -1)):
        x = reference.sample(torch.float32, *shape)
        for boundaries in (cu, cu.long()):
            for rank in range(cp):
                shard = cp_partition(x, boundaries, (rank, cp), dim)
                assert torch.equal(shard, naive.shard(x, cu.tolist(), cp, rank, dim))
                assert shard.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    cu, total = row("documents", 2)
    x = reference.sample(dtype, total, 2)
    order = naive.shard(torch.arange(total), cu.tolist(), 2, 1)
    assert reference.same(cp_partition(x, cu, (1, 2)), x.view(torch.uint8)[order].view(dtype))


@pytest.mark.parametrize("layout", ["documents", "tails", "none"])
def test_gradients(layout: str) -> None:
    """Back in its slots, 0 in the others'; the sum over the ranks is the gradient of the whole row."""
    cu, total = row(layout, 2)
    x = torch.randn(2, total, dtype=torch.double, requires_grad=True)
    whole, weights = torch.zeros_like(x), torch.randn(2, total, dtype=torch.double)
    for rank in range(2):
        call = lambda x: cp_partition(x, cu, (rank, 2), 1)  # noqa: B023, E731
        assert torch.autograd.gradcheck(call, x)
        assert torch.autograd.gradgradcheck(call, x)
        mine = naive.shard(weights, cu.tolist(), 2, rank, 1)
        (grad,) = torch.autograd.grad(call(x), x, mine)
        assert torch.equal(naive.shard(grad, cu.tolist(), 2, rank, 1), mine)
        assert not naive.shard(grad, cu.tolist(), 2, 1 - rank, 1).any()
        whole += grad
    assert torch.equal(whole, weights)


def test_fields() -> None:
    cu, total = row("documents", 2)
    ids, hidden = torch.arange(total), torch.randn(total, 4)
    shards = cp_partition({"ids": ids, "hidden": hidden}, cu, (1, 2))
    assert torch.equal(shards["ids"], cp_partition(ids, cu, (1, 2)))
    assert torch.equal(shards["hidden"], cp_partition(hidden, cu, (1, 2)))
    assert isinstance(cp_partition((ids, hidden), cu, (0, 2)), tuple)
    assert isinstance(cp_partition([ids, hidden], cu, (0, 1)), list)
    assert len(cp_partition(torch.max(hidden, 1), cu, (0, 2))) == 2  # a tuple with names


def test_a_packed_batch() -> None:
    """Aligned by pack, cut, put together by hand, unpacked: as if nothing had happened."""
    keep = packing.mask_of("holes")
    x = torch.randn(3, 5, 2)
    packed, batch = pack(x, keep, multiple_of=8, total=36)
    cu = batch.cu_seqlens_padded
    slots = cp_partition(torch.arange(36), cu, (0, 4)), *(cp_partition(torch.arange(36), cu, (r, 4)) for r in (1, 2, 3))
    shards = [cp_partition(packed, cu, (rank, 4)) for rank in range(4)]
    whole = torch.empty_like(packed)
    whole[torch.cat(slots)] = torch.cat(shards)
    assert torch.equal(unpack(whole, batch), unpack(packed, batch))


def test_no_host_sync() -> None:
    from packpass.ops import _cp_layout

    cu, total = row("tails", 2)
    with NoHostSync():
        _cp_layout._kernel(cu, total // 2, 2, True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled(backend: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    def program(x: Tensor, ids: Tensor, cu: Tensor) -> list[Tensor]:
        return [t * 2 for t in cp_partition([x, ids], cu, (1, 2))]

    compiled = torch.compile(program, backend=counter, fullgraph=True, dynamic=True)
    for layout in ("documents", "tails", "one"):
        cu, total = row(layout, 2)
        x, ids = torch.randn(total, 4), torch.arange(total)
        results = []
        for function in (compiled, program):
            leaf = x.clone().requires_grad_()
            h, moved = function(leaf, ids, cu)
            (grad,) = torch.autograd.grad((h * torch.linspace(0, 1, h.numel()).view(h.shape)).sum(), leaf)
            results.append((h.detach(), moved, grad))
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("op", ["cp_partition", "cp_place"])
def test_opcheck(op: str) -> None:
    cu, total = row("tails", 2)
    rows = total if op == "cp_partition" else total // 2
    x = torch.randn(2, rows, requires_grad=True)
    torch.library.opcheck(getattr(OPS, op).default, (x, cu, 1, 1, 2))


X, CU = torch.zeros(12, 2), torch.tensor([0, 4, 12])
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "length": (
        lambda: cp_partition(X, torch.tensor([0, 6, 12]), (0, 2)), ValueError, "document 0 has 6 slots .* by 2 .* = 4"
    ),
    "row": (lambda: cp_partition(X[:11], CU, (0, 2)), ValueError, "a multiple of 2 slots .* dim 0, got 11 of shape"),
    "row of a field": (lambda: cp_partition([X, X[:11]], CU, (0, 2)), ValueError, r"x\[1\] must have a multiple of 2"),
    "kind of a field": (lambda: cp_partition([X, 3], CU, (0, 2)), TypeError, r"x\[1\] must be a Tensor, got int"),  # type: ignore[type-var]
    "no field": (lambda: cp_partition([], CU, (0, 2)), ValueError, "at least one tensor"),
    "one rank": (lambda: cp_partition(X, CU + 4, (0, 1)), ValueError, r"cu_seqlens\[2\] = 16 is beyond"),
    "kind of pair": (lambda: cp_partition(X, CU, [0, 2]), TypeError, r"a tuple \(rank, size\), got \[0, 2\]"),
    "number": (lambda: cp_partition(X, CU, 2), TypeError, r"a tuple \(rank, size\), got 2"),
    "boundary beyond": (lambda: cp_partition(X, CU + 4, (0, 2)), ValueError, r"cu_seqlens\[2\] = 16 is beyond"),
    "rank": (lambda: cp_partition(X, CU, (2, 2)), ValueError, r"0 <= rank < size, got \(2, 2\)"),
    "pair": (lambda: cp_partition(X, CU, (0, 1, 2)), ValueError, "got 3 entries"),
    "kind of rank": (lambda: cp_partition(X, CU, (0.0, 2)), TypeError, "rank must be an int"),
    "dim": (lambda: cp_partition(X, CU, (0, 2), 2), ValueError, r"dim must lie in \[-2, 1\]"),
    "kind": (lambda: cp_partition("x", CU, (0, 2)), TypeError, "x must be a Tensor or a list"),  # type: ignore[type-var]
    "no group": (lambda: cp_unpartition(X, CU, None), RuntimeError, "init_process_group"),
    "boundaries": (lambda: cp_partition(X, CU.float(), (0, 2)), TypeError, "cu_seqlens must be int32 or int64"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call()
