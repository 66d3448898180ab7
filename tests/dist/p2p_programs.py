"""Rolls of zigzag shards as people write them with point-to-point messages. Boundaries are those of the whole row."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Roll = Callable[[Tensor, Tensor, Any], Tensor]


def neighbours(group: Any) -> tuple[int, int, int, int]:
    """This rank and the number of ranks in the group, and the global ranks before and behind this one."""
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    ranks = dist.get_process_group_ranks(group)
    return rank, cp, ranks[(rank - 1) % cp], ranks[(rank + 1) % cp]


def requests(x: Tensor, cu: Tensor, group: Any, fill: float = 0) -> Tensor:
    """A list of requests and a loop of waits."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = cu[i] // cp, cu[i + 1] // cp
        a, b = out[..., s:e].clone().chunk(2, dim=-1)
        a, b = torch.roll(a, -1, -1), torch.roll(b, -1, -1)
        send_a, send_b = a[..., -1].contiguous(), b[..., -1].contiguous()
        fill_a, fill_b = torch.empty_like(send_a), torch.empty_like(send_b)
        works = []
        if rank != 0:
            works.append(dist.isend(send_a, before, group=group))
            works.append(dist.irecv(fill_b, before, group=group))
        else:
            fill_b.fill_(fill)
        if rank != cp - 1:
            works.append(dist.irecv(fill_a, behind, group=group))
            works.append(dist.isend(send_b, behind, group=group))
        else:
            fill_a.copy_(send_b)
        for work in works:
            work.wait()
        a[..., -1] = fill_a
        b[..., -1] = fill_b
        out[..., s:e] = torch.cat([a, b], dim=-1)
    return out


