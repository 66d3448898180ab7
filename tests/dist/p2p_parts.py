"""Loops that roll their documents and do more with them: before they send, after they have received, in depths.

Each is ``f(ids, mask, cu, group)``; boundaries are those of the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.p2p_programs import neighbours


def ends(first_a: Tensor, first_b: Tensor, group: Any, fill: float = 0) -> tuple[Tensor, Tensor]:
    """The tokens behind the two chunks of a document, from those that begin them."""
    rank, cp, before, behind = neighbours(group)
    end_a, end_b = torch.empty_like(first_b), torch.full_like(first_a, fill)
    ops = []
    if rank > 0:
        ops += [dist.P2POp(dist.isend, first_a, before, group), dist.P2POp(dist.irecv, end_b, before, group)]
    if rank < cp - 1:
        ops += [dist.P2POp(dist.isend, first_b, behind, group), dist.P2POp(dist.irecv, end_a, behind, group)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return (end_a if rank < cp - 1 else first_b), end_b


def roll(document: Tensor, group: Any, fill: float = 0) -> Tensor:
    a, b = document.chunk(2, dim=-1)
    end_a, end_b = ends(a[..., :1].contiguous(), b[..., :1].contiguous(), group, fill)
    return torch.cat((a[..., 1:], end_a, b[..., 1:], end_b), -1)


def _shards(cu: Tensor, group: Any) -> list[slice]:
    cp = dist.get_world_size(group)
    return [slice(s // cp, e // cp) for s, e in pairwise(cu.tolist())]


def used(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The rolled document meets others, and a number per document."""
    outs, counts = [], []
    for i, part in enumerate(_shards(cu, group)):
        rolled = roll(ids[..., part], group, -100)
        outs.append(torch.where(mask[..., part] > 0, rolled, -rolled) * i)
        counts.append(mask[..., part].sum())
    return [torch.cat(outs, -1), torch.stack(counts)]


