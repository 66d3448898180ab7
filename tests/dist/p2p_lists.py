"""Messages of all documents in a list, which are sent, or waited for, behind the loop; slots that are cut out of the
row by their numbers; and what else goes over documents in more loops than one.

Each program is ``f(x, cu, group)`` for x ``[T / cp, F]``, of shards of one piece but for ``ZIGZAGS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp

from tests.dist.p2p_pieces import shards
from tests.dist.p2p_programs import neighbours
from tests.dist.p2p_wide import depthwise

Program = Callable[[Tensor, Tensor, Any], Tensor]


def ops_of(document: Tensor, got: Tensor, group: Any) -> list[P2POp]:
    """The first slot goes to the rank before; ``got`` is that of the next one."""
    rank, cp, previous, following = neighbours(group)
    ops = [P2POp(dist.isend, document[:1].contiguous(), previous, group)] if rank else []
    return ops + ([P2POp(dist.irecv, got, following, group)] if rank < cp - 1 else [])


def start(x: Tensor, cu: Tensor, group: Any, fill: float = 0) -> tuple[list[P2POp], list[Tensor]]:
    ops, received = [], []
    for part in shards(cu, group):
        got = torch.full_like(x[part][:1], fill)
        ops += ops_of(x[part], got, group)
        received.append(got)
    return ops, received


def wait(ops: list[P2POp]) -> None:
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def finish(x: Tensor, cu: Tensor, group: Any, received: list[Tensor]) -> Tensor:
    return torch.cat([torch.cat([x[p][1:], got]) for p, got in zip(shards(cu, group), received, strict=True)])


def all_ops(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, received = start(x, cu, group, -100)
    wait(ops)
    return finish(x, cu, group, received)


def all_requests(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    requests, received = [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        if rank:
            requests.append(dist.isend(x[part][:1].contiguous(), previous, group))
        if rank < cp - 1:
            requests.append(dist.irecv(got, following, group))
        received.append(got)
    for request in requests:
        request.wait()
    return finish(x, cu, group, received)


def two_fields(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A list for every field, over two depths: what comes of both is as long."""
    left, right, out = x, x * 2, []
    for _ in range(2):
        some, others = [], []
        for part in shards(cu, group):
            for field, fill, rolled in ((left, 0.0, some), (right, -100.0, others)):
                got = torch.full_like(field[part][:1], fill)
                ops = ops_of(field[part], got, group)
                for work in dist.batch_isend_irecv(ops) if ops else []:
                    work.wait()
                rolled.append(torch.cat([field[part][1:], got]))
        left, right = torch.cat(some), torch.cat(others)
        out.append(left + right)
    return torch.stack(out)


def two_lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """All that is sent, then all that is received, by comprehensions."""
    rank, cp, previous, following = neighbours(group)
    parts = shards(cu, group)
    received = [torch.zeros_like(x[part][:1]) for part in parts]
    ops = []
    if rank:
        ops += [P2POp(dist.isend, x[part][:1].contiguous(), previous, group) for part in parts]
    if rank < cp - 1:
        ops += [P2POp(dist.irecv, got, following, group) for got in received]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    return torch.cat([torch.cat([x[part][1:], got]) for part, got in zip(parts, received, strict=True)])


def by_number(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The lists are there before the messages are."""
    parts = shards(cu, group)
    firsts = [x[part][:1].contiguous() for part in parts]
    received = [torch.zeros_like(first) for first in firsts]
    ops = []
    for i, first in enumerate(firsts):
        ops.extend(ops_of(first, received[i], group))
    works = dist.batch_isend_irecv(ops)
    [work.wait() for work in works]
    return torch.cat([torch.cat([x[part][1:], received[i]]) for i, part in enumerate(parts)])


def rows_of_works(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    pending, outs = [], []
    for part in shards(cu, group):
        document = x[part]
        got = torch.zeros_like(document[:1])
        pending.append((document, got, dist.batch_isend_irecv(ops_of(document, got, group))))
    for document, got, works in pending:
        for work in works:
            work.wait()
        outs.append(torch.cat([document[1:], got]))
    return torch.cat(outs)


def dicts_of_works(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    pending = []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        pending.append({"got": got, "works": dist.batch_isend_irecv(ops_of(x[part], got, group))})
    outs = []
    for part, entry in zip(shards(cu, group), pending, strict=True):
        for work in entry["works"]:
            work.wait()
        outs.append(torch.cat([x[part][1:], entry["got"]]))
    return torch.cat(outs)


def lists_of_works(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    works, received, outs = [], [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        works.append(dist.batch_isend_irecv(ops_of(x[part], got, group)))
        received.append(got)
    for i, part in enumerate(shards(cu, group)):
        for work in works[i]:
            work.wait()
        outs.append(torch.cat([x[part][1:], received[i]]))
    return torch.cat(outs)


def in_loops_of_their_own(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    received = []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        wait(ops_of(x[part], got, group))
        received.append(got)
    return finish(x, cu, group, received)


def filled_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, _, _ = neighbours(group)
    ops, received = start(x, cu, group)
    if len(ops) > 0:
        wait(ops)
    for got in received:
        if rank == cp - 1:
            got.fill_(9)
    return finish(x, cu, group, received)


def convolved(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Halos of three slots, in a list of their own."""
    rank, cp, previous, following = neighbours(group)
    requests, halos = [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:3])
        if rank < cp - 1:
            requests.append(dist.isend(x[part][-3:].contiguous(), following, group))
        if rank:
            requests.append(dist.irecv(got, previous, group))
        halos.append(got)
    for request in requests:
        request.wait()
    return torch.cat(
        [depthwise(torch.cat([halo, x[part]]), 4) for halo, part in zip(halos, shards(cu, group), strict=True)]
    )


