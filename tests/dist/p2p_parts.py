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


PARTS: dict[str, Callable[..., list[Tensor]]] = {
    program.__name__: program for program in (used, written, computed, two_depths, one_slot)
}


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
