"""More slots than one of every document go to a neighbour: rolls by several, and halos of convolutions. Each program is
``f(x, cu, group)`` for x ``[T / cp, F]``, of shards of one piece but for ``ZIGZAGS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from tests.dist.p2p_halos import function_of
from tests.dist.p2p_pieces import shards
from tests.dist.p2p_programs import neighbours

Program = Callable[[Tensor, Tensor, Any], Tensor]


def before(document: Tensor, group: Any, width: int, fill: float = 0) -> Tensor:
    """The last slots of the rank before."""
    rank, cp, previous, following = neighbours(group)
    got = torch.full_like(document[:width], fill)
    works = [dist.isend(document[-width:].contiguous(), following, group)] if rank < cp - 1 else []
    works += [dist.irecv(got, previous, group)] if rank else []
    for work in works:
        work.wait()
    return got


def behind(document: Tensor, group: Any, width: int, fill: float = 0) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    got = torch.full_like(document[:width], fill)
    works = [dist.isend(document[:width].contiguous(), previous, group)] if rank else []
    works += [dist.irecv(got, following, group)] if rank < cp - 1 else []
    for work in works:
        work.wait()
    return got


def depthwise(x: Tensor, taps: int) -> Tensor:
    """[T, F] -> [T - taps + 1, F]"""
    weight = torch.linspace(-1, 1, x.shape[1] * taps, dtype=x.dtype).view(x.shape[1], 1, taps)
    return F.conv1d(x.t()[None], weight, groups=x.shape[1])[0].t()


# === Rewritten ==================================================================================================


def convolution(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The short convolution of a gated delta net."""
    return torch.cat([depthwise(torch.cat([before(x[p], group, 3), x[p]]), 4) for p in shards(cu, group)])


