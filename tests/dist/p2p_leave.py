"""Loops with messages that are not a roll by one, or not only: they must run as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.p2p_parts import ends, roll
from tests.dist.p2p_programs import neighbours, requests


def _shards(cu: Tensor, i: int, cp: int) -> tuple[Any, Any]:
    return cu[i] // cp, cu[i + 1] // cp


def _ends(x: Tensor, cu: Tensor, group: Any, send: Callable[..., Any], **options: Any) -> Tensor:
    """The frame of most programs: ``send`` gives what goes before and behind for the two chunks of a document."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        a, b = x[..., s:e].chunk(2, -1)
        to_before, to_behind = send(a, b)
        end_a, end_b = torch.empty_like(to_behind), torch.zeros_like(to_before)
        works = []
        if rank:
            works += [dist.isend(to_before, before, group, **options), dist.irecv(end_b, before, group, **options)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group, **options), dist.isend(to_behind, behind, group, **options)]
        else:
            end_a = to_behind
        for work in works:
            work.wait()
        out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
    return out


def last_tokens(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Sends the wrong ends of the chunks."""
    return _ends(x, cu, group, lambda a, b: (a[..., -1:].clone(), b[..., -1:].clone()))


def swapped(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Sends the right tokens to the wrong neighbours."""
    return _ends(x, cu, group, lambda a, b: (b[..., :1].clone(), a[..., :1].clone()))


def changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Sends something else than tokens."""
    return _ends(x, cu, group, lambda a, b: (a[..., :1] + 1, b[..., :1] + 1))


def tagged(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _ends(x, cu, group, lambda a, b: (a[..., :1].clone(), b[..., :1].clone()), tag=3)


def twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Every slot is sent and received twice, the first time for nothing."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        a, b = x[..., s:e].chunk(2, -1)
        first_a, first_b = a[..., :1].clone(), b[..., :1].clone()
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        for _ in range(2):
            works = []
            if rank:
                works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
            if rank < cp - 1:
                works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
            for work in works:
                work.wait()
        if rank == cp - 1:
            end_a = first_b
        out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
    return out


def early(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Writes (the same value) to what is on its way."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        a, b = x[..., s:e].chunk(2, -1)
        first_a, first_b = a[..., :1].clone(), b[..., :1].clone()
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        works = []
        if rank:
            works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a = first_b
        first_a.copy_(first_a.clone())
        first_b.copy_(first_b.clone())
        for work in works:
            work.wait()
        out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
    return out


def crossed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two fields, sent in one order and received in the other: their slots come out swapped."""
    fields = (x, x + 1)
    outs = (x.clone(), x.clone())
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        works, sends, receives, ends = [], [], [], []
        for field in fields:
            a, b = field[..., s:e].chunk(2, -1)
            sends.append((a[..., :1].clone(), b[..., :1].clone()))
            ends.append((torch.empty_like(sends[-1][1]), torch.zeros_like(sends[-1][0])))
        receives = ends[::-1]
        for first_a, first_b in sends:
            if rank:
                works.append(dist.isend(first_a, before, group))
            if rank < cp - 1:
                works.append(dist.isend(first_b, behind, group))
        for end_a, end_b in receives:
            if rank:
                works.append(dist.irecv(end_b, before, group))
            if rank < cp - 1:
                works.append(dist.irecv(end_a, behind, group))
        for work in works:
            work.wait()
        for out, field, (end_a, end_b), (_, first_b) in zip(outs, fields, ends, sends, strict=True):
            a, b = field[..., s:e].chunk(2, -1)
            out[..., s:e] = torch.cat([a[..., 1:], end_a if rank < cp - 1 else first_b, b[..., 1:], end_b], -1)
    return torch.stack(outs)


def late(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The waits come after the loop."""
    rank, cp, before, behind = neighbours(group)
    out, works, kept = x.clone(), [], []
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        first = x[..., s:e][..., :1].clone()
        end = torch.zeros_like(first)
        kept += [first, end]
        if rank:
            works.append(dist.isend(first, before, group))
        if rank < cp - 1:
            works.append(dist.irecv(end, behind, group))
    for work in works:
        work.wait()
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        out[..., s:e][..., :1] = kept[2 * i + 1]
    return out


def unstacked_crosswise(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two fields in one message, taken out of it in the other order."""
    return _stacked(x, cu, group, slice(None, None, -1), 2)


def part_of_a_stack(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is received is larger than what is taken of it."""
    return _stacked(x, cu, group, slice(0, 2), 3)


def _stacked(x: Tensor, cu: Tensor, group: Any, order: slice, count: int) -> Tensor:
    fields = [x + k for k in range(count)]
    outs = [field.clone() for field in fields]
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        halves = [field[..., s:e].chunk(2, -1) for field in fields]
        first_a, first_b = (torch.stack([half[k][..., :1] for half in halves]) for k in (0, 1))
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        works = []
        if rank:
            works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a = torch.stack(first_b.unbind()[order])
        for work in works:
            work.wait()
        taken = zip(end_a.unbind()[order], end_b.unbind()[order], strict=True)
        for out, (a, b), (here, there) in zip(outs, halves, taken, strict=False):
            out[..., s:e] = torch.cat([a[..., 1:], here, b[..., 1:], there], -1)
    return torch.stack(outs)


def not_all(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """All documents but the last."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 2):
        s, e = _shards(cu, i, cp)
        a, b = x[..., s:e].chunk(2, -1)
        first_a, first_b = a[..., :1].clone(), b[..., :1].clone()
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        works = []
        if rank:
            works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a = first_b
        for work in works:
            work.wait()
        out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
    return out


def _each(x: Tensor, cu: Tensor, group: Any, document: Callable[[int], object]) -> Tensor:
    """A roll by one that also does something else for every document."""
    out = x.clone()
    rank, cp, before, behind = neighbours(group)
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, cp)
        a, b = x[..., s:e].chunk(2, -1)
        first_a, first_b = a[..., :1].clone(), b[..., :1].clone()
        end_a, end_b = torch.empty_like(first_b), torch.zeros_like(first_a)
        works = []
        if rank:
            works += [dist.isend(first_a, before, group), dist.irecv(end_b, before, group)]
        if rank < cp - 1:
            works += [dist.irecv(end_a, behind, group), dist.isend(first_b, behind, group)]
        else:
            end_a = first_b
        for work in works:
            work.wait()
        out[..., s:e] = torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1)
        document(i)
    return out


def counted(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A number is written in place, too."""
    count = torch.zeros((), dtype=torch.int64)
    return _each(x, cu, group, lambda i: count.add_(1)) + count


def erased(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Boundaries that the loop is done with are overwritten."""
    cu = cu.clone()
    return _each(x, cu, group, lambda i: cu[i].fill_(-1)) + cu.sum()


def _between(x: Tensor, ends: Tensor, group: Any) -> Tensor:
    """A function of its own: ranks remember of `_each` that torch runs it eagerly where it does what it does there."""
    out = x.clone()
    for i in range(len(ends) - 1):
        s, e = ends[i], ends[i + 1]
        out[..., s:e] = roll(x[..., s:e], group)
    return out


def rounded(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Boundaries of shards that are changed after they were computed from those of the row."""
    ends = cu // group.size()
    ends[:-1] = ends[1:].clone()
    return _between(x, ends, group)


def changed_in_place(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The rolled document is changed before it is stored: its memory is that of the roll."""
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, dist.get_world_size(group))
        rolled = roll(x[..., s:e], group)
        rolled += 1
        out[..., s:e] = rolled
    return out


def source_changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Each document changes those after it, once it is rolled."""
    x, parts = x.clone(), []
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, dist.get_world_size(group))
        parts.append(roll(x[..., s:e], group) * 2)
        x[..., e:] += 1
    return torch.cat(parts, -1)


def written_and_read(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Each document adds what the documents before it have left of the row."""
    out, parts = x.clone(), []
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, dist.get_world_size(group))
        out[..., s:e] = roll(x[..., s:e], group)
        parts.append(x[..., s:e] * out.sum())
    return torch.cat(parts, -1)


def received_changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is received is changed before it is put in its place."""
    parts = []
    for i in range(len(cu) - 1):
        s, e = _shards(cu, i, dist.get_world_size(group))
        a, b = x[..., s:e].chunk(2, -1)
        end_a, end_b = ends(a[..., :1].clone(), b[..., :1].clone(), group)
        end_b += 5
        parts.append(torch.cat([a[..., 1:], end_a, b[..., 1:], end_b], -1))
    return torch.cat(parts, -1)


def mixed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A roll, and messages outside of any loop."""
    out = requests(x, cu, group)
    _, _, before, behind = neighbours(group)
    first = out[..., :1].contiguous()
    end = torch.zeros_like(first)
    works = [dist.isend(first, behind, group), dist.irecv(end, before, group)]
    for work in works:
        work.wait()
    return torch.cat([out, end], -1)


# Programs that eager runs; the code of the refusal.
LEAVE: dict[str, tuple[Callable[..., Tensor], str]] = {
    "last tokens": (last_tokens, "not-a-roll"),
    "swapped": (swapped, "not-a-roll"),
    "changed": (changed, "no-rule"),
    "tagged": (tagged, "message-order"),
    "twice": (twice, "not-a-roll"),
    "early": (early, "message-wait"),
    "crossed": (crossed, "message-order"),
    "unstacked crosswise": (unstacked_crosswise, "message-order"),
    "part of a stack": (part_of_a_stack, "not-a-roll"),
    "late": (late, "list-use"),
    "changed in place": (changed_in_place, "no-rule"),
    "source changed": (source_changed, "no-rule"),
    "written and read": (written_and_read, "no-rule"),
    "received changed": (received_changed, "no-rule"),
    "not all": (not_all, "partial-coverage"),
    "counted": (counted, "no-rule"),
    "erased": (erased, "no-rule"),
}

BEHIND_A_BREAK: dict[str, Callable[..., Tensor]] = {"mixed": mixed, "rounded": rounded}
"""What stands in the way of one graph ends it in front of the loop, or behind it; the loop is rewritten by itself."""
