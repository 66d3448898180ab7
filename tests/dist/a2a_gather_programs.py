"""Documents that every rank gathers whole, one all-gather for each. Each is ``f(x, cu, group)`` as in
`a2a_hard_programs`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from tests.dist.a2a_moves import gathered, size_of, unzigzag
from tests.dist.p2p_halos import function_of


def shards(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    return [x[s // size_of(group) : e // size_of(group)] for s, e in pairwise(cu.tolist())]


def whole(part: Tensor, group: Any) -> Tensor:
    """What the ranks hold, one behind the other; no gradient goes back."""
    out = part.new_empty(part.shape[0] * size_of(group), *part.shape[1:])
    dist.all_gather_into_tensor(out, part.contiguous(), group=group)
    return out


def own(grad: Tensor, group: Any) -> Tensor:
    return grad.chunk(size_of(group))[dist.get_rank(group)]


def scattered(grad: Tensor, group: Any) -> Tensor:
    out = grad.new_empty(grad.shape[0] // size_of(group), *grad.shape[1:])
    dist.reduce_scatter_tensor(out, grad.contiguous(), group=group)
    return out


def reduced(grad: Tensor, group: Any) -> Tensor:
    grad = grad.contiguous().clone()
    dist.all_reduce(grad, group=group)
    return own(grad, group)


Own, Scattered, Reduced = (function_of(whole, back) for back in (own, scattered, reduced))


# === Rewritten ==================================================================================================


def lists_gathered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Halves in the order of the document, from lists."""
    rows = []
    for part in shards(x, cu, group):
        sent = part.detach().contiguous()
        got = [torch.empty_like(sent) for _ in range(size_of(group))]
        dist.all_gather(got, sent, group=group)
        halves = [one.chunk(2) for one in got]
        rows.append(torch.cat([h[0] for h in halves] + [h[1] for h in reversed(halves)]))
    return torch.cat(rows)


def gathered_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    works, rows = [], []
    for part in shards(x, cu, group):
        sent = part.detach().contiguous()
        row = sent.new_empty(sent.shape[0] * size_of(group), sent.shape[1])
        works.append(dist.all_gather_into_tensor(row, sent, group=group, async_op=True))
        rows.append(row)
    for work in works:
        work.wait()
    return torch.cat([unzigzag(row, size_of(group)) for row in rows])


def own_gradient(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The backward is a rank's own part of its gradient, as in xtuner."""
    return torch.cat([unzigzag(Own(part, group), size_of(group)) for part in shards(x, cu, group)])


def gradient_scattered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The backward is a reduce-scatter, as in megatron-core; two tensors, in pieces of the ranks."""
    rows = []
    for part in shards(x, cu, group):
        one, other = part.chunk(2, -1)
        rows.append(torch.cat([Scattered(one, group), Scattered(other, group)], -1))
    return torch.cat(rows)


def gradient_reduced(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The backward sums all gradients, and takes the own part, as in NeMo-RL."""
    return torch.cat([unzigzag(Reduced(part, group), size_of(group)).relu() for part in shards(x, cu, group)])


def functional(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rows = [funcol.all_gather_tensor(part.detach(), gather_dim=0, group=group) for part in shards(x, cu, group)]
    return torch.cat(rows) * 1


def own_columns(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Everything is gathered, and every rank keeps columns of its own."""
    cp, rank, rows = size_of(group), dist.get_rank(group), []
    width = x.shape[1] // cp
    for part in shards(x, cu, group):
        mine = slice(rank * width, (rank + 1) * width)
        rows.append(unzigzag(whole(part.detach(), group), cp)[:, mine])
    return torch.cat(rows)


def gathered_and_exchanged(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """An all-gather beside an all-to-all."""
    rows = []
    for part in shards(x, cu, group):
        everything = unzigzag(Scattered(part, group), size_of(group))
        rows.append(torch.cat([everything, gathered(part, group)], -1))
    return torch.cat(rows)


# === Left alone =================================================================================================


def _through(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        return torch.cat([unzigzag(function(part, group), size_of(group)) for part in shards(x, cu, group)])

    return program


def _next(grad: Tensor, group: Any) -> Tensor:
    return grad.chunk(size_of(group))[(dist.get_rank(group) + 1) % size_of(group)]


def _halved(grad: Tensor, group: Any) -> Tensor:
    return scattered(grad, group) / 2


def _largest(grad: Tensor, group: Any) -> Tensor:
    grad = grad.contiguous().clone()
    dist.all_reduce(grad, op=dist.ReduceOp.MAX, group=group)
    return own(grad, group)


next_gradient, halved_gradient, largest_gradient = (_through(function_of(whole, b)) for b in (_next, _halved, _largest))
next_gradient.__name__, halved_gradient.__name__ = "next_gradient", "halved_gradient"
largest_gradient.__name__ = "largest_gradient"


def two_gradients(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rows = []
    for part in shards(x, cu, group):
        one, other = part.chunk(2, -1)
        rows.append(torch.cat([Own(one, group), Scattered(other, group)], -1))
    return torch.cat(rows)


def changed_when_gathered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rows = []
    for part in shards(x, cu, group):
        row = whole(part.detach(), group)
        row += 1
        rows.append(unzigzag(row, size_of(group)))
    return torch.cat(rows)
