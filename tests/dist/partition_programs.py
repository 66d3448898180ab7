"""What the ranks run for test_cp_partition.py: each function returns, or raises, on every rank alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from packpass.ops import cp_partition, cp_unpartition, pack, unpack
from tests.dist import naive
from tests.dist.cp_programs import _message, check, documents, executed, group_of, whole_row
from tests.ops import packing, reference


def round_trips(cp: int, dtypes: list[torch.dtype]) -> None:
    """Cut without a collective, put together by one; and the gradients of both."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    for i, dtype in enumerate(dtypes):
        cu, total = documents(cp, i % 5, seed=i, head=i % 2, tail=i % 3)
        for shape, dim in (((total,), 0), ((total, 3), 0), ((2, total, 2), 1)):
            real = dtype.is_floating_point and dtype.itemsize > 1
            x = whole_row(shape, dtype, seed=i).requires_grad_(real)
            shard, count = executed(group, lambda: cp_partition(x, cu, group, dim))  # noqa: B023
            check(reference.same(shard.detach(), naive.shard(x.detach(), cu.tolist(), cp, rank, dim)), "cut", dtype)
            check(count == 0, "collectives", count)
            again, count = executed(group, lambda: cp_unpartition(shard, cu, group.group_name, dim))  # noqa: B023
            check(reference.same(again.detach(), x.detach()), "whole", dtype, shape)
            check(count == 1, "collectives", count)
            if not real:
                continue
            # Every rank's loss weighs the row differently: a shard gets the sum of all ranks' weights.
            weights = [reference.sample(dtype, *shape) + r for r in range(cp)]
            (grad,), count = executed(group, lambda: torch.autograd.grad(again, shard, weights[rank]))  # noqa: B023
            check(reference.same(grad, naive.shard(sum(weights), cu.tolist(), cp, rank, dim)), "grad", dtype)  # type: ignore[arg-type]
            check(count == 1, "collectives", count)


def twice(cp: int) -> None:
    """The backward of the backward: the row of all shards again."""
    group = group_of(cp)
    rank = dist.get_rank(group)
    cu, total = documents(cp, 3, seed=2, tail=1)
    shard = naive.shard(whole_row((total, 2), torch.float64, 0), cu.tolist(), cp, rank).requires_grad_()
    v = whole_row((total, 2), torch.float64, 5).requires_grad_()
    (grad,) = torch.autograd.grad(cp_unpartition(shard, cu, group), shard, v, create_graph=True)
    w = whole_row((total, 2), torch.float64, 9)
    (back,) = torch.autograd.grad(grad, v, naive.shard(w, cu.tolist(), cp, rank))
    check(torch.equal(back, w), "twice")


def layer(x: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    shard = cp_partition(x.sin(), cu, group)
    return shard, cp_unpartition(shard * 3, cu, group)


def compiled(cp: int, backend: str) -> dict[str, Any]:
    """One graph for all numbers of documents and lengths; collectives that ran forward and backward."""
    torch._dynamo.reset()
    group = group_of(cp)
    counter = CompileCounterWithBackend(backend)
    call = torch.compile(lambda x, cu: layer(x, cu, group), backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for i, number in enumerate((5, 1, 3)):
        cu, total = documents(cp, number, seed=number + i, tail=3)
        x = whole_row((total, 4), torch.float32, i)
        results = []
        for function in (call, lambda x, cu: layer(x, cu, group)):
            leaf = x.clone().requires_grad_()
            (shard, whole), forward = executed(group, lambda: function(leaf, cu))  # noqa: B023
            loss = (whole * torch.linspace(0, 1, whole.numel()).view(whole.shape)).sum() + shard.sum()
            (grad,), backward = executed(group, lambda: torch.autograd.grad(loss, leaf))  # noqa: B023
            results.append((shard.detach(), whole.detach(), grad, forward, backward))
        for ours, theirs in zip(results[0][:3], results[1][:3], strict=True):
            torch.testing.assert_close(ours, theirs)
        counts.append(results[0][3:])
    return {"graphs": counter.frame_count, "counts": counts}


def train(cp: int) -> None:
    """A padded batch packed and cut, one layer per token on each rank's shard, and back: as on one rank."""
    group = group_of(cp)
    keep = packing.mask_of("both sides")
    torch.manual_seed(0)
    x, weight = torch.randn(*keep.shape, 4), torch.randn(4, 4).requires_grad_()
    packed, batch = pack(x, keep, multiple_of=2 * cp)
    shard = cp_partition(packed, batch.cu_seqlens_padded, group)
    rows = cp_unpartition(torch.tanh(shard @ weight), batch.cu_seqlens_padded, group)
    out = unpack(rows, batch)
    alone = weight.detach().clone().requires_grad_()
    expected = torch.where((keep != 0).unsqueeze(2), torch.tanh(x @ alone), 0.0)
    torch.testing.assert_close(out, expected)
    # Every rank computes the same loss of the whole row, so each shard's gradient is cp times too large.
    (grad,) = torch.autograd.grad(out.square().sum() / cp, weight)
    dist.all_reduce(grad, group=group)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.square().sum(), alone)[0])


def faults() -> dict[str, str]:
    group = group_of(2)
    x = torch.ones(6, 4)
    return {
        "odd length": _message(lambda: cp_unpartition(x, torch.tensor([0, 4, 10]), group)),
        "odd length, cut": _message(lambda: cp_partition(x, torch.tensor([0, 6]), group)),
        "name": _message(lambda: cp_unpartition(x, torch.tensor([0, 12]), "nobody")),
        "pair": _message(lambda: cp_unpartition(x, torch.tensor([0, 12]), (0, 2))),
        "dim": _message(lambda: cp_unpartition(x, torch.tensor([0, 12]), group, 3)),
    }