def both_sides(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        document = x[part]
        longer = torch.cat([before(document, group, 2, 1), document, behind(document, group, 2, 7)])
        outs.append(depthwise(longer, 5))
    return torch.cat(outs)


def by_hand(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        longer = torch.cat([before(x[part], group, 2), x[part]])
        outs.append(longer[2:] * 0.5 + longer[1:-1] * 0.25 + longer[:-2] * 0.125)
    return torch.cat(outs)


def of_computed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        document = torch.tanh(x[part]) * 2
        outs.append(depthwise(torch.cat([before(document, group, 2), document]), 3))
    return torch.cat(outs)


def padded_on_the_first(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The first rank pads, which receives nothing."""
    rank, cp, previous, following = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        work = dist.isend(document[-2:].contiguous(), following, group) if rank < cp - 1 else None
        if rank:
            got = torch.empty_like(document[:2])
            dist.recv(got, previous, group)
            longer = torch.cat([got, document])
        else:
            longer = F.pad(document, (0, 0, 2, 0), value=3)
        if work is not None:
            work.wait()
        outs.append(depthwise(longer, 3))
    return torch.cat(outs)


def one_slot(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        outs.append(x[part] + before(x[part], group, 1)[0].sin())
    return torch.cat(outs)


def two_rows(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Of two rows, each with a fill of its own."""
    rank, cp, previous, following = neighbours(group)
    y, outs = x.cos(), []
    for part in shards(cu, group):
        a, b = x[part], y[part]
        of_a, of_b = torch.full_like(a[:2], 3), torch.full_like(b[:2], 5)
        works = []
        if rank < cp - 1:
            works += [dist.isend(row[-2:].contiguous(), following, group) for row in (a, b)]
        if rank:
            works += [dist.irecv(got, previous, group) for got in (of_a, of_b)]
        for work in works:
            work.wait()
        outs.append(a + of_a.sum(0) + b * of_b.prod(0))
    return torch.cat(outs)


def given_sizes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """[F, T / cp], in a buffer of given sizes, by a batch of messages."""
    rank, cp, previous, following = neighbours(group)
    row, outs = x.t().contiguous(), []
    for part in shards(cu, group):
        document, got = row[:, part], row.new_zeros(x.shape[1], 2)
        ops = [dist.P2POp(dist.isend, document[:, -2:].contiguous(), following, group)] if rank < cp - 1 else []
        ops += [dist.P2POp(dist.irecv, got, previous, group)] if rank else []
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        outs.append(F.avg_pool1d(torch.cat([got, document], -1)[None], 3, 1)[0])
    return torch.cat(outs, -1).t()


def rolled_by_two(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([torch.cat([x[part][2:], behind(x[part], group, 2, -100)]) for part in shards(cu, group)])


def of_a_module(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """[1, F, slots], as modules of convolutions take them."""
    rank, cp, previous, following = neighbours(group)
    weight, outs = torch.linspace(-1, 1, x.shape[1] * 3, dtype=x.dtype).view(-1, 1, 3), []
    for part in shards(cu, group):
        document = x[part].t().unsqueeze(0)
        got = torch.zeros(1, x.shape[1], 2, dtype=x.dtype)
        works = [dist.irecv(got, previous, group)] if rank else []
        works += [dist.isend(document[..., -2:].contiguous(), following, group)] if rank < cp - 1 else []
        for work in works:
            work.wait()
        outs.append(F.silu(F.conv1d(torch.cat([got, document], -1), weight, groups=x.shape[1])).squeeze(0).t())
    return torch.cat(outs)


def depths(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A roll by one, and one by two of what that gives, each with a fill of its own."""
    outs, laid = [], []
    for part in shards(cu, group):
        outs.append(torch.cat([x[part][1:], behind(x[part], group, 1, 3)]))
    row = torch.cat(outs)
    for part in shards(cu, group):
        laid.append(torch.cat([row[part][2:], behind(row[part], group, 2, 5)]))
    return torch.cat(laid) * 2 + row


def of_more_than_it_needs(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Of two slots that come, the nearer one is used."""
    return torch.cat([torch.cat([before(x[part], group, 2, 4)[1:], x[part][:-1]]) for part in shards(cu, group)])


FromBefore = function_of(lambda x, group: before(x, group, 2), lambda g, group: behind(g.contiguous(), group, 2))


def with_gradient(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        longer = torch.cat([FromBefore(x[part][-2:], group), x[part]])
        outs.append(longer[2:] * 0.5 + longer[1:-1] * 0.25 + longer[:-2] * 0.125)
    return torch.cat(outs)


def convolved_with_gradient(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([
        depthwise(torch.cat([FromBefore(x[part][-2:], group), x[part]]), 3) for part in shards(cu, group)
    ])  # fmt: skip


def used_alone_as_well(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A rolled document, and the slots that were received for it."""
    outs = []
    for part in shards(cu, group):
        got = FromBefore(x[part][-2:], group)
        outs.append(torch.cat([got, x[part][:-2]]) + got.sum(0))
    return torch.cat(outs)


WIDE: dict[str, Program] = {
    program.__name__: program
    for program in (
        convolution, both_sides, by_hand, of_computed, padded_on_the_first, one_slot, two_rows, given_sizes,
        rolled_by_two, of_a_module, depths, of_more_than_it_needs,
    )
}  # fmt: skip
GRADIENTS: dict[str, Program] = {
    program.__name__: program for program in (with_gradient, convolved_with_gradient, used_alone_as_well)
}


def zigzag_by_two(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A roll by -2 of shards of two chunks."""
    rank, cp, previous, following = neighbours(group)
    outs = []
    for part in shards(cu, group):
        front, back = x[part].chunk(2)
        to_front, to_back = torch.zeros_like(front[:2]), torch.zeros_like(back[:2])
        works = []
        if rank:
            works += [dist.isend(front[:2].contiguous(), previous, group), dist.irecv(to_back, previous, group)]
        if rank < cp - 1:
            works += [dist.irecv(to_front, following, group), dist.isend(back[:2].contiguous(), following, group)]
        else:
            to_front = back[:2]
        for work in works:
            work.wait()
        outs.append(torch.cat([front[2:], to_front, back[2:], to_back]))
    return torch.cat(outs)


ZIGZAGS: dict[str, Program] = {"zigzag_by_two": zigzag_by_two}
WITH_EMPTY = ("by_hand", "rolled_by_two", "zigzag_by_two", "with_gradient", "depths", "of_more_than_it_needs")
"""Those that eager runs for documents without slots, too: a convolution raises."""


# === Left alone =================================================================================================


def _of_sent(sent: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor] = lambda got: got) -> Program:
    """Other slots than those at the end are sent, or what is received is changed."""

    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        rank, cp, previous, following = neighbours(group)
        outs = []
        for part in shards(cu, group):
            got = torch.zeros_like(x[part][:2])
            works = [dist.isend(sent(x[part]).contiguous(), following, group)] if rank < cp - 1 else []
            works += [dist.irecv(got, previous, group)] if rank else []
            for work in works:
                work.wait()
            outs.append(depthwise(torch.cat([after(got), x[part]]), 3))
        return torch.cat(outs)

    return program


def read_before_it_comes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    outs = []
    for part in shards(cu, group):
        got = torch.ones_like(x[part][:2])
        first = got.exp()
        works = [dist.isend(x[part][-2:].contiguous(), following, group)] if rank < cp - 1 else []
        works += [dist.irecv(got, previous, group)] if rank else []
        for work in works:
            work.wait()
        outs.append(x[part] + got.sum(0) + first.sum(0))
    return torch.cat(outs)


def of_the_document_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    last, outs = x[:2], []
    for part in shards(cu, group):
        got = before(x[part], group, 2)
        outs.append(x[part] + last.sum(0))
        last = got
    return torch.cat(outs)


def written_over(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    row = x.clone()
    for part in shards(cu, group):
        row[part] = row[part] + before(row[part], group, 2).sum(0)
    return row


def the_farther_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([torch.cat([before(x[part], group, 2, 4)[:1], x[part][:-1]]) for part in shards(cu, group)])


LEFT: dict[str, Program] = {
    "others than the last": _of_sent(lambda document: document[-3:-1]),
    "the first": _of_sent(lambda document: document[:2]),
    "doubled": _of_sent(lambda document: document[-2:] * 2),
    "turned round": _of_sent(lambda document: document[-2:].flip(0)),
    "changed in place": _of_sent(lambda document: document[-2:], lambda got: got.add_(1)),
    "read before it comes": read_before_it_comes,
    "of the document before": of_the_document_before,
    "written over": written_over,
}
DIFFER: dict[str, Program] = {"the farther one": the_farther_one}
"""What the first rank takes for a roll by one, and others for the slots beside it."""
