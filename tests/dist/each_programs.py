"""Collectives of what documents have one of each: sums over the ranks, first slots and pooled values of all of them.

Each is ``f(x, cu, group)`` with this rank's shards ``[T / cp, F]``, one piece of every document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable
from torch import Tensor

from tests.dist.a2a_moves import size_of

# === Rewritten ==================================================================================================


def shards(x: Tensor, cu: Tensor, group: Any) -> Iterator[Tensor]:
    bounds = (cu // size_of(group)).tolist()
    for s, e in pairwise(bounds):
        yield x[s:e]


def sums_reduced(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = []
    for part in shards(x.detach(), cu, group):
        total = part.sum(0)
        dist.all_reduce(total, group=group)
        out.append(total)
    return torch.stack(out)


def softmax_over_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, x = size_of(group), x.detach()
    out = torch.zeros_like(x)
    for s, e in zip((cu[:-1] // cp).tolist(), (cu[1:] // cp).tolist()):  # noqa: B905
        top = x[s:e].amax(0)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        weights = (x[s:e] - top).exp()
        total = weights.sum(0)
        dist.all_reduce(total, group=group)
        out[s:e] = weights / total
    return out


def counted_for_a_loss(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The number of tokens of a document over all ranks; gradients go through what is divided by it alone."""
    loss, mask = x.new_zeros(()), x[:, 0] > 0
    bounds = (cu // size_of(group)).tolist()
    for s, e in pairwise(bounds):
        count = mask[s:e].sum()
        dist.all_reduce(count, group=group)
        loss = loss + (x[s:e, 1] * mask[s:e]).sum() / count.clamp(min=1)
    return loss[None]


def functional_sum(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([p * funcol.all_reduce(p.sum(0), "sum", group) for p in shards(x, cu, group)])


def differentiable_sum(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([p - differentiable.all_reduce(p.sum(0), group=group) for p in shards(x, cu, group)])


class SummedOverRanks(torch.autograd.Function):
    """The sum over the ranks, which hands gradients on as they come: every rank has the same ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class GradientOverRanks(torch.autograd.Function):
    """Hands a value on, and adds up its gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_of_a_function(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([p - SummedOverRanks.apply(p.sum(0), group) for p in shards(x, cu, group)])


def sum_with_gradients_over_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = []
    for p in shards(x, cu, group):
        out.append(p * SummedOverRanks.apply(GradientOverRanks.apply(p.sum(0), group), group))
    return torch.cat(out)


def handles_of_sums(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out, handles = [], []
    for part in shards(x.detach(), cu, group):
        total = part.sum(0)
        handles.append(dist.all_reduce(total, group=group, async_op=True))
        out.append(total)
    for handle in handles:
        handle.wait()
    return torch.stack(out)


def first_slot_of_the_next_rank(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Only some ranks look at what they gather."""
    cp, rank, out = size_of(group), dist.get_rank(group), []
    for part in shards(x.detach(), cu, group):
        firsts = [torch.empty_like(part[0]) for _ in range(cp)]
        dist.all_gather(firsts, part[0].contiguous(), group=group)
        end = firsts[rank + 1] if rank < cp - 1 else torch.zeros_like(part[0])
        out.append(torch.cat([part[1:], end[None]]))
    return torch.cat(out)


def largest_of_all_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = []
    for part in shards(x.detach(), cu, group):
        mine = part.amax(0, keepdim=True)
        whole = mine.new_empty(size_of(group), mine.shape[1])
        dist.all_gather_into_tensor(whole, mine, group=group)
        out.append(part - whole.amax(0))
    return torch.cat(out)


def gathered_with_gradient(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.stack([torch.stack(differentiable.all_gather(p.sum(0), group)).amax(0) for p in shards(x, cu, group)])


def columns_scattered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = []
    for part in shards(x.detach(), cu, group):
        total = part.sum(0)
        mine = total.new_empty(total.shape[0] // size_of(group))
        dist.reduce_scatter_tensor(mine, total, group=group)
        out.append(mine)
    return torch.stack(out)


def of_long_documents(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out, x = torch.zeros_like(x), x.detach()
    bounds = (cu // size_of(group)).tolist()
    for s, e in pairwise(bounds):
        if e - s < 2:
            continue
        total = x[s:e].sum(0)
        dist.all_reduce(total, group=group)
        out[s:e] = x[s:e] * total
    return out


# === Left =======================================================================================================


def summed_in_place_with_gradient(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Eager's gradient is that of no sum at all."""
    out = []
    for part in shards(x, cu, group):
        total = part.sum(0) * 1
        dist.all_reduce(total, group=group)
        out.append(part * total)
    return torch.cat(out)


def summed_by_the_one_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out, before = [], x.new_zeros(x.shape[1])
    for part in shards(x.detach(), cu, group):
        total = part.sum(0) + before
        dist.all_reduce(total, group=group)
        before = total.tanh()
        out.append(total)
    return torch.stack(out)


def reduced_in_two_ways(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Which collective a document takes part in depends on its length."""
    out = []
    for part in shards(x.detach(), cu, group):
        total = part.sum(0)
        if part.shape[0] > 2:
            dist.all_reduce(total, group=group)
        else:
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
        out.append(total)
    return torch.stack(out)


def one_tensor_of_all(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A running sum, which every document sends as it is then."""
    total, seen = torch.zeros(x.shape[1]), []
    for part in shards(x.detach(), cu, group):
        total += part.sum(0)
        mine = total.clone()
        dist.all_reduce(mine, group=group)
        seen.append(mine)
        total *= 0.5
    return torch.stack(seen)


@dataclasses.dataclass(frozen=True)
class Each:
    program: Callable[[Tensor, Tensor, Any], Tensor]
    exchanges: int = 1
    differentiable: bool = False


REWRITTEN = {
    each.program.__name__: each
    for each in (
        Each(sums_reduced),
        Each(softmax_over_ranks, exchanges=2),
        Each(counted_for_a_loss),
        Each(functional_sum, differentiable=True),
        Each(differentiable_sum, differentiable=True),
        Each(sum_of_a_function),
        Each(sum_with_gradients_over_ranks, differentiable=True),
        Each(handles_of_sums),
        Each(first_slot_of_the_next_rank),
        Each(largest_of_all_ranks),
        Each(gathered_with_gradient, differentiable=True),
        Each(columns_scattered),
        Each(of_long_documents),
    )
}
LEFT = {
    program.__name__: program
    for program in (
        summed_in_place_with_gradient, summed_by_the_one_before, reduced_in_two_ways, one_tensor_of_all,
    )
}  # fmt: skip
