"""Rolls of shards of one piece: each rank holds one of cp parts of every document, and needs one slot of a neighbour.

Each is ``f(x, cu, group)`` for x ``[T / cp]`` or ``[T / cp, F]``; boundaries are those of the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.p2p_programs import neighbours


def shards(cu: Tensor, group: Any) -> list[slice]:
    return [slice(s, e) for s, e in pairwise((cu // dist.get_world_size(group)).tolist())]


def roll(document: Tensor, group: Any, fill: float = 0, shift: int = -1) -> Tensor:
    rank, cp, before, behind = neighbours(group)
    end = torch.full_like(document[:1], fill)
    works: list[Any] = []
    if shift < 0:
        works += [dist.isend(document[:1].contiguous(), before, group)] if rank else []
        works += [dist.irecv(end, behind, group)] if rank < cp - 1 else []
    else:
        works += [dist.isend(document[-1:].contiguous(), behind, group)] if rank < cp - 1 else []
        works += [dist.irecv(end, before, group)] if rank else []
    for work in works:
        work.wait()
    return torch.cat([document[1:], end]) if shift < 0 else torch.cat([end, document[:-1]])


# === Rewritten ==================================================================================================


def leftwards(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    return [torch.cat([roll(x[part], group, -100) for part in shards(cu, group)])]


def rightwards(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    out = x.clone()
    for part in shards(cu, group):
        out[part] = roll(x[part], group, 7, 1)
    return [out]


def around_the_ring(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Everybody sends, and the last rank does not look at what it gets."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = torch.empty_like(document[:1])
        ops = [dist.P2POp(dist.isend, document[:1].contiguous(), before, group)]
        ops += [dist.P2POp(dist.irecv, end, behind, group)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        outs.append(torch.cat([document[1:], end if rank < cp - 1 else torch.full_like(end, -100)]))
    return [torch.cat(outs)]


def in_place(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """A roll around, whose last slot is written over."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        rolled, end = torch.roll(document, -1, 0), torch.empty_like(document[:1])
        if rank < cp - 1:
            dist.irecv(end, behind, group).wait()
        if rank:
            dist.isend(document[:1].clone(), before, group).wait()
        rolled[-1:] = end if rank < cp - 1 else 3
        outs.append(rolled)
    return [torch.cat(outs)]