def batched(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """``batch_isend_irecv``; ``.item()`` bounds; another fill; results from slices."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for start, stop in pairwise(cu):
        s, e = start.item() // cp, stop.item() // cp
        mine = x[..., s:e]
        half = (e - s) // 2
        a, b = mine[..., :half], mine[..., half:]
        first_a, first_b = a[..., :1].contiguous(), b[..., :1].contiguous()
        next_a, next_b = torch.empty_like(first_a), torch.full_like(first_b, -100)
        ops = []
        if rank > 0:
            ops.append(dist.P2POp(dist.isend, first_a, before, group))
            ops.append(dist.P2POp(dist.irecv, next_b, before, group))
        if rank < cp - 1:
            ops.append(dist.P2POp(op=dist.irecv, tensor=next_a, peer=behind, group=group))
            ops.append(dist.P2POp(op=dist.isend, tensor=first_b, peer=behind, group=group))
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        if rank == cp - 1:
            next_a = first_b
        out[..., s:e] = torch.cat([a[..., 1:], next_a, b[..., 1:], next_b], -1)
    return out


def rightwards(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """By +1 along the first dimension: every token gets the one before it; the first one gets 7."""
    parts = []
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = cu[i] // cp, cu[i + 1] // cp
        a, b = x[s:e].chunk(2)
        last_a, last_b = a[-1:].clone(), b[-1:].clone()
        first_a, first_b = torch.full_like(last_a, 7), last_a
        works = []
        if rank != cp - 1:
            first_b = torch.empty_like(last_b)
            works += [dist.isend(last_a, group_dst=rank + 1, group=group), dist.irecv(first_b, behind, group)]
        if rank != 0:
            first_a = torch.empty_like(last_a)
            works += [dist.isend(last_b, before, group), dist.irecv(first_a, group_src=rank - 1, group=group)]
        for work in works:
            work.wait()
        parts.append(torch.cat((first_a, a[:-1], first_b, b[:-1])))
    return torch.cat(parts)


def around(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Around the document, by boundaries of the shards; empty documents are skipped; written in place."""
    rank, cp, before, behind = neighbours(group)
    local = cu // cp
    for i in range(1, len(local)):
        s, e = local[i - 1], local[i]
        if e == s:
            continue
        mine = x[..., s:e].clone()
        a, b = mine.narrow(-1, 0, (e - s) // 2), mine.narrow(-1, (e - s) // 2, (e - s) // 2)
        new_a, new_b = a.roll(-1, -1), b.roll(-1, -1)
        works = []
        if rank:
            works.append(dist.isend(a.select(-1, 0).contiguous(), before, group))
            end_b = a.new_empty(a.shape[:-1])
            works.append(dist.irecv(end_b, before, group))
        else:
            end_b = a[..., 0].clone()
        if rank < cp - 1:
            works.append(dist.isend(b.select(-1, 0).contiguous(), behind, group))
            end_a = a.new_empty(a.shape[:-1])
            works.append(dist.irecv(end_a, behind, group))
        else:
            end_a = b[..., 0].clone()
        [work.wait() for work in works]
        new_a.select(-1, -1).copy_(end_a)
        new_b[..., -1] = end_b
        x[..., s:e] = torch.cat((new_a, new_b), -1)
    return x


def wide(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A hidden state ``[T / cp, ...]`` into zeros: slots of no document become 0."""
    out = torch.zeros_like(x)
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = cu[i] // cp, cu[i + 1] // cp
        a, b = torch.chunk(x[s:e], 2, 0)
        out[s:e][: (e - s) // 2 - 1] = a[1:]
        out[s:e][(e - s) // 2 : -1] = b[1:]
        works = []
        if rank:
            works += [dist.isend(a[0].contiguous(), before, group), dist.irecv(out[s:e][-1], before, group)]
        if rank < cp - 1:
            end = torch.zeros_like(a[0])
            works += [dist.irecv(end, behind, group), dist.isend(b[0].contiguous(), behind, group)]
        for work in works:
            work.wait()
        out[s:e][(e - s) // 2 - 1] = end if rank < cp - 1 else b[0]
    return out


def depths(ids: Tensor, labels: Tensor, mask: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Three fields with three fills, in three depths of multi-token prediction; ``other`` is another chain of ids."""
    outs = []
    other = requests(ids, cu, group, 5)
    for _ in range(3):
        ids, labels, mask = requests(ids, cu, group), requests(labels, cu, group, -100), requests(mask, cu, group, 1.0)
        outs += [ids + 1, labels.clone(), mask, mask.sum()]
    return [*outs, requests(other, cu, group, 6)]


def other_documents(ids: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Boundaries that are copied, used, changed and used again: two exchanges."""
    cu = cu.clone()
    first = batched(ids, cu, group)
    cu[:-1] = cu[1:].clone()
    return [first, batched(ids, cu, group)]


def together(ids: Tensor, mask: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Two fields in one loop, the messages of one before those of the other."""
    outs = (ids.clone(), mask.clone())
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = cu[i] // cp, cu[i + 1] // cp
        for x in outs:
            a, b = x[..., s:e].clone().chunk(2, dim=-1)
            end_a, end_b = torch.empty_like(a[..., :1]), torch.zeros_like(b[..., :1])
            ops = []
            if rank > 0:
                ops.append(dist.P2POp(dist.isend, a[..., :1].contiguous(), before, group))
                ops.append(dist.P2POp(dist.irecv, end_b, before, group))
            if rank < cp - 1:
                ops.append(dist.P2POp(dist.irecv, end_a, behind, group))
                ops.append(dist.P2POp(dist.isend, b[..., :1].contiguous(), behind, group))
            else:
                end_a = b[..., :1]
            for request in dist.batch_isend_irecv(ops):
                request.wait()
            x[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
    return outs


def depths_into_zeros(ids: Tensor, labels: Tensor, cu: Tensor, group: Any) -> list[Tensor]:
    """Each depth in a row of its own, whose slots of no document are not those of the depth before."""
    outs: list[Tensor] = []
    rank, cp, before, behind = neighbours(group)
    for depth in range(3):
        rows = [torch.zeros_like(ids), torch.full_like(labels, depth)]
        for x, out, fill in zip((ids, labels), rows, (0, -100), strict=True):
            for i in range(len(cu) - 1):
                s, e = cu[i] // cp, cu[i + 1] // cp
                a, b = x[..., s:e].chunk(2, dim=-1)
                end_a, end_b = torch.full_like(a[..., :1], fill), torch.zeros_like(b[..., :1])
                works = []
                if rank > 0:
                    works.append(dist.isend(a[..., :1].contiguous(), before, group))
                    works.append(dist.irecv(end_b, before, group))
                if rank < cp - 1:
                    works.append(dist.irecv(end_a, behind, group))
                    works.append(dist.isend(b[..., :1].contiguous(), behind, group))
                for work in works:
                    work.wait()
                end_a = end_a if rank < cp - 1 else b[..., :1]
                end_b = end_b if rank else torch.full_like(end_b, fill)
                out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
        ids, labels = rows
        outs += rows
    return outs


# Rolls by name: shift, fill (None around the document), packed dimension, what slots of no document hold
# ("kept", "zero", or "none" where the result has no such slots).
ROLLS: dict[str, tuple[Roll, int, float | None, int, str]] = {
    "requests": (requests, -1, 0, -1, "kept"),
    "batched": (batched, -1, -100, -1, "kept"),
    "rightwards": (rightwards, 1, 7, 0, "none"),
    "around": (around, -1, None, -1, "kept"),
    "wide": (wide, -1, 0, 0, "zero"),
}