def doubled(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What comes is computed with in a loop behind."""
    ops, received = start(x, cu, group)
    wait(ops)
    return finish(x, cu, group, [got * 2 for got in received])


def of_a_ring(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The last rank receives from the first one, and puts something else in its place."""
    rank, cp, previous, following = neighbours(group)
    ops, received = [], []
    for part in shards(cu, group):
        got = torch.empty_like(x[part][:1])
        ops += [P2POp(dist.isend, x[part][:1].contiguous(), previous, group), P2POp(dist.irecv, got, following, group)]
        received.append(got)
    wait(ops)
    if rank == cp - 1:
        received = [torch.full_like(got, 7) for got in received]
    return finish(x, cu, group, received)


def one_row_after_the_other(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Each with lists of its own."""
    outs = []
    for row in (x, x * 3):
        ops, received = start(row, cu, group)
        wait(ops)
        outs.append(finish(row, cu, group, received))
    return torch.cat(outs)


def one_depth_after_the_other(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = [x]
    for _ in range(2):
        ops, received = start(outs[-1], cu, group)
        wait(ops)
        outs.append(finish(outs[-1], cu, group, received))
    return torch.cat(outs)


def zigzag_ops(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    ops, received, outs = [], [], []
    for part in shards(cu, group):
        front, back = x[part].chunk(2)
        of_front, of_back = torch.zeros_like(front[:1]), torch.zeros_like(back[:1])
        if rank:
            ops.append(P2POp(dist.isend, front[:1].contiguous(), previous, group))
            ops.append(P2POp(dist.irecv, of_back, previous, group))
        if rank < cp - 1:
            ops.append(P2POp(dist.isend, back[:1].contiguous(), following, group))
            ops.append(P2POp(dist.irecv, of_front, following, group))
        else:
            of_front.copy_(back[:1])
        received.append((of_front, of_back))
    wait(ops)
    for part, (of_front, of_back) in zip(shards(cu, group), received, strict=True):
        front, back = x[part].chunk(2)
        outs.append(torch.cat([front[1:], of_front, back[1:], of_back]))
    return torch.cat(outs)


# --- slots that are cut out of the row ----------------------------------------------------------------------------


def out_of_the_row(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        s, e = part.start, part.stop
        got = torch.zeros_like(x[s : s + 1])
        wait(ops_of(x[s : s + 1], got, group))
        outs.append(torch.cat([x[s + 1 : e], got]))
    return torch.cat(outs)


def without_the_empty(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in shards(cu, group):
        s, e = part.start, part.stop
        if s == e:
            continue
        got = torch.zeros_like(x[s : s + 1])
        wait(ops_of(x[s : s + 1], got, group))
        outs.append(torch.cat([x[s + 1 : e], got]))
    return torch.cat(outs)


def patched(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The whole row is rolled, and the last slots are set by hand; received straight into them."""
    rank, cp, _, _ = neighbours(group)
    out, ops = torch.roll(x, -1, 0), []
    for part in shards(cu, group):
        s, e = part.start, part.stop
        ops += ops_of(x[s : s + 1], out[e - 1 : e], group)
        if rank == cp - 1:
            out[e - 1] = 0
    wait(ops)
    return out


def patched_onwards(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    out = x.roll(1, 0)
    for part in shards(cu, group):
        s, e = part.start, part.stop
        got = torch.zeros_like(x[s])
        works = [dist.isend(x[e - 1].contiguous(), following, group)] if rank < cp - 1 else []
        works += [dist.irecv(got, previous, group)] if rank else []
        for work in works:
            work.wait()
        out[s] = got
    return out


def named(*programs: Program) -> dict[str, Program]:
    return {program.__name__: program for program in programs}


LISTS = named(
    all_ops, all_requests, two_lists, by_number, rows_of_works, lists_of_works, dicts_of_works,
    in_loops_of_their_own, filled_behind, doubled, of_a_ring, one_row_after_the_other,
    one_depth_after_the_other, without_the_empty, two_fields,
)  # fmt: skip
HALOS = named(convolved)
"""Documents have no fewer slots than three."""
ZIGZAGS = named(zigzag_ops)
FROM_THE_ROW = named(out_of_the_row, patched, patched_onwards)
"""A document without slots is an error, for its slots are another one's."""
REWRITTEN = LISTS | HALOS | ZIGZAGS | FROM_THE_ROW