def depths(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    outs: list[list[Tensor]] = [[], [], []]
    for part in shards(cu, group):
        rolled = x[part]
        for k, out in enumerate(outs):
            rolled = roll(rolled, group, -k)
            out.append(rolled)
    return [torch.cat(out) for out in outs]


def both_sides(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """A window of three, as a short convolution reads it."""
    return [torch.cat([roll(x[p], group, 0, 1) + 2 * x[p] + roll(x[p], group) for p in shards(cu, group)])]


def fields(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    outs: list[list[Tensor]] = [[], [], []]
    for part in shards(cu, group):
        outs[0].append(roll(x[part], group, -1))
        outs[1].append(roll(x[part], group, -2, 1))
        outs[2].append(roll((x[part] > 1).int(), group, 5))
    return [torch.cat(out) for out in outs]


def computed(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """What is rolled is made of the document, on the rank that only receives as well."""
    outs = []
    for part in shards(cu, group):
        document = torch.where(x[part] > 0, x[part], 9)
        outs.append(roll(document, group, -100) * 3 - x[part])
    return [torch.cat(outs)]


def halo_in_front(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """One slot of the rank before stands in front of the document, which is computed with from there."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        halo = torch.zeros_like(document[:1])
        ops = [dist.P2POp(dist.irecv, halo, before, group)] if rank else []
        ops += [dist.P2POp(dist.isend, document[-1:].contiguous(), behind, group)] if rank < cp - 1 else []
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        longer = torch.cat([halo, document])
        outs.append(longer[1:] * 2 - longer[:-1])
    return [torch.cat(outs)]


def halo_behind(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    rank, cp, before, behind = neighbours(group)
    out = torch.zeros_like(x)
    for part in shards(cu, group):
        document = x[part]
        halo = torch.zeros_like(document[:1])
        works = [dist.isend(document[:1].contiguous(), before, group)] if rank else []
        works += [dist.irecv(halo, behind, group)] if rank < cp - 1 else []
        for work in works:
            work.wait()
        longer = torch.cat([document, halo])
        out[part] = longer[: document.shape[0]] * longer[1:] + 1
    return [out]


def into_one_slot(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """What is received is one slot, whatever the document is."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = torch.full((1,), -100, dtype=x.dtype)
        if rank:
            dist.send(document[:1].clone(), before, group=group)
        if rank < cp - 1:
            dist.recv(end, behind, group=group)
        outs.append(torch.cat([document[1:], end]))
    return [torch.cat(outs)]


def depths_in_turn(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The documents of a depth are put together before the next one is rolled, with another fill of its own."""
    outs = []
    for fill in (-100, 3, -100):
        x = torch.cat([roll(x[part], group, fill) for part in shards(cu, group)])
        outs.append(x)
    return outs


def parts_of_a_split(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Two rows are split by the lengths of shards, and a document goes along with what its slots have become."""
    y, out, more = x * 2, [], []
    rows = (row.split((cu.diff() // dist.get_world_size(group)).tolist()) for row in (x, y))
    for part, other in zip(*rows, strict=True):
        out.append(part * 2 + roll(part, group, 3, 1))
        more.append(roll(other, group, -100))
    return [torch.cat(out), torch.cat(more)]


PIECES: dict[str, Callable[..., list[Tensor]]] = {
    program.__name__: program
    for program in (
        *(leftwards, rightwards, around_the_ring, in_place, depths, both_sides, fields, computed),
        *(halo_in_front, halo_behind, into_one_slot, depths_in_turn, parts_of_a_split),
    )
}


# === Messages in another order ==================================================================================


def crossed(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Two tensors are sent, and asked for in the other order: messages pair up as they come."""
    rank, cp, before, behind = neighbours(group)
    outs: list[list[Tensor]] = [[], []]
    for part in shards(cu, group):
        one, other = x[part], x[part] * 2 + 1
        ends = [torch.zeros_like(document[:1]) for document in (one, other)]
        works: list[Any] = []
        if rank:
            works += [dist.isend(document[:1].contiguous(), before, group) for document in (one, other)]
        if rank < cp - 1:
            works += [dist.irecv(end, behind, group) for end in ends[::-1]]
        for work in works:
            work.wait()
        for out, document, end in zip(outs, (one, other), ends, strict=True):
            out.append(torch.cat([document[1:], end]))
    return [torch.cat(out) for out in outs]


def turned(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The same, where every other rank goes through its tensors from the last one on."""
    rank, _, _, _ = neighbours(group)
    outs: list[list[Tensor]] = [[], []]
    for part in shards(cu, group):
        documents = (x[part], x[part] * 2 + 1)
        rolled: list[Any] = [None, None]
        for k in (1, 0) if rank % 2 else (0, 1):
            rolled[k] = roll(documents[k], group)
        for out, document in zip(outs, rolled, strict=True):
            out.append(document)
    return [torch.cat(out) for out in outs]


ORDERS: dict[str, Callable[..., list[Tensor]]] = {program.__name__: program for program in (crossed, turned)}
"""Programs of two tensors whose messages do not pair up as the tensors do."""


# === Left as they are ===========================================================================================


def other_end(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The neighbour gets the last slot, where the first one would follow its own."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = torch.zeros_like(document[:1])
        works: list[Any] = []
        works += [dist.isend(document[-1:].contiguous(), before, group)] if rank else []
        works += [dist.irecv(end, behind, group)] if rank < cp - 1 else []
        for work in works:
            work.wait()
        outs.append(torch.cat([document[1:], end]))
    return [torch.cat(outs)]


def wraps(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Around the document: the last rank has the first token at its end."""
    _, _, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = torch.zeros_like(document[:1])
        for work in [dist.isend(document[:1].contiguous(), before, group), dist.irecv(end, behind, group)]:
            work.wait()
        outs.append(torch.cat([document[1:], end]))
    return [torch.cat(outs)]


def wraps_parts_of_a_split(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The same of parts by lengths, and what is added to it."""
    _, cp, before, behind = neighbours(group)
    outs = []
    for part in x.split((cu.diff() // cp).tolist()):
        end = torch.zeros_like(part[:1])
        for work in [dist.isend(part[:1].contiguous(), before, group), dist.irecv(end, behind, group)]:
            work.wait()
        outs.append(torch.cat([part[1:], end]) + part)
    return [torch.cat(outs)]


def kept_end(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The last rank's last slot stays what it was."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = document[-1:].clone()
        works: list[Any] = []
        works += [dist.isend(document[:1].contiguous(), before, group)] if rank else []
        works += [dist.irecv(end, behind, group)] if rank < cp - 1 else []
        for work in works:
            work.wait()
        outs.append(torch.cat([document[1:], end]))
    return [torch.cat(outs)]


def one_slot_at_the_end(x: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """A document without slots has one on the last rank: nothing is sent of it, and nobody waits for anything."""
    rank, cp, before, behind = neighbours(group)
    outs = []
    for part in shards(cu, group):
        document = x[part]
        end = torch.full((1,), 5, dtype=x.dtype) if rank == cp - 1 else torch.zeros_like(document[:1])
        works: list[Any] = []
        works += [dist.isend(document[:1].contiguous(), before, group)] if rank else []
        works += [dist.irecv(end, behind, group)] if rank < cp - 1 else []
        for work in works:
            work.wait()
        outs.append(torch.cat([document[1:], end]))
    return [torch.cat(outs)]


LEFT: dict[str, Callable[..., list[Tensor]]] = {
    program.__name__: program
    for program in (other_end, wraps, wraps_parts_of_a_split, kept_end, one_slot_at_the_end)
}
"""Programs that eager runs, and that are rolls on some of the ranks: none is rewritten on any."""