def written(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    out = ids.clone()
    for part in _shards(cu, group):
        out[..., part] = roll(ids[..., part], group) * 2 + ids[..., part]
    return [out]


def computed(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Another dtype, from two rows, and back."""
    outs = []
    for part in _shards(cu, group):
        document = torch.where(mask[..., part] > 0, ids[..., part], 0).to(torch.int32)
        outs.append(roll(document, group, 7).long() - ids[..., part])
    return [torch.cat(outs, -1)]


def two_depths(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Every depth of a document rolls the depth before, and is masked by the rolled mask."""
    depths: list[list[Tensor]] = [[], []]
    for part in _shards(cu, group):
        labels, here = ids[..., part], mask[..., part]
        for depth in depths:
            labels, here = roll(labels, group, -100), roll(here, group)
            depth.append(labels * (here > 0))
    return [torch.cat(parts, -1) for parts in depths]


def one_slot(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Slots without their dimension, which an index gives back; memory of the sizes of another tensor."""
    rank, cp, before, behind = neighbours(group)
    out = ids.clone()
    for part in _shards(cu, group):
        a, b = ids[..., part].chunk(2, -1)
        first_a, first_b = a[..., 0].clone(), b[..., 0].clone()
        end_a, end_b = first_b.new_empty(first_b.shape), torch.zeros(first_a.shape, dtype=first_a.dtype)
        works = []
        if rank:
            works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a.copy_(first_b)
        for work in works:
            work.wait()
        out[..., part] = torch.cat([a[..., 1:], end_a[..., None], b[..., 1:], end_b[:, None]], -1)
    return [out]


def stacked(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """The slots of two fields go in one message."""
    rank, cp, before, behind = neighbours(group)
    outs = [ids.clone(), mask.clone()]
    for start, stop in pairwise(cu):
        s, e = start.item() // cp, stop.item() // cp
        halves = [row[..., s:e].chunk(2, -1) for row in (ids, mask)]
        first_a = torch.stack([a[..., 0] for a, _ in halves])
        first_b = torch.stack([b[..., 0] for _, b in halves])
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        works = []
        if rank:
            works += [dist.irecv(end_b, before, group), dist.isend(first_a, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a = first_b.clone()
        for work in works:
            work.wait()
        for (a, b), out, here, there in zip(halves, outs, end_a, end_b.unbind(), strict=True):
            out[..., s:e] = torch.cat([a[..., 1:], here[..., None], b[..., 1:], there[..., None]], -1)
    return outs


def stacked_depths(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """A buffer of both chunks' slots, of which each is sent and received; every depth is written to its own row."""
    rank, cp, before, behind = neighbours(group)
    outs = [ids.clone(), ids.clone()]
    for part in _shards(cu, group):
        rolled = ids[..., part]
        for out in outs:
            a, b = rolled.chunk(2, -1)
            firsts = torch.stack([a[..., 0], b[..., 0]])
            ends = torch.zeros_like(firsts)
            if rank:
                works = [dist.irecv(ends[1], before, group), dist.isend(firsts[0].contiguous(), before, group)]
                [work.wait() for work in works]
            if rank < cp - 1:
                works = [dist.isend(firsts[1].contiguous(), behind, group), dist.irecv(ends[0], behind, group)]
                [work.wait() for work in works]
            else:
                ends[0] = firsts[1]
            rolled = torch.cat([a[..., 1:], ends[0][..., None], b[..., 1:], ends[1][..., None]], -1)
            out[..., part] = rolled
    return outs


PARTS: dict[str, Callable[..., list[Tensor]]] = {
    program.__name__: program for program in (used, written, computed, two_depths, one_slot, stacked, stacked_depths)
}


# === Gradients ==================================================================================================


def detached(x: Tensor, y: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is rolled passes no gradient on, and is used with what has one."""
    parts = []
    for part in _shards(cu, group):
        parts.append(roll(x[..., part].detach(), group) * roll(y.detach()[..., part], group))
    return torch.cat(parts, -1) * x * y


def detached_beside(x: Tensor, y: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is rolled is used as it is, too: without a gradient, where the row has one."""
    parts = []
    for part in _shards(cu, group):
        one = x[..., part].detach()
        parts.append(roll(one, group) * one + x[..., part] + y[..., part])
    return torch.cat(parts, -1)


def without_gradient(x: Tensor, y: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = x.detach().clone()
    with torch.no_grad():
        for part in _shards(cu, group):
            out[..., part] = roll(x[..., part], group)
    return out * x + y


def kept_gradient(x: Tensor, y: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Only what stays on its rank has a gradient."""
    return torch.cat([roll(x[..., part], group) for part in _shards(cu, group)], -1) * y


def sent_detached(x: Tensor, y: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is sent has no gradient, what stays has one, but for the slot between the last rank's chunks."""
    parts = []
    for part in _shards(cu, group):
        a, b = x[..., part].chunk(2, -1)
        end_a, end_b = ends(a[..., :1].detach().contiguous(), b[..., :1].detach().contiguous(), group)
        parts.append(torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1))
    return torch.cat(parts, -1) * y


GRADIENTS: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "detached": (detached, True),
    "detached beside": (detached_beside, True),
    "without gradient": (without_gradient, True),
    "kept gradient": (kept_gradient, False),
    "sent detached": (sent_detached, False),
}
"""Rows ``x`` and ``y`` that need gradients; is it one exchange, or left to eager, whose gradient no exchange has?"""


# === Into a buffer that is given ================================================================================


def kept(x: Tensor, out: Tensor, cu: Tensor, group: Any) -> Tensor:
    for s, e in pairwise(cu.tolist()):
        part = slice(s // 2, e // 2)
        out[..., part] = roll(x[..., part], group)
    return out * 2


def computed_and_kept(x: Tensor, out: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is sent is read in one part of the loop, and written over in another."""
    for s, e in pairwise(cu.tolist()):
        part = slice(s // 2, e // 2)
        out[..., part] = roll(torch.relu(x[..., part]), group)
    return out * 2


def used_and_kept(x: Tensor, out: Tensor, cu: Tensor, group: Any) -> Tensor:
    """And the document is read again after it was rolled."""
    for s, e in pairwise(cu.tolist()):
        part = slice(s // 2, e // 2)
        out[..., part] = roll(x[..., part], group) + x[..., part]
    return out * 2


def listed_and_kept(x: Tensor, out: Tensor, cu: Tensor, group: Any) -> Tensor:
    parts = []
    for s, e in pairwise(cu.tolist()):
        part = slice(s // 2, e // 2)
        rolled = roll(x[..., part], group)
        out[..., part] = rolled * 2
        parts.append(rolled + 1)
    return torch.cat(parts, -1)


def written_before_sent(x: Tensor, out: Tensor, cu: Tensor, group: Any) -> Tensor:
    parts = []
    for s, e in pairwise(cu.tolist()):
        part = slice(s // 2, e // 2)
        rectified = torch.relu(x[..., part])
        out[..., part] = x[..., part] * 2
        parts.append(roll(rectified, group))
    return torch.cat(parts, -1)


KEPT: dict[str, Callable[..., Tensor]] = {
    program.__name__: program
    for program in (kept, computed_and_kept, used_and_kept, listed_and_kept, written_before_sent)
}
